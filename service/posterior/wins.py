"""How often each row wins over posterior draws, without a table of all scores in full precision.

Both ways are exact: what they leave out cannot win, by a bound and not by chance, and what is close
is compared in float64, as a whole table of it would be (`Scores` in policies/rules.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

TIE = 1e-12
"""Scores this close, relatively, are equal: they differ by rounding alone."""

BLOCK = 256
"""Rows scored at a time: 512 draws of them are 512 KiB in float32, which the cache holds. 10,000
rows of 32: 17 ms in one table, 10 in blocks."""

ROUNDING = 2.0**-24
"""Of a float32, relatively."""

SAFE = (1e-9, 1e9)
"""Lengths whose products float32 neither overflows nor flushes to zero."""

FIRST = 32
"""Rows whose scores say what the others have to reach."""


def shares(draws: Index, rows: Index, like: Index, count: int) -> Array:  # (pairs,) -> (U,)
    """The share of `count` draws that each row wins. draws, rows: of each win, ascending by draw;
    like: (U,) arms that are like a row, who share its wins (and each gets this share).

    Added up in the order of the draws, so that the bits are those of a mean over them.
    """
    if len(draws) == count and like.max() == 1:
        return np.asarray(np.bincount(rows, minlength=len(like)) / count)
    winners = np.bincount(draws, weights=like[rows], minlength=count)
    return np.asarray(np.bincount(rows, 1.0 / winners[draws], minlength=len(like)) / count)


@dataclass(frozen=True, slots=True)
class Weights:
    """Posterior draws of a shared head's weights.

    exact, single   (m, M) one column a draw
    lengths         (M,) of the columns
    away            (M,) lengths of the normals that they were made of
    """

    exact: Array
    single: Single
    lengths: Array
    away: Array

    @classmethod
    def of(cls, exact: Array, away: Array) -> "Weights":
        lengths = np.sqrt(np.square(exact).sum(axis=0))
        return cls(exact, exact.astype(np.float32), lengths, away)

    @property
    def safe(self) -> bool:
        least, most = SAFE
        return bool(least < self.lengths.min() and self.lengths.max() < most)


def linear(phi: Array, weights: Weights, like: Index) -> Array | None:  # (n, m) -> (n,)
    """Shares of the draws in which each row of phi has the largest product with the weights; None
    where single precision cannot tell.

    A product of float32 is within (m + 2) 2^-24 |phi| |w| of the true one (Higham 2002, section
    3.1): what is further than twice that below the largest has not won.
    """
    width, draws = weights.exact.shape
    size = float(np.sqrt(np.vecdot(phi, phi).max()))
    if not (SAFE[0] < size < SAFE[1] and weights.safe):
        return None
    slack = (2 * ROUNDING * (width + 8) * size) * weights.lengths
    slack = slack.astype(np.float32)
    single = phi.astype(np.float32)
    if len(phi) <= BLOCK:
        table = single.dot(weights.single)
        found = (table >= table.max(axis=0) - slack).ravel().nonzero()[0]
        rows = found // draws
        if len(found) == draws and like.max() == 1:
            return np.asarray(np.bincount(rows, minlength=len(phi)) / draws)
        won = found - rows * draws
    else:
        rows, won = _in_blocks(single, weights.single, slack)
    if len(rows) > 4 * draws:
        return None
    order = won.argsort(kind="stable")
    rows, won = rows[order], won[order]
    if len(rows) > draws:
        rows, won = _settled(phi, weights.exact, rows, won)
    return shares(won, rows, like, draws)


def _in_blocks(phi: Single, weights: Single, slack: Single) -> tuple[Index, Index]:
    """Rows and draws of what may win. Blocks that hold none of a draw are not looked at again."""
    starts = range(0, len(phi), BLOCK)
    table = np.empty((BLOCK, len(slack)), np.float32)
    most = np.empty((len(starts), len(slack)), np.float32)
    for block, start in enumerate(starts):
        rows = phi[start : start + BLOCK]
        np.matmul(rows, weights, out=table[: len(rows)]).max(axis=0, out=most[block])
    least = most.max(axis=0) - slack
    found = []
    for block, start in enumerate(starts):
        draws = (most[block] >= least).nonzero()[0]
        if len(draws):
            again = phi[start : start + BLOCK].dot(weights[:, draws])
            rows, columns = (again >= least[draws]).nonzero()
            found.append((rows + start, draws[columns]))
    every, won = zip(*found, strict=True)
    return np.concatenate(every), np.concatenate(won)


def _settled(phi: Array, weights: Array, rows: Index, won: Index) -> tuple[Index, Index]:
    """Those of them, by draw, that win in float64."""
    open_ = np.bincount(won, minlength=weights.shape[1])[won] > 1
    scores = np.zeros(len(rows))
    scores[open_] = np.einsum("pm,mp->p", phi[rows[open_]], weights[:, won[open_]])
    best = np.full(weights.shape[1], -np.inf)
    np.maximum.at(best, won, scores)
    kept = scores >= (best - TIE * np.abs(best))[won]
    return rows[kept], won[kept]


def contenders(mean: Array, width: Array, phi: Array, weights: Weights) -> Index | None:
    """Rows that may win in some draw; None where these are most of them.

    mean, width: (n,) of phi, the width in units of the normals. In draw j no row scores more than
    mean + width |z_j| (Cauchy-Schwarz), and some row scores at least best_j. How far the largest
    |z_j| width - best_j reaches is convex in the width: between two widths it is below the chord.
    """
    first = np.argpartition(mean + 2 * width, -FIRST)[-FIRST:]
    best = phi[first].dot(weights.exact).max(axis=0)
    grid = np.linspace(width.min(), width.max(), FIRST)
    reach = (np.multiply.outer(grid, weights.away) - best).max(axis=1)
    bound = mean + np.interp(width, grid, reach)
    margin = 1e-9 * (np.abs(mean).max() + width.max() * weights.away.max())
    kept = (bound >= -margin).nonzero()[0]
    return kept if len(kept) < 0.7 * len(mean) else None


Value = Callable[[Index, int, int], Array]
"""(arms (n,), start, stop) -> (n, stop - start): what an arm scores in the draws of these ranks."""


def independent(places: npt.NDArray[np.uint16], value: Value) -> Array:  # (n, M) -> (n,)
    """The same where each arm has draws of its own. places: the draw that has an arm's r-th
    smallest normal; what it scores rises with r.

    From the largest ranks down: an arm whose score at a rank is below the least of the winners'
    wins with no lower rank either.
    """
    arms, draws = places.shape
    best = np.full(draws, -np.inf)
    active, stop, size = np.arange(arms), draws, 1 + draws // arms
    found = []
    while len(active) and stop:
        start = max(stop - size, 0)
        scores = value(active, start, stop)
        where = places[active, start:stop].astype(np.intp)
        np.maximum.at(best, where.ravel(), scores.ravel())
        least = best - TIE * np.abs(best)
        rows, columns = (scores >= least[where]).nonzero()
        found.append((active[rows], where[rows, columns], scores[rows, columns]))
        active = active[scores[:, 0] >= least.min()]
        stop, size = start, 2 * size
    rows, won, scores = (np.concatenate(part) for part in zip(*found, strict=True))
    kept = scores >= (best - TIE * np.abs(best))[won]
    rows, won = rows[kept], won[kept]
    order = won.argsort(kind="stable")
    return shares(won[order], rows[order], np.ones(arms, np.intp), draws)
