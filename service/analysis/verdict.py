"""Which policy pays: each compared with the control, in one sentence and in figures."""

from collections import Counter

import numpy as np

from service.analysis import verdict_sentences as sentences
from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.analysis.definitions import Definitions, Start
from service.analysis.history import REPEATED, read_history
from service.analysis.outcomes import Outcomes, outcomes_of
from service.analysis.sequences import (
    Array,
    ConfidenceSequence,
    Estimate,
    IntegerArray,
    Terms,
    chances_of_best,
    counted,
    ratio_interval,
    sum_of_squares,
    terms,
)
from service.analysis.verdict_answer import EarlierUplift, PolicyMean, Uplift, Verdict
from service.clock import iso
from service.definition.experiment import Definition
from service.errors import NotFound
from service.log.reading import SILENT, Progress, single_experiment
from service.log.stores import Store

ALPHA = 0.05
LEAST_UNITS = 50
"""Least effective number of visitors, of the policy with the smaller share, that a comparison
needs: below, a few of them make its outcome."""
LOOKS = 200
"""Most points of an uplift's history."""


async def verdict_on(
    store: Store,
    experiment: str | None = None,
    progress: Progress = SILENT,
    checkpoints: Checkpoints = NOWHERE,
) -> Verdict:
    """Read the log of an experiment and judge it. Raises NotFound, Invalid, or StoreError where the
    log cannot be read."""
    name = await single_experiment(store, experiment)
    history = await read_history(store, name, progress, checkpoints)
    definitions, outcomes = history.definitions, outcomes_of(history)
    if not definitions:
        raise NotFound("the experiment was deleted", path="experiment")
    definition, shadows = definitions.latest, definitions.latest.shadows
    starts = {name: start for name, start in definitions.starts().items() if name not in shadows}
    means, uplifts = list[PolicyMean](), list[Uplift]()
    state, sentence = "refused", _refusal(definition, starts)
    if not sentence:
        judge = _Judge(outcomes, definitions, str(definition.control), starts)
        uplifts = judge.uplifts()
        means = judge.means() if uplifts else []
        state, sentence = sentences.of_all(uplifts, means)
    repeats = max((each.repeats for each in uplifts), default=0)
    left_out = outcomes.left_out + Counter({REPEATED: repeats})
    mismatch = outcomes.mismatch()
    if mismatch is not None and uplifts:
        state, sentence = "refused", sentences.of_mismatch(mismatch)
    return Verdict(
        experiment=name,
        state=state,
        sentence=sentence,
        control=definition.control,
        until=iso(float(outcomes.at[-1])) if len(outcomes) else None,
        decisions=len(outcomes) - repeats,
        sample_ratio=sentences.of_rows(mismatch, history.lost),
        fits=mismatch is None,
        policies=means,
        uplifts=uplifts,
        left_out=dict(left_out.most_common()),
    )


def _refusal(definition: Definition, starts: dict[str, Start]) -> str:
    """Why nothing can be told, whatever the log holds; '' where something may be."""
    if definition.control is None:
        return sentences.NO_CONTROL
    if definition.control not in starts or len(starts) < 2:
        return sentences.NO_SHARE.format(definition.control)
    return sentences.NO_DEFAULT if definition.reward.default is None else ""


