"""What the members of an averaged head are, and what they see of a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import sqrt
from typing import Literal

import numpy as np

from service.bandits.heads.base import Stored, part
from service.bandits.heads.expansion import Expansion, measured
from service.bandits.linalg import Array, Index
from service.features.view import View

UNITS, CROSSES = 64, 256
"""Random features of an arm's head; columns that crosses of context and arm are hashed to, where
there are more of them."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a member sees, and its prior.

    own         what an arm's own weights see
    shared      whether arms share weights
    gamma       forgetting, a settlement
    weight      before any evidence
    deviation   prior standard deviation, in units of the noise, of what all columns of a usual row
                add up to, in an arm's own row and in the shared one

    A deviation of 1 a column would let a row of d columns mean anything within sqrt(d) of the
    noise: of sixty columns that say nothing, each arm would have to show so.
    """

    own: Literal["", "own", "relu", "late"]
    shared: bool
    gamma: float
    weight: float
    deviation: tuple[float, float] = (1.0, 1.0)

    @property
    def name(self) -> str:
        """Description for people."""
        name = ("hybrid" if self.own else "shared") if self.shared else self.own
        return name if self.gamma == 1.0 else f"{name}, fading by {self.gamma:g}"


PLAIN = (
    Spec("own", False, 1.0, 0.20, (8.0, 0.0)),
    Spec("own", False, 1.0, 0.20, (0.25, 0.0)),
    Spec("own", False, 0.998, 0.05),
    Spec("relu", False, 1.0, 0.25, (8.0, 0.0)),
    Spec("relu", False, 1.0, 0.25),
    Spec("own", False, 0.99, 0.05),
)
FEATURED = (
    Spec("own", True, 1.0, 0.33, (0.4, 0.5)),
    Spec("", True, 1.0, 0.48),
    Spec("", True, 0.998, 0.07),
    Spec("own", False, 1.0, 0.12, (0.25, 0.0)),
)
ALONE = (
    Spec("own", False, 1.0, 0.90),
    Spec("own", False, 0.998, 0.05),
    Spec("own", False, 0.99, 0.05),
)
"""Members where arms have no features, where they have, and where there is no context either."""

LATE_SPECS = (Spec("late", False, 1.0, 0.25, (4.0, 0.0)),)
"""Members that may join those of PLAIN."""


class Rows:
    """What members see of rows of a view.

    Random features and hashes are drawn by the names of columns: other columns leave them as they
    are.

    square      of the context's length, usually: random features are scaled by it
    squares     (2,) that, and of the length of the shared row without its constant: deviations are
                scaled by them
    expansions  functions of the context that members see beside its columns, by kind of row
    separate    whether arms have a context and share nothing. Then members are judged by plain
                errors: a density would charge a wide member for its width whatever it predicts, and
                a narrow one would win
    """

    def __init__(self, view: View, key: str) -> None:
        self.context, self.arm, squares = view.sides
        d, f = len(self.context), len(self.arm)
        self.specs = FEATURED if f else PLAIN if d else ALONE
        self.separate = self.specs is PLAIN
        self.squares = np.maximum([squares[0], np.prod(1.0 + squares) - 1.0], 1.0)
        self.square = float(self.squares[0])
        names = [view.column_name(column) for column in range(view.width)]
        self._key, self._names = key, [names[column] for column in self.context]
        draws = [_generator(key, name) for name in self._names]
        self.expansions: dict[str, Expansion] = {}
        self.width = {"own": 1 + d, "": 0}
        if self.separate:
            self._omega = np.array([draw.standard_normal(UNITS) for draw in draws])
            self._beta = _generator(key, "").standard_normal(UNITS)
            self._set("relu", self._random())
        self._hash = None
        if d * f > CROSSES:
            arms = [_generator(key, names[column]) for column in self.arm]
            self._hash = _signs(draws), _signs(arms)
        shared = 1 + d + f + min(d * f, CROSSES)
        self.shared_width = shared if f else 0

    def _set(self, kind: str, expansion: Expansion) -> None:
        self.expansions[kind] = expansion
        self.width[kind] = self.width["own"] + expansion.width

    def _random(self) -> Expansion:
        """Rahimi, Recht 2008, "Weighted sums of random kitchen sinks"; all random features together
        weigh as much as the linear ones."""
        length = sqrt(self.square)
        scales = np.full(UNITS, length / sqrt(UNITS))
        return Expansion(self._omega / length, self._beta, scales)

    def measure(self, rows: Array) -> None:  # (n, view.width)
        """Make what late members see, by rows that came."""
        draws = [_generator(f"{self._key}\0late", name) for name in self._names]
        levels, length = _generator(f"{self._key}\0late", ""), sqrt(self.square)
        self._set("late", measured(rows[:, self.context], draws, levels, length))

    def scales(self, spec: Spec) -> list[Array]:
        """Return the prior deviations (width,) of a member's own columns and of its shared ones."""
        widths = self.width[spec.own], self.shared_width if spec.shared else 0
        found = []
        for width, deviation, square in zip(widths, spec.deviation, self.squares, strict=True):
            scale = np.full(width, min(1.0, deviation / sqrt(square)))
            scale[:1] = 1.0
            found.append(scale)
        return found

    def keep(self, old: "Rows", columns: Index) -> None:
        """Take the scale of random features from other rows, and that of deviations where all their
        columns are still there. columns: (view.width,) where each column of the view was."""
        gone = self._lost(old, columns)
        self.square = old.square
        held = [gone.isdisjoint(old.context.tolist()), not gone]
        self.squares = np.where(held, old.squares, self.squares)
        if self.separate:
            self._set("relu", self._random())
        if late := old.expansions.get("late"):
            self._set("late", late.moved(self._context_places(old, columns)))

    def join(self, others: "Rows") -> None:
        """See what further members see."""
        self._set("late", others.expansions["late"])

    def arrays(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {"squares": np.array([self.square, *self.squares])}
        if late := self.expansions.get("late"):
            found |= {f"late.{name}": array for name, array in late.arrays().items()}
        return found

    def restore(self, arrays: dict[str, Stored]) -> None:
        self.square, *squares = arrays["squares"].tolist()
        self.squares = np.array(squares)
        if self.separate:
            self._set("relu", self._random())
        if late := part(arrays, "late."):
            self._set("late", Expansion.restored(late))

    def _context_places(self, old: "Rows", columns: Index) -> Index:
        """Return where each column of the context was among those of other rows."""
        return np.array([_place(old.context, column) for column in columns[self.context]], np.intp)

    def places(self, old: "Rows", columns: Index) -> dict[str, Index]:
        """Return where each column of what members see was in other rows; -1 for a new one.
        columns: (view.width,) where each column of the view was."""
        x = self._context_places(old, columns)
        w = np.array([_place(old.arm, column) for column in columns[self.arm]], np.intp)
        d, f = len(old.context), len(old.arm)
        own = np.concatenate(([0], np.where(x < 0, -1, 1 + x)))
        crosses = np.where((x[:, None] < 0) | (w < 0), -1, x[:, None] * f + w).ravel()
        if self._hash is not None:
            crosses = np.arange(CROSSES)
        shared = np.concatenate(
            (own, np.where(w < 0, -1, 1 + d + w), np.where(crosses < 0, -1, 1 + d + f + crosses))
        )
        expanded = {
            kind: np.concatenate((own, 1 + d + np.arange(expansion.width)))
            for kind, expansion in old.expansions.items()
        }
        return {"own": own, "shared": shared, **expanded}

    def obstacle(self, old: "Rows", columns: Index) -> str:
        """Why what was learned of other rows does not hold for these; '' if it does."""
        if self.specs is not old.specs or (self._hash is None) != (old._hash is None):
            return "it sees another kind of features"
        if self._hash is not None and self._lost(old, columns):
            return "its crosses are hashed, and some are gone"
        return ""

    @staticmethod
    def _lost(old: "Rows", columns: Index) -> set[int]:
        return {*old.context.tolist(), *old.arm.tolist()} - set(columns.tolist())

    def own(self, rows: Array) -> Array:  # (B, view.width) -> (B, 1 + d)
        found = np.ones((len(rows), 1 + len(self.context)))
        found[:, 1:] = rows[:, self.context]
        return found

    def expanded(self, kind: str, own: Array) -> Array:  # (B, 1 + d) -> (B, width)
        """Return [1, x, functions of x]."""
        return np.concatenate((own, self.expansions[kind](own[:, 1:])), axis=1)

    def shared(self, own: Array, arms: Array) -> Array:  # (B, 1 + d), (K, f)
        """Return (B, K, shared_width): [1, x, w, x (x) w] of each context and arm."""
        d, f = own.shape[1], arms.shape[1]
        found = np.empty((len(own), len(arms), self.shared_width))
        found[:, :, :d] = own[:, None]
        found[:, :, d : d + f] = arms
        found[:, :, d + f :] = self._crosses(own[:, 1:], arms)
        return found

    def shared_columns(self, arms: Array) -> Array:  # (K, f) -> (K, m, shared_width)
        """Return the shared rows of each column of [1, x] alone: that of a context is their sum."""
        m, f = len(self.context) + 1, arms.shape[1]
        found = self.shared(np.eye(m), arms)
        found[1:, :, m : m + f] = 0.0  # they go with the constant
        return np.ascontiguousarray(found.swapaxes(0, 1))

    def paired(self, own: Array, arms: Array) -> Array:  # (n, 1 + d), (n, f) -> (n, shared_width)
        """Return [1, x, w, x (x) w] of contexts, each with the arm in the same place."""
        x = own[:, 1:]
        if self._hash is None:
            crosses = (x[:, :, None] * arms[:, None, :]).reshape(len(x), -1)
        else:
            sketches = np.fft.rfft(x @ self._hash[0]) * np.fft.rfft(arms @ self._hash[1])
            crosses = np.fft.irfft(sketches, CROSSES)
        return np.concatenate((own, arms, crosses), axis=1)

    def _crosses(self, x: Array, w: Array) -> Array:  # (B, d), (K, f) -> (B, K, crosses)
        """Their outer products; hashed where these are many, by the convolution of two sketches
        (Pham, Pagh 2013, "Fast and scalable polynomial kernels via explicit feature maps")."""
        if self._hash is None:
            products = x[:, None, :, None] * w[None, :, None, :]
            return products.reshape(len(x), len(w), x.shape[1] * w.shape[1])
        contexts, arms = np.fft.rfft(x @ self._hash[0]), np.fft.rfft(w @ self._hash[1])
        return np.asarray(np.fft.irfft(contexts[:, None] * arms, CROSSES))

    def cross_weights(self, weights: Array) -> Array:  # (crosses,) -> (d, f)
        """Return M with x' M w the product of these weights with the crosses of x and w."""
        if self._hash is None:
            return weights.reshape(len(self.context), len(self.arm))
        x, w = (np.abs(side).argmax(axis=1) for side in self._hash)
        signs = np.outer(*(side.sum(axis=1) for side in self._hash))
        return np.asarray(signs * weights[(x[:, None] + w) % CROSSES])


def _place(columns: Index, column: int) -> int:
    found = np.flatnonzero(columns == column)
    return int(found[0]) if column >= 0 and len(found) else -1


def _generator(key: str, name: str) -> np.random.Generator:
    digest = blake2b(f"{key}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))


def _signs(draws: Sequence[np.random.Generator]) -> Array:  # (n, CROSSES)
    """Return a sign at one place for each column."""
    found = np.zeros((len(draws), CROSSES))
    for row, draw in zip(found, draws, strict=True):
        row[draw.integers(CROSSES)] = draw.choice((-1.0, 1.0))
    return found


class BlockRows:
    """Rows of settlements, each of a context and its arm, as members see them; each is made once.

    own      (k, 1 + d) of each context
    """

    def __init__(self, rows: Rows, raw: Array) -> None:  # (k, view.width)
        self._rows, self._raw = rows, raw
        self.own = rows.own(raw)
        self._expanded = {"own": self.own}

    @cached_property
    def shared(self) -> Array:  # (k, shared_width)
        return self._rows.paired(self.own, self._raw[:, self._rows.arm])

    def of(self, kind: str) -> Array:  # (k, width)
        if kind not in self._expanded:
            self._expanded[kind] = self._rows.expanded(kind, self.own)
        return self._expanded[kind]


class MemberRows:
    """Rows of some contexts, each with every arm, as members see them; each is made once.

    own      (B, 1 + d) of each context
    arms     (K, f) columns of each arm
    shared   (B, K, shared_width) of each context and arm
    """

    def __init__(self, rows: Rows, raw: Array, arms: int) -> None:
        """Take rows. raw: (B K, view.width), the arms of one context after another."""
        self._rows, self._raw, self._count = rows, raw, arms
        self.own = rows.own(raw[::arms])
        self._expanded: dict[str, Array] = {}
        self._shared: Array | None = None

    def of(self, kind: str) -> Array:  # (B, width)
        if kind == "own":
            return self.own
        if kind not in self._expanded:
            self._expanded[kind] = self._rows.expanded(kind, self.own)
        return self._expanded[kind]

    @cached_property
    def arms(self) -> Array:  # (K, f)
        return self._raw[: self._count, self._rows.arm]

    @property
    def shared(self) -> Array:
        if self._shared is None:
            self._shared = self._rows.shared(self.own, self.arms)
        return self._shared
