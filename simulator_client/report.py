"""Pages on runs and on showdowns, complete in themselves, with their figures as PNGs beside."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator_client import comparison
from simulator_client.course import WINDOW_VISITS, Results, load
from simulator_client.figures import draw
from simulator_client.page import cells, note, page, pictures, section, write_page
from simulator_client.reporting import in_words
from simulator_client.summary import rows, summary

FIGURES: Final = {
    "expected-ctr": (
        "Click rate over time",
        f"Mean over {WINDOW_VISITS} visits of the true click chance of the shown arms, and over "
        "the seeds if there are several; the band is the 95 percent interval of that mean, faint "
        "lines are the clicks themselves. The oracle shows every visitor the best arm; uniform "
        "shows any arm.",
    ),
    "cumulative-regret": (
        "Regret",
        "Expected clicks lost so far against the best arm for each visitor. A flat line has "
        "nothing left to learn.",
    ),
    "arm-shares": ("Shown arms", "Share of each group of arms over time."),
    "effective-rank": (
        "Known directions of a head",
        "Effective rank of the rows that rewards came for (Roy & Vetterli 2007): how many "
        "directions they have, in effect. A line that falls loses directions: a new version of a "
        "net may map rows to almost the same features.",
    ),
    "smallest-eigenvalue": (
        "The least known direction of a head",
        "Smallest eigenvalue of A over all directions, on a log scale. It stays at its first value "
        "while there is a direction that no reward came from: one that the policy never shows, or "
        "one that redundant or constant columns leave empty, as the one-hot columns of crosses "
        "beside those of their parts. A new version of a net starts it again.",
    ),
}
CTR_NOTE: Final = (
    "CTR counts the clicks; expected CTR, regret and best arm take the true click chance of the "
    "shown arms, without the luck of the clicks. % of uniform's: regret in percent of the loss of "
    "uniform choice on the same visits."
)


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write a page on one or more runs, OUT/report.html and its figures; return its path."""
    runs = [load(folder) for folder in folders]
    figures = draw([[run] for run in runs])
    worlds = ", ".join(dict.fromkeys(run.run.world for run in runs))
    parts = [part for run in runs for part in _run(run)] + pictures(figures, FIGURES)
    text = page(f"Forage: {worlds}", f"Replay of the world {worlds}", parts)
    return write_page(out / "report.html", text, figures)


def write_comparison(runs: Mapping[int, Results], compared: Mapping[str, Any], out: Path) -> Path:
    """Write the page on a showdown, OUT/showdown.html and its figures; return its path."""
    figures = draw([list(runs.values())])
    first = next(iter(runs.values()))
    waited = max(runs.values(), key=lambda results: results.run.training_timeouts)
    seeds = ", ".join(map(str, runs))
    told = f"{_facts(first)}, stream seeds {seeds}. {_mode_in_words(waited)} {first.remark}"
    parts = [
        section("Policies"),
        note(told.rstrip()),
        cells(comparison.rows(compared)),
        note(
            "Mean over the seeds ± half its 95 percent interval (Student's t), and the worst seed. "
            "Recovered: 95 percent of the new oracle's click rate over "
            f"{WINDOW_VISITS} visits. {CTR_NOTE}"
        ),
        *pictures(figures, FIGURES),
    ]
    world = first.run.world
    text = page(f"Forage: {world}", f"Showdown in the world {world}", parts)
    return write_page(out / "showdown.html", text, figures)


def _run(results: Results) -> list[str]:
    run = results.run
    short = [p for p, course in results.courses.items() if len(course.clicks) < run.visits]
    told = (
        f"run {run.run}, experiment {run.experiment}, {_facts(results)}, stream seed {run.seed}. "
        f"{_mode_in_words(results)} {results.remark} "
        + (f"Unfinished: {', '.join(short)}." if short else "")
    )
    return [
        section(results.mode.capitalize()),
        note(told.rstrip()),
        cells(rows(summary(results))),
        note(CTR_NOTE),
    ]


def _facts(results: Results) -> str:
    run = results.run
    source = f"data {Path(run.data).name}" if run.data else f"world seed {run.world_seed}"
    shock = f", market shock at visit {run.shock_at:,}" if run.shock_at is not None else ""
    return f"{run.visits:,} visits, {source}{shock}"


def _mode_in_words(results: Results) -> str:
    """Explain how visits were reported at a rate, or whether they waited for training."""
    run = results.run
    if run.rate is not None:
        reached = [rate for course in results.courses.values() if (rate := course.rate)]
        told = f"; reached: {min(reached):,.1f} to {max(reached):,.1f}" if reached else ""
        return (
            f"{in_words(run).capitalize()}. Each policy had {run.rate:,g} visits a second, begun "
            f"whether or not earlier ones had an answer{told}. Visits did not wait for new "
            "versions of trained policies."
        )
    if not run.wait_for_training:
        return (
            "Visits did not wait for new versions of trained policies: their figures depend on "
            "the client's speed."
        )
    if run.training_timeouts:
        return "Some versions did not come in time, and the visits went on without them."
    return (
        "Visits waited while a version of a trained policy was due: the figures do not depend on "
        "the client's speed."
    )
