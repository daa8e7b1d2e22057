"""The page of a showdown, complete in itself, with its figures as PNGs beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulator_client.comparison import rows
from simulator_client.comparison_figures import draw
from simulator_client.course import WINDOW_VISITS, Results
from simulator_client.page import cells, note, page, pictures, section, write_page
from simulator_client.report import CTR_NOTE, EIGENVALUE, facts_of, mode_in_words

FIGURES: Final = {
    "expected-ctr": (
        "Click rate over time",
        f"True click chance of what was shown, mean over the last {WINDOW_VISITS} visits and over "
        "the seeds; the band is the 95 percent interval of the mean.",
    ),
    "cumulative-regret": (
        "Regret",
        "Expected clicks lost so far against the best arm for each visitor, mean over the seeds "
        "with its 95 percent interval.",
    ),
    "seeds": ("Seed by seed", "A dot per seed, a bar at the mean: one bad stream shows here."),
    "recovery": (
        "Recovery from the shock",
        f"Left: the click rate of {WINDOW_VISITS} visits in share of what the oracle reaches after "
        "the shock; recovered means 95 percent (dashed). Right: the visits that took, to the end "
        "of the first such window.",
    ),
    "smallest-eigenvalue": EIGENVALUE,
}


def write_comparison(runs: Mapping[int, Results], compared: Mapping[str, Any], out: Path) -> Path:
    """Write OUT/showdown.html and OUT/<figure>.png; the page's path."""
    figures = draw(runs)
    first = next(iter(runs.values()))
    seeds = ", ".join(map(str, runs))
    told = f"{', '.join(facts_of(first.run))}, stream seeds {seeds}. "
    told += f"{mode_in_words(_most_telling(runs))} {first.remark}"
    parts = [
        section("Policies"),
        note(told.rstrip()),
        cells(rows(compared)),
        note(
            "Mean over the seeds ± half its 95 percent interval (Student's t), and the worst seed. "
            + CTR_NOTE
        ),
        *pictures(figures, FIGURES),
    ]
    world = first.run.world
    title = f"Showdown in the world {world}"
    return write_page(out / "showdown.html", page(f"Forage: {world}", title, parts), figures)


def _most_telling(runs: Mapping[int, Results]) -> Results:
    """A run whose waits ran out, if there is one."""
    return max(runs.values(), key=lambda results: results.run.training_timeouts)
