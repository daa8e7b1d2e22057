"""Figures of processes, experiments, policies and arms, for operators and data scientists.

All but the spectrum of a head (`policies`) are cheap enough to read every two seconds.
"""

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from service.bandits.heads import digest
from service.bandits.version import WIDE, Version
from service.clock import SYSTEM, Clock
from service.log.log import Log
from service.log.stores import Store
from service.manage.admin import find, find_folded
from service.security.access import Grant, granted
from service.state.decisions import series_of
from service.state.fold import State
from service.state.learner import Learner
from service.state.reward_statistics import RewardTotals, interval
from service.telemetry.history import SAMPLE_COLUMNS, History
from service.telemetry.metrics import Statistics, Telemetry

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Figures = dict[str, object]
Order = Literal["arm", "impressions", "total", "mean"]


@dataclass(frozen=True, slots=True)
class ArmPage:
    """A page of arms. policy: None adds up all; match: part of the id."""

    policy: str | None
    order: Order
    descending: bool
    match: str
    offset: int
    limit: int


class Overview:
    def __init__(
        self,
        log: Log,
        store: Store,
        telemetry: Telemetry,
        history: History,
        clock: Clock = SYSTEM,
    ) -> None:
        self._log, self._store, self._clock = log, store, clock
        self._telemetry, self._history = telemetry, history

    # -- the process and its experiments -------------------------------------------------------

    def process(self, grant: Grant | None = None) -> Figures:
        log = self._log
        return {
            "now": self._clock.time(),
            "started": self._history.started,
            "degraded": log.committer.degraded,
            "behind": log.behind,
            "lag_seconds": log.lag_seconds,
            "processes": log.presence.count,
            "waiting_decisions": log.committer.buffered,
            "experiments": [
                self._experiment(state)
                for name, state in log.replicas.states.items()
                if granted(grant, name)
            ],
            "quarantined": [
                {"name": name, "position": each.position, "reason": each.reason}
                for name, each in log.replicas.quarantined.items()
                if granted(grant, name)
            ],
        }

    def _experiment(self, state: State) -> Figures:
        learners, tallies = state.learners.values(), state.reward_sums.values()
        count, total = sum(each.count for each in tallies), sum(each.total for each in tallies)
        return {
            "name": state.name,
            "revision": state.revision,
            "position": state.position,
            "recovered": self._log.replicas.by_name[state.name].recovered,
            "snapshot_age_seconds": self._telemetry.snapshot_age(state.name),
            "arms": len(state.arms),
            "policies": [learner.name for learner in learners],
            "control": state.definition.control,
            "training_due": [learner.name for learner in learners if learner.training_due],
            "staged": [learner.name for learner in learners if learner.challenger],
            "settled": count,
            "mean_reward": total / count if count else None,
        }

    async def experiment(self, state: State) -> Figures:
        """Return an experiment's figures; no decisions while the log is gone."""
        counts = None if self._log.committer.degraded else await self._decided(state)
        rules, sums = state.definition.reward, state.reward_sums
        decided = await self._telemetry.statistics()
        changed = state.changelog.newest_notable()
        policies = []
        for name, learner in state.learners.items():
            own = sums[name]
            policies.append(
                {
                    **self._policy(state, learner, decided),
                    "decisions": None if counts is None else counts[name],
                    "traffic": state.traffic.chance(name),
                    "settled": own.count,
                    "total": own.total,
                    "squares": own.squares,
                }
            )
        return {
            **self._experiment(state),
            "now": self._clock.time(),
            "schema_version": state.schema_version,
            "last_change": changed and changed.position,
            "reward": {
                "low": rules.range[0],
                "high": rules.range[1],
                "default": rules.default,
                "aggregation": rules.aggregation,
                "examination": state.chances,
            },
            "figures": policies,
        }

    def _policy(self, state: State, learner: Learner, decided: Statistics) -> Figures:
        own = state.reward_sums.get(learner.name, RewardTotals(state.position))
        watch = decided.get((state.name, learner.name))
        sizes = self._telemetry.drift.reward_sizes(state, learner.name)
        return {
            "name": learner.name,
            "kind": learner.settings.kind,
            "share": state.traffic.given.get(learner.name, 0.0),
            "mean_reward": own.total / own.count if own.count else None,
            "mean_reward_interval": interval(own, state.definition.reward),
            "reward_warning": sizes.warning if sizes else None,
            "propensity_mean": watch.propensity if watch else None,
            "propensity_minimum": watch.minimum if watch else None,
            "entropy_mean": watch.entropy if watch else None,
            "version": learner.active.number,
            "staged": learner.challenger.version.number if learner.challenger else None,
            "rewards": learner.rewards,
            "training_due": learner.training_due,
            "training_due_at": learner.training_due_at,
        }

    async def policies(self, state: State, policy: str | None = None) -> list[Figures]:
        """Return the figures of one policy or shadow, or of all policies that can decide, with the
        health of their heads. Raises NotFound."""
        learners = [find_folded(state, policy)] if policy else state.learners.values()
        counts, decided = await self._decided(state), await self._telemetry.statistics()
        return [
            {
                **self._policy(state, learner, decided),
                "decisions": counts[learner.name],
                "model_version": f"{learner.name}/{learner.active.number}@{state.position}",
                "head": await _head(learner.active),
                "trained_to": learner.active.trained_to if learner.active.number else None,
                "versions": learner.history,
            }
            for learner in learners
        ]

    async def _decided(self, state: State) -> Counter[str]:
        """Count the logged decisions of each policy since the experiment was last deleted."""
        counts, versions = (await self._store.describe(state.name)).counts, state.schema_versions
        return Counter(
            {
                name: sum(counts.get(series_of(name, version), 0) for version in versions)
                for name in state.learners
            }
        )

    def history(self, state: State, step: int, after: float) -> Figures:
        policies = []
        for name in state.learners:
            samples = self._history.samples(state.name, name, step, after)
            known = samples.astype(object)
            known[np.isnan(samples)] = None  # JSON has no NaN
            columns = dict(zip(SAMPLE_COLUMNS, known.T.tolist(), strict=True))
            policies.append({"name": name, **columns})
        return {"step_seconds": step, "policies": policies}

    # -- arms ----------------------------------------------------------------------------------

    def arms(self, state: State, page: ArmPage) -> Figures:
        """Arms of the catalogue, and those that were shown and are retired. Raises NotFound."""
        if page.policy is None:
            by_policy = list(state.arm_reward_sums.values())
        else:
            by_policy = [state.arm_reward_sums[find(state, page.policy).name]]
        row_of = {arm: row for row, arm in enumerate(state.arms)}
        for shown in by_policy:
            if not shown.rows.keys() <= row_of.keys():
                for arm in shown.rows:
                    row_of.setdefault(arm, len(row_of))
        ids, sums = list(row_of), np.zeros((3, len(row_of)))
        for shown in by_policy:
            rows = np.fromiter(map(row_of.__getitem__, shown.rows), np.intp, len(shown.rows))
            sums[:, rows] += shown.columns()
        found = np.arange(len(ids))
        if match := page.match.casefold():
            found = np.array([match in arm.casefold() for arm in ids], dtype=bool).nonzero()[0]
        ordered = found[_order(page, ids, sums, found)]
        impressions, rules, arms = float(sums[0].sum()), state.definition.reward, []
        for row in ordered[page.offset : page.offset + page.limit].tolist():
            count, total, squares = sums[:, row].tolist()
            own = RewardTotals(0, int(count), total, squares)
            arms.append(
                {
                    "arm": ids[row],
                    "active": ids[row] in state.arms,
                    "impressions": int(count),
                    "total": total,
                    "mean_reward": total / count if count else None,
                    "mean_reward_interval": interval(own, rules),
                    "share": count / impressions if impressions else 0.0,
                }
            )
        return {
            "found": len(found),
            "since": max((shown.begins for shown in by_policy), default=0),
            "impressions": int(impressions),
            "arms": arms,
        }

    # -- decisions -----------------------------------------------------------------------------

    async def decisions(self, state: State, policy: str | None, limit: int) -> list[Figures]:
        """Return the last decisions of this service, newest first. Raises NotFound."""
        if policy is not None:
            find(state, policy)
        decided, found = await self._telemetry.statistics(), []
        for name in state.learners:
            watch = decided.get((state.name, name))
            if watch and policy in (None, name):
                found += [(at, id_, name, *rest) for id_, at, *rest in watch.recent]
        found.sort(reverse=True)
        names = "at", "id", "policy", "arm", "model_version", "shown", "candidates", "propensity"
        return [dict(zip(names, each, strict=True)) for each in found[:limit]]


async def _head(version: Version) -> Figures | None:
    """Return the health of a wide head from a thread: its spectrum takes seconds. None: there is no
    head, or it is no number."""
    if version.head is None:
        return None
    if version.columns > WIDE:
        health = await asyncio.to_thread(version.with_copied_head().health)
    else:
        health = version.health()
    if health is None:
        return None
    return {**asdict(health), "digest": digest(version.head)}


def _order(page: ArmPage, ids: list[str], sums: Array, found: Index) -> Index:
    """Return a permutation of the found rows. Arms that were never shown come last in either
    direction, equal ones in the order of the catalogue."""
    count, total, _ = sums[:, found]
    if page.order == "arm":
        names = sorted(range(len(found)), key=lambda place: ids[found[place]].casefold())
        return np.array(names[::-1] if page.descending else names, dtype=np.intp)
    key = {"impressions": count, "total": total, "mean": total / np.maximum(count, 1)}[page.order]
    return np.lexsort((-key if page.descending else key, count == 0))
