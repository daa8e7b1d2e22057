"""The peers: libraries in use today, what a tutorial builds, and marks, behind one interface."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from benchmarks.learning.course import Agent
from benchmarks.learning.peers.base import Guest, LeftOut, Peer, Problem
from benchmarks.learning.peers.linear import DisjointLinUcb, TabularThompson, Uniform
from benchmarks.learning.peers.mabwiser import MabWiser
from benchmarks.learning.peers.marks import FixedArm, Skyline
from benchmarks.learning.peers.neural import NeuralLinUcb, NeuralUcb
from benchmarks.learning.peers.vowpal import VowpalWabbit
from simulator_client.worlds import World

__all__ = ["PEERS", "LeftOut", "guest"]

FIRST, LAST = -1, 1


@dataclass(frozen=True)
class Entry:
    """A peer.

    make      from a world, the seed of a stream, and its visits
    package   its distribution; None: written here from its formulas
    informed  it knows what others have to learn: a mark, no competitor
    place     its row in tables, whatever its regret: FIRST, LAST, or 0: by its regret
    """

    make: Callable[[World[Any], int, int], Agent]
    package: str | None = None
    informed: bool = False
    place: int = 0

    @property
    def release(self) -> str:
        """The package and version that plays. Raises LeftOut if it is not installed."""
        if self.package is None:
            return "from its formulas"
        try:
            return f"{self.package} {version(self.package)}"
        except PackageNotFoundError:
            raise LeftOut(
                f"{self.package} is not installed: pip install 'forage-bandits[bench]'"
            ) from None


def _guest(peer: Callable[..., Peer], **settings: Any) -> Callable[[World[Any], int, int], Agent]:
    def make(problem: Problem) -> Peer:
        return peer(problem, **settings)

    return lambda world, seed, visits: Guest(world, make, seed)


VW: Final = "vowpalwabbit"
MABWISER: Final = "mabwiser"
PEERS: Final[dict[str, Entry]] = {
    "fixed_arm": Entry(FixedArm, informed=True, place=FIRST),
    "vw_greedy": Entry(_guest(VowpalWabbit, explorer="--epsilon 0"), VW),
    "vw_squarecb": Entry(_guest(VowpalWabbit, explorer="--squarecb"), VW),
    "vw_regcb": Entry(_guest(VowpalWabbit, explorer="--regcb"), VW),
    "vw_regcbopt": Entry(_guest(VowpalWabbit, explorer="--regcbopt"), VW),
    "vw_bag5": Entry(_guest(VowpalWabbit, explorer="--bag 5"), VW),
    "vw_squarecb_unit": Entry(_guest(VowpalWabbit, explorer="--squarecb", unit=True), VW),
    "vw_regcbopt_unit": Entry(_guest(VowpalWabbit, explorer="--regcbopt", unit=True), VW),
    "vw_bag5_unit": Entry(_guest(VowpalWabbit, explorer="--bag 5", unit=True), VW),
    "mabwiser_linucb": Entry(_guest(MabWiser, policy="LinUCB"), MABWISER),
    "mabwiser_lints": Entry(_guest(MabWiser, policy="LinTS"), MABWISER),
    "book_linucb_disjoint": Entry(_guest(DisjointLinUcb)),
    "linucb_alpha_.1": Entry(_guest(DisjointLinUcb, alpha=0.1, constant=True)),
    "linucb_alpha_.3": Entry(_guest(DisjointLinUcb, alpha=0.3, constant=True)),
    "linucb_alpha_1": Entry(_guest(DisjointLinUcb, alpha=1.0, constant=True)),
    "book_neural_linucb": Entry(_guest(NeuralLinUcb)),
    "book_neural_ucb": Entry(_guest(NeuralUcb)),
    "tabular_thompson": Entry(_guest(TabularThompson), informed=True),
    "uniform": Entry(_guest(Uniform)),
    "skyline": Entry(Skyline, "scikit-learn", informed=True, place=LAST),
}


def guest(world: World[Any], name: str, seed: int, visits: int) -> Agent:
    """Return a peer, ready to play the first `visits` visits of stream `seed`. Raises LeftOut."""
    entry = PEERS[name]
    assert entry.release
    return entry.make(world, seed, visits)
