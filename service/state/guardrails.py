"""Guardrails of a rollout: what a challenger is watched for beside its reward.

The last decisions of its two policies, or what the log says of them, go in, and findings come out.
Nothing here reads a clock, a log or an array.
"""

from collections.abc import Mapping, Sequence
from math import ceil, exp, fsum, inf, isfinite, isnan, lgamma, log, log1p, nan
from typing import Literal, NamedTuple

import msgspec

from service.definition.rollout import (
    EntropyGuardrail,
    Guardrails,
    LatencyGuardrail,
    OnBreach,
    SampleRatioGuardrail,
    SegmentsGuardrail,
    ShareGuardrail,
)
from service.naming import quoted
from service.tables import figure, percent

GuardrailName = Literal["fallbacks", "errors", "latency", "entropy", "sample_ratio", "segments"]
GuardrailState = Literal["ok", "breached", "no data", "off"]

METRICS: Mapping[GuardrailName, str] = {
    "fallbacks": "share of decisions by the fallback",
    "errors": "share of failed decisions",
    "latency": "share of slow decisions",
    "entropy": "mean entropy of the choices",
    "sample_ratio": "visitors beyond the share that was drawn",
    "segments": "reward above the margin in a segment",
}
"""What each guardrail measures, in words."""

SAMPLED_DECISIONS = 1_000
"""Last decisions of a policy that one process judges it by."""

LEVEL = 1e-6
"""Chance of so many decisions, if the share were as large as it may be, up to which it is larger:
three of three at 1 percent, and 29 of 1,000."""

LEVEL_ROUNDING = 1e-9
"""Relative error of a chance, more than its arithmetic has: three of three are 1e-6."""

SLOW_SHARE = 0.01
"""Share of the baseline's decisions that take longer than its time, and largest share of the
challenger's that may take longer than a multiple of it."""

LEAST_SLOW_S = 0.001
"""Seconds of processor time up to which no decision is slow. A linear policy takes 25 microseconds
where uniform chance takes 5: nobody waits for the difference."""

LEAST_DECISIONS = 200
"""Fewest decisions that a time of the baseline, or a mean entropy, is taken from."""


class DecisionSample(NamedTuple):
    """How a decision was made.

    seconds    of processor time that the scoring took which made it; NaN: it failed
    together   decisions that were scored at once, which share that time
    fallback   whether the fallback made it
    entropy    of the choice, as a share of that of uniform chance; NaN: it was no choice of the
               policy, or there was one candidate

    One decision in a batch takes the time of all, and costs its part. The larger part of the
    traffic has the larger batches: 21 microseconds for one decision of a linear policy are 47 for
    16, so 3 for each. Neither time alone compares policies of different traffic.
    """

    seconds: float
    together: int
    fallback: bool
    entropy: float

    @property
    def failed(self) -> bool:
        return isnan(self.seconds)

    @property
    def part(self) -> float:
        """Its part of the seconds."""
        return self.seconds / self.together


FAILED = DecisionSample(nan, 1, False, nan)
"""A decision that failed: its request was answered with a fault of the service."""


class DrawnVisitors(msgspec.Struct, frozen=True):
    """Visitors of a rollout's policies, by their first decisions since its start.

    count      of both
    own        of the challenger
    expected   of the challenger, by the shares at the time
    bound      most by which `own` is off at any time, unless rows are missing or doubled
    """

    count: int
    own: int
    expected: float
    bound: float


NO_VISITORS = DrawnVisitors(0, 0, 0.0, 0.0)


