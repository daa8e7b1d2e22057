"""Heads as parts of a kind: their settings, how they are made, and the memory that they take."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from service.bandits.encoder import Encoder
from service.bandits.heads.averaged import LATE_MEMBER_ARMS
from service.bandits.heads.averaged_forms import most_numbers
from service.bandits.heads.averaged_informed import InformedHead
from service.bandits.heads.averaged_rows import CROSSES, UNITS
from service.bandits.heads.beta import BetaHead
from service.bandits.heads.disjoint import DisjointRidgeHead
from service.bandits.heads.ensemble import EnsembleHead
from service.bandits.heads.expansion import MOST_FUNCTIONS
from service.bandits.heads.gradient import Form, GradientHead
from service.bandits.heads.head import Head
from service.bandits.heads.logistic import LogisticHead
from service.bandits.heads.ridge import RidgeHead
from service.bandits.settings import FULL_ROWS
from service.bandits.version import LATE_FROM, PACE
from service.features.view import View

SHARED, DISJOINT, FULL, MEMBER, LOGISTIC = 8, 6, 8, 5, 10
"""Peak number of m x m matrices of a head: A, its root, the root with the mean, a temporary and
those of a snapshot. Of a shared head, of each arm's own head in stacks that double, of a full Z,
whose m is the number of its rows, of each member of an ensemble, and of a logistic head."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory of a policy grows with.

    columns      of the head
    parameters   of the net
    rows         distinct rows of context and arm that may come
    arm_columns  columns of the view that are of the arm alone
    arms         in the catalogue
    heads        arms with a head of their own, where each has one
    """

    columns: int
    parameters: int
    rows: float
    arm_columns: int
    arms: int
    heads: int


class HeadMaker(ABC):
    """Makes the heads of a policy.

    disjoint         each arm has a head of its own
    per_arm          arms of equal features are told apart by their ids
    linear           means are products of rows and weights
    sees_features    context and arm features have a part in it
    shares_features  arms outside the catalogue teach it, though it tells arms apart by their ids
    """

    disjoint: bool = False
    per_arm: bool = False
    linear: bool = False
    sees_features: bool = True
    shares_features: bool = False

    @abstractmethod
    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        """Return an empty head for an encoder over rows of a view. key: what the members of an
        ensemble are drawn by; span: of the range of rewards, which the head learns as 1."""

    @abstractmethod
    def numbers(self, sizes: Sizes) -> float:
        """Count the numbers of its matrices, at their peak."""

    def waiting_numbers(self, sizes: Sizes) -> float:
        """Count those of a version at its gate, which learns and predicts but decides nothing."""
        return self.numbers(sizes)

    def remembered(self, sizes: Sizes) -> int:
        """Count the settlements that are kept for members of the head that join late."""
        return 0


class OneForAll(HeadMaker):
    """A head whose weights all arms share."""

    def numbers(self, sizes: Sizes) -> float:
        return float(SHARED * sizes.columns**2)


def in_spans(noise: float | None, span: float) -> float | None:
    """Return a standard deviation of rewards in spans of their range."""
    return None if noise is None else noise / span


@dataclass(frozen=True)
class SharedRidge(OneForAll):
    """One ridge head for all arms. ridge: lambda; noise: of a reward; None: learned."""

    ridge: float
    noise: float | None

    linear = True

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        return RidgeHead(encoder.features(view.width), self.ridge, in_spans(self.noise, span))


@dataclass(frozen=True)
class OwnRidge(HeadMaker):
    """One ridge head an arm."""

    ridge: float
    noise: float | None

    disjoint = per_arm = linear = True

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        noise = in_spans(self.noise, span)
        return DisjointRidgeHead(encoder.features(view.width), self.ridge, noise)

    def numbers(self, sizes: Sizes) -> float:
        return float(DISJOINT * sizes.heads * sizes.columns**2)


def ridge_heads(ridge: float, noise: float | None, *, disjoint: bool) -> HeadMaker:
    """Return a Bayesian linear head for all arms, or one an arm."""
    return OwnRidge(ridge, noise) if disjoint else SharedRidge(ridge, noise)


@dataclass(frozen=True)
class Gradients(OneForAll):
    """A ridge head whose widths come from gradients of the net: Z = lambda I + sum J J^T."""

    form: Form
    ridge: float
    noise: float | None

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        size, noise = encoder.features(view.width), in_spans(self.noise, span)
        return GradientHead(size, encoder.layout, self.form, self.ridge, noise)

    def numbers(self, sizes: Sizes) -> float:
        if self.form == "full":
            own = float(FULL * min(FULL_ROWS, sizes.rows) ** 2)
        else:
            own = 2.0 * sizes.parameters * (1 + sizes.arms)
        return super().numbers(sizes) + own

    def waiting_numbers(self, sizes: Sizes) -> float:
        """Leave out what only widths need: the factor of a full Z, and gradients of arms."""
        own = 0.0 if self.form == "full" else 2.0 * sizes.parameters
        return super().numbers(sizes) + own


def gradient_heads(form: str, ridge: float, noise: float | None) -> HeadMaker:
    """Return a ridge head on the last layer, which needs no other gradient, or a head with Z in a
    form for all parameters: "diagonal" or "full"."""
    if form == "last_layer":
        return SharedRidge(ridge, noise)
    return Gradients("full" if form == "full" else "diagonal", ridge, noise)


@dataclass(frozen=True)
class Ensemble(HeadMaker):
    """Ridge regressors, each of which resamples the settlements."""

    ridge: float
    noise: float | None
    members: int

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        size, noise = encoder.features(view.width), in_spans(self.noise, span)
        return EnsembleHead(size, self.ridge, noise, self.members, key)

    def numbers(self, sizes: Sizes) -> float:
        return float((SHARED + MEMBER * self.members) * sizes.columns**2)


@dataclass(frozen=True)
class Logistic(HeadMaker):
    """A logistic head, which takes a step every `batch` settlements."""

    ridge: float
    batch: int

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        return LogisticHead(encoder.features(view.width), self.ridge, self.batch)

    def numbers(self, sizes: Sizes) -> float:
        return float(LOGISTIC * sizes.columns**2)


class Clicks(OneForAll):
    """Clicks counted by arm, without a context."""

    per_arm, sees_features = True, False

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        return BetaHead()


class Averaged(HeadMaker):
    """Regressions that are averaged by how well they predict."""

    per_arm = shares_features = True

    def make(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        return InformedHead(view, key)

    def numbers(self, sizes: Sizes) -> float:
        """Count the matrices of each arm, in stacks that double, and those of what arms share;
        and the forms."""
        d, f = sizes.columns - sizes.arm_columns, sizes.arm_columns
        if not f:
            own = 4 * d * (d + 2) + 2 * (d + UNITS) * (d + UNITS + 2 if d > 1 else 0)
            if self.remembered(sizes):
                own += (d + MOST_FUNCTIONS) * (d + MOST_FUNCTIONS + 2)
            return float(3 * sizes.heads * own)
        shared = d + f + min((d - 1) * f, CROSSES)
        own = 2 * d * (d + 2) + d * shared
        return float(3 * sizes.heads * own + 3 * 3 * shared**2) + most_numbers(
            sizes.arms, d, shared
        )

    def remembered(self, sizes: Sizes) -> int:
        """Count what late members wait for, and what comes while they learn it."""
        late = sizes.columns > 1 and not sizes.arm_columns and sizes.heads <= LATE_MEMBER_ARMS
        return LATE_FROM + LATE_FROM // (PACE - 1) if late else 0


def regression(regressor: str, ridge: float, noise: float | None, *, disjoint: bool) -> HeadMaker:
    """Return the head of a point estimate: clicks by arm for "popularity", else a ridge head."""
    return Clicks() if regressor == "popularity" else ridge_heads(ridge, noise, disjoint=disjoint)
