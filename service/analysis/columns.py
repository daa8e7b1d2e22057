"""What estimates need of each decision, in columns: about 40 bytes, and 24 for each policy, or 88
for a shadow."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from service.analysis.anytime import AnytimeEstimate
from service.analysis.estimators import Logged
from service.analysis.growing import Growing
from service.analysis.history import number_of
from service.analysis.intervals import Interval
from service.analysis.selected import SelectedDecisions
from service.analysis.sequences import MOST_ROWS, IntegerArray
from service.analysis.walk import LoggedDecision
from service.bandits.heads.base import Meta, Stored, part
from service.clock import iso
from service.features.schema import Array

COUNTED_ARMS = 10_000
"""Arms without support that are counted one by one; further ones are counted together."""
OTHERS = "(others)"


class _PolicyColumns:
    """Columns of one policy.

    rows          chance of the shown arm; earned, by the guess; missing, the chance of what the log
                  could not have shown
    unsupported   the last by arm
    other_candidates   decisions of which it would have chosen other candidates
    anytime       None: its estimate is looked at once
    """

    def __init__(self, *, anytime: bool) -> None:
        self.rows = Growing(chance="d", earned="d", missing="d")
        self.unsupported = dict[str, float]()
        self.other_candidates = 0
        self.anytime = AnytimeEstimate() if anytime else None

    @property
    def tables(self) -> dict[str, Growing]:
        """All columns, by what they are of."""
        anytime = {} if self.anytime is None else {"anytime": self.anytime.rows}
        return {"own": self.rows, **anytime}

    def add(self, logged: LoggedDecision, target: Array) -> None:
        behaviour, missing = logged.behaviour, 0.0
        if behaviour is not None:
            if self.anytime is not None:
                self.anytime.add(target, behaviour, logged.guess, logged.shown, logged.limits)
            impossible = np.flatnonzero((behaviour <= 0) & (target > 0))
            missing = float(target[impossible].sum())
            for index in impossible.tolist():
                arm, by_arm = logged.arms[index], self.unsupported
                arm = arm if arm in by_arm or len(by_arm) < COUNTED_ARMS else OTHERS
                by_arm[arm] = by_arm.get(arm, 0.0) + float(target[index])
        self.rows.append(float(target[logged.shown]), float(target @ logged.guess), missing)


class Columns:
    """Columns of one evaluation. Rewards come last (`settle`): they may change while
    decisions are added.

    anytime      whether intervals hold at all times at once
    reward       (n,) of each decision
    slates       decisions of more than one arm, of which only the first counts
    without_probabilities   decisions of which the log knows the chance of the shown arm alone
    shortlists   decisions by the policy that chose their candidates itself
    repeats      decisions that do not count: their units had made MOST_ROWS before
    """

    def __init__(self, policies: Sequence[str], *, anytime: bool = False) -> None:
        self.policies, self.anytime = policies, anytime
        self._own = {name: _PolicyColumns(anytime=anytime) for name in policies}
        self._rows = Growing(number="q", behaviour="d", guess="d", unit="q", at="d", policy="i")
        self._makers = dict[str, int]()
        self.reward = np.zeros(0)
        self.slates = self.without_probabilities = self.repeats = 0
        self.shortlists = Counter[str]()
        self._of_unit = Counter[int]()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, logged: LoggedDecision) -> None:
        """Add a decision, unless its unit has made too many: which is known before its reward, so
        that one unit cannot bend an estimate."""
        decision = logged.decision
        unit = -1 - logged.number if decision.unit is None else number_of(decision.unit)
        if self._of_unit[unit] == MOST_ROWS:
            self.repeats += 1
            return
        self._of_unit[unit] += 1
        self._rows.append(
            logged.number,
            logged.propensity,
            float(logged.guess[logged.shown]),
            unit,
            decision.at,
            self._makers.setdefault(decision.policy, len(self._makers)),
        )
        self.slates += len(decision.shown) > 1
        self.without_probabilities += logged.behaviour is None
        self.shortlists[decision.policy] += logged.shortlist
        for name, own in self._own.items():
            own.add(logged, logged.targets[name])
            own.other_candidates += name in logged.other_candidates

    @property
    def numbers(self) -> IntegerArray:
        """The numbers of the rows, in the order in which they were added."""
        return self._rows["number"]

    def settle(self, chosen: SelectedDecisions) -> None:
        """Take the rewards of the decisions."""
        self.reward = chosen.rewards_of(self.numbers)

    @property
    def logged_by(self) -> dict[str, int]:
        """Decisions by the policy that made them, the most frequent first."""
        counts = np.bincount(self._rows["policy"], minlength=len(self._makers)).tolist()
        return dict(Counter(dict(zip(self._makers, counts, strict=True))).most_common())

    @property
    def earned_by(self) -> dict[str, float]:
        """The mean reward of the decisions that each policy made."""
        policy, counts = self._rows["policy"], self.logged_by
        earned = np.bincount(policy, self.reward, len(self._makers)).tolist()
        sums = dict(zip(self._makers, earned, strict=True))
        return {name: sums[name] / count for name, count in counts.items()}

    @property
    def group(self) -> IntegerArray:
        """A number for each unit; decisions without one have a number each."""
        return self._rows["unit"]

    def logged(self, policy: str, range_: tuple[float, float]) -> Logged:
        own = self._own[policy]
        return Logged(
            reward=self.reward,
            behaviour=self._rows["behaviour"],
            target=own.rows["chance"],
            guess=self._rows["guess"],
            target_guess=own.rows["earned"],
            group=self.group,
            range=range_,
        )

    def intervals(
        self, policy: str, confidence: float
    ) -> tuple[Interval, Interval] | tuple[None, None]:
        """Return the intervals of a policy's value, and of its difference to the log, that hold at
        all times; None where it has none."""
        anytime = self._own[policy].anytime
        if anytime is None:
            return None, None
        return anytime.intervals(self.reward, self.group, confidence)

    def unsupported(self, policy: str) -> tuple[float, dict[str, float]]:
        """Return the share of what a policy would show that the log could not have shown: in all,
        and by arm with the largest first."""
        own, count = self._own[policy], max(len(self), 1)
        by_arm = sorted(own.unsupported.items(), key=lambda each: -each[1])
        return float(own.rows["missing"].sum()) / count, {arm: mass / count for arm, mass in by_arm}

    def other_candidates(self, policy: str) -> int:
        """Decisions of which a policy would have chosen other candidates."""
        return self._own[policy].other_candidates

    @property
    def times(self) -> tuple[str, str] | tuple[None, None]:
        """Times of the first and the last; None where there is no decision."""
        at = self._rows["at"]
        return (iso(float(at.min())), iso(float(at.max()))) if len(at) else (None, None)

    # -- checkpoints ---------------------------------------------------------------------------

    def dump(self) -> tuple[Meta, dict[str, Stored]]:
        """Return all but the rewards. `restore` is the inverse."""
        meta: Meta = {
            "makers": list(self._makers),
            "slates": self.slates,
            "without_probabilities": self.without_probabilities,
            "repeats": self.repeats,
            "shortlists": self.shortlists,
            "own": {
                name: (own.unsupported, own.other_candidates) for name, own in self._own.items()
            },
        }
        arrays = {f"rows.{name}": column for name, column in self._rows.columns.items()}
        for number, own in enumerate(self._own.values()):
            for title, rows in own.tables.items():
                found = {f"{number}.{title}.{name}": each for name, each in rows.columns.items()}
                arrays |= found
        return meta, arrays

    def restore(self, meta: Meta, arrays: Mapping[str, Stored]) -> None:
        """Restore what `dump` gave. Raises KeyError or ValueError where it does not fit."""
        self._makers = {name: place for place, name in enumerate(meta["makers"])}
        self.slates, self.without_probabilities, self.repeats = (
            meta[name] for name in ("slates", "without_probabilities", "repeats")
        )
        self.shortlists = Counter(meta["shortlists"])
        self._rows.restore(part(arrays, "rows."))
        self._of_unit = Counter(self.group.tolist())
        for number, (name, own) in enumerate(self._own.items()):
            own.unsupported, own.other_candidates = meta["own"][name]
            for title, rows in own.tables.items():
                rows.restore(part(arrays, f"{number}.{title}."))