class SegmentReading(msgspec.Struct, frozen=True):
    """What settled decisions say of a challenger in a segment. A figure that nobody can compute is
    NaN.

    own, baseline           settled decisions of each policy
    value, baseline_value   reward of a decision of each
    upper                   upper bound of the challenger's reward above what the margin asks for
    evidence                of a loss beyond the margin, from bets; 1 is enough
    fails                   whether the loss is beyond the margin, by either
    """

    own: int
    baseline: int
    value: float
    baseline_value: float
    upper: float
    evidence: float
    fails: bool


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one guardrail; of `segments`, in one segment.

    segment     its name; empty for other guardrails
    on_breach   what follows a breach; None: it is off
    value       what is measured; None: it cannot be computed
    bound       of the value
    decisions   that the value is of; of `sample_ratio`: first ones of visitors
    sentence    which value failed against what; empty unless it is breached
    """

    guardrail: GuardrailName
    segment: str = ""
    on_breach: OnBreach | None = None
    state: GuardrailState = "off"
    value: float | None = None
    bound: float | None = None
    decisions: int = 0
    sentence: str = ""

    @property
    def metric(self) -> str:
        """What was measured, in words."""
        return METRICS[self.guardrail]


# -- by the last decisions of a process ----------------------------------------------------------


def findings_here(
    guardrails: Guardrails,
    policy: str,
    baseline: str,
    own: Sequence[DecisionSample],
    others: Sequence[DecisionSample],
) -> list[Finding]:
    """Judge a challenger by the last decisions that a process made. own: of the challenger;
    others: of the baseline."""
    name, fell_back = quoted(policy), sum(each.fallback for each in own)
    failed = sum(each.failed for each in own)
    return [
        _share(
            "fallbacks", guardrails.fallbacks, fell_back, own, f"{name} let the fallback decide"
        ),
        _share("errors", guardrails.errors, failed, own, f"{name} failed at"),
        _latency(guardrails.latency, name, quoted(baseline), own, others),
        _entropy(guardrails.entropy, name, own),
    ]


def _share(
    guardrail: Literal["fallbacks", "errors"],
    declared: ShareGuardrail | None,
    count: int,
    own: Sequence[DecisionSample],
    did: str,
) -> Finding:
    if declared is None:
        return Finding(guardrail=guardrail)
    wrong, most, n = exceeds(count, len(own), declared.most), declared.most, len(own)
    return _finding(
        guardrail,
        declared.on_breach,
        count / n if n else nan,
        most,
        n,
        wrong,
        f"{did} {_of_last(count, n)}: at most {percent(most)} is allowed.",
    )


def _latency(
    declared: LatencyGuardrail | None,
    policy: str,
    baseline: str,
    own: Sequence[DecisionSample],
    others: Sequence[DecisionSample],
) -> Finding:
    """Judge the times of decisions. A slow one is slow as a whole, and in its part of what was
    scored with it."""
    if declared is None:
        return Finding(guardrail="latency")
    mine, theirs = ([each for each in samples if not each.failed] for samples in (own, others))
    if not mine or len(theirs) < LEAST_DECISIONS:
        return _finding("latency", declared.on_breach, nan, SLOW_SHARE, len(mine))
    whole = _keeps_to([each.seconds for each in theirs])
    part = _keeps_to([each.part for each in theirs])
    most = [max(declared.times * usual, LEAST_SLOW_S) for usual in (whole, part)]
    slow = sum(each.seconds > most[0] and each.part > most[1] for each in mine)
    wrong = exceeds(slow, len(mine), SLOW_SHARE)
    said = (
        f"{policy} took longer than {figure(1_000 * most[1])} ms for {_of_last(slow, len(mine))}, "
        f"where {percent(1 - SLOW_SHARE)} of those of {baseline} took {figure(1_000 * part)} ms at "
        f"most: at most {percent(SLOW_SHARE)} is allowed."
    )
    value = slow / len(mine)
    return _finding("latency", declared.on_breach, value, SLOW_SHARE, len(mine), wrong, said)


def _keeps_to(times: Sequence[float]) -> float:
    """Return the time that all but SLOW_SHARE of decisions keep to."""
    return sorted(times)[ceil((1 - SLOW_SHARE) * len(times)) - 1]


def _entropy(
    declared: EntropyGuardrail | None, policy: str, own: Sequence[DecisionSample]
) -> Finding:
    if declared is None or not declared.least:
        return Finding(guardrail="entropy")
    found = [each.entropy for each in own if not isnan(each.entropy)]
    value = fsum(found) / len(found) if len(found) >= LEAST_DECISIONS else nan
    said = (
        f"The choices of {policy} had {figure(100 * value)} percent of the entropy of uniform "
        f"chance in its last {len(found):,} decisions: at least {percent(declared.least)} is asked "
        "for."
    )
    wrong = value < declared.least
    return _finding("entropy", declared.on_breach, value, declared.least, len(found), wrong, said)


# -- by the log ----------------------------------------------------------------------------------


def findings_of_log(
    guardrails: Guardrails,
    policy: str,
    baseline: str,
    margin: float,  # of the rollout
    visitors: DrawnVisitors,
    segments: Mapping[str, SegmentReading],
) -> list[Finding]:
    """Judge a challenger by what the log says of the visitors of both policies, and of the rewards
    in each segment."""
    return [
        _sample_ratio(guardrails.sample_ratio, quoted(policy), visitors),
        *_segments(guardrails.segments, quoted(policy), quoted(baseline), margin, segments),
    ]


def _sample_ratio(
    declared: SampleRatioGuardrail | None, policy: str, visitors: DrawnVisitors
) -> Finding:
    if declared is None:
        return Finding(guardrail="sample_ratio")
    count, own, expected = visitors.count, visitors.own, visitors.expected
    off = abs(own - expected) if count else nan
    said = (
        f"{policy} has {own:,} of {count:,} visitors by their first decisions, and should have "
        f"{expected:,.0f}, give or take {visitors.bound:,.0f}: rows are missing or doubled."
    )
    wrong = off > visitors.bound
    bound = visitors.bound if count else nan
    return _finding("sample_ratio", declared.on_breach, off, bound, count, wrong, said)


def _segments(
    declared: SegmentsGuardrail | None,
    policy: str,
    baseline: str,
    margin: float,
    readings: Mapping[str, SegmentReading],
) -> list[Finding]:
    if declared is None or not declared.where:
        return [Finding(guardrail="segments")]
    margin = margin if declared.margin is None else declared.margin
    found = list[Finding]()
    for name in declared.where:
        reading = readings.get(name)
        if reading is None:
            found.append(_finding("segments", declared.on_breach, nan, 0.0, 0, segment=name))
            continue
        value, bound = reading.upper, 0.0
        if reading.fails and not -inf < reading.upper < 0:
            value, bound = reading.evidence, 1.0
        said = (
            f"In the segment {quoted(name)}, {policy} earned {figure(reading.value)} a decision "
            f"after {reading.own:,} settlement{'s' * (reading.own != 1)}, and {baseline} "
            f"{figure(reading.baseline_value)}: the loss is beyond the margin of {percent(margin)}."
        )
        count = reading.own + reading.baseline
        found.append(
            _finding("segments", declared.on_breach, value, bound, count, reading.fails, said, name)
        )
    return found


def _finding(
    guardrail: GuardrailName,
    on_breach: OnBreach,
    value: float,
    bound: float,
    decisions: int,
    wrong: bool = False,
    sentence: str = "",
    segment: str = "",
) -> Finding:
    """Return what was found. A value that nobody can compute is no breach."""
    known = isfinite(value)
    state: GuardrailState = "no data" if not known else "breached" if wrong else "ok"
    return Finding(
        guardrail=guardrail,
        segment=segment,
        on_breach=on_breach,
        state=state,
        value=value if known else None,
        bound=bound if isfinite(bound) else None,
        decisions=decisions,
        sentence=sentence if state == "breached" else "",
    )


def _of_last(count: int, n: int) -> str:
    share = figure(100 * count / n) if n else "0"
    return f"{count:,} of its last {n:,} decisions, {share} percent"


# -- a share that is larger than it may be -------------------------------------------------------


def exceeds(count: int, n: int, bound: float) -> bool:
    """Say whether `count` of `n` decisions are more than a share of `bound` would bring about."""
    return count > n * bound and binomial_tail(count, n, bound) <= LEVEL * (1 + LEVEL_ROUNDING)


def binomial_tail(k: int, n: int, p: float) -> float:
    """Return the chance of k or more of n, each with the chance p, above 0 and below 1. The
    relative error is some 1e-12."""
    if k <= 0:
        return 1.0
    logs = (
        lgamma(n + 1) - lgamma(j + 1) - lgamma(n - j + 1) + j * log(p) + (n - j) * log1p(-p)
        for j in range(k, n + 1)
    )
    return min(fsum(map(exp, logs)), 1.0)
