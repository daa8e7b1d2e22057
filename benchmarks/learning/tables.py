"""What the runs of a case came to: a table, the best of each side, JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.learning.peers import PEERS, LeftOut
from benchmarks.learning.runs import Case, Record
from simulator_client.comparison import half_width
from simulator_client.summary import table


@dataclass
class Standing:
    """A case's runs by agent, and who is left out of it, with the reason.

    bands   of agents whose runs are published without their courses: course -> visit, mean, low,
            high
    """

    case: Case
    runs: dict[str, list[Record]] = field(default_factory=dict)
    bands: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def add(self, record: Record) -> None:
        """One more run, in the order of streams."""
        mine = self.runs.setdefault(record["agent"], [])
        mine.append(record)
        mine.sort(key=lambda run: int(run["seed"]))

    def leave_out(self, agent: str, why: BaseException) -> None:
        """Not in the table. Anything but LeftOut is a fault, whose stream the others still play."""
        self.failed = self.failed or not isinstance(why, LeftOut)
        name = "" if isinstance(why, LeftOut) else f"failed: {type(why).__name__}: "
        self.left_out[agent] = name + str(why)

    def figure(self, agent: str, name: str) -> list[float | None]:
        """One figure, a stream each."""
        return [run["figures"][name] for run in self.runs[agent]]

    def known(self, agent: str, name: str) -> list[float]:
        """A figure of the streams that have it."""
        return [value for value in self.figure(agent, name) if value is not None]

    def regret(self, agent: str) -> float:
        """Mean over the streams, in percent of what uniform choice loses."""
        return fmean(self.known(agent, "relative_regret"))

    @property
    def ranked(self) -> list[str]:
        """By regret."""
        return sorted(self.runs, key=self.regret)

    def side(self, *, peers: bool) -> list[str]:
        """Agents of one side, the best first; peers that are told the truth's structure compete
        with nobody."""
        return [
            agent
            for agent in self.ranked
            if self.runs[agent][0]["peer"] == peers and not (peers and PEERS[agent].told)
        ]

    @property
    def verdict(self) -> str:
        """The best of ours, the best peer, and the ratio of their regrets."""
        ours, peers = self.side(peers=False), self.side(peers=True)
        said = [
            f"best {whose}: {side[0]} ({self.regret(side[0]):.2f}% of uniform's regret)"
            for whose, side in (("of ours", ours), ("peer", peers))
            if side
        ]
        if ours and peers:
            said.append(f"ours / peer: {self.regret(ours[0]) / self.regret(peers[0]):.2f}")
        return "; ".join(said)


def cells(standing: Standing) -> list[list[str]]:
    """A heading, then the agents by regret."""
    shock = standing.case.shock_at is not None
    head = ["agent", "by", "streams", "expected reward", "worst", "% of optimal"]
    head += ["regret, % of uniform's", "worst", *(["visits to recover"] if shock else [])]
    return [[*head, "visits/s"], *(_row(standing, agent, shock) for agent in standing.ranked)]


def _row(standing: Standing, agent: str, shock: bool) -> list[str]:
    expected = standing.known(agent, "expected_ctr")
    regrets = standing.known(agent, "relative_regret")
    seconds = fmean(standing.known(agent, "seconds"))
    back = [f"{v:,.0f}" if v else "never" for v in standing.figure(agent, "recovery_visits")]
    return [
        agent,
        standing.runs[agent][0]["by"],
        str(len(expected)),
        with_interval(expected),
        f"{min(expected):.4f}",
        f"{100 * fmean(standing.known(agent, 'share_of_optimal')):.1f}",
        f"{fmean(regrets):.2f}",
        f"{max(regrets):.2f}",
        *([" ".join(back)] if shock else []),
        f"{standing.case.visits / seconds:,.0f}",
    ]


def with_interval(values: Sequence[float]) -> str:
    """The mean, and half its 95 percent interval over the streams."""
    half = half_width(np.array(values)[:, None])[0]
    return f"{fmean(values):.4f}" + (f" ±{half:.4f}" if np.isfinite(half) else "")


def text(standing: Standing) -> str:
    """For the terminal."""
    parts = [standing.case.title]
    if standing.runs:
        parts += [table(cells(standing)), standing.verdict]
    return "\n".join([*parts, *notes(standing)])


def notes(standing: Standing) -> list[str]:
    """Who is left out, and why."""
    return [f"left out: {agent}: {why}" for agent, why in standing.left_out.items()]


def summary(standings: Sequence[Standing]) -> dict[str, Any]:
    """The machine-readable summary: every figure of every stream."""
    return {
        standing.case.name: {
            "title": standing.case.title,
            "verdict": standing.verdict,
            "left_out": standing.left_out,
            "agents": {
                agent: {
                    "by": standing.runs[agent][0]["by"],
                    "relative_regret": standing.regret(agent),
                    "streams": {str(run["seed"]): run["figures"] for run in standing.runs[agent]},
                }
                for agent in standing.ranked
            },
        }
        for standing in standings
    }