class _Judge:
    """Judge of the policies of one experiment. starts: of the policies that share the traffic, the
    control among them."""

    def __init__(
        self, outcomes: Outcomes, definitions: Definitions, control: str, starts: dict[str, Start]
    ) -> None:
        self._outcomes, self._definitions = outcomes, definitions
        self._control, self._starts = control, starts
        self._rules = definitions.latest.reward
        self._limits = low, high = outcomes.limits(self._rules)
        self._span = high - low

    def uplifts(self) -> list[Uplift]:
        """Return the uplift of each policy, and of all together where there are several; none
        before any decision counts."""
        others = [name for name in self._starts if name != self._control]
        compared: list[str | None] = [*others, None] if len(others) > 1 else [*others]
        found = [self._uplift(name, ALPHA / len(compared)) for name in compared]
        return [each for each in found if each is not None]

    def means(self) -> list[PolicyMean]:
        names = list(self._starts)
        means = [self._mean(name) for name in names]
        rows, _ = self._rows(self._since(*names))
        compared = [self._terms({name}, rows) for name in names]
        if any(each.e.any() for each in compared):
            best = chances_of_best(compared, self._outcomes.unit[rows])
            for one, chance in zip(means, best, strict=True):
                one.best = chance
        return means

    # -- figures -------------------------------------------------------------------------------

    def _since(self, *names: str) -> Start:
        return max((self._starts[name] for name in names), key=lambda start: start.position)

    def _terms(self, names: set[str], rows: IntegerArray) -> Terms:
        """Return the terms of several policies taken as one."""
        drawn = self._outcomes.of(names)
        chance = self._outcomes.chance
        if len(names) > 1:
            chance = self._definitions.shares(names, self._outcomes.position)
        reward, first = self._outcomes.reward, self._rules.default or 0.0
        return terms(drawn[rows], chance[rows], reward[rows], first, self._span)

    def _rows(self, start: Start) -> tuple[IntegerArray, int]:
        """Return the rows that count since then, and how many others a few visitors made."""
        rows = np.flatnonzero(self._outcomes.position >= start.position)
        counts = counted(self._outcomes.unit[rows])
        return rows[counts], int((~counts).sum())

    def _mean(self, name: str) -> PolicyMean:
        start = self._since(name, self._control)
        rows, _ = self._rows(start)
        own = int(self._outcomes.of({name})[rows].sum())
        found: Estimate | None = None
        if own:
            sequence = ConfidenceSequence(
                self._terms({name}, rows), self._outcomes.unit[rows], ALPHA
            )
            found = sequence.estimate().within(*self._limits)
        return PolicyMean(
            policy=name,
            since=iso(start.at),
            decisions=own,
            mean=found and found.value,
            interval=found and found.interval,
            fixed_interval=found and found.fixed,
            best=None,
        )

    def _uplift(self, name: str | None, alpha: float) -> Uplift | None:
        """Return the uplift of a policy, or of all taken as one; None: no decision counts yet."""
        start = self._since(self._control, *([] if name is None else [name]))
        rows, repeats = self._rows(start)
        if not len(rows):
            return None
        both = ({name} if name else self._others()), {self._control}
        own, control = (self._terms(names, rows) for names in both)
        unit, at = self._outcomes.unit[rows], self._outcomes.at[rows]
        sequence = ConfidenceSequence(own - control, unit, alpha)
        positions = self._outcomes.position[rows]
        found = sequence.estimate().within(-self._span, self._span)
        rarer = np.minimum(*(self._definitions.shares(names, positions) for names in both))
        effective = effective_units(rarer, unit)
        enough = _first_with_enough(effective)
        safe = sequence.safe_since()
        safe = None if safe is None or enough is None else max(safe, enough)
        ratio = None
        if self._rules.limits[0] >= 0:
            ratio = ratio_interval(own, control, unit, alpha)
        uplift = Uplift(
            policy=name,
            state="refused" if enough is None else "open",
            sentence="",
            since=iso(start.at),
            decisions=len(rows),
            repeats=repeats,
            units=float(effective[-1]),
            mean=float(own.z.mean()),
            control=float(control.z.mean()),
            difference=found.value,
            interval=found.interval,
            fixed_interval=found.fixed,
            ratio=float(own.z.sum() / control.z.sum()) if ratio else None,
            ratio_interval=ratio,
            safe_since=None if safe is None else iso(float(at[safe])),
            safe_decisions=None if safe is None else safe + 1,
            history=_history(sequence, at),
        )
        if safe is not None:
            uplift.state = "better" if found.value > 0 else "worse"
        if enough is None:
            uplift.sentence = sentences.too_few(uplift, LEAST_UNITS)
        else:
            ahead = sentences.UpliftForecast(sequence, at, uplift.control, self._span, alpha)
            uplift.sentence = sentences.of_one(self._control, uplift, ahead)
        return uplift

    def _others(self) -> set[str]:
        return self._definitions.policies - {self._control}


def effective_units(chance: Array, unit: IntegerArray) -> Array:
    """Return the effective number of visitors that a policy drawn with a chance has after each
    decision, (n,): as many equally frequent ones would leave its mean as uncertain."""
    count = np.arange(1, len(unit) + 1)
    found: Array = count**2 / sum_of_squares(1 / np.sqrt(chance), unit)
    return found


def _first_with_enough(effective: Array) -> int | None:
    """Return the row from which on there are effectively enough units; None: there never are."""
    few = np.flatnonzero(effective < LEAST_UNITS)
    first = int(few[-1]) + 1 if len(few) else 0
    return first if first < len(effective) else None


def _history(sequence: ConfidenceSequence, at: Array) -> list[EarlierUplift]:
    rows = np.unique(np.linspace(0, len(at) - 1, LOOKS).astype(np.int64))
    values, halves = sequence.at(rows)
    return [
        EarlierUplift(
            at=float(at[row]),
            decisions=int(row) + 1,
            value=value,
            low=value - half,
            high=value + half,
        )
        for row, value, half in zip(rows, values.tolist(), halves.tolist(), strict=True)
    ]
