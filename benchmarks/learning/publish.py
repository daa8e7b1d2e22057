"""Published comparisons: tables and plots of docs/learning.md, and the figures that they show.

`python -m benchmarks.learning.publish` writes tables and plots from benchmarks/results/learning.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.learning import overview
from benchmarks.learning.peers import LeftOut
from benchmarks.learning.runs import OPENING, Case, Run, origin_of
from benchmarks.learning.standing import Entry, Standing, read
from benchmarks.tables import RESULTS, markdown, rewrite
from simulator_client.errors import UsageError

LEARNING: Final = RESULTS / "learning"
DETAILED: Final = ("zooplus-w42-v20000", "zooplus-w42-v40000-shock20000", "ranking-w42-v5000")
STREAM: Final = 1  # of the short replays
PAGE: Final = Path(__file__).parents[2] / "docs" / "learning.md"


def table_of(standing: Standing) -> str:
    """Return the table of a case and its verdict."""
    return f"{markdown(standing.cells)}\n{standing.verdict}\n"


def fault(case: Case, agent: str, entry: Entry) -> str | None:
    """Play the short replay of a row; return why the row cannot be published, None if it can."""
    row = f"{case.name}: {agent}"
    if entry.commit is None:
        return f"{row}: no commit has the code that played it: commit that code and play again"
    try:
        origin = origin_of(case.make(), agent, own={})
    except LeftOut as why:
        return f"{row}: nobody can play it again by this name: {why}"
    found = Run(case, agent, STREAM, origin).replay()
    if found == entry.opening:
        return None
    return (
        f"{row}: the code gives {found} as the expected reward of the first {OPENING} visits of "
        f"stream {STREAM}, the record has {entry.opening}: play it again"
    )


def faults(played: Sequence[Standing]) -> Iterator[str]:
    """Yield why rows cannot be published."""
    for standing in played:
        for agent, entry in standing.entries.items():
            if found := fault(standing.case, agent, entry):
                yield found


def publish(played: Sequence[Standing]) -> None:
    """Replace agents of published cases by the played ones, in the figures and on the page.

    Raises UsageError, and publishes nothing, if nobody could reproduce one of their rows.
    """
    from benchmarks.learning.pictures import shown  # matplotlib costs a second

    if found := list(faults(played)):
        raise UsageError("nothing was published\n" + "\n".join(found))
    for standing in played:
        path = LEARNING / f"{standing.case.name}.json"
        whole = read(path) if path.exists() else Standing(standing.case)
        whole.entries |= standing.entries
        whole.write(path, shown(whole) if plot_of(whole).exists() else ())
    write_page()


def page_tables() -> dict[str, str]:
    """Return the tables of the page: the overview, and those of the cases in DETAILED, which have
    more visits, slates or agents that play nowhere else."""
    standings = [read(path) for path in sorted(LEARNING.glob("*.json"))]
    others = [standing for standing in standings if standing.case.name not in DETAILED]
    found = {name: markdown(cells) for name, cells in overview.tables(others).items()}
    detailed = (standing for standing in standings if standing.case.name in DETAILED)
    return found | {standing.case.name: table_of(standing) for standing in detailed}


def plot_of(standing: Standing) -> Path:
    """Return the path of a case's plot; few cases have one."""
    return PAGE.parent / "pictures" / f"{standing.case.name}.png"


def write_page() -> None:
    """Write every table of the page, and its plots."""
    from benchmarks.learning.pictures import draw  # matplotlib costs a second

    for name, text in page_tables().items():
        rewrite(PAGE, name, text)
    for path in LEARNING.glob("*.json"):
        if plot_of(standing := read(path)).exists():
            draw(standing, plot_of(standing))


if __name__ == "__main__":
    write_page()
