"""Worlds that only this benchmark plays, beside those of the simulator.

clicks_tenth, clicks_fiftieth   the pet shop with all click chances divided
drift        ten arms whose tastes turn a quarter of a circle in 10,000 visits
payments     ten arms, rewards of a narrow normal noise
own_effects  twenty arms with features, and tastes that their features do not explain
two_arms     clicks of .50 and .45, and no context
useless_N    eleven arms, one clicked with .25 and the others with .10, whatever N columns say
thirds       a classification data set, each class in three by the values of a column
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.learning.course import Array
from simulator_client.worlds import Outcome, Reference, World, make_world
from simulator_client.worlds.classification import Classification, one_head_an_arm
from simulator_client.worlds.policies import chosen
from simulator_client.worlds.zooplus import Zooplus

WORLD_SEED: Final = 42
RATES: Final = {"clicks_tenth": 10, "clicks_fiftieth": 50}
CATALOGUE: Final = "arm"  # the feature that names an arm, where arms have no other
PARTS: Final = 3
TURN_VISITS: Final = 10_000
BOUNDS_VISITS: Final = 2_000
USELESS: Final = {f"useless_{columns}": columns for columns in (0, 5, 20, 60, 100)}


class Rare(Zooplus):
    """The pet shop with click chances divided by `divisor`."""

    def __init__(self, seed: int, divisor: int) -> None:
        super().__init__(seed)
        self._divisor = divisor
        self._best, self._mean = (
            [{persona: chance / divisor for persona, chance in table.items()} for table in tables]
            for tables in (self._best, self._mean)
        )

    def click_probability(self, user: int, arm: str, *, shocked: bool = False) -> float:
        return super().click_probability(user, arm, shocked=shocked) / self._divisor


class Thirds(Classification):
    """Each class as PARTS classes, `class.1` and so on: those of the lowest values of the first
    column among the rows of the class, and so on. Many arms, and few rewards for each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        values = np.array(
            [next(iter(self.columns.row(n).values())) for n in range(len(self.labels))]
        )
        labels = np.array(self.labels)
        part = np.zeros(len(labels), int)
        for own in set(self.labels):
            rows = np.flatnonzero(labels == own)
            ranked = rows[np.argsort(values[rows], kind="stable")]
            part[ranked] = np.arange(len(rows)) * PARTS // len(rows)
        self.labels = [f"{own}.{n + 1}" for own, n in zip(self.labels, part, strict=True)]
        self.arms = sorted(set(self.labels))
        self.groups = tuple(self.arms)


class Visit(NamedTuple):
    """A visitor.

    luck   the uniform or the normal of the reward
    odd    whether the seed of the stream is odd
    """

    number: int
    context: Array
    luck: float
    odd: bool


