"""One HTML page on one or more runs, complete in itself, with its figures as PNGs beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simulator_client.course import WINDOW_VISITS, Results, load
from simulator_client.figures import draw
from simulator_client.journal import Run
from simulator_client.page import cells, note, page, pictures, section, write_page
from simulator_client.reporting import in_words
from simulator_client.summary import rows, summary

EIGENVALUE: Final = (
    "What a head is least sure of",
    "Smallest eigenvalue of A on a log scale; it has to grow. A line that stays where it began has "
    "a direction that is never learned, or one that redundant columns leave empty: the one-hot "
    "columns of crosses beside those of their parts. A new version of a net starts it anew.",
)
FIGURES: Final = {
    "cumulative-clicks": ("Clicks", "Clicks so far; the dashed line is what the oracle expects."),
    "moving-ctr": (
        "Click rate over time",
        f"Mean over the last {WINDOW_VISITS} visits. Strong lines: the true click chance of what "
        "was shown. Faint lines: the clicks themselves. The oracle shows every visitor the best "
        "arm; uniform shows any arm.",
    ),
    "cumulative-regret": (
        "Regret",
        "Expected clicks lost so far against the best arm for each visitor. A flat line has "
        "nothing left to learn.",
    ),
    "arm-shares": ("What was shown", "Share of each group of arms over time."),
    "smallest-eigenvalue": EIGENVALUE,
    "latency": (
        "Latency",
        "Quantiles of answered calls, on a log scale. The policies of a run share one client "
        "process, so each waits a little for the others; waits between retries are left out.",
    ),
}
CTR_NOTE: Final = (
    "CTR counts the clicks; expected CTR, regret and best arm take the true click chance of what "
    "was shown, and so leave out the luck of the clicks. % of uniform's: regret in percent of what "
    "uniform choice would lose on the same visits."
)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write OUT/report.html and OUT/<figure>.png; the page's path."""
    runs = [load(folder) for folder in folders]
    figures = draw(runs)
    worlds = ", ".join(dict.fromkeys(results.run.world for results in runs))
    parts = [part for results in runs for part in _run(results)]
    parts += pictures(figures, FIGURES)
    return write_page(
        out / "report.html",
        page(f"Forage: {worlds}", f"Replay of the world {worlds}", parts),
        figures,
    )


def _run(results: Results) -> list[str]:
    """What a run was, and its table."""
    run = results.run
    facts = [f"run {run.run}", f"experiment {run.experiment}", *facts_of(run)]
    facts.append(f"stream seed {run.seed}")
    short = [p for p, course in results.courses.items() if len(course.clicks) < run.visits]
    unfinished = f"Unfinished: {', '.join(short)}." if short else ""
    told = f"{', '.join(facts)}. {mode_in_words(results)} {results.remark} {unfinished}"
    return [
        section(results.mode.capitalize()),
        note(told.rstrip()),
        cells(rows(summary(results))),
        note(CTR_NOTE),
    ]


def facts_of(run: Run) -> list[str]:
    """What is played, in few words each."""
    return [
        f"{run.visits:,} visits",
        *([f"data {Path(run.data).name}"] if run.data else [f"world seed {run.world_seed}"]),
        *([f"market shock at visit {run.shock_at:,}"] if run.shock_at is not None else []),
    ]


def mode_in_words(results: Results) -> str:
    """How visits were reported at a rate, or whether the figures depend on the client's speed."""
    if results.run.rate is not None:
        reached = [rate for course in results.courses.values() if (rate := course.rate)]
        told = f"; reached: {min(reached):,.1f} to {max(reached):,.1f}" if reached else ""
        return (
            f"{in_words(results.run).capitalize()}. Each policy was asked for "
            f"{results.run.rate:g} visits a second, begun whether or not earlier ones were "
            f"answered{told}. Visits did not wait for new versions of trained policies."
        )
    if not results.run.wait_for_training:
        return (
            "Visits did not wait for new versions of trained policies: their figures depend on "
            "how fast the client was."
        )
    if results.run.training_timeouts:
        return "Some versions did not come in time, and the visits went on without them."
    return (
        "Visits waited while a version of a trained policy was due: the figures do not depend on "
        "how fast the client was."
    )
