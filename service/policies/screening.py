"""The highest of scores in single precision, settled in double precision."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from service.policies.rules import highest
from service.posterior import Array
from service.posterior.rows import Index, Rows


def highest_exactly(
    scores: npt.NDArray[np.floating],  # (U,)
    margin: float,
    rows: Rows,
    like: Index,
    exact: Callable[[Array], Array],
) -> Array | None:  # (U,)
    """`rules.highest`, where few scores are within a margin of the largest; None: many are.
    exact: the scores of rows of phi."""
    open_ = (scores >= scores.max() - margin).nonzero()[0]
    if len(open_) > len(rows) // 4:
        return None
    shares = np.zeros(len(rows))
    shares[open_] = highest(exact(rows.exact(open_))[None], like[open_])[0]
    return shares
