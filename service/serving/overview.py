"""What an operator and a data scientist look at: the figures of a state, put together to be read.

Cheap enough to be asked for every two seconds: no spectrum of a head, no row of the log.
"""

from dataclasses import dataclass
from time import time
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from service.log.journal import Journal
from service.log.stores import Store
from service.observability.history import COLUMNS, History
from service.observability.telemetry import Telemetry
from service.security.access import Grant, granted
from service.serving.admin import find
from service.state.fold import State
from service.state.learner import Learner
from service.state.reward_statistics import RewardSums, interval, lead

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Order = Literal["arm", "impressions", "total", "mean"]


@dataclass(frozen=True, slots=True)
class Page:
    """Which arms, in what order, from where on. policy: None adds up all. match: in the id."""

    policy: str | None
    order: Order
    descending: bool
    match: str
    offset: int
    limit: int


class Overview:
    def __init__(
        self, journal: Journal, store: Store, telemetry: Telemetry, history: History
    ) -> None:
        self._journal, self._store = journal, store
        self._telemetry, self._history = telemetry, history

    # -- the process and its experiments -------------------------------------------------------

    def process(self, grant: Grant | None = None) -> dict[str, Any]:
        journal = self._journal
        return {
            "now": time(),
            "started": self._history.started,
            "degraded": journal.degraded,
            "behind": journal.behind,
            "lag_seconds": journal.lag_seconds,
            "processes": journal.presence.count,
            "waiting_decisions": journal.buffered,
            "experiments": [
                self._experiment(state)
                for name, state in journal.states.items()
                if granted(grant, name)
            ],
            "quarantined": [
                {"name": name, "position": each.position, "reason": each.reason}
                for name, each in journal.quarantined.items()
                if granted(grant, name)
            ],
        }

    def _experiment(self, state: State) -> dict[str, Any]:
        learners, tallies = state.learners.values(), state.reward_sums.values()
        count, total = sum(each.count for each in tallies), sum(each.total for each in tallies)
        return {
            "name": state.name,
            "revision": state.revision,
            "position": state.position,
            "recovered": self._journal.live[state.name].recovered,
            "snapshot_age_seconds": self._telemetry.snapshot_age(state.name),
            "arms": len(state.arms),
            "policies": [learner.name for learner in learners],
            "training_due": [learner.name for learner in learners if learner.training_due],
            "staged": [learner.name for learner in learners if learner.staged],
            "settled": count,
            "mean_reward": total / count if count else None,
        }

    async def experiment(self, state: State) -> dict[str, Any]:
        """decisions: None while the log is gone, which counts them."""
        counts = None
        if not self._journal.degraded:
            counts = await self._store.decision_counts(state.name)
        shares = sum(learner.settings.share for learner in state.learners.values())
        rules = state.definition.reward
        return {
            **self._experiment(state),
            "now": time(),
            "schema_version": state.schema_version,
            "reward": {
                "low": rules.range[0],
                "high": rules.range[1],
                "default": rules.default,
                "aggregation": rules.aggregation,
            },
            "figures": [
                {
                    **self._figures(state, learner, learner.settings.share / shares),
                    "decisions": None if counts is None else counts.get(learner.name, 0),
                }
                for learner in state.learners.values()
            ],
        }

    def _figures(self, state: State, learner: Learner, traffic: float) -> dict[str, Any]:
        name, rules = learner.name, state.definition.reward
        tally, watch = state.reward_sums[name], self._telemetry.watched.get((state.name, name))
        others = [(other, state.reward_sums[other]) for other in state.learners if other != name]
        return {
            "name": name,
            "kind": learner.settings.kind,
            "share": learner.settings.share,
            "traffic": traffic,
            "settled": tally.count,
            "total": tally.total,
            "squares": tally.squares,
            "mean_reward": tally.total / tally.count if tally.count else None,
            "mean_reward_interval": interval(tally, rules),
            "lead": lead(tally, others, rules),
            "propensity_mean": watch.propensity if watch else None,
            "propensity_minimum": watch.minimum if watch else None,
            "entropy_mean": watch.entropy if watch else None,
            "version": learner.active.number,
            "staged": learner.staged.version.number if learner.staged else None,
            "rewards": learner.rewards,
            "training_due": learner.training_due,
            "training_due_at": learner.training_due_at,
        }

    def history(self, state: State, step: int, after: float) -> dict[str, Any]:
        policies = []
        for name in state.learners:
            samples = self._history.samples(state.name, name, step, after)
            known = samples.astype(object)
            known[np.isnan(samples)] = None  # JSON has no NaN
            columns = dict(zip(COLUMNS, known.T.tolist(), strict=True))
            policies.append({"name": name, **columns})
        return {"step_seconds": step, "policies": policies}

    # -- arms ----------------------------------------------------------------------------------

    def arms(self, state: State, page: Page) -> dict[str, Any]:
        """Arms of the catalogue, and those that were shown and are retired. Raises NotFound."""
        chosen = list(state.arm_reward_sums)
        if page.policy is not None:
            chosen = [find(state, page.policy).name]
        tallies = [state.arm_reward_sums[policy] for policy in chosen]
        row_of = dict(zip(state.arms, range(len(state.arms)), strict=True))
        for tally in tallies:
            if not tally.rows.keys() <= row_of.keys():
                for arm in tally.rows:
                    row_of.setdefault(arm, len(row_of))
        ids, sums = list(row_of), np.zeros((3, len(row_of)))
        for tally in tallies:
            rows = np.fromiter(map(row_of.__getitem__, tally.rows), np.intp, len(tally.rows))
            sums[:, rows] += tally.columns()
        of_all = float(sums[0].sum())
        found = np.arange(len(ids))
        if sought := page.match.casefold():
            found = np.array([sought in arm.casefold() for arm in ids], dtype=bool).nonzero()[0]
        ordered = found[_order(page, ids, sums, found)]
        rules = state.definition.reward
        listed = []
        for row in ordered[page.offset : page.offset + page.limit].tolist():
            count, total, squares = sums[:, row].tolist()
            own = RewardSums(0, int(count), total, squares)
            listed.append(
                {
                    "arm": ids[row],
                    "active": ids[row] in state.arms,
                    "impressions": int(count),
                    "total": total,
                    "mean_reward": total / count if count else None,
                    "mean_reward_interval": interval(own, rules),
                    "share": count / of_all if of_all else 0.0,
                }
            )
        since = max((tally.begins for tally in tallies), default=0)
        return {"found": len(found), "since": since, "impressions": int(of_all), "arms": listed}

    # -- decisions -----------------------------------------------------------------------------

    def decisions(self, state: State, policy: str | None, limit: int) -> list[dict[str, Any]]:
        """The last ones of this process, the newest first. Raises NotFound."""
        if policy is not None:
            find(state, policy)
        found = []
        for name in state.learners:
            watch = self._telemetry.watched.get((state.name, name))
            if watch and policy in (None, name):
                found += [(at, id_, name, *rest) for id_, at, *rest in watch.recent]
        found.sort(reverse=True)
        names = "at", "id", "policy", "arm", "model_version", "shown", "candidates", "propensity"
        return [dict(zip(names, each, strict=True)) for each in found[:limit]]


def _order(page: Page, ids: list[str], sums: Array, found: Index) -> Index:
    """A permutation of the rows found. Arms that were never shown come last in either direction;
    equals by their place in the catalogue."""
    count, total, _ = sums[:, found]
    if page.order == "arm":
        names = sorted(range(len(found)), key=lambda place: ids[found[place]].casefold())
        return np.array(names[::-1] if page.descending else names, dtype=np.intp)
    key = {"impressions": count, "total": total, "mean": total / np.maximum(count, 1)}[page.order]
    return np.lexsort((-key if page.descending else key, count == 0))
