"""What rules cost, as data, which HTTP answers as JSON."""

from typing import Literal

from pydantic import BaseModel, Field

from service.analysis.sequences import MOST_ROWS
from service.analysis.verdict_answer import DatedAnswer, Ends

PriceState = Literal["costs", "earns", "open", "refused", "unmeasured"]


class RulePrice(BaseModel):
    """Price of a rule: what a decision without it earns over one with it."""

    since: str = Field(
        description="Start of the rule's present settings; earlier decisions do not count."
    )
    decisions: int = Field(description="Decisions that count, without the rule and with it.")
    repeats: int = Field(
        description=f"Further ones that do not count: their visitors had made {MOST_ROWS} before."
    )
    units: float = Field(description="Visitors without the rule, in effect.")
    off: float = Field(description="Reward per decision without the rule.")
    on: float = Field(description="Reward per decision with the rule.")
    difference: float = Field(description="`off` less `on`; above 0, the rule costs.")
    interval: Ends = Field(
        description="Interval of the difference; those of all rules together hold at all times."
    )
    decisions_per_day: float = Field(
        description="Decisions that count, over their time, or over a day where that is longer."
    )
    per_day: float = Field(description="The difference times the decisions per day.")
    per_day_interval: Ends


class PricedRule(BaseModel):
    name: str
    verb: str = Field(
        description="What it does: `eligible`, `pin`, `cap`, `floor`, `explore` or `at_most`."
    )
    holds: bool = Field(description="Whether the present time lies within `from` and `until`.")
    measured: bool = Field(
        description="Whether it is off for some units; else `sentence` says why."
    )
    state: PriceState = Field(
        description="The rule costs, or earns, or neither can be told yet, or nothing can be told, "
        "or it is not measured (`sentence` says why)."
    )
    sentence: str
    price: RulePrice | None = Field(description="null where no decision counts.")


class RulePrices(BaseModel):
    """Rules of an experiment and what they cost, up to its oldest decision that still waits for a
    reward."""

    experiment: str
    measure: float | None = Field(description="Share of the units for which each rule is off.")
    until: str | None = Field(description="Time of the last decision that counts.")
    rules: list[PricedRule]
    left_out: dict[str, int] = Field(description="Decisions that do not count, by reason.")


class DatedRulePrices(DatedAnswer, RulePrices):
    """Prices that a service remembers for a while."""
