"""The page of a load test: one HTML file, complete in itself, with its figures as PNGs beside."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from simulator_client.load_summary import errors_in_words, facts, rows, throughput
from simulator_client.load_tally import KINDS, Latencies, Tally
from simulator_client.looks import STYLE, legend_below, png, thousands
from simulator_client.page import cells, note, page, pictures, section
from simulator_client.report import write_page

COLOURS: Final = {"selects": "#0072B2", "rewards": "#D55E00", "errors": "#222222"}
DASHES: Final = {"selects": "-", "rewards": (0, (5, 1.5)), "errors": (0, (1.2, 1))}
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
MARKED: Final = (50.0, 90.0, 99.0, 99.9)
FIGURES: Final = {
    "load-latency": (
        "Latency",
        "Which share of the answers came within which time; both scales logarithmic. At a rate a "
        "time counts from when the request was due. Dots are at 50, 90, 99 and 99.9 percent.",
    ),
    "load-throughput": (
        "Throughput",
        "Answers in each second. The grey seconds at the beginning do not count.",
    ),
}


def write_load_report(found: dict[str, Any], tally: Tally, out: Path) -> Path:
    """Write OUT/report.html and OUT/<figure>.png; the page's path."""
    figures = draw(found, tally)
    parts = [
        note(facts(found)),
        cells(rows(found)),
        *(note(line) for line in (*found["remarks"], errors_in_words(found), _client(found))),
        *pictures(figures, FIGURES),
    ]
    if found["missed"]:
        parts.insert(0, section(f"Missed: {'; '.join(found['missed'])}"))
    title = f"Load test of {', '.join(found['urls'])}"
    return write_page(out / "report.html", page(f"Forage: {title}", title, parts), figures)


def _client(found: dict[str, Any]) -> str:
    cores = ", ".join(f"{core:.0%}" for core in found["client"]["cores"])
    late = found["client"]["late_p99_ms"]
    told = "" if late is None else f", late by {late:g} ms at p99"
    return f"The client used {cores} of a core a process{told}."


def draw(found: dict[str, Any], tally: Tally) -> dict[str, bytes]:
    """The figures, as PNG, by name."""
    with rc_context(STYLE):
        return {"load-latency": _latency(tally), "load-throughput": _throughput(found)}


def curve(latencies: Latencies) -> tuple[Any, Any]:
    """Percents, rising, and the milliseconds within which so many of the answers came."""
    items = list(latencies.items())
    us = np.array([value for value, _ in items], float)
    reached = np.cumsum([count for _, count in items])
    return 100.0 * reached / reached[-1], us / 1e3


def _latency(tally: Tally) -> bytes:
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    axes: Axes = figure.subplots()
    most = 99.0
    for kind in KINDS:
        latencies = tally.latencies[kind]
        if not len(latencies):
            continue
        percents, ms = curve(latencies)
        name, last = f"{kind}s", 100.0 - 100.0 / len(latencies)
        most = max(most, last)
        x = _tail(np.minimum(percents, last))
        axes.plot(x, ms, color=COLOURS[name], linestyle=DASHES[name], label=name)
        at = [percent for percent in MARKED if percent <= last]
        marks = ms[np.minimum(np.searchsorted(percents, at), len(ms) - 1)]
        axes.plot(_tail(np.array(at)), marks, "o", color=COLOURS[name], markersize=5)
    shown = [percent for percent in PERCENTS if percent <= most] or list(PERCENTS[:1])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.0, _tail(np.array([most]))[0])
    axes.set_xticks(_tail(np.array(shown)), [f"{percent:g}" for percent in shown])
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
    """1 at 0 percent, 10 at 90, 100 at 99."""
    return 100.0 / (100.0 - percents)


def _throughput(found: dict[str, Any]) -> bytes:
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes: Axes = figure.subplots()
    total_s = found["warmup_s"] + found["counted_s"]
    axes.axvspan(0.0, found["warmup_s"], color="#F0F0F0", linewidth=0, zorder=0)
    for name, counts in throughput(found):
        whole = counts[: max(1, int(total_s))]  # what is left over is not a second
        axes.stairs(
            whole, np.arange(len(whole) + 1), baseline=None, color=COLOURS[name],
            linestyle=DASHES[name], linewidth=1.8, label=name,
        )  # fmt: skip
    if found["rate_asked"] is not None:
        axes.axhline(
            found["rate_asked"], color="#777777", linewidth=1.0, linestyle=":",
            label="selects that were due",
        )  # fmt: skip
    axes.set_xlim(0.0, max(total_s, 1.0))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(thousands)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("answers a second")
    legend_below(figure, [axes])
    return png(figure)
