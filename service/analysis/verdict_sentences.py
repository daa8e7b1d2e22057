"""A verdict in words."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from service.analysis.sample_ratio import Mismatch
from service.analysis.sequences import Array, ConfidenceSequence
from service.analysis.verdict_answer import PolicyMean, Uplift, VerdictState
from service.bandits.boundary import radius
from service.tables import figure

NO_CONTROL = (
    "Nothing can be told: the experiment names no control. Set `control` to the policy that the "
    "others are compared with, and give it a share."
)
NO_SHARE = (
    "Nothing can be told: a verdict compares policies that share the traffic. Give the control "
    "`{}` and another policy a share above 0."
)
NO_DEFAULT = (
    'Nothing can be told: the experiment has reward.default = "none", so that a decision without a '
    "reward has no outcome, and those with one are no fair sample. Give it a default."
)
NOTHING_SETTLED = (
    "Nothing can be told yet: of the decisions since the policies last changed, none whose policy "
    "was drawn has its outcome. A decision has one at its reward_by at the latest."
)
FITS = "Shown arms fit their propensities, and visitors the shares of policies."
VALID = "95 percent, valid at any time"
FORECAST_UPLIFTS = 0.1, 0.05, 0.02, 0.01
"""Relative uplifts of a forecast."""
DAY = 86_400.0
LONGEST_FORECAST = 365 * DAY


class UpliftForecast:
    """Forecast of when an uplift would show."""

    def __init__(
        self, sequence: ConfidenceSequence, at: Array, control: float, span: float, alpha: float
    ) -> None:
        self._count, self._alpha, self._scale = len(at), alpha, sequence.scale
        self._each = float(sequence.v[-1]) / self._count
        self._unit = abs(control) or span
        """Reward that an uplift of 1 stands for."""
        since = at > at[-1] - DAY
        seconds = max(float(at[-1] - at[since][0]), 1.0)
        self._rate = float(since.sum()) / seconds

    def sentence(self) -> str:
        if not self._each:
            return "every decision has earned the same"
        ahead = self.ahead()
        if ahead is None:
            return f"an uplift of {100 * FORECAST_UPLIFTS[-1]:g} percent would have shown"
        size, needed = ahead
        seconds = (needed - self._count) / self._rate
        when = (
            "after more than a year" if seconds > LONGEST_FORECAST else f"in about {_long(seconds)}"
        )
        return f"at today's rate an uplift of {100 * size:g} percent would show {when}"

    def ahead(self) -> tuple[float, float] | None:
        """Return the largest of FORECAST_UPLIFTS that would not have shown yet, and after how many
        decisions it would; None: each would have."""
        for size in FORECAST_UPLIFTS:
            needed = self._needed(size * self._unit)
            if needed > self._count:
                return size, needed
        return None

    def _needed(self, difference: float) -> float:
        """Decisions after which the interval is as wide as a difference, to either side."""
        counts = np.geomspace(1.0, 1e12, 400)
        wide = radius(counts * self._each, self._scale, self._alpha) / counts > difference
        return float(counts[np.flatnonzero(wide)[-1]]) if wide.any() else 0.0


def of_one(control: str, uplift: Uplift, ahead: UpliftForecast) -> str:
    """Put an uplift into a sentence."""
    who = _who(uplift)
    if uplift.state == "open":
        return f"No difference between `{control}` and {who} can be told yet: {ahead.sentence()}."
    less, better = uplift.state == "worse", "less" if uplift.state == "worse" else "more"
    if uplift.ratio_interval:
        ends = [100 * (end - 1) for end in uplift.ratio_interval]
        how = f"{_between(ends, less)} percent {better} than `{control}`"
    else:
        how = f"{_between(uplift.interval, less)} {better} a decision than `{control}`"
    return (
        f"{who[0].upper()}{who[1:]} earns {how} ({VALID}); safe to say since "
        f"{_clock(uplift)}, {uplift.safe_decisions:,} decisions."
    )


def too_few(uplift: Uplift, least: int) -> str:
    return (
        f"Nothing can be told yet of {_who(uplift)}: the policy with the smaller share has decided "
        f"for {uplift.units:,.0f} visitors in effect, and {least} are needed."
    )


def of_rows(mismatch: Mismatch | None, lost: int) -> str:
    """Say whether the rows can be trusted, and that some are known to be lost, whatever they
    held."""
    text = of_mismatch(mismatch) if mismatch else FITS
    return f"{text} The log has lost {lost:,} decisions or more." if lost else text


def of_mismatch(found: Mismatch) -> str:
    return (
        f"The log does not hold what was drawn: {found.what} `{found.name}` is in it "
        f"{found.observed:,} times, where its chances make {found.expected:,.0f}. Decisions are "
        "missing or doubled, so nothing that it says of policies can be trusted."
    )


def of_all(uplifts: Sequence[Uplift], means: Sequence[PolicyMean]) -> tuple[VerdictState, str]:
    """Say what holds of an experiment, in a sentence or two."""
    single = [each for each in uplifts if each.policy is not None]
    if not single:
        return "refused", NOTHING_SETTLED
    better = [each for each in single if each.state == "better"]
    if better:
        first = max(better, key=lambda each: each.interval[0])
    else:
        still = [each for each in single if each.state != "worse"]
        first = max(still or single, key=lambda each: each.difference)
    sentence = first.sentence
    if len(single) > 1:
        best = max(means, key=lambda each: each.best or 0.0)
        if best.best is not None:
            sentence += f" Best of all is `{best.policy}`, with a chance of {_percent(best.best)}."
    return first.state, sentence


def _who(uplift: Uplift) -> str:
    return f"`{uplift.policy}`" if uplift.policy else "everything else"


def _percent(chance: float) -> str:
    if chance > 0.99:
        return "more than 99 percent"
    return f"{100 * chance:.0f} percent"


def _between(ends: Sequence[float], less: bool) -> str:
    """`12 to 19`, or of a loss of -19 to -12."""
    low, high = (-ends[1], -ends[0]) if less else ends
    return f"{figure(low)} to {figure(high)}"


def _clock(uplift: Uplift) -> str:
    """`14:05`, with the date unless it is that of the last decision."""
    assert uplift.safe_since is not None
    at, last = datetime.fromisoformat(uplift.safe_since), uplift.history[-1].at
    same = at.date() == datetime.fromtimestamp(last, at.tzinfo).date()
    return f"{at:%H:%M} UTC" if same else f"{at:%Y-%m-%d %H:%M} UTC"


def _long(seconds: float) -> str:
    for unit, length in (("day", DAY), ("hour", 3_600.0), ("minute", 60.0)):
        count = round(seconds / length)
        if seconds >= 1.5 * length or unit == "minute":
            return f"{max(count, 1):,} {unit}{'s' if count > 1 else ''}"
    raise AssertionError
