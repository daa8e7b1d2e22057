"""The share of the posterior draws that each row wins, in bounded memory."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.bandits.linalg import Array, Index, Single

TIE = 1e-12
"""Scores that are this close, relatively, are equal: they differ by rounding alone."""

SINGLE_ROUNDING = 2.0**-24
"""Relative rounding of a float32."""

SINGLE_LENGTHS = (1e-9, 1e9)
"""Lengths whose products float32 neither overflows nor flushes to zero."""

CELLS = 2**20
"""Scores in memory at a time: 8 MB in float64."""

TABLE = 2**17
"""Scores up to which a table of arms with draws of their own is faster than `independent`: 256 arms
at 512 draws."""

Wins = tuple[Index, Index]
"""Draw and row of each win, by draw: one for each draw, or one for each row of a tie."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Posterior draws of the weights that all arms share.

    exact, single   (M, m) one row a draw, in float64 and float32
    lengths         (M,) of these rows
    """

    exact: Array
    single: Single
    lengths: Array

    @classmethod
    def of(cls, exact: Array) -> "Weights":
        with np.errstate(over="ignore"):  # infinite rows are too long for float32
            return cls(exact, exact.astype(np.float32), np.sqrt(np.vecdot(exact, exact)))


def winners(table: Array) -> Wins:  # (D, U)
    """Find the largest score of each draw, and its ties."""
    table = np.ascontiguousarray(table)
    draws, index = np.arange(len(table)), table.argmax(axis=1)
    best = table[draws, index]
    close = table >= (best - TIE * np.abs(best))[:, None]
    if np.count_nonzero(close) == len(table) and close[draws, index].all():
        return draws, index
    draws, index = close.nonzero()
    return draws, index


def shares(wins: Wins, like: Index, count: int) -> Array:  # (U,) -> (U,)
    """Return the share of `count` draws that each arm of a row wins.

    like: (U,) arms that are like each row. They share its wins, and a tie is shared by all of its
    arms. Added up in the order of the draws, so that the bits are those of a mean over them.
    """
    draws, rows = wins
    if len(draws) == count and like.max() == 1:
        return np.asarray(np.bincount(rows, minlength=len(like)) / count)
    winning = np.bincount(draws, weights=like[rows], minlength=count)
    return np.asarray(np.bincount(rows, 1.0 / winning[draws], minlength=len(like)) / count)


def joined(parts: list[Wins]) -> Wins:
    if len(parts) == 1:
        return parts[0]
    draws, rows = zip(*parts, strict=True)
    return np.concatenate(draws), np.concatenate(rows)


def linear(phi: Array, weights: Weights, like: Index) -> Array:  # (b U, m) -> (b, U)
    """Return the shares of the draws in which each row has the largest product with the weights,
    in each of b contexts.

    Products are compared in float32; draws in which others come within its rounding of the largest
    are compared in float64, with the same wins as a whole table of it. 1,000 arms of 128 columns
    take half the time of float64.
    """
    count, draws = len(like), len(weights.exact)
    contexts, length = len(phi) // count, float(np.sqrt(np.vecdot(phi, phi).max()))
    lengths = weights.lengths
    least, most = SINGLE_LENGTHS
    fits = least < min(length, lengths.min()) and max(length, lengths.max()) < most
    rows = phi.astype(np.float32).T if fits else None
    # Twice (m + 2) 2^-24 |phi| |w|, which bounds the error of a product (Higham 2002, section 3.1).
    margin = (2 * SINGLE_ROUNDING * (phi.shape[1] + 16) * length) * lengths
    size = max(1, CELLS // len(phi))
    parts = []
    for start in range(0, draws, size):
        own = slice(start, start + size)
        exact, single = weights.exact[own], weights.single[own]
        if rows is None:
            won = _all_exactly(phi, exact, contexts)
        else:
            table = single.dot(rows).reshape(len(single), contexts, count)
            won = _screened(table, margin[own, None].astype(np.float32), phi, exact)
        parts.append((start + won[0], won[1]))
    won = joined(parts)
    if contexts == 1:
        return shares(won, like, draws)[None]
    if len(won[0]) == draws * contexts and like.max() == 1:
        return np.asarray(np.bincount(won[1], minlength=len(phi)).reshape(contexts, count) / draws)
    context, row = np.divmod(won[1], count)
    each = [context == number for number in range(contexts)]
    return np.stack([shares((won[0][own], row[own]), like, draws) for own in each])


def _screened(table: Single, margin: Single, phi: Array, weights: Array) -> Wins:  # (D, b, U)
    """Find the wins of a table in float32, its draws with close scores in float64. Rows of the wins
    are those of phi (b U, m)."""
    draws, contexts, count = table.shape
    index = table.argmax(axis=2)
    # By place: `max` of short rows takes three times as long as `argmax`.
    best = table.reshape(-1, count)[np.arange(index.size), index.ravel()].reshape(index.shape)
    close = table >= (best - margin)[:, :, None]
    rows = index + count * np.arange(contexts)
    if np.count_nonzero(close) == draws * contexts:
        return np.arange(draws).repeat(contexts), rows.ravel()
    open_ = np.add.reduce(close, axis=2, dtype=np.intp) > 1  # (D, b)
    parts = [((~open_).nonzero()[0], rows[~open_])]
    for context in open_.any(axis=0).nonzero()[0]:
        own, first = open_[:, context].nonzero()[0], context * count
        found, row = winners(weights[own] @ phi[first : first + count].T)
        parts.append((own[found], first + row))
    return _by_draw(joined(parts))


def _all_exactly(phi: Array, weights: Array, contexts: int) -> Wins:
    """Find the wins in float64."""
    count, parts = len(phi) // contexts, []
    for first in range(0, len(phi), count):
        draws, rows = winners(weights @ phi[first : first + count].T)
        parts.append((draws, first + rows))
    return _by_draw(joined(parts))


def _by_draw(wins: Wins) -> Wins:
    order = wins[0].argsort(kind="stable")
    return wins[0][order], wins[1][order]


Value = Callable[[Index, int, int], Array]
"""(arms (n,), start, stop) -> (n, stop - start): scores of arms in the draws of these ranks."""


def independent(places: npt.NDArray[np.uint16], value: Value) -> Array:  # (n, M) -> (n,)
    """Return the shares of wins of arms with draws of their own.

    places: the draw in which each arm has its r-th smallest score. From the largest ranks down: an
    arm whose score at a rank is below the least of the winners' wins with no lower rank either.
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
    return shares(_by_draw((won[kept], rows[kept])), np.ones(arms, np.intp), draws)
