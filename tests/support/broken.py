"""A fault of memory: heads that are no numbers, in one process alone."""

import numpy as np

from service.state.learner import Learner


def break_head(learner: Learner) -> None:
    """Make every number of the served head NaN. The log knows nothing of it."""
    head = learner.active.head
    assert head is not None
    head.restore(
        {
            name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array
            for name, array in head.arrays().items()
        }
    )
