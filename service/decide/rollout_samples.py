"""Tells the guardrails of rollouts how decisions were made."""

from collections.abc import Sequence
from math import log, nan

from service.decide.lookup import Lookup
from service.decide.recorder import Choice, Recorded
from service.errors import Invalid, Refused
from service.state.guardrails import FAILED, DecisionSample
from service.telemetry.metrics import Telemetry


class Samples:
    """Keeps samples of the decisions of policies in a rollout. Others cost a look into a
    dictionary."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._windows = telemetry.rollout_samples

    def decided(
        self, chosen: Sequence[Choice], recorded: Sequence[Recorded | Invalid], seconds: float
    ) -> None:
        """Keep decisions of one policy that were scored together, and not refused. seconds: of
        processor time that this took."""
        first = chosen[0][0]
        window = self._windows.window(first.state, first.policy, first.assigned_version)
        if window is not None:
            window.extend(
                DecisionSample(
                    seconds, len(chosen), bool(lookup.facts.fallback), _spread(lookup, each.entropy)
                )
                for (lookup, *_), each in zip(chosen, recorded, strict=True)
                if isinstance(each, Recorded)
            )

    def failed(self, lookups: Sequence[Lookup], fault: Exception) -> None:
        """Keep decisions of one policy that this fault ended. A refusal is no failure."""
        if not lookups or isinstance(fault, Refused):
            return
        first = lookups[0]
        window = self._windows.window(first.state, first.policy, first.assigned_version)
        if window is not None:
            window.extend([FAILED] * len(lookups))


def _spread(lookup: Lookup, entropy: float) -> float:
    """Return the entropy of a choice as a share of that of uniform chance; NaN: the policy had no
    choice."""
    count = len(lookup.candidates.ids)
    return nan if count < 2 or lookup.facts.fallback else entropy / log(count)
