"""What an experiment was over its log: its definitions, and since when each policy is as it is."""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

import numpy as np
import numpy.typing as npt

from service.definition.experiment import Definition
from service.state.events import (
    AnyEvent,
    ExperimentDefined,
    ExperimentDeleted,
    PolicyReset,
)
from service.state.traffic import Traffic, TrafficEvent

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Start:
    """Start of present settings, of a policy or a rule: a position of the log, and unix seconds."""

    position: int
    at: float


@dataclass(frozen=True)
class DefinitionSpan:
    """A definition, with the shares of the traffic and without the catalogue, that held from a
    position of the log on, and from unix seconds.

    versions   chances of versions that are rolled out, within their policies, by policy
    """

    position: int
    at: float
    schema_version: int
    definition: Definition
    versions: Mapping[str, float] = field(default_factory=dict)


class Definitions:
    """Definitions since the experiment was last deleted, if it was, and the resets of policies.

    traffic        of now; None: there is no definition
    first_schema   version of the schema of the first of these
    """

    def __init__(self) -> None:
        self._held: list[DefinitionSpan] = []
        self.traffic: Traffic | None = None
        self._resets: list[tuple[str, Start]] = []
        self.first_schema = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def latest(self) -> Definition:
        return self._held[-1].definition

    def at(self, position: int) -> DefinitionSpan | None:
        """Return the definition that held at a position; None: it was before the first of these."""
        place = bisect_right(self._held, position, key=lambda each: each.position)
        return self._held[place - 1] if place else None

    @property
    def since(self) -> int:
        """The position of the first of these."""
        return self._held[0].position

    @property
    def default(self) -> float | None:
        """The reward of a decision that got none; None: its outcome is unknown."""
        return self.latest.reward.default if self._held else None

    @property
    def policies(self) -> set[str]:
        """The names of all policies that ever were in them."""
        return {name for each in self._held for name in each.definition.policies}

    def take(self, position: int, event: AnyEvent) -> None:
        """Take in an event, in log order."""
        if isinstance(event, ExperimentDefined):
            definition = Definition.model_validate(event.definition)
            before = self.latest if self._held else None
            traffic = (self.traffic or Traffic({})).defined(position, definition, before)
            self.add(DefinitionSpan(position, event.at, event.schema_version, definition), traffic)
        elif isinstance(event, ExperimentDeleted):
            self._held.clear()
            self.traffic = None
        elif isinstance(event, TrafficEvent) and self.traffic is not None:
            version, traffic = self._held[-1].schema_version, self.traffic.after(position, event)
            self.add(DefinitionSpan(position, event.at, version, self.latest), traffic)
        elif isinstance(event, PolicyReset):
            self._resets.append((event.policy, Start(position, event.at)))

    def add(self, defined: DefinitionSpan, traffic: Traffic) -> None:
        """Take in a definition that is newer than those known, with the traffic under it."""
        if not self._held:
            self.first_schema = defined.schema_version
        elif defined.position <= self._held[-1].position:
            return
        definition = defined.definition.with_shares(traffic.shares)
        definition = definition.model_copy(update={"arms": {}})
        versions = {name: traffic.version_share(name) for name in definition.serving}
        versions = {name: share for name, share in versions.items() if share}
        self._held.append(replace(defined, definition=definition, versions=versions))
        self.traffic = traffic

    def dump(self) -> dict[str, object]:
        """Return all that was taken in, as JSON has it. `restored` is the inverse."""
        return {
            "held": [
                {
                    "position": each.position,
                    "at": each.at,
                    "schema_version": each.schema_version,
                    "definition": each.definition.model_dump(mode="json"),
                    "versions": {**each.versions},
                }
                for each in self._held
            ],
            "resets": [(policy, start.position, start.at) for policy, start in self._resets],
            "first_schema": self.first_schema,
            "traffic": self.traffic and self.traffic.members(),
        }

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> "Definitions":
        found = cls()
        for each in kept["held"]:
            definition = Definition.model_validate(each["definition"])
            found._held.append(DefinitionSpan(**{**each, "definition": definition}))
        found._resets = [(policy, Start(position, at)) for policy, position, at in kept["resets"]]
        found.first_schema = kept["first_schema"]
        found.traffic = kept["traffic"] and Traffic.restore(kept["traffic"])
        return found

    def shares(self, names: set[str], positions: npt.NDArray[np.int64]) -> Array:
        """Return the chance that one of these policies is drawn, at each position (n,)."""
        chances = list[float]()
        for each in self._held:
            shares = {name: policy.share for name, policy in each.definition.policies.items()}
            chances.append(sum(shares.get(name, 0.0) for name in names) / sum(shares.values()))
        return np.array(chances)[self._places(positions)]

    def version_shares(self, policy: str, positions: npt.NDArray[np.int64]) -> Array:
        """Return the chance of the version of a policy that is rolled out, within the policy, at
        each position (n,)."""
        chances = [each.versions.get(policy, 0.0) for each in self._held]
        return np.array(chances)[self._places(positions)]

    def _places(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the place of the definition that held at each position (n,)."""
        return np.searchsorted([each.position for each in self._held], positions, "right") - 1

    def starts(self) -> dict[str, Start]:
        """Return where each policy with a share, and each shadow, began as it is now: when it got
        its share, at the last change of another of its settings, of the features or of the reward
        rules, or at its last reset."""
        starts, before = dict[str, Start](), None
        for each in self._held:
            rules, policies = each.definition.reward, each.definition.policies
            for name, policy in policies.items():
                same = (
                    before is not None
                    and name in starts
                    and (each.schema_version, rules)
                    == (before.schema_version, before.definition.reward)
                    and policy.model_copy(update={"share": 0.0})
                    == before.definition.policies[name].model_copy(update={"share": 0.0})
                )
                if not same:
                    starts[name] = Start(each.position, each.at)
            starts = {
                name: start
                for name, start in starts.items()
                if name in policies and (policies[name].share or policies[name].shadow)
            }
            before = each
        for name, reset in self._resets:
            if name in starts and reset.position > starts[name].position:
                starts[name] = reset
        return starts

    def unchanged_since(self, policies: Collection[str]) -> int:
        """Return the position since when policies are as they are now, under the same features and
        reward rules and without a reset, whatever their traffic was: shadows may have become live
        since."""
        latest = self._held[-1]
        position, now = latest.position, _apart_from_traffic(latest, policies)
        for each in reversed(self._held):
            if _apart_from_traffic(each, policies) != now:
                break
            position = each.position
        return max(
            [position, *(start.position for name, start in self._resets if name in policies)]
        )

    def mixed_since(self, apart: str) -> int:
        """Return the position since when all policies but one have the shares that they have now,
        beside each other. apart: the name of that one."""
        position, now = self._held[-1].position, _mix(self.latest, apart)
        for each in reversed(self._held):
            mix = _mix(each.definition, apart)
            if mix.keys() != now.keys() or not all(isclose(mix[name], now[name]) for name in mix):
                break
            position = each.position
        return position

    def rule_starts(self) -> dict[str, Start]:
        """Return where each rule began as it is now: at its last change, or that of `measure`, of
        the features or of the reward rules."""
        starts, before = dict[str, Start](), dict[str, object]()
        for each in self._held:
            definition = each.definition
            common = each.schema_version, definition.reward, definition.rules.measure
            now = {name: (rule, *common) for name, rule in definition.rules.named.items()}
            own = Start(each.position, each.at)
            starts = {
                name: starts[name] if before.get(name) == rule else own
                for name, rule in now.items()
            }
            before = {**now}
        return starts


def _apart_from_traffic(held: DefinitionSpan, policies: Collection[str]) -> tuple[object, ...]:
    """Return what a definition says of policies, but for their traffic and whose rewards they learn
    from."""
    common = {"share": 0.0, "shadow": False, "fold": True, "learns_from": "own"}
    known = held.definition.policies
    settings = [known[name].model_copy(update=common) for name in policies if name in known]
    return held.schema_version, held.definition.reward, settings


def _mix(definition: Definition, apart: str) -> dict[str, float]:
    """Return the shares of all policies but one, beside each other."""
    shares = {name: each.share for name, each in definition.serving.items() if name != apart}
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items() if share}
