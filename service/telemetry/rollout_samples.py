"""The last decisions of the policies of rollouts under way, as this process made them."""

from collections import deque
from collections.abc import Container

from service.state.fold import State
from service.state.guardrails import SAMPLED_DECISIONS, DecisionSample
from service.state.rollout import Rollout

SampleWindow = deque[DecisionSample]
"""The last SAMPLED_DECISIONS decisions of a policy, oldest first."""


class RolloutSamples:
    """Keeps what guardrails judge a challenger by. Another rollout of it begins with nothing."""

    def __init__(self) -> None:
        self._of = dict[tuple[str, int], tuple[SampleWindow, SampleWindow]]()

    def window(self, state: State, policy: str, version: int) -> SampleWindow | None:
        """Return the window of a version of a policy; None: no rollout of it is under way."""
        rollout = state.traffic.rollout_of(policy)
        if rollout is None:
            return None
        own, baseline = self.of(state, rollout)
        return own if rollout.challenges(policy, version) else baseline

    def forget_ended(self, state: State) -> None:
        """Forget the rollouts of an experiment that are over."""
        rollouts = state.traffic.rollouts.values()
        under_way = {each.position for each in rollouts if not each.ended}
        self._of = {
            (name, position): windows
            for (name, position), windows in self._of.items()
            if name != state.name or position in under_way
        }

    def forget_others(self, names: Container[str]) -> None:
        """Forget all other experiments."""
        self._of = {key: windows for key, windows in self._of.items() if key[0] in names}

    def of(self, state: State, rollout: Rollout) -> tuple[SampleWindow, SampleWindow]:
        """Return the windows of the challenger and of the baseline of a rollout under way."""
        key = state.name, rollout.position
        windows = self._of.get(key)
        if windows is None:
            own, baseline = (SampleWindow(maxlen=SAMPLED_DECISIONS) for _ in range(2))
            windows = self._of[key] = own, baseline
        return windows
