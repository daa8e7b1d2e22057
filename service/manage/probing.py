"""Tries a trained version on rows of the log before it is staged: a fault would break every later
fold."""

import numpy as np

from service.bandits.heads import Observation
from service.bandits.version import Version
from service.errors import Damaged, NotPositiveDefinite
from service.features.schema import Array
from service.log.replay import replay
from service.log.stores import Store
from service.state.events import settlements_of
from service.state.fold import State
from service.state.learner import Learner

TRIAL_ROWS = 256
"""Most settlements of the log for a trial."""

LOOKED_AT = 1_000
"""Events that are searched for these settlements."""

LEARNED = 16
"""Rows that the version learns in the trial."""

TOLD_APART = 16
"""Different rows of the log that no fitted net takes for one."""

SAME = 1e-9
"""Relative difference of features that rounding can make."""

LARGEST_PREDICTION = 1e4
"""Largest size of a trained net's feature, whose mean square over a fitted row is 1, and of a
prediction, in spans of the reward."""


async def rows_of(store: Store, state: State) -> Array:  # (n, schema.width)
    """Return the latest settlements, under the present features."""
    after, last = max(state.position - LOOKED_AT, 0), state.position
    events = [event async for _, event in replay(store, state.name, after, upto=last)]
    found = [
        settled.row
        for event in reversed(events)
        for settlement in settlements_of(event)
        if state.knows(settlement.schema_version)
        for settled in state.present(settlement).settled
    ]
    return state.schema.layout.unpack(found[:TRIAL_ROWS])


def expect_sound(learner: Learner, version: Version, x: Array) -> None:
    """Raise Damaged where the version predicts no finite numbers, or ones on most rows that no
    fitted version predicts, also once it has learned a few rows, or where its net tells no rows
    apart; nobody can use it afterwards.

    x: (n, schema.width), of the log, to which anybody may have sent rows; a row of ones replaces
    none.
    """
    try:
        _expect_sound(version, x if len(x) else np.ones((1, x.shape[1])))
    except (ValueError, NotPositiveDefinite) as fault:
        raise Damaged(f"the artifact does not fit policy {learner.name}: {fault}") from fault


def _expect_sound(version: Version, x: Array) -> None:
    for name, array in version.describe()[1].items():
        if name == "memory.rows.numbers":  # NaN: not known then
            array = array[~np.isnan(array)]
        if name != "scaling" and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")
    phi, arms = version.phi(x), [""] * len(x)
    if version.encoder.trained is not None:
        rows = version.view.rows(x)
        features = version.encoder.trained(rows)
        _expect_near(features, LARGEST_PREDICTION, "the features that its net makes")
        _expect_told_apart(rows, features)
    for again in (False, True):
        predictions = [version.mean(phi, arms), version.encoder.predict(phi)]
        widths = [] if version.head is None else [version.head.width(phi, arms)]
        if not np.isfinite(predictions + widths).all():
            raise ValueError("a mean or a width on rows of the log is not finite")
        for predicted in predictions:
            _expect_near(predicted[:, None], LARGEST_PREDICTION, "its predictions")
        if again or version.head is None:
            return
        for row in phi[:LEARNED]:
            version.head.observe(Observation("", row, 1.0, ""))


def _expect_told_apart(rows: Array, features: Array) -> None:  # (n, d), (n, m)
    """Raise ValueError where different rows all have the same features, as where every unit of a
    layer is dead."""
    spread = np.ptp(features, axis=0).max()
    if spread <= SAME * np.abs(features).max():
        different = len(np.unique(rows, axis=0))
        if different >= TOLD_APART:
            raise ValueError(f"its net gives {different} different rows of the log one output")


def _expect_near(values: Array, most: float, what: str) -> None:  # (n, m)
    """Raise ValueError where the median row is too large."""
    size = np.median(np.abs(values).max(axis=1))
    if not size <= most:
        raise ValueError(f"on rows of the log {what} are as large as {size:.1e}")
