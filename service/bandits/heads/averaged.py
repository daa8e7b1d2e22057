"""Several ridge regressions of one reward, averaged by how well they predict: the head of `auto`.

Every member sees every settlement. Their predictions are averaged by discounted predictive
likelihood (Raftery, Karny, Ettler 2010, "Online prediction under model uncertainty via dynamic
model averaging", Technometrics 52). Members differ in what they see, in what arms share, in what
they forget, and in their prior (`Spec.deviation`):

| member        | what it sees             | shared by arms          | used                        |
|---------------|--------------------------|-------------------------|-----------------------------|
| own           | [1, x]                   | nothing                 | always                      |
| fading        | [1, x], forgets          | nothing                 | always                      |
| relu          | [1, x, random ReLUs]     | nothing                 | with context, without arms' |
| shared        | [1, x, w, x (x) w]       | everything              | with features of arms       |
| hybrid        | both                     | all but an arm's own    | with features of arms       |
| late          | [1, x, functions of x]   | nothing                 | with context, without arms',|
|               |                          |                         | once its forecasts are best |

x are the columns of the context, w those of the arm. The hybrid is that of Li et al. 2010
(arXiv 1003.0146, algorithm 2) by elimination: an arm's own block predicts the reward and the
shared row, and what it leaves of the row predicts the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import sqrt
from typing import Self

import msgspec
import numpy as np

from service.bandits.heads.averaged_forms import Average, Counting, Forms, total
from service.bandits.heads.averaged_member import LEAST_VARIANCE, BlockForecast, Member
from service.bandits.heads.averaged_noises import (
    DISCOUNT,
    LEVELLED,
    SETTLED,
    TAILS,
    BlockErrors,
    MovingLevel,
    Noises,
    judge,
)
from service.bandits.heads.averaged_rows import LATE_SPECS, BlockRows, MemberRows, Rows, Spec
from service.bandits.heads.base import (
    OUTSIDE,
    Bank,
    HeadHealth,
    NameIndex,
    Observation,
    Observations,
    Stored,
    pack_names,
    part,
    unpack_names,
)
from service.bandits.heads.head import Effects, Head
from service.bandits.heads.recursive import SINGULAR
from service.bandits.heads.reward_sums import RewardSums
from service.bandits.linalg import Array, Index, spectrum
from service.errors import NotPositiveDefinite
from service.features.view import View

NEGLIGIBLE_WEIGHT = 1e-3
"""Members below this weight are left out of a decision."""

LATE_MEMBER_ARMS = 64
"""Arms with which late members join and stay: their matrices are the largest, and 2,048 settlements
tell little of each of more arms."""


def _name(arm: str) -> str:
    """All arms outside the catalogue have one row, which no decision reads: theirs is the prior."""
    return OUTSIDE if arm.startswith(OUTSIDE) else arm


class AveragedHead(Head):
    """A `Head` of members; others may join. Rewards lie in [0, 1] or in any span of 1; rows are
    those of the view.

    settled   settlements that it learned, which count what is forgotten
    trial     late members alone
    _speaks   (members,) whether they have a weight; the others learn, and wait
    """

    def __init__(self, view: View, key: str) -> None:
        self._made_of = view, key
        self._rows = Rows(view, key)
        self._start(self._rows.specs)
        self._arms = NameIndex()
        self.rewards, self.moving = RewardSums(), MovingLevel()
        self.settled = 0
        self.trial: AveragedHead | None = None

    def _start(self, specs: Sequence[Spec]) -> None:
        """Have members of these kinds, which learned nothing."""
        self.members = [Member(spec, self._rows) for spec in specs]
        self.noises = Noises(specs)
        self._speaks = np.ones(len(specs), bool)
        self._evidence = np.zeros(len(specs))
        self._kept: Counting | None = None

    @property
    def specs(self) -> list[Spec]:
        return [member.spec for member in self.members]

    def join(
        self, members: Sequence[Member], noises: Noises, evidence: Array, *, speaks: bool = True
    ) -> None:
        """Take further members, which learned of each arm and from each settlement.

        noises     theirs, from the same settlements
        evidence   (their number,) where 0 is that of the likeliest member until now
        speaks     whether they have a weight; otherwise they have none until they forecast better
                   than all others
        """
        self.members = [*self.members, *members]
        self.noises.join(noises, self.count)
        self._speaks = np.concatenate((self._speaks, np.full(len(members), speaks)))
        self._evidence = np.concatenate((self._evidence, evidence))
        self._evidence -= self._evidence.max()
        self._kept = None

    @property
    def awaits_late(self) -> bool:
        few = self.count <= LATE_MEMBER_ARMS
        return few and self.separate and "late" not in self._rows.expansions

    def new(self) -> "AveragedHead":
        """Return a head over the same rows that learned nothing."""
        return AveragedHead(*self._made_of)

    def begin_trial(self, phi: Array) -> None:  # (n, view.width)
        self.trial = self.new()
        self.trial._rows.measure(phi)
        self.trial._start(LATE_SPECS)

    def rehearse(self, rows: Iterable[Observation]) -> None:
        """Arms have their rows in the order of this head."""
        assert self.trial is not None
        for name in self._arms.by_name:
            self.trial._admit(name)
        for row in rows:
            self.trial.observe(row)

    def end_trial(self) -> None:
        if self.trial is not None and self.awaits_late:
            self.take(self.trial)
        self.trial = None

    def _admit(self, name: str, now: int | None = None) -> int:
        """Return the row of an arm, a new one if it was not met before. now: settlements before it;
        None: those until now."""
        known, arm = self.count, self._arms.add(name) - 1
        if arm == known:
            for member in self.members:
                member.admit(arm, self.settled if now is None else now)
            self.noises.admit(arm)
        return arm

    def take(self, late: "AveragedHead") -> None:
        """Have the members of another head join, which met the same arms and learned the same
        settlements. They have no weight until they forecast better than all others."""
        for member in late.members:
            member.shift(self.moving.moved - late.moving.moved)
        self._rows.join(late._rows)
        self.join(late.members, late.noises, np.zeros(len(late.members)), speaks=False)

    def _leave(self) -> None:
        """Go on without late members."""
        stay = np.array([spec.own != "late" for spec in self.specs])
        self.members = [member for member, stays in zip(self.members, stay, strict=True) if stays]
        self.noises.keep(stay)
        self._speaks, self._evidence = self._speaks[stay], self._evidence[stay]
        del self._rows.expansions["late"]

    def _listen(self) -> None:
        """Give a weight to members that have come to forecast better than all that have one."""
        squares = self.noises.squares[1]
        self._speaks |= squares < squares[self._speaks].min()

    @property
    def separate(self) -> bool:
        """Whether arms have a context and share nothing."""
        return self._rows.separate

    # -- score ---------------------------------------------------------------------------------

    @property
    def _prior(self) -> Array:  # (members,)
        return np.array([spec.weight for spec in self.specs]) * self._speaks

    @property
    def weights(self) -> Array:  # (members,)
        weights = self._prior * np.exp(self._evidence)
        return np.asarray(weights / weights.sum())

    @property
    def base(self) -> float:
        """The mean of rewards, at which all arms start, and what it has moved by since."""
        return self.rewards.level + self.moving.moved

    def _places(self, arms: Sequence[str]) -> Index:
        """Rows of arms; those that no reward has met share the last one, the prior's."""
        return self._arms.of(arms) - 1

    def spread(
        self, phi: Array, arms: Sequence[str], *, by_forms: bool = True
    ) -> tuple[Array, Array, Array]:
        """Do as `Head`. by_forms: by `Forms` once they pay; the last bits then hang on what was
        asked before."""
        return self.spread_of(MemberRows(self._rows, phi, len(arms)), arms, by_forms=by_forms)

    def spread_of(
        self, seen: MemberRows, arms: Sequence[str], *, by_forms: bool
    ) -> tuple[Array, Array, Array]:
        """Do as `spread`, for rows as members see them."""
        places, counting = self._places(arms), self._counting
        if not len(counting.at):
            raise FloatingPointError("no member of the head has a weight")
        width = self._rows.shared_width
        asked = counting.asked(seen, places, width) if by_forms and width else None
        if asked is not None and asked.pays:
            if asked.forms is None:
                asked.forms = self._forms(counting, seen, places)
            return asked.forms.spread(seen.own)
        predicted = [
            self.members[index].predict(seen, places, self.rewards.level, self.settled)
            for index in counting.at
        ]
        means, v = np.array(predicted).swapaxes(0, 1)
        return self._average(counting, places)(total(counting.shares, means), v)

    def _average(self, counting: Counting, places: Index) -> Average:
        noises = self.noises.of_arms(self.rewards.spread**2, places)[counting.at, None]
        usual_variance = np.maximum(self.noises.usual_variance[counting.at], LEAST_VARIANCE)
        return Average(self.base, counting.shares, noises, usual_variance)

    def _forms(self, counting: Counting, seen: MemberRows, places: Index) -> Forms:
        shared = self._rows.shared_columns(seen.arms)
        found = [
            self.members[index].forms(shared, places, self.rewards.level, self.settled)
            for index in counting.at
        ]
        return Forms(found, self._average(counting, places))

    @property
    def _counting(self) -> Counting:
        """The members that count in a decision, until the head learns."""
        if self._kept is None:
            weights = self.weights
            kept = np.flatnonzero(weights > NEGLIGIBLE_WEIGHT)
            self._kept = Counting(kept, weights[kept] / weights[kept].sum())
        return self._kept

    def opinions(self, phi: Array, arms: Sequence[str]) -> list[tuple[str, float, Array]]:
        """Return the opinion of each member that counts."""
        seen, places = MemberRows(self._rows, phi, len(arms)), self._places(arms)
        found = []
        for index, share in self._counting.members:
            member = self.members[index]
            [means], _ = member.predict(seen, places, self.rewards.level, self.settled)
            found.append((member.spec.name, float(share), self.base + means))
        return found

    def effects(self, row: Array, arm: str) -> Effects:  # (view.width,)
        rows, [place] = self._rows, self._places([arm])
        x, w = row[rows.context], row[rows.arm]
        d, f = len(x), len(w)
        constant, columns, crosses = 0.0, np.zeros(len(row)), np.zeros((d, f))
        for index, share in self._counting.members:
            member = self.members[index]
            own, shared = member.weights(place, self.rewards.level)
            if own is not None:
                at_zero, bent = 0.0, np.zeros(d)
                if expansion := rows.expansions.get(member.spec.own):
                    at_zero, bent = expansion.effects(x, own[1 + d :])
                constant += share * (own[0] + at_zero)
                columns[rows.context] += share * (own[1 : 1 + d] * x + bent)
            if shared is not None:
                constant += share * shared[0]
                columns[rows.context] += share * shared[1 : 1 + d] * x
                columns[rows.arm] += share * shared[1 + d : 1 + d + f] * w
                crosses += share * rows.cross_weights(shared[1 + d + f :]) * np.outer(x, w)
        return Effects(constant, columns, crosses, (rows.context, rows.arm))

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return self._each(phi, arms)[0]

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self._each(phi, arms)[1]

    def _each(self, phi: Array, arms: Sequence[str]) -> tuple[Array, Array]:
        """Return mean and width of each row, which may have a context of its own. Not by forms: a
        fold may read them, and has the same bits in every process."""
        contexts = phi[:, self._rows.context]
        if (contexts == contexts[0]).all():
            mean, width, _ = self.spread(phi, arms, by_forms=False)
            return mean[0], width[0]
        rows = [
            self.spread(row[None], [arm], by_forms=False)
            for row, arm in zip(phi, arms, strict=True)
        ]
        mean, width, _ = np.array(rows)[:, :, 0, 0].T
        return mean, width

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        places = self._places(arms)
        noises = self.noises.of_arms(self.rewards.spread**2, places)
        return self.noises.counts[places], np.sqrt(self.weights @ noises)

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """One draw an arm: the members' average has no joint distribution of arms."""
        mean, width = self._each(phi, arms)
        return np.asarray(mean + width * bank.columns(arms))

    @property
    def held(self) -> float:
        return self.rewards.n

    # -- learn ---------------------------------------------------------------------------------

    def observe(self, row: Observation) -> None:
        self.learn(row)

    def learn(self, row: Observation) -> tuple[float, float]:
        """Learn an observation. Return the error of the averaged forecast before it, and the noise
        that errors are judged by."""
        arm = self._admit(_name(row.arm))
        if self.count > LATE_MEMBER_ARMS and "late" in self._rows.expansions:
            self._leave()
        seen, reward = MemberRows(self._rows, row.phi[None], 1), row.reward - self.moving.moved
        variance = self.rewards.spread**2
        level = self.rewards.level if self.rewards.n else reward
        forecasts = [member.look(seen, arm, self.settled) for member in self.members]
        errors = np.array([reward - level - (each.mean - level * each.one) for each in forecasts])
        variances = np.array([each.variance for each in forecasts])
        # One noise for all: with its own, a fading member would win by its variance alone.
        common = self.noises.of_arm(1, variance, arm)[self._speaks].min()
        spread = np.ones_like(variances) if self.separate else 1.0 + variances
        misses = np.square(errors) / spread / common
        loss = 0.5 * (np.log(spread) + (TAILS + 1.0) * np.log1p(misses / TAILS))
        weights = self.weights
        error = float(weights @ errors)
        for member, forecast in zip(self.members, forecasts, strict=True):
            member.learn(seen, arm, forecast, reward, row.weight)
        self.noises.learn(arm, errors, variances, row.weight, self.settled)
        if self.settled >= LEVELLED:
            noises = self.noises.of_arm(0, variance, arm)
            deviation = sqrt(weights @ noises * (1.0 + weights @ variances))
            self.moving.see(row.weight * error, deviation)
        evidence = DISCOUNT * self._evidence - row.weight * loss
        evidence -= evidence[self._speaks].max()
        self._evidence = np.where(self._speaks, evidence, 0.0)
        if not self._speaks.all():
            self._listen()
        self.rewards.add(reward, row.weight)
        self.settled += 1
        self._kept = None
        return error, float(common)

    def observe_block(self, rows: Observations) -> None:
        self.learn_many(rows)

    def learn_many(self, rows: Observations) -> list[tuple[float, float]]:
        """Learn observations as `learn` does one after the other, but for rounding: those of an arm
        in one step of its regressions. Return the same of each."""
        found, each = list[tuple[float, float]](), [*rows.each()]
        while (start := len(found)) < len(each):
            some = self._learn_some(rows, start) if len(each) - start > 1 else None
            found += some or [self.learn(each[start])]
        return found

    def _learn_some(self, rows: Observations, start: int) -> list[tuple[float, float]] | None:
        """Learn observations from one on, up to one at which the level moves. Return what `learn`
        does of each; None where they are to be learned one by one."""
        names = [_name(arm) for arm in rows.arms[start:]]
        count = self.count + len({*names} - self._arms.by_name.keys())
        leaves = count > LATE_MEMBER_ARMS and "late" in self._rows.expansions
        unsettled = self.settled < LEVELLED or self.moving.count < SETTLED
        if unsettled or leaves or (rows.weights[start:] != 1.0).any():
            return None
        now = np.arange(self.settled, self.settled + len(names))
        places = [self._admit(name, at) for name, at in zip(names, now.tolist(), strict=True)]
        arms = {place: np.flatnonzero(np.equal(places, place)) for place in dict.fromkeys(places)}
        seen = BlockRows(self._rows, rows.phi[start:])
        rewards = rows.rewards[start:] - self.moving.moved
        looks = list[BlockForecast]()
        try:
            looks.extend(each.look_block(seen, arms, rewards, now) for each in self.members)
        except NotPositiveDefinite:  # rows so long that a block loses the prior
            for member, look in zip(self.members, looks, strict=False):
                member.learn_block(look, 0)
            return None
        level, variance = self.rewards.before_each(rewards)
        errors = np.array([look.errors - level * look.ones for look in looks]).T
        grown = np.array([look.grown for look in looks]).T
        spread = np.ones_like(grown) if self.separate else grown
        judged = judge(
            self.noises,
            self.moving,
            self._evidence,
            self._speaks,
            [spec.weight for spec in self.specs],
            BlockErrors(places, errors, grown - 1.0, 0.5 * np.log(spread), spread, variance),
        )
        for member, look in zip(self.members, looks, strict=True):
            member.learn_block(look, judged.learned)
        self._evidence, self._speaks, self._kept = judged.evidence, judged.speaks, None
        self.rewards.add_many(rewards[: judged.learned], np.ones(judged.learned))
        self.settled += judged.learned
        return [*zip(judged.errors, judged.noises, strict=True)]

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        """Means move exactly, but for what members have forgotten since; noises and weights of the
        members stay."""
        arm = self._arms.by_name.get(_name(row.arm))
        if arm is None:
            return
        seen, moved = MemberRows(self._rows, row.phi[None], 1), self.moving.moved
        left *= row.weight
        for member in self.members:
            member.revise(seen, arm - 1, left * (row.reward - was), self.settled)
        self.rewards.revise(row.reward - moved, was - moved, left)
        self._kept = None

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        """Undo an observation in every member, as `revise` changes one."""
        arm = self._arms.by_name.get(_name(row.arm))
        if arm is None:
            return
        seen, reward = MemberRows(self._rows, row.phi[None], 1), row.reward - self.moving.moved
        left *= row.weight
        looks = [member.look(seen, arm - 1, self.settled) for member in self.members]
        if any(1.0 - left * each.variance < SINGULAR for each in looks):
            return
        for member, looked in zip(self.members, looks, strict=True):
            member.learn(seen, arm - 1, looked, reward, -left)
        self.rewards.withdraw(reward, left)
        self._kept = None

    def decay(self, share: float) -> None:
        """Members forget by themselves, and `gamma` is refused."""
        raise AssertionError("an averaged head does not decay")

    def distrust(self, factor: float) -> None:
        """There is no net whose errors could be too small."""

    def obstacle(self, kept: Self, columns: Index) -> str:
        return self._rows.obstacle(kept._rows, columns)

    def follow(self, kept: "AveragedHead", columns: Index) -> None:
        places = self._rows.places(kept._rows, columns)
        self._rows.keep(kept._rows, columns)
        self._arms = NameIndex(kept._arms.by_name)
        self._start(kept.specs)
        self._evidence, self._speaks = kept._evidence.copy(), kept._speaks.copy()
        self.noises.restore(kept.noises.arrays(kept.count), kept.count)
        self.rewards = replace(kept.rewards)
        self.moving.restore(kept.moving.array())
        self.settled = kept.settled
        for member, old in zip(self.members, kept.members, strict=True):
            member.follow(old, places)
        if kept.trial is not None:
            self.trial = self.new()
            self.trial.follow(kept.trial, columns)

    # -- state ---------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of arms that have rewards."""
        return len(self._arms) - 1

    def health(self) -> HeadHealth:
        """Describe the likeliest member: what arms share, or else the worst arm. Its columns are
        scaled so that lambda is 1; forgetting gives the prior back a few columns at a time, so a
        direction without rewards has 0.7 to 1.2 then."""
        weights = self.weights
        member = self.members[int(weights.argmax())]
        block, rows = member.shared, 1
        if block is None:
            block, rows = member.own, self.count
        assert block is not None
        spectra = [spectrum(np.linalg.inv(P), 1.0) for P in block.P[:rows]]
        noise = weights @ self.noises.of_all(0, self.rewards.spread**2)
        return HeadHealth.of_worst(spectra, 1.0, self.rewards.n, sqrt(noise))

    def arrays(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {
            "arms": pack_names(self._arms.by_name),
            "specs": np.frombuffer(msgspec.json.encode(self.specs), np.uint8),
            "evidence": self._evidence,
            "speaks": self._speaks,
            "rewards": self.rewards.array(),
            "moving": self.moving.array(),
            "settled": np.array([self.settled]),
        }
        found |= {f"rows.{name}": each for name, each in self._rows.arrays().items()}
        found |= {f"noises.{name}": each for name, each in self.noises.arrays(self.count).items()}
        for number, member in enumerate(self.members):
            own = member.arrays(self.count)
            found |= {f"{number}.{name}": array for name, array in own.items()}
        if self.trial is not None:
            found |= {f"trial.{name}": array for name, array in self.trial.arrays().items()}
        return found

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._arms = NameIndex(unpack_names(arrays["arms"]))
        self._rows.restore(part(arrays, "rows."))
        self._start(msgspec.json.decode(arrays["specs"].tobytes(), type=list[Spec]))
        self._evidence, self._speaks = arrays["evidence"].copy(), arrays["speaks"].copy()
        self.noises.restore(part(arrays, "noises."), self.count)
        self.rewards = RewardSums(*arrays["rewards"].tolist())
        self.moving.restore(arrays["moving"])
        [self.settled] = arrays["settled"].tolist()
        for number, member in enumerate(self.members):
            member.restore(part(arrays, f"{number}."), self.count)
        self.trial = None
        if own := part(arrays, "trial."):
            self.trial = self.new()
            self.trial.restore(own)
