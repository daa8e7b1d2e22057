"""Counts and reports the decisions that the fallback makes in place of another policy."""

import logging
from math import inf

from service.decide.lookup import Lookup
from service.naming import quoted
from service.state.decisions import Decision, FallbackReason
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

WARNING_EVERY_S = 60.0
"""Least time between two warnings of one policy."""

WORDS: dict[FallbackReason, str] = {"scores": "gives no finite scores: look at its head"}
"""What is wrong with a policy, by the reason."""


_Key = tuple[str, str, int]
"""An experiment, a policy and the number of its version."""


class Fallbacks:
    """Warns of policies that cannot decide, and says when one decides again.

    warned   when, of each version of a policy, by the monotonic clock
    down     versions that were warned of and have not decided since
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._warned, self._down = dict[_Key, float](), set[_Key]()

    def note(self, lookup: Lookup, decision: Decision) -> None:
        """Note who made a new decision."""
        experiment, reason = lookup.state.name, decision.facts.fallback
        key: _Key = experiment, decision.policy, lookup.assigned_version
        if not reason:
            if key in self._down and lookup.decider.tells_apart(lookup.candidates):
                self._down.remove(key)
                logger.warning(
                    "experiment %s: policy %s decides again", experiment, quoted(decision.policy)
                )
            return
        self._telemetry.fallback_decisions.labels(experiment, decision.policy, reason).inc()
        now = self._telemetry.clock.monotonic()
        if now - self._warned.get(key, -inf) >= WARNING_EVERY_S:
            self._warned[key] = now
            self._down.add(key)
            logger.warning(
                "experiment %s: the fallback decides for policy %s (%s), which %s",
                experiment, quoted(decision.policy), decision.model_version, WORDS[reason],
            )  # fmt: skip
