"""Published comparisons: tables and plots of docs/policies.md, and the figures that they show.

`python -m benchmarks.learning.publish` writes tables and plots from benchmarks/results/learning.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.learning.standing import Standing, read
from benchmarks.tables import RESULTS, markdown, rewrite

LEARNING: Final = RESULTS / "learning"
PAGE: Final = Path(__file__).parents[2] / "docs" / "policies.md"


def table_of(standing: Standing) -> str:
    """Return the table of a case and its verdict."""
    return f"{markdown(standing.cells)}\n{standing.verdict}\n"


def publish(played: Sequence[Standing]) -> None:
    """Replace agents of published cases by the played ones, in the figures and on the page.

    Raises ValueError if the page has no table of a case.
    """
    from benchmarks.learning.pictures import shown  # matplotlib costs a second

    for standing in played:
        path = LEARNING / f"{standing.case.name}.json"
        whole = read(path) if path.exists() else Standing(standing.case)
        whole.entries |= standing.entries
        write_page(whole)
        whole.write(path, shown(whole) if plot_of(whole).exists() else ())


def plot_of(standing: Standing) -> Path:
    """Return the path of a case's plot; few cases have one."""
    return PAGE.parent / "pictures" / f"{standing.case.name}.png"


def write_page(standing: Standing) -> None:
    """Write the table of a case into the page, and its plot if it has one."""
    from benchmarks.learning.pictures import draw  # matplotlib costs a second

    rewrite(PAGE, standing.case.name, table_of(standing))
    if plot_of(standing).exists():
        draw(standing, plot_of(standing))


if __name__ == "__main__":
    for path in LEARNING.glob("*.json"):
        write_page(read(path))
