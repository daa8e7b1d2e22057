"""What each rule costs: what decisions earn where it is off, and where it holds."""

import numpy as np

from service.analysis import rule_price_sentences as sentences
from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.analysis.history import MOST_PLACES, DecisionHistory, Mask, read_history
from service.analysis.outcomes import outcomes_of
from service.analysis.rule_prices_answer import PricedRule, PriceState, RulePrice, RulePrices
from service.analysis.sequences import (
    Array,
    ConfidenceSequence,
    IntegerArray,
    Terms,
    counted,
    terms,
)
from service.analysis.verdict import ALPHA, LEAST_UNITS, effective_units
from service.analysis.verdict_sentences import DAY, UpliftForecast, of_mismatch
from service.clock import SYSTEM, Clock, iso
from service.definition.rules import DeclaredRule
from service.errors import NotFound
from service.log.reading import SILENT, Progress, single_experiment
from service.log.stores import Store
from service.naming import quoted


async def prices_of(
    store: Store,
    experiment: str | None = None,
    progress: Progress = SILENT,
    checkpoints: Checkpoints = NOWHERE,
    clock: Clock = SYSTEM,
) -> RulePrices:
    """Read the log of an experiment and say what each of its rules costs. Raises NotFound, Invalid,
    or StoreError where the log cannot be read."""
    name = await single_experiment(store, experiment)
    history = await read_history(store, name, progress, checkpoints)
    if not history.definitions:
        raise NotFound("the experiment was deleted", path="experiment")
    return _Pricing(history).answer(name, clock.time())


def price_terms(
    off: Mask,  # (n,) whether the rule was off
    measure: float,  # chance of that
    reward: Array,  # (n,)
    default: float,  # the mean of rewards before the first
    span: float,  # largest less smallest reward
) -> tuple[Terms, Terms]:
    """Return the terms of decisions without a rule, and with it."""
    chance = np.full(len(off), measure)
    return (
        terms(off, chance, reward, default, span),
        terms(~off, 1 - chance, reward, default, span),
    )


class _Pricing:
    """Prices of the rules of one experiment's present definition.

    The level of an interval is ALPHA divided by the number of measured rules.
    """

    def __init__(self, history: DecisionHistory) -> None:
        self._definitions, self._places = history.definitions, history.rules
        self._outcomes = outcomes_of(history, named=True)
        self._mismatch = self._outcomes.mismatch()
        self._rules = self._definitions.latest.rules
        self._starts = self._definitions.rule_starts()
        measured = sum(not self._refusal(*each) for each in self._rules.named.items())
        self._alpha = ALPHA / max(measured, 1)

    def answer(self, experiment: str, now: float) -> RulePrices:
        """Return what each rule costs. now: unix seconds."""
        at = self._outcomes.at
        return RulePrices(
            experiment=experiment,
            measure=self._rules.measure,
            until=iso(float(at[-1])) if len(at) else None,
            rules=[self._priced(name, rule, now) for name, rule in self._rules.named.items()],
            left_out=dict(self._outcomes.left_out.most_common()),
        )

    def _priced(self, name: str, rule: DeclaredRule, now: float) -> PricedRule:
        found = PricedRule(
            name=name,
            verb=rule.verb,
            holds=rule.holds_at(now),
            measured=False,
            state="unmeasured",
            sentence=self._refusal(name, rule),
            price=None,
        )
        if not found.sentence:
            found.measured = True
            found.state, found.sentence, found.price = self._price(name, rule)
        return found

    def _refusal(self, name: str, rule: DeclaredRule) -> str:
        """Say why a rule is not measured; '' where it is."""
        if not rule.measurable:
            return sentences.ALWAYS_HOLDS.format(quoted(name))
        if self._rules.measure is None:
            return sentences.NO_MEASURE.format(quoted(name))
        if self._definitions.default is None:
            return sentences.NO_OUTCOME.format(quoted(name))
        if name not in self._places and len(self._places) == MOST_PLACES:
            return sentences.NO_PLACE.format(quoted(name), MOST_PLACES)
        return ""

    def _price(self, name: str, rule: DeclaredRule) -> tuple[PriceState, str, RulePrice | None]:
        """Return what a measured rule costs, and say it."""
        rows, repeats = self._rows(name, rule)
        if not len(rows):
            return "refused", sentences.NO_DECISION.format(quoted(name)), None
        outcomes, rewards = self._outcomes, self._definitions.latest.reward
        measure, unit, at = self._rules.measure or 0.0, outcomes.unit[rows], outcomes.at[rows]
        low, high = outcomes.limits(rewards)
        off, on = price_terms(
            self._off(name, rows),
            measure,
            outcomes.reward[rows],
            rewards.default or 0.0,
            high - low,
        )
        sequence = ConfidenceSequence(off - on, unit, self._alpha)
        found = sequence.estimate().within(low - high, high - low)
        per_day = len(rows) / max(float(at[-1] - at[0]) / DAY, 1.0)
        price = RulePrice(
            since=iso(self._starts[name].at),
            decisions=len(rows),
            repeats=repeats,
            units=float(effective_units(np.full(len(rows), measure), unit)[-1]),
            off=float(off.z.mean()),
            on=float(on.z.mean()),
            difference=found.value,
            interval=found.interval,
            decisions_per_day=per_day,
            per_day=found.value * per_day,
            per_day_interval=(found.interval[0] * per_day, found.interval[1] * per_day),
        )
        if self._mismatch is not None:
            return "refused", of_mismatch(self._mismatch), price
        if price.units < LEAST_UNITS:
            return "refused", sentences.too_few(name, price, LEAST_UNITS), price
        if price.interval[0] <= 0 <= price.interval[1]:
            forecast = UpliftForecast(sequence, at, price.on, high - low, self._alpha)
            return "open", sentences.of_open(name, price, forecast), price
        state: PriceState = "costs" if price.difference > 0 else "earns"
        return state, sentences.of_price(name, price), price

    def _rows(self, name: str, rule: DeclaredRule) -> tuple[IntegerArray, int]:
        """Return the rows that count since a rule is as it is and within its times, and how many
        others a few visitors made."""
        outcomes, (begin, until) = self._outcomes, rule.times
        held = (begin <= outcomes.at) & (outcomes.at < until)
        rows = np.flatnonzero(held & (outcomes.position >= self._starts[name].position))
        counts = counted(outcomes.unit[rows])
        return rows[counts], int((~counts).sum())

    def _off(self, name: str, rows: IntegerArray) -> Mask:
        """Return whether a rule was off in each of some rows."""
        place = self._places.get(name)
        if place is None:
            return np.zeros(len(rows), bool)
        return np.asarray(self._outcomes.off[rows] >> place & 1 == 1)
