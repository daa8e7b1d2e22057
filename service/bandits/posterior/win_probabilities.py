"""How often each row wins over posterior draws, without a table of all scores in full precision.

Both ways are exact: what they leave out cannot win, by a bound and not by chance, and what is close
is compared in float64, as a whole table of it would be (`Scores` in policies/rules.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.bandits.posterior.rows import Array, Index, Rows, Single, safe, slack

TIE = 1e-12
"""Scores this close, relatively, are equal: they differ by rounding alone."""

BLOCK = 256
"""Rows scored at a time: 512 draws of them are 512 KiB in float32, which the cache holds. 10,000
rows of 32: 17 ms in one table, 10 in blocks."""

AT_ONCE = 1_024
"""Rows up to which one table of all is faster: a block's rows are scored again where they may have
won. 300 rows: 0.3 ms in place of 1.4. Of more, those that cannot win are looked for first."""

Exact = Callable[[Index], Array]
"""Of an index, those rows of phi in float64."""


def shares(draws: Index, rows: Index, like: Index, count: int) -> Array:  # (pairs,) -> (U,)
    """The share of `count` draws that each row wins. draws, rows: of each win, ascending by draw;
    like: (U,) arms that are like a row, who share its wins (and each gets this share).

    Added up in the order of the draws, so that the bits are those of a mean over them.
    """
    if len(draws) == count and like.max() == 1:
        return np.asarray(np.bincount(rows, minlength=len(like)) / count)
    winners = np.bincount(draws, weights=like[rows], minlength=count)
    return np.asarray(np.bincount(rows, 1.0 / winners[draws], minlength=len(like)) / count)


def by_draw(draws: Index) -> Index:
    """The order that puts wins by draw and leaves them as they are within one. Of 16 bits, as many
    as there are draws at most, numpy sorts by radix: in a tenth of the time."""
    return draws.astype(np.uint16).argsort(kind="stable")


def winners(table: Array) -> tuple[Index, Index]:  # (n, M) -> (wins,) twice
    """Row and draw of each win in a table of scores, by draw."""
    best = table.max(axis=0)
    rows, draws = (table >= best - TIE * np.abs(best)).nonzero()
    order = by_draw(draws)
    return rows[order], draws[order]


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

    def times(self, factors: Array | None) -> tuple[Single, Array]:  # (m,)
        """In single precision with their lengths, for rows that have yet to be multiplied by these,
        column by column. What that rounds is within the margin of `slack`."""
        if factors is None:
            return self.single, self.lengths
        with np.errstate(over="ignore"):  # infinite lengths are not safe
            single = self.single * factors.astype(np.float32)[:, None]
        return single, np.sqrt(np.einsum("mk,mk->k", single, single, dtype=float))


class Reach:
    """How far rows can get in each draw, by blocks of those that can get furthest.

    In draw j no row scores more than mean + width |z_j| (Cauchy-Schwarz). The most that a block's
    rows reach is convex in |z_j|: between its ends it is below the chord. So most of the draws are
    decided by the first blocks, and of the others only those draws are scored that they can win.
    10,000 rows of 32 under a head of 36 rewards: a third of the scores, and 1 in 40 after 2,000.

    order    (n,) rows in the order that they are scored in
    most     (blocks, M) no row of a block scores more
    scored   pairs of a row and a draw that were
    """

    def __init__(self, mean: Single, width: Single, error: float, away: Array) -> None:
        low, middle, high = float(away.min()), float(away.mean()), float(away.max())
        middling = mean + np.float32(middle) * width
        middling -= middling.max()
        middling *= np.float32(-65_535 / max(-float(middling.min()), 1e-30))
        order = middling.astype(np.uint16).argsort(kind="stable")  # by radix: a tenth of the time
        starts = np.arange(0, len(order), BLOCK)
        mean, width = mean.take(order), width.take(order)
        scale = float(np.abs(mean).max() + high * width.max())
        error = error * (1 + high) + 1e-6 * scale
        near = np.maximum.reduceat(mean + np.float32(low) * width, starts)[:, None] + error
        far = np.maximum.reduceat(mean + np.float32(high) * width, starts)[:, None] + error
        share = (away - low) / max(high - low, 1e-300)
        self.order, self.most, self.scored = order, near + (far - near) * share, 0


def linear(rows: Rows, weights: Weights, like: Index, reach: Reach | None = None) -> Array | None:
    """Shares (b, U) of the draws in which each of U rows has the largest product with the weights,
    in each of b contexts; None where single precision cannot tell. What is further than `slack`
    below the largest has not won."""
    columns, lengths = weights.times(rows.times)
    length, count = rows.length, len(like)
    if not (safe(length, length) and safe(lengths.min(), lengths.max())):
        return None
    single = rows.single
    margin = slack(single.shape[1], length, lengths).astype(np.float32)
    if len(single) > count or count <= AT_ONCE:
        return _in_tables(rows, single.dot(columns), margin, weights.exact, like)
    which, won = _in_blocks(single, columns, margin, reach)
    found = _counted(rows.exact, weights.exact, like, which, won)
    return None if found is None else found[None]


def _in_tables(
    rows: Rows,
    products: Single,  # (b U, M)
    margin: Single,  # (M,)
    weights: Array,  # (m, M)
    like: Index,
) -> Array | None:  # (b, U)
    """Wins are counted as bits; only a context in which rows are close is settled by itself."""
    count, draws = len(like), len(margin)
    table = products.reshape(-1, count, draws)
    least = table.max(axis=1, keepdims=True)
    least -= margin
    close = table >= least
    bits = np.packbits(close, axis=2)
    words = bits.view(np.uint64) if bits.shape[2] % 8 == 0 else bits
    wins = np.add.reduce(np.bitwise_count(words), axis=2, dtype=np.intp)
    alone, total, least_total = like.max() == 1, int(wins.sum()), draws * len(wins)
    if total > 4 * least_total:
        return None
    if alone and total > least_total:
        _settle_apart(rows, weights, close, wins)
    elif alone:
        return np.asarray(wins / draws)
    shared = np.asarray(wins / draws)
    for context in (alone * wins.sum(axis=1) != draws).nonzero()[0].tolist():  # some share a win
        found = close[context].ravel().nonzero()[0]
        which, first = found // draws, context * count
        settled = _counted(rows.exact, weights, like, which, found - which * draws, first)
        if settled is None:
            return None
        shared[context] = settled
    return shared


def _settle_apart(
    rows: Rows,
    weights: Array,  # (m, M)
    close: npt.NDArray[np.bool_],  # (b, U, M)
    wins: Index,  # (b, U)
) -> None:
    """Take away the wins of rows that do not have the largest product in float64."""
    context, draw = (np.add.reduce(close, axis=1, dtype=np.uint16) > 1).nonzero()
    which, row = close[context, :, draw].nonzero()
    context, draw = context[which], draw[which]
    differ, of = np.unique(context * wins.shape[1] + row, return_inverse=True)
    scores = np.vecdot(rows.exact(differ)[of], weights.T[draw])
    first = np.flatnonzero(np.diff(which, prepend=-1))
    best = np.maximum.reduceat(scores, first)[which]
    lost = scores < best - TIE * np.abs(best)
    np.subtract.at(wins, (context[lost], row[lost]), 1)


def _counted(
    exact: Exact, weights: Array, like: Index, which: Index, won: Index, first: int = 0
) -> Array | None:  # (pairs,) -> (U,)
    """Shares from rows that are close to the largest and the draws in which they are; None: too
    many are. first: the row of phi that is row 0 here."""
    draws = weights.shape[1]
    if len(which) > 4 * draws:
        return None
    order = by_draw(won)
    which, won = which[order], won[order]
    if len(which) > draws:
        which, won = _settled(exact, weights, which + first, won)
        which = which - first
    return shares(won, which, like, draws)


def _in_blocks(
    phi: Single, weights: Single, margin: Single, reach: Reach | None
) -> tuple[Index, Index]:
    """Rows and draws of what may win. Blocks that hold none of a draw are not looked at again."""
    draws, order = len(margin), None if reach is None else reach.order
    table, every = np.empty(BLOCK * draws, np.float32), np.arange(draws)
    best = np.full(draws, -np.inf, np.float32)
    scored: list[tuple[int, Index, Single]] = []
    for start in range(0, len(phi), BLOCK):
        own, columns = every, weights
        if reach is not None:
            own = (reach.most[start // BLOCK] >= best - margin).nonzero()[0]
            if not len(own):
                continue
            if len(own) < draws:
                columns = weights.take(own, axis=1)
            reach.scored += len(own) * BLOCK
        rows = _block(phi, order, start)
        scores = np.matmul(rows, columns, out=table[: len(rows) * len(own)].reshape(-1, len(own)))
        most = scores.max(axis=0)
        best[own] = np.maximum(best[own], most)
        scored.append((start, own, most))
    least = best - margin
    winners, won = [], []
    for start, own, most in scored:
        open_ = own[most >= least[own]]
        if len(open_):
            again = _block(phi, order, start).dot(weights.take(open_, axis=1))
            which, column = (again >= least[open_]).nonzero()
            winners.append(which + start)
            won.append(open_[column])
    which = np.concatenate(winners)
    return which if order is None else order[which], np.concatenate(won)


def _block(phi: Single, order: Index | None, start: int) -> Single:
    """BLOCK rows, of those in an order where there is one."""
    stop = start + BLOCK
    return phi[start:stop] if order is None else phi.take(order[start:stop], axis=0)


def _settled(exact: Exact, weights: Array, rows: Index, won: Index) -> tuple[Index, Index]:
    """Those of them, by draw, that win in float64."""
    open_ = np.bincount(won, minlength=weights.shape[1])[won] > 1
    scores = np.zeros(len(rows))
    differ, of = np.unique(rows[open_], return_inverse=True)
    scores[open_] = np.einsum("pm,mp->p", exact(differ)[of], weights[:, won[open_]])
    best = np.full(weights.shape[1], -np.inf)
    np.maximum.at(best, won, scores)
    kept = scores >= (best - TIE * np.abs(best))[won]
    return rows[kept], won[kept]


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
    order = by_draw(won)
    return shares(won[order], rows[order], np.ones(arms, np.intp), draws)
