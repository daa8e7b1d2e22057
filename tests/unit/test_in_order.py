"""Arms that differ, found column by column: what `numpy.unique` of rows finds."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.policies import candidates
from service.bandits.policies.candidates import in_order

columns = st.sampled_from(
    [
        [0.0],
        [0.0, 1.0],
        [-0.0, 0.0, 1.0],
        [0.25, -3.0],
        [1.0, 2.0, 3.0],
        [5e-324, -1e308, 1e308, 0.0],
        [n / 7 for n in range(40)],
    ]
)


@given(
    st.lists(columns, max_size=60),
    st.integers(0, 60),
    st.sampled_from([4, candidates.MOST_KEYS]),
    st.randoms(use_true_random=False),
)
def test_rows_that_differ_come_in_the_order_of_their_values(
    kinds: list[list[float]], count: int, most: int, chance: Random
) -> None:
    values = [[chance.choice(kind) for kind in kinds] for _ in range(count)]
    rows = np.array(values).reshape(count, len(kinds))
    candidates.MOST_KEYS, before = most, candidates.MOST_KEYS
    try:
        first, of = in_order(rows)
    finally:
        candidates.MOST_KEYS = before
    if not kinds:
        assert first.tolist() == [0][:count]
        assert not of.any()
        return
    _, expected, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    assert first.tolist() == expected.tolist()
    assert of.tolist() == inverse.reshape(-1).tolist()
