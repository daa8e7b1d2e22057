"""A world for any experiment: visitors and arms of its own definition, with known click chances.

Visitors are drawn from the features of the context, and the arms are those of the file. The chance
of a click is expit(b + s f(visitor, arm)), with f drawn from the world's seed and scaled to a
deviation of 1 among the arms of a visitor, s = STRENGTH, and b such that a random arm is clicked at
the rate that is asked for.

    linear    f adds effects of the visitor's features, of the arm's, and of the arm itself
    crosses   and of every pair of a visitor's and an arm's column (of every arm, if arms have none)
    net       f is a small random net over all columns
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Outcome, Reference
from simulator_client.worlds.policies import chosen

Array = NDArray[np.float64]
Spec = Mapping[str, Any]

EFFECTS: Final = ("linear", "crosses", "net")
STRENGTH: Final = 1.2
HIDDEN: Final = 16
HASHED: Final = 20  # values of a hashed feature that occur
SAMPLE: Final = 2_000  # visitors by which f is scaled, and the bounds are known
BLOCK_VISITS: Final = 1024
GROUPS: Final = 14  # that a figure tells apart
OTHERS: Final = "other arms"


class Visit(NamedTuple):
    """A visitor."""

    number: int  # from 0
    context: dict[str, Any]
    uniform: float  # in [0, 1): a click where it is below the click chance


class _Side:
    """The features of visitors, or of arms, as columns of deviation 1 or so."""

    def __init__(self, features: Mapping[str, Spec]) -> None:
        self.features = dict(sorted(features.items()))
        self._values = {name: _values(spec) for name, spec in self.features.items()}
        self.width = sum(len(v) or spec.get("size", 1) for v, spec in self._pairs())

    def _pairs(self) -> list[tuple[list[str], Spec]]:
        return [(self._values[name], spec) for name, spec in self.features.items()]

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        return {name: _drawn(spec, self._values[name], rng) for name, spec in self.features.items()}

    def columns(self, given: Mapping[str, Any]) -> Array:  # (width,)
        found: list[float] = []
        for name, spec in self.features.items():
            value, values = given.get(name, spec.get("default")), self._values[name]
            if values:
                found += [float(value == each) for each in values]
            elif spec["type"] == "boolean":
                found.append(1.0 if value else -1.0)
            else:
                center, scale = _unit(spec)
                numbers = value if isinstance(value, list) else [value or 0.0]
                found += [(number - center) / scale for number in numbers]
        return np.array(found)


class Synthetic:
    """The world of a definition in a TOML file."""

    name: str = "synthetic"
    longest: int | None = None

    def __init__(self, path: Path, seed: int, clicks: float, effects: str) -> None:
        self._file = _read(path)
        features = self._file.get("features", {})
        self._visitors = _Side(features.get("context", {}))
        arms: dict[str, dict[str, Any]] = self._file.get("arms", {})
        if len(arms) < 2:
            raise UsageError(f"{path} needs two arms or more: the world shows its catalogue")
        self._arms = list(arms)
        side = _Side(features.get("arm", {}))
        rng = np.random.default_rng(seed)
        self._rows = np.array([side.columns(arm) for arm in arms.values()])
        if effects != "linear" and not side.width:  # nothing but the id tells arms apart
            self._rows = np.eye(len(arms))
        self._effects = _Effects(effects, rng, self._visitors.width, self._rows)
        low, high = self._file.get("reward", {}).get("range", (0.0, 1.0))
        self.reward_range: tuple[float, float] = (float(low), float(high))
        self.miss: float | None = float(low)
        sample = np.array([self._visitors.columns(self._visitors.draw(rng)) for _ in range(SAMPLE)])
        table = self._effects.scaled(sample, clicks)
        self._bounds = float(table.max(axis=1).mean()), float(table.mean())
        self._group = _groups(features.get("arm", {}), arms)
        self.groups: tuple[str, ...] = tuple(dict.fromkeys(self._group.values()))
        self.remark = (
            f"Click chances are drawn for {path.name}: {effects} effects of its features, and "
            f"{clicks:.1%} clicks on a random arm."
        )

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Return the file's own definition, with these policies."""
        rest = {key: value for key, value in self._file.items() if key not in ("name", "policies")}
        if rest.get("control") not in policies:
            rest.pop("control", None)
        known = {**self._file.get("policies", {}), **(own or {})}
        return {
            "reward": {"range": list(self.reward_range)},
            **rest,
            "policies": chosen(policies, known, lambda settings: {}),
        }

    def stream(self, seed: int) -> "SyntheticStream":
        """Return the visits of `seed`."""
        return SyntheticStream(seed, self._visitors)

    def request(self, visit: Visit) -> dict[str, Any]:
        """Return the features of the visitor."""
        return {"context": visit.context}

    def chances(self, context: Mapping[str, Any]) -> dict[str, float]:
        """Return the true click chance of each arm."""
        table = self._effects.chances(self._visitors.columns(context)[None])[0]
        return dict(zip(self._arms, table.tolist(), strict=True))

    def outcome(self, visit: Visit, shown: Sequence[str]) -> Outcome:
        """Click where the visit's uniform is below the click chance of the arm shown first."""
        chances = self.chances(visit.context)
        if shown[0] not in chances:
            raise UsageError(f"the service showed arm {shown[0]!r}, which the file has not")
        p, (low, high) = chances[shown[0]], self.reward_range
        click = visit.uniform < p
        best, uniform = max(chances.values()), sum(chances.values()) / len(chances)
        feedback = {"reward": high if click else low}
        return Outcome(feedback, float(click), p, best, uniform, self._group[shown[0]])

    def references(self, visits: int) -> list[Reference]:
        """Click rates of the best arm and of a random one, over SAMPLE visitors."""
        return [Reference(0, *self._bounds)]


