"""What a head is: what the rewards say, as sums, and what follows from them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from service.bandits.heads.base import Bank, HeadHealth, Observation, Observations, Stored
from service.bandits.linalg import Array, Index

if TYPE_CHECKING:
    from service.bandits.heads.gaussian import Gaussian


class Effects(NamedTuple):
    """What adds up to the mean of a row, less the base at which all arms start.

    constant   what no column moves: an arm's own, and what arms share
    columns    (view.width,) of each column
    crosses    (d, f) of each column of the context with each of the arm
    sides      columns of the context (d,), and those of the arm (f,)
    """

    constant: float
    columns: Array
    crosses: Array
    sides: tuple[Index, Index]


class Head(ABC):
    """What a rule reads and the fold changes. Rows `phi` belong to `arms`, one to one.

    What is not abstract holds for any head; a head that knows better says so.

    standardises   it takes rewards of any level and unit; otherwise rewards in [0, 1]
    matrices       m x m matrices that a settlement moves
    count          arms with a head of their own
    twin           it keeps a copy of itself beside it
    trial          members that are to join, which learn what was settled before; None: none do
    """

    standardises: bool = True
    matrices: int = 1
    trial: "Head | None" = None

    # -- score ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def held(self) -> float:
        """Settlements that it holds, of all arms."""

    @abstractmethod
    def mean(self, phi: Array, arms: Sequence[str]) -> Array: ...  # (n, m) -> (n,)

    @abstractmethod
    def width(self, phi: Array, arms: Sequence[str]) -> Array:  # (n, m) -> (n,)
        """Posterior standard deviation of each mean, in units of the reward."""

    @abstractmethod
    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:  # (n,), (n,)
        """Settlements that the head of each arm holds, and the noise of their rewards."""

    @abstractmethod
    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array: ...  # (M, n)

    def spread(
        self, phi: Array, arms: Sequence[str]
    ) -> tuple[Array, Array, Array]:  # (b K, m) -> (b, K) each
        """Return means, widths, and how many times as uncertain each row is as what was shown, of K
        arms in one context after another."""
        each = [*arms] * (len(phi) // len(arms))
        width, (held, noise) = self.width(phi, each), self.evidence(each)
        found = self.mean(phi, each), width, held * np.square(width / noise)
        mean, width, grown = (array.reshape(-1, len(arms)) for array in found)
        return mean, width, grown

    @property
    def posterior(self) -> "Gaussian | None":
        """The normal distribution of weights that all arms share. It takes rows of several contexts
        at once, each with the bits that it has alone; None: there is none."""
        return None

    @property
    def coefficients(self) -> Array | None:  # (m,)
        """Weights whose product with a row is its mean, less what all rows have in common; None:
        means are not linear in rows."""
        return None

    def win_shares(
        self, phi: Array, arms: Sequence[str], like: Index, bank: Bank, scale: float
    ) -> Array | None:  # (b U, m) -> (b, U)
        """Return the shares of the draws that each row wins, in a way that is faster than to rank
        the rows of `draw`; None: there is none. b is 1 where there is no `posterior`.

        like    (U,) arms that are like each row
        scale   draws lie so many times as far from the mean
        """
        return None

    @property
    def stale(self) -> int:
        """Matrices to factorise before the next read."""
        return 0

    # -- learn ---------------------------------------------------------------------------------

    @abstractmethod
    def observe(self, row: Observation) -> None: ...

    def observe_many(self, rows: Observations) -> None:
        """Learn settlements as `observe` does one after the other, to the last bit."""
        for row in rows.each():
            self.observe(row)

    def observe_block(self, rows: Observations) -> None:
        """Learn the settlements of one event, in the order that they have there."""
        if len(rows.arms) == 1:
            [row] = rows.each()
            self.observe(row)
        else:
            self.observe_many(rows)

    @abstractmethod
    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        """Change the reward of an observation from `was`; A and the weight stay. left: the share of
        the observation that the decays since have left."""

    @abstractmethod
    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        """Undo an observation, or as much of it as the row weighs; the decays since have left a
        share `left`. Sums become what they were without it, but for rounding, and stay where that
        would leave nothing of the prior (`removable`)."""

    @abstractmethod
    def decay(self, share: float) -> None:
        """Count what is held for `share` of itself from now on; the prior stays whole."""

    @abstractmethod
    def distrust(self, factor: float) -> None:
        """Multiply the unexplained squares by `factor`: the noise was learned from residuals of a
        net that had seen these very rewards. Does nothing where no noise is learned."""

    def obstacle(self, kept: Self, columns: Index) -> str:
        """Return why it cannot go on from what a head of the same settings learned; '' if it can.
        columns: where each column of its rows was, -1 for a new one."""
        return "it saw none of its columns before" if len(columns) and max(columns) < 0 else ""

    def follow(self, kept: Self, columns: Index) -> None:
        """Go on from what another head learned, where there is no `obstacle`. A column that was not
        there was 0: it starts from the prior."""
        self.restore(kept.arrays())

    # -- members that join late ----------------------------------------------------------------

    @property
    def awaits_late(self) -> bool:
        """Whether members are to join once they have learned all that was settled before."""
        return False

    def begin_trial(self, phi: Array) -> None:  # (n, m)
        """Have a `trial` of these members, which see functions that the rows make."""
        raise AssertionError("no member is awaited")

    def rehearse(self, rows: Iterable[Observation]) -> None:
        """Teach them some of what was settled before."""
        raise AssertionError("no member is awaited")

    def end_trial(self) -> None:
        """Have them join where they are still awaited."""
        self.trial = None

    # -- for people, and for the memory of a process -------------------------------------------

    @abstractmethod
    def health(self) -> HeadHealth: ...

    def unit(self, span: float) -> float:
        """Return what a width of 1 stands for. span: of the range of rewards, learned as 1."""
        return span

    def opinions(self, phi: Array, arms: Sequence[str]) -> list[tuple[str, float, Array]]:
        """Return name, weight and means (K,) of each regression that the mean is an average of, in
        one context; none where it is of one."""
        return []

    def effects(self, row: Array, arm: str) -> Effects | None:  # (m,)
        """Divide the mean of a row among its columns and their crosses; None: what a column adds is
        what the mean is less without it."""
        return None

    @property
    def count(self) -> int:
        return 0

    @property
    def twin(self) -> bool:
        return False

    def decision_numbers(self, arms: int, draws: int) -> float:
        """Count the numbers of a decision that each of the arms adds, beside its row and its draws.
        Most heads rank all arms by products with one matrix."""
        return 0.0

    # -- state ---------------------------------------------------------------------------------

    @abstractmethod
    def arrays(self) -> dict[str, Stored]:
        """Return the whole state, exactly, for a snapshot; `restore` is the inverse."""

    @abstractmethod
    def restore(self, arrays: dict[str, Stored]) -> None: ...


def digest(head: Head) -> str:
    """Return a fingerprint of all of a head's bits: replicas at one position have the same."""
    total = hashlib.sha256()
    for name, array in sorted(head.arrays().items()):
        total.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]
