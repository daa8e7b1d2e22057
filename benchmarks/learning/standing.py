"""The figures of a case by agent: their file, their table, and the best of each side."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from benchmarks.learning.course import Array
from benchmarks.learning.peers import PEERS, LeftOut
from benchmarks.learning.runs import Case, Record
from benchmarks.tables import Cells, keep
from simulator_client.comparison import half_width

SMOOTHED: Final = 5  # points of a course that a share is taken over
Band = dict[str, list[float]]  # visit, mean, low, high


@dataclass
class Entry:
    """An agent in a case.

    commit    of the code that gave the figures; None: that code was not committed
    opening   of the first stream: what `runs.opening` says
    figures   by name, a value for each stream
    bands     of its plots
    """

    by: str
    commit: str | None
    opening: float
    figures: dict[str, list[float | None]]
    bands: dict[str, Band]

    def known(self, name: str) -> list[float]:
        """Return a figure of the streams that have it."""
        return [value for value in self.figures[name] if value is not None]

    @property
    def regret(self) -> float:
        """Mean over the streams, in percent of uniform's."""
        return fmean(self.known("relative_regret"))


def place_of(agent: str) -> int:
    """Return the place of an agent in tables: what `peers.Entry` says of it."""
    return PEERS[agent].place if agent in PEERS else 0


@dataclass
class Standing:
    """The entries of a case by agent, and the reasons of the agents that are left out."""

    case: Case
    entries: dict[str, Entry] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def add(self, records: Sequence[Record]) -> None:
        """Add the runs of one agent."""
        records = sorted(records, key=lambda record: int(record["seed"]))
        figures = {
            name: [record["figures"][name] for record in records] for name in records[0]["figures"]
        }
        bands = {name: _band([course(one["curve"]) for one in records]) for name, course in COURSES}
        first = records[0]
        self.entries[first["agent"]] = Entry(
            first["origin"]["by"], first["commit"], first["opening"], figures, bands
        )

    def leave_out(self, agent: str, why: BaseException) -> None:
        """Note why an agent is not in the table. Anything but LeftOut is a failure."""
        self.failed = self.failed or not isinstance(why, LeftOut)
        name = "" if isinstance(why, LeftOut) else f"failed: {type(why).__name__}: "
        self.left_out[agent] = name + str(why)

    @property
    def ranked(self) -> list[str]:
        """Agents by regret, between the marks that have a place of their own."""
        return sorted(self.entries, key=lambda agent: (place_of(agent), self.entries[agent].regret))

    @property
    def ours(self) -> list[str]:
        """Our policies, best first."""
        return [agent for agent in self.ranked if agent not in PEERS]

    @property
    def peers(self) -> list[str]:
        """Peers, best first, without the marks."""
        return [agent for agent in self.ranked if agent in PEERS and not PEERS[agent].informed]

    @property
    def verdict(self) -> str:
        """The best of ours, the best peer, and the ratio of their regrets."""
        best = {"of ours": self.ours[:1], "peer": self.peers[:1]}
        said = [
            f"best {whose}: {agent} ({self.entries[agent].regret:.2f}% of uniform's regret)"
            for whose, agents in best.items()
            for agent in agents
        ]
        if len(said) == 2:
            ours, peer = (self.entries[agents[0]].regret for agents in best.values())
            said += [f"ours / peer: {ours / peer:.2f}"] if peer else []
        return "; ".join(said).capitalize() + "."

    @property
    def cells(self) -> Cells:
        """The table of agents by regret."""
        columns = PLAIN
        if self.case.shock_at is not None:
            columns = SHOCKED
        elif self.case.world == "ranking":
            columns = RANKED
        rows = []
        for agent in self.ranked:
            entry = self.entries[agent]
            name, by = (agent, entry.by) if agent in PEERS else (f"`{agent}`", "Forage")
            streams = str(len(entry.figures["relative_regret"]))
            rows.append([name, by, streams, *(column(entry) for column in columns.values())])
        return [["agent", "by", "streams", *columns], *rows]

    def write(self, path: Path, bands: Sequence[str]) -> None:
        """Write the entries, a line each. bands: agents whose bands are kept."""
        case = vars(self.case) | {"data": self.case.data and self.case.data.name}
        agents: dict[str, Any] = {}
        for agent, entry in sorted(self.entries.items()):
            agents[agent] = {name: value for name, value in vars(entry).items() if name != "bands"}
            if agent in bands:
                agents[agent]["bands"] = entry.bands
        keep({"case": case, "agents": agents}, path)


