"""A trained version on rows as the log has them, before it is staged: what breaks there would break
every fold after it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from service.bandits.policies.version import Version
from service.bandits.posterior import Observation
from service.definition.features import Array
from service.errors import Damaged, NotPositiveDefinite
from service.log.replay import replay
from service.log.stores import Store
from service.state.events import Learned
from service.state.fold import State
from service.state.learner import Learner

ROWS = 256
"""Settlements of the log that a version is tried on, at most."""

LOOKED_AT = 1_000
"""Events that they are looked for in."""

LEARNED = 16
"""Rows that it learns on trial."""

LARGEST = 1e4
"""Of a feature of a trained net, whose mean square over a row is 1 where it was fitted; and, in
spans of the reward, of what a version predicts."""


async def rows_of(store: Store, state: State) -> Array:  # (n, schema.width)
    """What was settled last, of decisions under the present features."""
    after, last = max(state.position - LOOKED_AT, 0), state.position
    events = [event async for _, event in replay(store, state.name, after, upto=last)]
    found = [
        settled.x
        for event in reversed(events)
        if isinstance(event, Learned) and event.schema_version == state.schema_version
        for settled in event.settled
    ]
    return np.array(found[:ROWS]).reshape(-1, state.schema.width)


def expect_sound(learner: Learner, version: Version, x: Array, span: tuple[float, float]) -> None:
    """Raises Damaged where the version says what is no number, or on most rows what is far from
    what any fitted one says, or does so once it has learned a few; it is not to be used after.

    x: (n, schema.width), of the log, some of which anybody may have sent; a row of ones stands for
    a log that has none. span: of the rewards.
    """
    try:
        _expect_sound(version, x if len(x) else np.ones((1, x.shape[1])), span)
    except (ValueError, NotPositiveDefinite) as fault:
        raise Damaged(f"the artifact does not fit policy {learner.name}: {fault}") from fault


def _expect_sound(version: Version, x: Array, span: tuple[float, float]) -> None:
    _expect_finite(version.describe()[1])
    phi, arms, (low, high) = version.phi(x), [""] * len(x), span
    if version.encoder.trained is not None:
        features = version.encoder.trained(version.view.rows(x))
        _expect_near(features, LARGEST, "the features that its net makes")
    for again in (False, True):
        said = [version.mean(phi, arms), version.encoder.predict(phi)]
        if version.head is not None:
            said.append(version.head.width(phi, arms))
        if not np.isfinite(said).all():
            raise ValueError("a mean or a width on rows of the log is not finite")
        for predicted in said[:2]:
            _expect_near(
                predicted[:, None], LARGEST * max(high - low, abs(high)), "its predictions"
            )
        if again or version.head is None:
            return
        for row in phi[:LEARNED]:
            version.head.observe(Observation("", row, high, ""))


def _expect_near(values: Array, most: float, what: str) -> None:  # (n, m)
    """By the middle one of the rows."""
    size = np.median(np.abs(values).max(axis=1))
    if not size <= most:
        raise ValueError(f"on rows of the log {what} are as large as {size:.1e}")


def _expect_finite(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")
