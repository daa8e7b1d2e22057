"""The picture of the page on performance. Imported last: matplotlib costs a second."""

from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.http.cases import CASES, Case
from simulator_client.looks import STYLE, png

FLOOR: Final = "#777777"
PEER: Final = "#D55E00"
OURS: Final = "#0072B2"


def picture(results: dict[str, Any]) -> bytes:
    """PNG: a row a case, its rate in each round as a small dot, the median as a large one."""
    cases = [case for name, case in CASES.items() if name in results["cases"]]
    with rc_context(STYLE):
        figure = Figure(figsize=(11.0, 1.2 + 0.3 * len(cases)), layout="constrained")
        axes: Axes = figure.subplots()
        axes.grid(visible=False, axis="y")
        for row, case in enumerate(cases):
            kept = results["cases"][case.name]
            colour = _colour(case)
            rates = [rate for rate in kept["per_second"] if rate > 0]  # the scale has no 0
            axes.plot(rates, [row] * len(rates), "|", color=colour, markersize=8, alpha=0.6)
            middle = kept["median_per_second"]
            axes.plot(middle, row, "o", color=colour, markersize=7)
            axes.annotate(
                f"{middle:,.0f}", (max(rates), row), xytext=(9, 0), textcoords="offset points",
                va="center", fontsize=9.5, color="#333333",
            )  # fmt: skip
        titles = [case.title.replace("`", "") for case in cases]
        axes.set_yticks(range(len(cases)), titles)
        axes.set_ylim(len(cases) - 0.4, -0.6)
        axes.set_xscale("log")
        drawn = [rate for case in cases for rate in results["cases"][case.name]["per_second"]]
        axes.set_xlim(0.8 * min(rate for rate in drawn if rate > 0), 1.6 * max(drawn))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("answers a second (log); bars are rounds, dots their medians")
        for colour, label in ((FLOOR, "floors"), (PEER, "peers"), (OURS, "Forage")):
            axes.plot([], [], "o", color=colour, markersize=7, label=label)
        figure.legend(loc="outside upper center", ncols=3)
        return png(figure)


def _colour(case: Case) -> str:
    if case.ours:
        return OURS
    return PEER if case.peer else FLOOR
