"""Which trained version serves, by the log alone: an account apart from the fold's."""

from dataclasses import dataclass
from typing import Any

from service.bandits.kinds import KINDS
from service.state.events import (
    AnyEvent,
    ExperimentDefined,
    VersionActivated,
    VersionRejected,
    VersionStaged,
)
from service.state.fold import State


@dataclass
class Fence:
    """Of one policy. numbered: of the last version that was staged; staged: number and watermark
    of what waits at its gate."""

    head: dict[str, Any]
    born: int
    number: int = 0
    numbered: int = 0
    trained_to: int = 0
    staged: tuple[int, int] | None = None


class Fences:
    def __init__(self) -> None:
        self.of: dict[str, Fence] = {}

    def read(self, event: AnyEvent, meta: dict[str, Any] | None) -> None:
        """meta: what the artifact of a `VersionStaged` says of itself."""
        if isinstance(event, ExperimentDefined):
            for policy, settings in event.definition["policies"].items():
                kept = KINDS[settings["kind"]].keeps_head
                head = {key: value for key, value in settings.items() if key not in kept}
                fence = self.of.get(policy)
                if fence is None or fence.head != head:
                    self.of[policy] = Fence(head, event.revision)
        elif isinstance(event, VersionStaged):
            assert meta is not None
            fence = self.of[event.policy]
            said = (meta["born"], meta["version"], meta["trained_to"])
            assert said == (event.born, event.version, event.watermark), "another artifact"
            if (event.born, event.version) == (fence.born, fence.numbered + 1):
                assert fence.staged is None, f"{event.policy}/{event.version} was staged twice"
                fence.staged, fence.numbered = (event.version, event.watermark), event.version
        elif isinstance(event, VersionActivated | VersionRejected):
            fence = self.of[event.policy]
            if event.born == fence.born and fence.staged:
                assert event.version == fence.staged[0]
                if isinstance(event, VersionActivated):
                    fence.number, fence.trained_to = fence.staged
                fence.staged = None

    def check(self, state: State) -> None:
        """A version of another head, or a number that is not the next one, never serves."""
        for name, learner in state.learners.items():
            fence, version = self.of[name], learner.active
            assert learner.born == fence.born, f"{name} was born at {learner.born}"
            serves = version.number, version.trained_to if version.number else 0
            assert serves == (fence.number, fence.trained_to), (
                f"{name} serves {serves}: a stale one"
            )
            staged = learner.challenger and learner.challenger.version.number
            assert staged == (fence.staged and fence.staged[0]), f"{name} has staged {staged}"
