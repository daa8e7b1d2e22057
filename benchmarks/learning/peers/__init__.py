"""The peers: libraries in use today, and what a tutorial builds, behind one interface."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from benchmarks.learning.peers.base import Guest, LeftOut, Peer, Problem
from benchmarks.learning.peers.linear import DisjointLinUcb, TabularThompson, Uniform
from benchmarks.learning.peers.mabwiser import MabWiser
from benchmarks.learning.peers.neural import NeuralLinUcb, NeuralUcb
from benchmarks.learning.peers.vowpal import VowpalWabbit
from simulator_client.worlds import World

__all__ = ["PEERS", "Guest", "LeftOut", "guest"]


@dataclass(frozen=True)
class Entry:
    """A peer.

    package   its distribution; None: written here from its formulas
    informed  it knows the structure that others have to learn: a mark, no competitor
    """

    make: Callable[[Problem], Peer]
    package: str | None = None
    informed: bool = False

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


VW: Final = "vowpalwabbit"
MABWISER: Final = "mabwiser"
PEERS: Final[dict[str, Entry]] = {
    "vw_greedy": Entry(partial(VowpalWabbit, explorer="--epsilon 0"), VW),
    "vw_squarecb": Entry(partial(VowpalWabbit, explorer="--squarecb"), VW),
    "vw_regcb": Entry(partial(VowpalWabbit, explorer="--regcb"), VW),
    "vw_regcbopt": Entry(partial(VowpalWabbit, explorer="--regcbopt"), VW),
    "vw_bag5": Entry(partial(VowpalWabbit, explorer="--bag 5"), VW),
    "vw_squarecb_unit": Entry(partial(VowpalWabbit, explorer="--squarecb", unit=True), VW),
    "vw_regcbopt_unit": Entry(partial(VowpalWabbit, explorer="--regcbopt", unit=True), VW),
    "vw_bag5_unit": Entry(partial(VowpalWabbit, explorer="--bag 5", unit=True), VW),
    "mabwiser_linucb": Entry(partial(MabWiser, policy="LinUCB"), MABWISER),
    "mabwiser_lints": Entry(partial(MabWiser, policy="LinTS"), MABWISER),
    "book_linucb_disjoint": Entry(DisjointLinUcb),
    "linucb_alpha_.1": Entry(partial(DisjointLinUcb, alpha=0.1, constant=True)),
    "linucb_alpha_.3": Entry(partial(DisjointLinUcb, alpha=0.3, constant=True)),
    "linucb_alpha_1": Entry(partial(DisjointLinUcb, alpha=1.0, constant=True)),
    "book_neural_linucb": Entry(NeuralLinUcb),
    "book_neural_ucb": Entry(NeuralUcb),
    "tabular_thompson": Entry(TabularThompson, informed=True),
    "uniform": Entry(Uniform),
}


def guest(world: World[Any], name: str, seed: int) -> Guest:
    """Return a peer, ready to play. Raises LeftOut."""
    entry = PEERS[name]
    assert entry.release
    return Guest(world, entry.make, seed)
