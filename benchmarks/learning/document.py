"""Rewrites tables and plots of docs/policies.md from the published figures:
`python -m benchmarks.learning.document [--from out/learning]`.

A table stands between `<!-- table CASE -->` (or `<!-- table CASE N -->`: of the N best) and
`<!-- /table -->`; CASE names a file of `benchmarks/results/learning`. A plot is named
`pictures/CASE.png`. With `--from` raw runs first replace what is published of their agents.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from statistics import fmean, median
from typing import Final

from PIL import Image

from benchmarks.learning import published
from benchmarks.learning.pictures import picture
from benchmarks.learning.runs import Case
from benchmarks.learning.tables import Standing, with_interval

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results" / "learning"
PAGES: Final = (ROOT / "docs" / "policies.md",)
TABLE: Final = re.compile(r"(<!-- table (\S+)(?: (\d+))? -->\n).*?(<!-- /table -->)", re.DOTALL)
PICTURE: Final = re.compile(r"\(((?:docs/)?pictures/([^)\s]+)\.png)\)")
COLOURS: Final = 256

Column = Callable[[Standing, str], str]


def _name(standing: Standing, agent: str) -> str:
    return agent if standing.runs[agent][0]["peer"] else f"`{agent}`"


def _by(standing: Standing, agent: str) -> str:
    by: str = standing.runs[agent][0]["by"]
    return by.capitalize() if by == "forage" else by


def _streams(standing: Standing, agent: str) -> str:
    return str(len(standing.runs[agent]))


def _mean(name: str) -> Column:
    return lambda standing, agent: with_interval(standing.known(agent, name))


def _worst(name: str, form: str, pick: Callable[[Sequence[float]], float]) -> Column:
    return lambda standing, agent: form.format(pick(standing.known(agent, name)))


def _regret(standing: Standing, agent: str) -> str:
    return f"{standing.regret(agent):.2f}"


def _share(standing: Standing, agent: str) -> str:
    return f"{fmean(standing.known(agent, 'share_of_optimal')):.3f}"


def _visits_of(values: Sequence[float | None]) -> str:
    return ", ".join("never" if value is None else f"{value:,.0f}" for value in values)


def _recovery(standing: Standing, agent: str) -> str:
    return _visits_of(standing.figure(agent, "recovery_visits"))


def _median_recovery(standing: Standing, agent: str) -> str:
    visits = [value or float("inf") for value in standing.figure(agent, "recovery_visits")]
    middle = median(visits)
    return _visits_of([None if middle == float("inf") else middle])


WHO: Final[dict[str, Column]] = {"agent": _name, "by": _by, "streams": _streams}
REGRET: Final[dict[str, Column]] = {
    "regret, % of uniform's": _regret,
    "worst": _worst("relative_regret", "{:.2f}", max),
}
PLAIN: Final = {
    "expected reward": _mean("expected_ctr"),
    "worst of them": _worst("expected_ctr", "{:.4f}", min),
    **REGRET,
}
RANKED: Final = {
    "share of the optimal": _share,
    "worst of them": _worst("share_of_optimal", "{:.3f}", min),
    **REGRET,
}
SHOCKED: Final = {
    "before the shock": _mean("expected_ctr_before"),
    "worst": _worst("expected_ctr_before", "{:.4f}", min),
    "after it": _mean("expected_ctr_after"),
    "visits to recover, each stream": _recovery,
    "median": _median_recovery,
}


def columns(case: Case) -> dict[str, Column]:
    """Heading -> what stands below it."""
    if case.shock_at is not None:
        return WHO | SHOCKED
    return WHO | (RANKED if case.world == "ranking" else PLAIN)


def markdown(standing: Standing, most: int | None) -> str:
    """The agents by regret, and the verdict."""
    chosen = columns(standing.case)
    agents = standing.ranked[:most]
    rows = [[column(standing, agent) for column in chosen.values()] for agent in agents]
    lines = [list(chosen), ["---"] * len(chosen), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table if most else f"{table}\n{standing.verdict.capitalize()}.\n"


def rewritten(text: str, standings: dict[str, Standing]) -> str:
    """A page with its tables as the runs are now. Raises KeyError for an unpublished case."""

    def table(found: re.Match[str]) -> str:
        begin, case, most, end = found.groups()
        return begin + markdown(standings[case], int(most) if most else None) + end

    return TABLE.sub(table, text)


def main() -> None:
    """Figures, pages and pictures, these with few colours: git keeps them."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.learning.document")
    options.add_argument("--from", type=Path, dest="runs", metavar="DIR", help="raw runs")
    asked = options.parse_args()
    texts = {path: path.read_text() for path in PAGES}
    standings = published.read(RESULTS)
    if asked.runs:
        published.replace(standings, asked.runs)
        pictured = {case for text in texts.values() for _, case in PICTURE.findall(text)}
        published.write(standings, RESULTS, pictured)
    for path, text in texts.items():
        path.write_text(rewritten(text, standings))
        for place, case in PICTURE.findall(text):
            if case in standings:
                image = Image.open(BytesIO(picture(standings[case]))).convert("RGB")
                image.quantize(COLOURS).save(path.parent / place, optimize=True)


if __name__ == "__main__":
    main()