@dataclass
class Drawn:
    """Arms whose mean rewards are linear in the context, with weights drawn from WORLD_SEED.

    arms, columns, own   arms; columns of the context; columns of an arm, 0: its name alone
    noise                standard deviation of a reward; None: rewards are clicks
    turning              whether the weights turn with the visits
    """

    name: str
    arms: int
    columns: int
    own: int = 0
    noise: float | None = None
    turning: bool = False
    longest: int | None = None
    remark: str = ""
    reward_range: tuple[float, float] = (0.0, 1.0)
    groups: tuple[str, ...] = field(init=False)
    miss: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.groups = tuple(map(str, range(self.arms)))
        self.miss = 0.0 if self.noise is None else None

    @cached_property
    def _weights(self) -> tuple[Array, Array, Array]:
        """Features of the arms (arms, own), and weights at a quarter turn's two ends
        (arms, 1 + columns)."""
        rng = np.random.default_rng(WORLD_SEED)
        features = rng.standard_normal((self.arms, self.own)).round(3)
        start, end = rng.standard_normal((2, self.arms, 1 + self.columns))
        if self.own:  # half of the variance by the features, half the arm's own
            shared = rng.standard_normal((self.own, 1 + self.columns)) / np.sqrt(self.own)
            start = (features @ shared + start) / np.sqrt(2)
        scale = 1 / np.sqrt(1 + self.columns)
        return features, scale * start, scale * end

    def means(self, visit: Visit) -> Array:  # (arms,)
        """Return the mean reward of each arm."""
        _, start, end = self._weights
        x = np.concatenate([[1.0], visit.context])
        score: Array = start @ x
        if self.turning:
            angle = np.pi / 2 * visit.number / TURN_VISITS
            score = np.cos(angle) * score + np.sin(angle) * (end @ x)
        if self.noise is None:
            means: Array = 1 / (1 + np.exp(1.0 - 1.5 * score))
        else:
            means = 0.5 + 0.4 * np.tanh(score / 2)
        return means

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """The experiment: columns of the context are numbers."""
        ids = self.groups
        features: dict[str, Any] = {
            "context": {f"c{column}": {"type": "numeric"} for column in range(self.columns)}
        }
        arms: dict[str, dict[str, Any]] = {arm: {CATALOGUE: arm} for arm in ids}
        features["arm"] = {CATALOGUE: {"type": "categorical", "values": list(ids)}}
        if self.own:
            names = [f"w{column}" for column in range(self.own)]
            features["arm"] = {name: {"type": "numeric"} for name in names}
            features["crosses"] = [f"{c} x {w}" for c in features["context"] for w in names]
            rows = self._weights[0].tolist()
            arms = {
                arm: dict(zip(names, row, strict=True)) for arm, row in zip(ids, rows, strict=True)
            }
        return {
            "features": features,
            "arms": arms,
            "policies": chosen(policies, own, (lambda _: {}) if self.own else one_head_an_arm),
            "reward": {"range": list(self.reward_range)},
        }

    def stream(self, seed: int) -> "DrawnStream":
        """The visits of a seed."""
        return DrawnStream(seed, self.columns, normal=self.noise is not None)

    def request(self, visit: Visit) -> dict[str, Any]:
        """The context."""
        return {"context": {f"c{i}": value for i, value in enumerate(visit.context.tolist())}}

    def outcome(self, visit: Visit, shown: Sequence[str]) -> Outcome:
        """A click, or a reward with noise."""
        means = self.means(visit)
        mean = float(means[int(shown[0])])
        reward = float(visit.luck < mean)
        if self.noise is not None:
            reward = min(max(mean + self.noise * visit.luck, 0.0), 1.0)
        best, uniform = float(means.max()), float(means.mean())
        return Outcome({"reward": reward}, reward, mean, best, uniform, shown[0])

    def references(self, visits: int) -> list[Reference]:
        """Means over the first visits of a stream of its own."""
        stream = self.stream(WORLD_SEED)
        means = np.array([self.means(stream.visit(n)) for n in range(min(visits, BOUNDS_VISITS))])
        return [Reference(0, float(means.max(axis=1).mean()), float(means.mean()))]


@dataclass(frozen=True)
class DrawnStream:
    """Visits, each from a generator of its own."""

    seed: int
    columns: int
    normal: bool

    def visit(self, index: int) -> Visit:
        """Draw the visit at `index`."""
        rng = np.random.default_rng((self.seed, index))
        context = rng.standard_normal(self.columns).round(4)
        luck = rng.standard_normal() if self.normal else rng.random()
        return Visit(index, context, float(luck), self.seed % 2 == 1)


class TwoArms(Drawn):
    """Two arms and no context. The seed says which arm is the better one: many peers begin with the
    first."""

    def means(self, visit: Visit) -> Array:
        return np.array([0.50, 0.45] if visit.odd else [0.45, 0.50])


class Useless(Drawn):
    """Arms of which the middle one is the best for everybody: the context says nothing."""

    def means(self, visit: Visit) -> Array:
        means = np.full(self.arms, 0.10)
        means[self.arms // 2] = 0.25
        return means


DRAWN: Final[dict[str, Drawn]] = {
    world.name: world
    for world in (
        *(Useless(name, arms=11, columns=columns) for name, columns in USELESS.items()),
        Drawn("drift", arms=10, columns=8, turning=True),
        Drawn("payments", arms=10, columns=8, noise=0.05),
        Drawn("own_effects", arms=20, columns=4, own=4),
        TwoArms("two_arms", arms=2, columns=0),
    )
}
WORLDS: Final = {*RATES, *DRAWN, "thirds"}


@lru_cache(maxsize=4)
def world_of(
    name: str, seed: int, shock_at: int | None = None, data: Path | None = None
) -> World[Any]:
    """Return a world of this benchmark or of the simulator. Raises UsageError."""
    if name in DRAWN:
        return DRAWN[name]
    if name in RATES:
        return Rare(seed, RATES[name])
    if name == "thirds" and data is not None:
        return Thirds(data)
    return make_world(name, seed, shock_at, data)
