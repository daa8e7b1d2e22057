"""The page of a load test: one HTML file, complete in itself, with its figures as PNGs beside."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from simulator_client.load import KINDS, Tally
from simulator_client.load_summary import errors_in_words, facts, rows, throughput
from simulator_client.looks import STYLE, legend_below, png, thousands
from simulator_client.page import cells, note, page, pictures, section, write_page

COLOURS: Final = {"selects": "#0072B2", "rewards": "#D55E00", "errors": "#222222"}
DASHES: Final = {"selects": "-", "rewards": (0, (5, 1.5)), "errors": (0, (1.2, 1))}
TICKS: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
FIGURES: Final = {
    "load-latency": (
        "Latency",
        "The share of the answers that came within a time; both scales are logarithmic. At a "
        "rate, a latency counts from the due time of its request.",
    ),
    "load-throughput": (
        "Throughput",
        "Answers in each second. The grey seconds at the beginning are the warm-up.",
    ),
}


def write_load_report(found: dict[str, Any], tally: Tally, out: Path) -> Path:
    """Write OUT/report.html and OUT/<figure>.png; return the page's path."""
    figures = draw(found, tally)
    late = found["client"]["late_p99_ms"]
    client = f"The client used {found['client']['core']:.0%} of a core" + (
        "." if late is None else f" and was late by {late:g} ms at p99."
    )
    parts = [
        note(facts(found)),
        cells(rows(found)),
        *(note(line) for line in (*found["remarks"], errors_in_words(found), client) if line),
        *pictures(figures, FIGURES),
    ]
    if found["missed"]:
        parts.insert(0, section(f"Missed: {'; '.join(found['missed'])}"))
    title = f"Load test of {', '.join(found['urls'])}"
    return write_page(out / "report.html", page(f"Forage: {title}", title, parts), figures)


def draw(found: dict[str, Any], tally: Tally) -> dict[str, bytes]:
    with rc_context(STYLE):
        return {"load-latency": _latency(tally), "load-throughput": _throughput(found)}


def _latency(tally: Tally) -> bytes:
    """Draw percentiles up to the last but one answer, on the scale of 1 / (1 - share)."""
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    axes: Axes = figure.subplots()
    largest = 99.0
    for kind in KINDS:
        latencies = tally.latencies[kind]
        count = latencies.get_total_count()
        if not count:
            continue
        steps = [
            (step.value_iterated_to, step.count_added_in_this_iter_step)
            for step in latencies.get_recorded_iterator()
        ]
        us, counts = np.array(steps, float).T
        last = 100.0 - 100.0 / count
        largest = max(largest, last)
        percents = np.minimum(100.0 * np.cumsum(counts) / count, last)
        name = f"{kind}s"
        axes.plot(
            _tail(percents), us / 1e3, color=COLOURS[name], linestyle=DASHES[name], label=name
        )
    shown = np.array([percent for percent in TICKS if percent <= largest])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.0, _tail(np.array(largest)))
    axes.set_xticks(_tail(shown), [f"{percent:g}" for percent in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("percent of the answers")
    axes.set_ylabel("came within milliseconds")
    if axes.lines:
        axes.legend(loc="upper left")
    return png(figure)


def _tail(percents: Any) -> Any:
    """Map 0 percent to 1, 90 to 10, 99 to 100."""
    return 100.0 / (100.0 - percents)


def _throughput(found: dict[str, Any]) -> bytes:
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes: Axes = figure.subplots()
    total_s = found["warmup_s"] + found["counted_s"]
    axes.axvspan(0.0, found["warmup_s"], color="#F0F0F0", linewidth=0, zorder=0)
    for name, counts in throughput(found).items():
        whole = counts[: max(1, int(total_s))]  # the rest is not a whole second
        axes.stairs(
            whole, np.arange(len(whole) + 1), baseline=None, color=COLOURS[name],
            linestyle=DASHES[name], linewidth=1.8, label=name,
        )  # fmt: skip
    if found["rate_asked"] is not None:
        axes.axhline(
            found["rate_asked"], color="#777777", linewidth=1.0, linestyle=":", label="selects due"
        )
    axes.set_xlim(0.0, max(total_s, 1.0))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(thousands)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("answers per second")
    legend_below(figure, [axes])
    return png(figure)