def read(path: Path) -> Standing:
    """Read a file that `Standing.write` wrote."""
    kept = json.loads(path.read_text())
    case = kept["case"]
    data = None if case["data"] is None else Path(case["data"])
    standing = Standing(Case(**case | {"data": data}))
    for agent, found in kept["agents"].items():
        standing.entries[agent] = Entry(**{"bands": {}} | found)
    return standing


# -- columns ---------------------------------------------------------------------------------------

Column = Callable[[Entry], str]


def with_interval(values: Sequence[float]) -> str:
    """Return the mean, and half its 95 percent interval over the streams."""
    half = half_width(np.array(values)[:, None])[0]
    return f"{fmean(values):.4f}" + (f" ±{half:.4f}" if np.isfinite(half) else "")


def _mean(name: str) -> Column:
    return lambda entry: with_interval(entry.known(name))


def _worst(name: str, form: str, pick: Callable[[Sequence[float]], float]) -> Column:
    return lambda entry: form.format(pick(entry.known(name)))


def _share(entry: Entry) -> str:
    return f"{fmean(entry.known('share_of_optimal')):.3f}"


def _visits(value: float | None) -> str:
    return f"{value:,.0f}" if value and np.isfinite(value) else "never"


def _recovery(entry: Entry) -> str:
    return ", ".join(map(_visits, entry.figures["recovery_visits"]))


def _median_recovery(entry: Entry) -> str:
    return _visits(median(value or float("inf") for value in entry.figures["recovery_visits"]))


REGRET: Final[dict[str, Column]] = {
    "regret, % of uniform's": lambda entry: f"{entry.regret:.2f}",
    "worst": _worst("relative_regret", "{:.2f}", max),
}
COMMIT: Final[dict[str, Column]] = {"commit": lambda entry: entry.commit or "none"}
PLAIN: Final = {
    "expected reward": _mean("expected_ctr"),
    "worst of them": _worst("expected_ctr", "{:.4f}", min),
    **REGRET,
    **COMMIT,
}
RANKED: Final = {
    "share of the optimal": _share,
    "worst of them": _worst("share_of_optimal", "{:.3f}", min),
    **REGRET,
    **COMMIT,
}
SHOCKED: Final[dict[str, Column]] = {
    "before the shock": _mean("expected_ctr_before"),
    "worst": _worst("expected_ctr_before", "{:.4f}", min),
    "after it": _mean("expected_ctr_after"),
    "visits to recover, each stream": _recovery,
    "median": _median_recovery,
    **COMMIT,
}


# -- bands of plots --------------------------------------------------------------------------------


def _regret(curve: dict[str, list[float]]) -> tuple[Array, Array]:
    return np.array(curve["visit"], float), np.array(curve["best"]) - np.array(curve["expected"])


def _gained_share(curve: dict[str, list[float]]) -> tuple[Array, Array]:
    """Return the share of the best choice over the last SMOOTHED points, fewer at the beginning."""
    best, expected = (np.array([0.0, *curve[name]]) for name in ("best", "expected"))
    start = np.maximum(np.arange(1, len(best)) - SMOOTHED, 0)
    gained = best[1:] - best[start]
    share = (expected[1:] - expected[start]) / np.where(gained > 0, gained, np.nan)
    return np.array(curve["visit"], float), share


COURSES: Final = (("regret", _regret), ("share", _gained_share))


def _band(courses: Sequence[tuple[Array, Array]]) -> Band:
    """Return mean and range of the courses of the streams."""
    x, y = courses[0][0], np.array([values for _, values in courses])
    parts = {"visit": x, "mean": y.mean(axis=0), "low": y.min(axis=0), "high": y.max(axis=0)}
    return {name: [float(f"{value:.6g}") for value in values] for name, values in parts.items()}
