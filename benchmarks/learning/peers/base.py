"""The interface of a peer: two verbs over encoded features."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.learning.course import Chance
from benchmarks.learning.forage import rewards_of
from service.definition.experiment import Definition
from service.features.schema import Array, Schema
from simulator_client.worlds import World
from simulator_client.worlds.classification import Classification

Indexes = npt.NDArray[np.intp]


class LeftOut(Exception):
    """An agent cannot play in a world; the message says why."""


@dataclass(frozen=True)
class Problem:
    """A world as known before the first visit.

    arms, rows   the catalogue: ids, and encoded features (K, columns)
    context      columns of an encoded context: numbers standardised, categories one-hot
    seed         of the peer's own draws
    """

    world: str
    arms: tuple[str, ...]
    rows: Array
    context: int
    reward_range: tuple[float, float]
    seed: int

    @property
    def slates(self) -> bool:
        """Whether a request names some arms of the catalogue and shows several."""
        return self.world == "ranking"

    @property
    def columns(self) -> int:
        """Of `inputs`."""
        arm: int = self.rows.shape[1]
        return arm if self.slates else self.context + arm

    def inputs(self, context: Array, arms: Indexes) -> Array:  # (n, columns)
        """Return a row for each arm: context and arm side by side. In the ranking world it is the
        product of the two embeddings, which our policies get too."""
        rows = self.rows[arms]
        if self.slates:
            product: Array = rows * context
            return product
        return np.hstack([np.tile(context, (len(rows), 1)), rows])


class Peer(Protocol):
    """A learner that gets everything our policies get."""

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        """Choose `size` of the arms (rows of the catalogue), best first. rng: of the visit."""

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        """Learn rewards by arm, of the arms that were shown last in this context."""


def standardised(world: World[Any]) -> Definition:
    """Return the experiment as users of other libraries would prepare it: each number of a data set
    centered and scaled to unit variance by all rows. Our policies measure theirs."""
    definition = world.definition(["random"])
    if isinstance(world, Classification):
        context = {
            name: feature | (_standard(world.columns.column(name)) if _is_number(feature) else {})
            for name, feature in definition["features"]["context"].items()
        }
        definition["features"] = definition["features"] | {"context": context}
    return Definition.model_validate(definition)


def _is_number(feature: Mapping[str, Any]) -> bool:
    return bool(feature["type"] == "numeric")


def _standard(values: Sequence[str | float]) -> dict[str, float]:
    numbers = np.array(values, float)
    # Numbers that are too small to be squared stay as they are.
    return {"center": float(numbers.mean()), "scale": float(numbers.std()) or 1.0}


class Guest:
    """An `Agent` around a peer, which encodes requests and settles rewards as the service does."""

    def __init__(self, world: World[Any], make: Callable[[Problem], Peer], seed: int) -> None:
        self._definition = standardised(world)
        self._schema = Schema(self._definition.features)
        arms = self._definition.arms
        self._row_of = {arm: row for row, arm in enumerate(arms)}
        self._ids = tuple(arms)
        self._all = np.arange(len(arms))
        self._peer = make(
            Problem(
                world.name,
                self._ids,
                np.array([self._schema.encode_arm(features) for features in arms.values()]),
                self._schema.context.width,
                self._definition.reward.range,
                seed,
            )
        )

    def show(self, request: Mapping[str, Any], chance: Chance) -> list[str]:
        """Return the peer's choice."""
        self._context = self._schema.encode_context(request["context"])
        named = request.get("arms")
        arms = self._all if named is None else np.array([self._row_of[arm] for arm in named])
        size = request.get("top_k", 1)
        chosen = self._peer.choose(self._context, arms, size, Random(chance.seed))
        self._shown = [self._ids[arm] for arm in chosen]
        return self._shown

    def settle(self, feedback: Mapping[str, Any], chance: Chance) -> None:
        """Let the peer learn the rewards that our policies would learn."""
        rewards = rewards_of(feedback, self._shown, self._definition)
        self._peer.learn(
            self._context, [(self._row_of[arm], reward) for arm, reward in rewards.items()]
        )


def top(scores: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
    """Return the `size` arms of the highest scores, best first; ties in random order."""
    if size == 1:
        tied = np.flatnonzero(scores == scores.max())
        return [int(arms[tied[rng.randrange(len(tied))]])]
    ties = np.random.default_rng(rng.getrandbits(63)).random(len(scores))
    return [int(arm) for arm in arms[np.lexsort((ties, -scores))[:size]]]
