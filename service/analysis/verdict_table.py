"""A verdict as text."""

from collections.abc import Sequence

from service.analysis.verdict_answer import PolicyMean, Uplift, Verdict
from service.tables import aligned


def table(verdict: Verdict) -> str:
    """Return the sentence, what each policy earned, what it earned more than the control, and what
    does not count."""
    lines = [verdict.sentence]
    if verdict.policies:
        head = ["policy", "decisions", "reward", "95%, at any time", "at one look", "best"]
        lines += ["", *aligned([head, *map(_mean, verdict.policies)])]
    if verdict.uplifts:
        head = [
            "over the control",
            "difference",
            "95%, at any time",
            "at one look",
            "ratio",
            "safe",
        ]
        lines += ["", *aligned([head, *map(_uplift, verdict.uplifts)])]
    if verdict.fits and verdict.decisions:
        lines += ["", verdict.sample_ratio]
    if verdict.left_out:
        lines += ["", *(f"{count:,} left out: {why}." for why, count in verdict.left_out.items())]
    return "\n".join(lines)


def _mean(mean: PolicyMean) -> list[str]:
    figures = ["-"] * 3
    if mean.mean is not None and mean.interval and mean.fixed_interval:
        digits = decimals(mean.interval)
        figures = [
            f"{mean.mean:.{digits}f}",
            _ends(mean.interval, digits),
            _ends(mean.fixed_interval, digits),
        ]
    best = "-" if mean.best is None else f"{mean.best:.0%}"
    return [mean.policy, f"{mean.decisions:,}", *figures, best]


def _uplift(uplift: Uplift) -> list[str]:
    digits = decimals(uplift.interval)
    ratio = "-" if uplift.ratio is None else f"{uplift.ratio:.2f}"
    if uplift.ratio_interval:
        ratio += f" {_ends(uplift.ratio_interval, 2)}"
    safe = "-" if uplift.safe_decisions is None else f"since {uplift.safe_decisions:,} decisions"
    return [
        uplift.policy or "everything else",
        f"{uplift.difference:+.{digits}f}",
        _ends(uplift.interval, digits),
        _ends(uplift.fixed_interval, digits),
        ratio,
        safe,
    ]


def decimals(interval: Sequence[float]) -> int:
    """Digits after the point, so that the half width of an interval has two significant ones."""
    half = (interval[1] - interval[0]) / 2
    return next((digits for digits in range(6) if half >= 10 ** (1 - digits)), 6)


def _ends(interval: Sequence[float], digits: int) -> str:
    return f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
