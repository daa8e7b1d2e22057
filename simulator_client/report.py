"""One HTML page on one or more runs, complete in itself, with its figures as PNGs beside it."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from simulator_client.figures import MOVING_VISITS, draw
from simulator_client.journal import write_whole
from simulator_client.summary import Results, load, rows, summary

FIGURES: Final = {
    "cumulative-clicks": ("Clicks", "Clicks so far; the dashed line is what the oracle expects."),
    "moving-ctr": (
        "Click rate over time",
        f"Mean over the last {MOVING_VISITS} visits. Strong lines: the true click chance of what "
        "was shown. Faint lines: the clicks themselves. The oracle shows every visitor the best "
        "arm; uniform shows any arm.",
    ),
    "cumulative-regret": (
        "Regret",
        "Expected clicks lost so far against the best arm for each visitor. A flat line has "
        "nothing left to learn.",
    ),
    "arm-shares": ("What was shown", "Share of each group of arms over time."),
    "latency": (
        "Latency",
        "Quantiles of answered calls, on a log scale. The policies of a run share one client "
        "process, so each waits a little for the others; waits between retries are left out.",
    ),
}
STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } img { max-width: 100%; height: auto; } .note { color: #555; }
"""


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write OUT/report.html and OUT/<figure>.png; the page's path."""
    runs = [load(folder) for folder in folders]
    out.mkdir(parents=True, exist_ok=True)
    figures = draw(runs)
    for name, png in figures.items():
        (out / f"{name}.png").write_bytes(png)
    page = out / "report.html"
    write_whole(page, _page(runs, figures))
    return page


def _page(runs: Sequence[Results], figures: dict[str, bytes]) -> str:
    worlds = ", ".join(dict.fromkeys(results.run.world for results in runs))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Forage: {escape(worlds)}</title><style>{STYLE}</style></head><body>",
        f"<h1>Replay of the world {escape(worlds)}</h1>",
    ]
    for results in runs:
        parts += _run(results)
    for name, (heading, caption) in FIGURES.items():
        data = b64encode(figures[name]).decode()
        parts += [
            f'<h2>{escape(heading)}</h2><p class="note">{escape(caption)}</p>',
            f'<img src="data:image/png;base64,{data}" alt="{escape(heading)}">',
        ]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _run(results: Results) -> list[str]:
    """What a run was, and its table."""
    run = results.run
    facts = [
        f"run {run.run}",
        f"experiment {run.experiment}",
        f"{run.visits:,} visits",
        f"world seed {run.world_seed}",
        f"stream seed {run.seed}",
        *([f"market shock at visit {run.shock_at:,}"] if run.shock_at is not None else []),
    ]
    short = [p for p, course in results.courses.items() if len(course.clicks) < run.visits]
    unfinished = f"Unfinished: {', '.join(short)}." if short else ""
    head, *body = rows(summary(results))
    return [
        f"<h2>{escape(results.mode.capitalize())}</h2>",
        f'<p class="note">{escape(", ".join(facts))}. {escape(_mode(results))} '
        f"{escape(unfinished)}</p>",
        '<div class="wide"><table><thead>' + _row(head, "th") + "</thead><tbody>",
        *(_row(cells, "td") for cells in body),
        "</tbody></table></div>",
        '<p class="note">CTR counts the clicks; expected CTR, regret and best arm take the true '
        "click chance of what was shown, and so leave out the luck of the clicks.</p>",
    ]


def _mode(results: Results) -> str:
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


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