class SyntheticStream:
    """A generator for each block of visits, of the seed and the block's number: a visit is the same
    wherever a run started."""

    def __init__(self, seed: int, visitors: _Side) -> None:
        self._seed, self._visitors = seed, visitors
        self._block: tuple[int, list[Visit]] = -1, []

    def visit(self, index: int) -> Visit:
        """Return the visit at `index`, from 0."""
        number, offset = divmod(index, BLOCK_VISITS)
        if self._block[0] != number:
            rng = np.random.default_rng([self._seed, number])
            first = number * BLOCK_VISITS
            visits = [
                Visit(first + place, self._visitors.draw(rng), float(rng.random()))
                for place in range(BLOCK_VISITS)
            ]
            self._block = number, visits
        return self._block[1][offset]


class _Effects:
    """Effects: f, its scale, and the base rate."""

    def __init__(self, kind: str, rng: np.random.Generator, width: int, rows: Array) -> None:
        count, own = rows.shape
        self._rows, self._kind = rows, kind
        self._arm = rows @ rng.standard_normal(own) + rng.standard_normal(count)
        self._visitor = rng.standard_normal(width)
        self._pairs = rng.standard_normal((width, own))
        self._hidden = rng.standard_normal((width + own, HIDDEN)), rng.standard_normal(HIDDEN)
        self._output = rng.standard_normal(HIDDEN)
        self._center, self._scale, self._base = 0.0, 1.0, 0.0

    def _raw(self, visitors: Array) -> Array:  # (n, width) -> (n, K)
        if self._kind == "net":
            weights, bias = self._hidden
            width = visitors.shape[1]
            hidden = (visitors @ weights[:width])[:, None] + self._rows @ weights[width:] + bias
            return np.asarray(np.tanh(hidden) @ self._output)
        found = self._arm + (visitors @ self._visitor)[:, None]
        if self._kind == "crosses":
            found = found + visitors @ self._pairs @ self._rows.T
        return np.asarray(found)

    def scaled(self, visitors: Array, clicks: float) -> Array:
        """Set scale and base rate by a sample of visitors; return its click chances."""
        raw = self._raw(visitors)
        self._center, self._scale = float(raw.mean()), float(np.sqrt(raw.var(axis=1).mean()))
        low, high = -20.0, 20.0
        for _ in range(60):
            self._base = (low + high) / 2
            if self.chances(visitors).mean() < clicks:
                low = self._base
            else:
                high = self._base
        return self.chances(visitors)

    def chances(self, visitors: Array) -> Array:  # (n, width) -> (n, K)
        score = STRENGTH * (self._raw(visitors) - self._center) / self._scale
        return np.asarray(1 / (1 + np.exp(-(self._base + score))))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no experiment file: {error}") from error


def policies_of(path: Path) -> dict[str, dict[str, Any]]:
    """Read the policies of an experiment file. Raises UsageError."""
    return dict(_read(path).get("policies", {}))


def _values(spec: Spec) -> list[str]:
    """Return the values that occur; none where the feature is a number or a list."""
    if spec["type"] == "categorical":
        return list(spec["values"])
    return [f"value {number}" for number in range(HASHED)] if spec["type"] == "hashed" else []


def _unit(spec: Spec) -> tuple[float, float]:
    """Center and deviation of a number, from the first of scale, bounds and default that is set."""
    low, high = spec.get("min"), spec.get("max")
    if "center" in spec or "scale" in spec:
        return float(spec.get("center", 0.0)), float(spec.get("scale", 1.0))
    if low is not None and high is not None:
        return (low + high) / 2, (high - low) / 4 or 1.0
    center = float(spec["default"]) if isinstance(spec.get("default"), int | float) else 0.0
    return center, abs(center) / 3 or 1.0


def _drawn(spec: Spec, values: list[str], rng: np.random.Generator) -> Any:
    if values:  # the first ones most often
        weights = 1 / np.sqrt(np.arange(1, len(values) + 1))
        return values[int(rng.choice(len(values), p=weights / weights.sum()))]
    if spec["type"] == "boolean":
        return bool(rng.random() < 0.5)
    center, scale = _unit(spec)
    numbers = center + scale * rng.standard_normal(spec.get("size", 1))
    numbers = np.clip(numbers, spec.get("min", -np.inf), spec.get("max", np.inf)).round(4)
    return numbers.tolist() if spec["type"] == "vector" else float(numbers[0])


def _groups(features: Mapping[str, Spec], arms: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the group of each arm: itself, the value of a category, or OTHERS."""
    if len(arms) <= GROUPS:
        return {arm: arm for arm in arms}
    for name, spec in sorted(features.items()):
        if len(_values(spec)) in range(2, GROUPS + 1):
            return {arm: str(given.get(name, spec.get("default"))) for arm, given in arms.items()}
    return {arm: arm if place < GROUPS - 1 else OTHERS for place, arm in enumerate(arms)}
