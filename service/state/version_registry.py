"""The register of trained versions: where each came from, what its gate saw, and what it earned.

It is part of the fold. A version is entered where it is staged, and stays until KEPT_VERSIONS of
its policy have followed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from service.bandits.outcome import Outcome
from service.state.events import GateEnded, TrainingReport, VersionRejected, VersionStaged
from service.state.learner import Learner
from service.state.reward_statistics import RewardTotals
from service.state.version_gate import GateFigures

KEPT_VERSIONS = 50
"""Versions of a policy that are kept in the register."""

KEPT_ARTIFACTS = 5
"""Latest versions of a policy whose artifacts are kept, so that one of them can serve again."""

VersionState = Literal["challenger", "serving", "rejected", "retired"]


class Instant(msgspec.Struct, frozen=True):
    """A position of the log, and its time in unix seconds."""

    position: int
    at: float


class RegisteredVersion(msgspec.Struct):
    """A trained version of a policy.

    born            revision of the experiment that the policy's head started at
    staged          when it was handed over
    by              as in `events.Change`
    watermark       log position that the head in the artifact was rebuilt to
    rewards         that its net was trained on
    training        None: its head alone was made anew
    of              the earlier version whose net it has; None: it has one of its own
    gate            what its gate saw; None: nothing yet, or it had none
    reason          why it serves or was rejected, in words
    served, until   from when, and until when it served; None: it did not, or still does
    earned          settled rewards of its decisions
    """

    number: int
    born: int
    staged: Instant
    by: str
    watermark: int
    rewards: int
    artifact: str
    training: TrainingReport | None
    of: int | None
    earned: RewardTotals
    state: VersionState = "challenger"
    gate: GateFigures | None = None
    reason: str = ""
    served: Instant | None = None
    until: Instant | None = None


class VersionRegistry:
    """Versions by policy, the latest one last."""

    def __init__(self) -> None:
        self.by_policy: dict[str, list[RegisteredVersion]] = {}

    def of(self, policy: str) -> list[RegisteredVersion]:
        """Return the versions of a policy that are kept, the latest one first."""
        return self.by_policy.get(policy, [])[::-1]

    @property
    def artifacts(self) -> set[str]:
        """Artifacts of all versions in the register; those of the earlier ones may be gone."""
        return {each.artifact for own in self.by_policy.values() for each in own}

    @property
    def kept_artifacts(self) -> set[str]:
        """Artifacts that are kept whatever becomes of the events that staged them."""
        latest = [each for own in self.by_policy.values() for each in own[-KEPT_ARTIFACTS:]]
        return {each.artifact for each in latest}

    def stage(self, position: int, event: VersionStaged) -> None:
        """Enter a version that was staged."""
        own = self.by_policy.setdefault(event.policy, [])
        own.append(
            RegisteredVersion(
                number=event.version,
                born=event.born,
                staged=Instant(position, event.at),
                by=event.by,
                watermark=event.watermark,
                rewards=event.rewards,
                artifact=event.artifact,
                training=event.training,
                of=event.of,
                earned=RewardTotals(position),
            )
        )
        del own[:-KEPT_VERSIONS]

    def end_gate(self, position: int, event: GateEnded) -> None:
        """Note that the gate of the latest version has ended."""
        latest, now = self.by_policy[event.policy][-1], Instant(position, event.at)
        latest.gate, latest.reason = event.gate, event.reason
        if isinstance(event, VersionRejected):
            latest.state = "rejected"
            return
        self._retire(event.policy, now)
        latest.state, latest.served = "serving", now

    def follow(self, learners: Mapping[str, Learner], now: Instant) -> None:
        """Retire the versions that a definition or a reset dropped, and forget those of policies
        that are gone."""
        self.by_policy = {name: self.by_policy[name] for name in learners if name in self.by_policy}
        for name, learner in learners.items():
            challenger = learner.challenger and learner.challenger.version.number
            keeps = {"challenger": challenger, "serving": learner.active.number}
            for each in self.by_policy.get(name, []):
                alive = each.born in learner.births and keeps.get(each.state) == each.number
                if each.state in keeps and not alive:
                    each.until = now if each.state == "serving" else None
                    each.state = "retired"

    def settle(self, policy: str, version: int, outcome: Outcome) -> None:
        """Add a reward to what the version earned that made the decision."""
        if (found := self._find(policy, version)) is not None:
            found.earned.move(outcome)

    def add(self, policy: str, version: int, rewards: Sequence[float]) -> None:
        """Add first rewards as `settle` does one after the other."""
        if (found := self._find(policy, version)) is not None:
            found.earned.add(rewards)

    def _find(self, policy: str, version: int) -> RegisteredVersion | None:
        found = (one for one in reversed(self.by_policy.get(policy, [])) if one.number == version)
        return next(found, None)

    def _retire(self, policy: str, now: Instant) -> None:
        for each in self.by_policy[policy]:
            if each.state == "serving":
                each.state, each.until = "retired", now

    # -- snapshots -----------------------------------------------------------------------------

    def members(self) -> dict[str, Any]:
        """Return a copy as a member of a snapshot."""
        return {"versions": msgspec.to_builtins(self.by_policy)}

    @classmethod
    def restore(cls, by_policy: object) -> "VersionRegistry":
        """Return the register of a snapshot, from its `members`."""
        found = cls()
        found.by_policy = msgspec.convert(by_policy, dict[str, list[RegisteredVersion]])
        return found
