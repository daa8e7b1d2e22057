"""A version of a policy: an encoder, and the head that is folded in its features."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import astuple, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from service.bandits.encoder import Encoder
from service.bandits.heads import Bank, Head
from service.bandits.heads.base import (
    HeadHealth,
    Meta,
    Observation,
    Observations,
    Stored,
    pack_names,
    part,
    unpack_names,
)
from service.bandits.memory import Memory
from service.bandits.order import Batch, DecisionOrder, Settlement
from service.bandits.outcome import Outcome
from service.bandits.reward_scale import RewardScale
from service.errors import NotPositiveDefinite
from service.features.row import Row
from service.features.schema import Array
from service.features.view import View

WIDE = 512
"""Columns of a head beyond which its spectrum takes longer than others should wait."""

NEGLIGIBLE_SHARE = 1e-12
"""A settlement that decayed to this share of itself is no longer corrected."""


WARM_UP, SHORTEST_WARM_UP = 256, 16
"""Settlements that numbers without a declared scale are standardised by; fewer for wide heads."""

WARM_UP_COST = 2**24
"""Settlements times squared columns that a head learns again at once: 0.05 s."""

LATE_FROM, PACE, MEASURED = 2_048, 8, 4
"""Settlements after which late members begin to learn those that were; how many of them they learn
at each new one; the functions that they see are made from every so many."""


Taught = tuple[Settlement, list[Outcome]]
"""A settlement of a decision, and what a policy learns from it."""


class Forgetting(NamedTuple):
    """How a policy forgets, as `Kind` has it. windowed: it has a window."""

    gamma: float
    decay_every: int
    windowed: bool
    change: bool


class Version:
    """Scores come from its head and its bank of draws; settlements move the head alone.

    view         columns and their scaling, which is measured after 1, 2, 4, ... warm_up
                 settlements; the head then learns these again
    limits       the range of rewards as it is declared now
    rewarded     the scale of rewards: of the range when the head was new
    warm_up      settlements after which the scaling stays
    scaled_on    settlements folded, up to warm_up
    late         columns were added since: what warm_up settlements say of their scaling holds from
                 then on, and the head does not learn these again
    columns      of the rows that the head sees
    trained_to   log position that the encoder was trained to, and the head rebuilt to
    rewards      the policy's rewards at that position: the next training's due count grows from it
    begins       log position from which on the head holds settlements; corrections of earlier ones
                 have the weight 0, unless the memory holds them
    settled      settlements folded, which count the decays
    decays       log positions of the decays that still matter
    doubt        factor of the head's squared errors on rows that its net was not fitted to
    memory       settlements that the head can be rebuilt from: the latest under a window or a test
                 for changes, the first warm_up while the scaling is measured, and all while the
                 head awaits late members
    without      decisions whose settlements are ignored
    order        in which the head learns; None: as rewards come
    """

    def __init__(
        self,
        number: int,
        view: View,
        encoder: Encoder,
        make_head: Callable[[Encoder, float], Head | None],
        limits: tuple[float, float],
        forgetting: Forgetting,
        bank: Bank,
        memory: Callable[[], Memory | None],
        order: DecisionOrder | None,
        *,
        predicts: bool = False,
    ) -> None:
        self.number, self.view, self.encoder, self.bank = number, view, encoder, bank
        self._make_head, self.predicts = make_head, predicts
        self.limits = limits
        self.head = make_head(encoder, limits[1] - limits[0])
        standardises = self.head is not None and self.head.standardises
        scale = RewardScale.to_unit if standardises else RewardScale.to_shares
        self.rewarded = scale(limits)
        self._first_view, self._new_memory = view, memory
        self.memory = self._memory()
        self.order = order
        self._remembers = forgetting.windowed or forgetting.change
        self.columns = encoder.features(view.width)
        self.warm_up = WARM_UP
        matrices = 1 if self.head is None else self.head.matrices
        while self.warm_up * self.columns**2 * matrices > WARM_UP_COST:
            if self.warm_up == SHORTEST_WARM_UP:
                break
            self.warm_up //= 2
        self.scaled_on = self.warm_up if view.scaling is None else 0
        self.late = False
        self._decay_every = forgetting.decay_every
        self._share = forgetting.gamma**forgetting.decay_every
        self._windowed = forgetting.windowed
        self.trained_to = self.rewards = self.begins = self.settled = 0
        self.decays: list[int] = []
        self.doubt = 1.0
        self.without: frozenset[str] = frozenset()

    @property
    def _awaits_late(self) -> bool:
        return self.head is not None and self.head.awaits_late

    def _memory(self) -> Memory | None:
        return Memory(self.view.schema.layout) if self._awaits_late else self._new_memory()

    # -- score ---------------------------------------------------------------------------------

    def offset(self, phi: Array) -> Array:  # (n, m) -> (n,)
        """Return the net's own output, where the head holds the rest of the reward."""
        return self.encoder.predict(phi) if self.predicts else np.zeros(len(phi))

    def expected(self, phi: Array, arms: Sequence[str]) -> Array:  # (n, m) -> (n,)
        """Return the expected rewards."""
        return self.rewarded.restored(self.mean(phi, arms))

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:  # (n, m) -> (n,)
        """Return the expected rewards on the scale of the head."""
        own = self.head.mean(phi, arms) if self.head else np.zeros(len(phi))
        return own + self.offset(phi) if self.predicts else own

    def phi(self, x: Array) -> Array:  # (n, schema.width) -> (n, m)
        return self.encoder(self.view.rows(x))

    def phi_of(self, rows: Sequence[Row]) -> Array:  # (n, m)
        """Return the features of rows as events hold them, each with the bits that it has alone."""
        return self.encoder.each(self.view.rows(self.view.schema.layout.unpack(rows)))

    def _new_head(self) -> Head | None:
        """Return an empty head for rewards on the scale of this version."""
        return self._make_head(self.encoder, self.rewarded.span)

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest reward on the scale of the head."""
        low, high = self.limits
        return self.rewarded(low), self.rewarded(high)

    def health(self) -> HeadHealth | None:
        """Return the health of the head, its noise in units of the reward. None: there is no head,
        or it is no number."""
        if self.head is None:
            return None
        try:
            found = self.head.health()
        except (NotPositiveDefinite, np.linalg.LinAlgError):
            return None
        found = replace(found, noise=found.noise * self.width_unit)
        return found if np.isfinite(astuple(found)).all() else None

    @property
    def width_unit(self) -> float:
        """What a width of 1 of the head stands for: of a logistic head the logit, else rewards."""
        span = self.rewarded.span
        return span if self.head is None else self.head.unit(span)

    # -- learn ---------------------------------------------------------------------------------

    def in_order(self, told: Sequence[Taught]) -> list[Batch]:
        """Return what to `fold` now that one event settles decisions with these outcomes."""
        if self.order is None:
            return [(settlement.decision, outcomes) for settlement, outcomes in told]
        batches = list[Batch]()
        for settlement, outcomes in told:
            anew, found = self.order.take(settlement, outcomes)
            if anew:
                self._start_anew()
                batches = []
            batches += found
        return batches

    def _start_anew(self) -> None:
        self.head = self._new_head()
        self.memory = self._memory()
        self.view, self.late = self._first_view, False
        self.scaled_on = self.warm_up if self.view.scaling is None else 0
        self.settled, self.decays = 0, []

    def fold(self, position: int, batches: Sequence[Batch]) -> None:
        """Learn what one event settles. First outcomes that follow each other are one block."""
        held = [each for each in batches if each[1] and each[0] not in self.without]
        if self.head is None or not held:
            return
        before = self.settled
        for first, each in groupby(_each(held), lambda pair: pair[1].was is None):
            if first:
                self._learn(position, [*each])
            else:
                for key, outcome in each:
                    self._correct(key, outcome)
        fresh = self.settled - before
        self._forget(position, fresh)
        self._rescale(fresh)
        self._rehearse(fresh)

    def _learn(self, position: int, found: Sequence[tuple[str, Outcome]]) -> None:
        """Learn first outcomes of one event as one block."""
        assert self.head is not None
        if self.memory is not None:
            for key, outcome in found:
                self.memory.add(position, key, outcome)
        rows = self._observations([key for key, _ in found], [one for _, one in found])
        self.head.observe_block(rows)
        self.settled += len(found)

    def _observations(self, keys: Sequence[str], outcomes: Sequence[Outcome]) -> Observations:
        """Return outcomes as the head learns them. keys: of each one's decision."""
        phi = self.phi_of([one.row for one in outcomes])
        rewards = self.rewarded(np.array([one.reward for one in outcomes]))
        return Observations(
            [one.arm for one in outcomes],
            phi,
            rewards - self.offset(phi) if self.predicts else rewards,
            keys,
            np.array([one.weight for one in outcomes]),
            [one.imported for one in outcomes],
        )

    def _correct(self, key: str, outcome: Outcome) -> None:
        """Replace an outcome that was learned before, as far as the head still holds it."""
        assert outcome.was is not None
        heads = self._heads(key, outcome.arm)
        if not (left := self._remaining(key, outcome)):
            return
        [row] = self._observations([key], [outcome]).each()
        offset = float(self.offset(row.phi[None])[0]) if self.predicts else 0.0
        was = self.rewarded(outcome.was) - offset
        for head in heads:
            _correct(head, row, was, outcome.weighed, left, withdrawn=outcome.withdrawn)

    @property
    def learns_runs(self) -> bool:
        """Whether it can learn the settlements of many events at once, with the bits of one by one:
        nothing is remembered, forgotten or put in order."""
        return (
            self.scaled_on >= self.warm_up
            and self.order is None
            and self.memory is None
            and self._share == 1
        )

    def fold_run(self, keys: Sequence[str], outcomes: Sequence[Outcome]) -> None:
        """Learn first outcomes of many decisions at once, where it `learns_runs`. keys: of each
        one's decision."""
        if self.without:
            pairs = zip(keys, outcomes, strict=True)
            known = [(key, one) for key, one in pairs if key not in self.without]
            keys, outcomes = [key for key, _ in known], [one for _, one in known]
        if self.head is None or not outcomes:
            return
        self.head.observe_many(self._observations(keys, outcomes))
        self.settled += len(outcomes)

    def _heads(self, key: str, arm: str) -> list[Head]:
        """Return the head, and the late members' if they have learned this settlement."""
        assert self.head is not None
        trial = self.head.trial
        if trial is not None and self.memory is not None and self.memory.was_read(key, arm):
            return [self.head, trial]
        return [self.head]

    def _rescale(self, fresh: int) -> None:
        """Measure the scaling when the count of settlements reaches a power of two, up to warm_up,
        and have the head learn them again under it."""
        before = self.scaled_on
        if before >= self.warm_up:
            return
        self.scaled_on = min(before + fresh, self.warm_up)
        if self.scaled_on.bit_length() == before.bit_length():
            return
        memory = self.memory
        assert memory is not None
        if self.late:
            if self.scaled_on == self.warm_up:
                self.late = False
                self.use(self.view.completed(memory.rows[-self.warm_up :]))
            return
        view = self.view.measured(memory.rows[:], self.warm_up // 2)
        moved = view is not self.view
        self.use(view, self.scaled_on)
        if moved:
            self.refold(memory, self.begins)

    def _rehearse(self, fresh: int) -> None:
        """Have late members learn some of what is remembered; once they know it all, they join."""
        memory, head = self.memory, self.head
        if memory is None or head is None or self._remembers or len(memory) < LATE_FROM:
            return
        if head.awaits_late:
            if head.trial is None:
                memory.read = 0
                head.begin_trial(self.phi(memory.rows[::MEASURED]))
            self._teach(head, memory, PACE * fresh)
            if memory.read < len(memory):
                return
        head.end_trial()
        if self.scaled_on == self.warm_up:
            self.memory = None

    def _teach(self, head: Head, memory: Memory, count: int) -> None:
        """Teach late members some of what is remembered, imports as other settlements."""
        start, stop = memory.read, min(memory.read + count, len(memory))
        phi = self.phi(memory.rows[start:stop])
        arms, keys = memory.arms, memory.keys
        rewards, weights = memory.rewards, memory.weights
        head.rehearse(
            Observation(arms[row], x, self.rewarded(rewards[row]), keys[row], weights[row])
            for x, row in zip(phi, range(start, stop), strict=True)
        )
        memory.read = stop

    def use(self, view: View, scaled_on: int | None = None) -> None:
        """Look through a view whose scaling was measured on so many settlements; None: enough."""
        self.view = view
        self.scaled_on = self.warm_up if scaled_on is None else min(scaled_on, self.warm_up)
        if self.scaled_on == self.warm_up and not (self._remembers or self._awaits_late):
            self.memory = None

    def with_copied_head(self) -> "Version":
        """Return a twin with a copy of the head from its sums, for a thread: the fold goes on, and
        a head caches."""
        twin = copy(self)
        twin.head = self._new_head()
        if twin.head is not None and self.head is not None:
            twin.head.restore(self.head.arrays())
        return twin

    def _remaining(self, key: str, outcome: Outcome) -> float:
        """Return the share of a corrected settlement that the head still holds."""
        arm, since = outcome.arm, outcome.since
        if self.memory is not None and self.memory.holds(key, arm):
            since = self.memory.position_of(key, arm)
            self.memory.revise(key, arm, outcome.learned, outcome.weight)
        elif since is None or since < self.begins:
            return 0.0
        decayed = sum(position >= since for position in self.decays)
        return float(self._share**decayed)

    def _forget(self, position: int, settlements: int) -> None:
        """After an event: decay once for every so many settlements, or shorten the window."""
        if self._share < 1:
            before = self.settled - settlements
            times = self.settled // self._decay_every - before // self._decay_every
            if times and self.head is not None:
                self.head.decay(self._share**times)
                self.decays += [position] * times
                while self._share ** len(self.decays) < NEGLIGIBLE_SHARE:
                    self.begins = self.decays.pop(0) + 1
        elif self._remembers and self.memory is not None and self.memory.overfull:
            self.memory.trim()
            if self._windowed:
                self.refold(self.memory, position + 1)

    def drop(self, columns: list[int], since: int, position: int) -> None:
        """Forget settlements before `since`, where the world changed, in these columns."""
        if self.memory is not None:
            self.memory.drop(columns, since)
            self.refold(self.memory, position + 1)

    def forget(self, decisions: Collection[str]) -> None:
        """Remove the settlements of these decisions from the memory; the head's sums stay."""
        if self.memory is not None:
            self.memory.forget(decisions)
        if self.order is not None:
            self.order.forget(decisions)

    def refold(self, memory: Memory, begins: int, unseen: int | None = None) -> None:
        """Rebuild the head from the prior over the memory, in log order.

        begins   earlier settlements count only if the memory holds them
        unseen   the first row that the net was not fitted to. A head in a net's features errs too
                 little on rows that the net was fitted to; its errors on the others, before it
                 learns them, give the noise: rr - b^T mu is the sum of e^2 / (1 + v) (Bishop 2006,
                 section 3.5)
        """
        self.head = self._new_head()
        if self.head is None:
            return
        self.begins, self.settled, self.decays = begins, 0, []
        if not len(memory):
            return
        phi = self.phi(memory.rows[:])
        rewards = self.rewarded(np.array(memory.rewards)) - self.offset(phi)
        weights = memory.weights
        errors = []
        for position, rows in memory.events():
            for row in rows:
                arm = memory.arms[row]
                if unseen is not None and row >= unseen:
                    errors.append(self._error(phi[[row]], arm, rewards[row]))
                told = memory.keys[row], weights[row], memory.imported[row]
                self.head.observe(Observation(arm, phi[row], rewards[row], *told))
            self.settled += len(rows)
            if self._share < 1:
                self._forget(position, len(rows))
        if errors:
            _, noise = self.head.evidence(memory.arms[-len(errors) :])
            error = np.average(errors, weights=weights[-len(errors) :])
            self.doubt = max(float(error / np.mean(noise**2)), 1.0)
        if self.doubt > 1:
            self.head.distrust(self.doubt)

    def _error(self, phi: Array, arm: str, reward: float) -> float:  # (1, m)
        """e^2 / (1 + v) of a settlement that the head has not learned."""
        assert self.head is not None
        _, noise = self.head.evidence([arm])
        error = reward - self.head.mean(phi, [arm])
        return float(error[0] ** 2 / (1 + (self.head.width(phi, [arm])[0] / noise[0]) ** 2))

    # -- snapshots -----------------------------------------------------------------------------

    def describe(self, *, learning: bool = True) -> tuple[Meta, dict[str, Stored]]:
        """Meta and arrays of snapshots and of the trainer's artifacts. learning: with what no
        decision reads."""
        encoder = self.encoder
        moving, arrays = self.moving()
        meta = {
            **moving,
            "version": self.number,
            "trained_to": self.trained_to,
            "version_rewards": self.rewards,
            "begins": self.begins,
            "decays": self.decays if learning else [],
            "doubt": self.doubt,
            "late": self.late,
            "without": len(self.without),
            "gradient_scale": encoder.gradient_scale,
        }
        if encoder.trained and encoder.output:
            arrays |= {f"net.{name}": array for name, array in encoder.trained.arrays().items()}
            arrays["output.weight"], arrays["output.bias"] = encoder.output
        if not learning:
            return meta, arrays
        if self.without:
            arrays["without"] = pack_names(sorted(self.without))
        if self.memory is not None:
            arrays |= {f"memory.{name}": array for name, array in self.memory.arrays().items()}
        if self.order is not None:
            arrays |= {f"order.{name}": array for name, array in self.order.arrays().items()}
        return meta, arrays

    def moving(self) -> tuple[Meta, dict[str, Stored]]:
        """Return what settlements move of what a decision reads: head, scalings and their
        counts."""
        meta: Meta = {
            "settled": self.settled,
            "scaled_on": self.scaled_on,
            "rewarded": self.rewarded,
        }
        arrays: dict[str, Stored] = {}
        if self.view.scaling is not None:
            arrays["scaling"] = self.view.scaling.values
        if self.head is not None:
            arrays |= {f"head.{name}": array for name, array in self.head.arrays().items()}
        return meta, arrays

    def move(self, meta: Meta, arrays: Mapping[str, Stored]) -> None:
        """Do the inverse of `moving`, bit for bit. What is made of a scaling stays where that
        does."""
        view = self.view
        if view.scaling is not None and not np.array_equal(view.scaling.values, arrays["scaling"]):
            view = view.with_scaling(view.scaling.with_values(arrays["scaling"]))
        rewarded = RewardScale(*map(float, meta["rewarded"]))
        if self.head is None or rewarded != self.rewarded:
            self.rewarded = rewarded
            self.head = self._new_head()
        if self.head is not None and (own := part(arrays, "head.")):
            self.head.restore(own)
        self.use(view, int(meta["scaled_on"]))
        self.settled = int(meta["settled"])

    def restore(self, meta: Meta, arrays: Mapping[str, Stored]) -> None:
        """Take in scaling, head, memory and counts of `describe`; the encoder is this one's own."""
        self.move(meta, arrays)
        self.late = bool(meta["late"])
        if self.memory is not None and (own := part(arrays, "memory.")):
            self.memory.restore(own)
        if self.order is not None and (own := part(arrays, "order.")):
            self.order.restore(own)
        self.trained_to, self.rewards = int(meta["trained_to"]), int(meta["version_rewards"])
        self.begins = int(meta["begins"])
        self.decays = [int(position) for position in meta["decays"]]
        self.doubt = float(meta["doubt"])
        if "without" in arrays:
            self.without = frozenset(unpack_names(arrays["without"]))


def _each(batches: Sequence[Batch]) -> Iterator[tuple[str, Outcome]]:
    """Yield each outcome with its decision."""
    return ((key, outcome) for key, outcomes in batches for outcome in outcomes)


def _correct(
    head: Head, row: Observation, was: float, weighed: float, left: float, *, withdrawn: bool
) -> None:
    """Replace an observation of the reward `was` and the weight `weighed` by the row, or withdraw
    it. left: its share that the head still holds."""
    held = row._replace(weight=weighed)
    if withdrawn:
        head.withdraw(held._replace(reward=was), left)
        return
    head.revise(held, was, left)
    if row.weight > weighed:
        head.observe(row._replace(weight=left * (row.weight - weighed)))
    elif row.weight < weighed:
        head.withdraw(row._replace(weight=weighed - row.weight), left)
