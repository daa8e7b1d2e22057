"""Prices of rules in words."""

from service.analysis.rule_prices_answer import RulePrice
from service.analysis.verdict_sentences import FORECAST_UPLIFTS, VALID, UpliftForecast
from service.naming import quoted
from service.tables import figure

ALWAYS_HOLDS = "What {} costs is not measured: it holds for every unit."
NO_MEASURE = "What {} costs is not measured: `measure` of the rules is left out."
NO_OUTCOME = (
    'What {} costs is not measured: with reward.default = "none" a decision without a reward has '
    "no outcome. Give it a default."
)
NO_PLACE = "What {} costs is not measured: {} rules of other names were measured before it."
NO_DECISION = (
    "Nothing can be told yet of {}: none of the decisions since its last change has its outcome."
)


def of_price(name: str, price: RulePrice) -> str:
    """Say what a rule costs in a day, or earns."""
    verb, amount, ends = "costs", price.per_day, price.per_day_interval
    if amount < 0:
        verb, amount, ends = "earns", -amount, (-ends[1], -ends[0])
    low, high = map(figure, ends)
    return (
        f"{quoted(name)} {verb} {figure(amount)} rewards a day, between {low} and {high} ({VALID})."
    )


def of_open(name: str, price: RulePrice, forecast: UpliftForecast) -> str:
    """Say of about how many decisions there are how many, for some cost to show."""
    ahead = forecast.ahead()
    if ahead is None:
        least = f"{100 * FORECAST_UPLIFTS[-1]:g} percent"
        return f"Nothing can be told yet of {quoted(name)}: a cost of {least} would have shown."
    size, needed = ahead
    return f"{_progress(name, price, needed)} after which a cost of {100 * size:g} percent shows."


def too_few(name: str, price: RulePrice, least: int) -> str:
    """Say of about how many decisions there are how many, for so many units without the rule."""
    return f"{_progress(name, price, price.decisions * least / price.units)} that are needed."


def _progress(name: str, price: RulePrice, needed: float) -> str:
    return (
        f"Nothing can be told yet of {quoted(name)}: there are {price.decisions:,} of about "
        f"{needed:,.0f} decisions"
    )
