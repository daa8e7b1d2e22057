"""What a kind of policy is: settings, and the parts that they stand for.

The defaults are meant for every world: rewards in any range, binary or not, few arms or many.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from service.bandits.kinds.fields import KEEPS_HEAD, Epsilon, FeatureNames, KeepsHead, Share
from service.bandits.policy import Policy
from service.bandits.settings import FULL_ROWS
from service.bandits.version import Forgetting
from service.features.declaration import INTERCEPT, Features
from service.features.model import Model

SettingWarning = tuple[str, str]
"""A setting that had better be another, and why."""


class Kind(Model):
    """Settings that every kind has. A kind adds its own, and makes its parts of them in `policy`.

    keeps_head   settings that may change without a new head
    """

    keeps_head: ClassVar[frozenset[str]]

    share: Annotated[Share, KEEPS_HEAD] = Field(
        1.0, description="Share of the traffic that names no policy; 0: only by name."
    )
    shadow: Annotated[bool, KEEPS_HEAD] = Field(
        False,
        description="If true, it decides nothing, even for a request that names it, and learns "
        "from every reward. `GET /experiments/{name}/shadows` tells what it would have earned. Its "
        "share is 0. Once it is false, the policy goes on with what it learned.",
    )
    fold: Annotated[bool, KEEPS_HEAD] = Field(
        True,
        description="If false, a shadow has no head, and costs nothing. Its value is told all the "
        "same, and it starts from nothing once it is live.",
    )
    epsilon: Epsilon = 0.0
    learning: Annotated[bool, KEEPS_HEAD] = Field(
        True, description="false freezes the head: rewards are logged, not learned."
    )
    learns_from: Annotated[Literal["own", "all"], KEEPS_HEAD] = Field(
        "own",
        description="Decisions whose rewards the head learns from: its own, or every policy's.",
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Forgetting: each settlement leaves this share of what was learned before it.",
    )
    decay_every: PositiveInt = Field(
        20, description="Settlements after which gamma is applied, to their power at once."
    )
    window: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description="Latest settlements that head and training hold, up to an eighth more; left "
        "out: all.",
    )
    change: bool = Field(
        False,
        description="Watch the residuals for a change of the world, and forget what it made stale.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.keeps_head = frozenset(
            name
            for name, field in cls.model_fields.items()
            if any(isinstance(mark, KeepsHead) for mark in field.metadata)
        )

    @model_validator(mode="before")
    @classmethod
    def _a_shadow_has_no_share_unless_it_is_given_one(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("shadow") is True:
            return {"share": 0.0, **settings}
        return settings

    @model_validator(mode="after")
    def _a_shadow_has_no_traffic(self) -> Self:
        if self.shadow and self.share:
            raise ValueError("share: a shadow decides nothing: leave share out, or give it 0")
        if not self.shadow and not self.fold:
            raise ValueError("fold: a policy that can decide needs its head: leave fold out")
        return self

    @model_validator(mode="after")
    def _one_way_to_forget(self) -> Self:
        if self.gamma < 1 and (self.window is not None or self.change):
            raise ValueError("gamma: forget by gamma, or by window and change, not by both")
        return self

    @abstractmethod
    def policy(self) -> Policy:
        """Return its parts: encoder, head and rule."""

    @property
    def learns_all(self) -> bool:
        """Whether its head learns from every reward, whoever decided."""
        return self.shadow or self.learns_from == "all"

    @property
    def forgetting(self) -> Forgetting:
        return Forgetting(self.gamma, self.decay_every, self.window is not None, self.change)

    def seen(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Return the features that it sees: those it names, or all that fit the kind. arms: of the
        definition."""
        return []

    def completed(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> Self:
        """Return a copy in which defaults that depend on the experiment are written out."""
        return self

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        """Yield settings to be warned of for so many arms and distinct rows, and why."""
        yield from ()


class Featured(Kind):
    """A kind that sees features of context and arms."""

    features: FeatureNames = None

    def seen(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Leave crosses to a net, which finds them itself; a linear head needs them."""
        parts = self.policy()
        if not parts.sees_features:
            return []
        if self.features is not None:
            return self.features
        context, arm = list(features.context), list(features.arm)
        if parts.disjoint:
            return [INTERCEPT, *context]
        if parts.net is not None:
            return [*context, *arm]
        return [INTERCEPT, *context, *arm, *features.crosses]


def few_draws(draws: int, arms: int) -> Iterator[SettingWarning]:
    """Warn of fewer posterior draws than arms."""
    if draws < arms:
        yield (
            "draws",
            f"{draws} draws over {arms:,} arms leave most of them with propensity 0",
        )


def many_rows(form: str, rows: float) -> Iterator[SettingWarning]:
    """Warn of a full Z that may meet more distinct rows than it holds."""
    if form == "full" and rows > FULL_ROWS:
        count = "any number" if rows == inf else f"{rows:,.0f}"
        yield (
            "form",
            f"full holds the first {FULL_ROWS:,} distinct rows, and {count} may come: the "
            "widths of later rows stay too large, so the policy explores for longer. "
            "last_layer and diagonal take in every row",
        )


def expect_no_decay(form: str, gamma: float) -> None:
    """Raise ValueError where a full Z is to decay."""
    if form == "full" and gamma < 1:
        raise ValueError("gamma: the full form keeps its first rows for ever; use window or change")


def expect_searchable(retrieve: int | None, *, disjoint: bool) -> None:
    """Raise ValueError where there is no one head whose best arms a search could find."""
    if retrieve is not None and disjoint:
        raise ValueError("retrieve: disjoint heads cannot be searched; name the arms instead")
