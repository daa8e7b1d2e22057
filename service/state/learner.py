"""A policy at work: its versions, which score and learn."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil, isfinite

import msgspec
import numpy as np

from service.bandits.change import Detector
from service.bandits.encoder import Encoder
from service.bandits.heads import Bank, Head
from service.bandits.heads.base import OUTSIDE, Meta, Stored, pack_names, part, unpack_names
from service.bandits.kinds import AnyPolicy
from service.bandits.memory import Memory
from service.bandits.net import cold_encoder
from service.bandits.networks import Network, dropout_masks
from service.bandits.order import DecisionOrder
from service.bandits.reward_scale import RewardScale
from service.bandits.settings import MOST_TRIES
from service.bandits.training_set import TrainingSet
from service.bandits.version import WARM_UP, Taught, Version
from service.definition.experiment import Definition
from service.errors import NotPositiveDefinite
from service.features.row import Row
from service.features.schema import Array, Schema
from service.features.view import View
from service.state.events import ChangeDetected, Learned, Outcome, TrainingReport
from service.state.version_gate import EXPLAINED, GateFigures, GateOutcome, GateSums, loss_of

HISTORY = 100
"""Activations and changes that a policy remembers for display."""

REMEMBERED = 10_000
"""Settlements that a policy with `change` remembers, to rebuild its head from those that a change
did not touch."""


@dataclass(eq=False)
class Challenger:
    """A version that learns beside the one that serves, until its gate lets it serve or not.

    trained   its net is a new one, which the gate compares with that of the other
    seen      what the gate has seen
    """

    version: Version
    trained: bool
    seen: GateSums


class Learner:
    """One policy of one experiment: settings, versions and counts. The fold alone changes it.

    births        revisions of the experiment: at the first its head started from the prior, at each
                  later one its columns changed
    born_at       log position of the first
    tries         settlements of each arm of the catalogue, up to MOST_TRIES
    counted       those in this process that made an arm less untried
    challenger    a version that learns, and does not serve yet
    numbered      the number of the last version that was staged
    trained_on    rewards that the last training read, also that of a version that was rejected
    changes       number of detected changes of the world
    retrain       rewards at which a training falls due because of the last change
    turns         log positions after which it learns from every reward, and from its own alone, by
                  turns
    """

    def __init__(
        self,
        experiment: str,
        name: str,
        settings: AnyPolicy,
        definition: Definition,
        schema: Schema,
        born: int,
        begins: int = 0,
    ) -> None:
        self.name, self.births, self.born_at = name, [born], begins
        self._take(settings)
        self.schema = schema
        self._experiment = experiment
        self._view = View.unmeasured(schema, definition.features_of(settings))
        self.limits = definition.reward.limits
        self.rewards = 0
        self.active = self.version(0, self._cold_encoder)
        self.active.begins = begins
        self.challenger: Challenger | None = None
        self.numbered = self.trained_on = 0
        self.history: list[Meta] = []
        self.tries: dict[str, int] = {}
        self.counted = 0
        watched = settings.change and self.policy.head is not None
        self.detector = self._new_detector() if watched else None
        self.changes = 0
        self.retrain: int | None = None
        self.turns = [begins] if settings.learns_all else list[int]()

    def _new_detector(self) -> Detector:
        view = self._view
        arm_columns = self.schema.context.width + view.arm_columns
        return Detector(view.context_columns.tolist(), arm_columns.tolist())

    def configure(self, settings: AnyPolicy, limits: tuple[float, float], position: int) -> None:
        """Change settings that leave the head as it is (`Kind.keeps_head`).

        A head that learns again missed the rewards while it was frozen: it takes corrections only
        of those from this position on. A gate begins anew under another range of rewards.
        """
        if settings.learning and not self.settings.learning:
            for version in self._versions:
                version.begins = position
        if self.challenger is not None and limits != self.limits:
            self.challenger.seen = GateSums(self.challenger.seen.explains)
        self._take(settings)
        self.limits = limits
        for version in self._versions:
            version.limits = limits
            version.bank = self._bank(version.number)
            version.encoder = self._masked(version.encoder, version.number)

    def _take(self, settings: AnyPolicy) -> None:
        self.settings, self.policy = settings, settings.policy()

    @property
    def born(self) -> int:
        """The revision since which its columns are as they are: versions and changes name it."""
        return self.births[-1]

    @property
    def learned_from(self) -> int | None:
        """The number of rewards that its head holds, or its net was trained on; None: it never
        learns."""
        if self.policy.head is not None:
            return self.active.settled
        return None if self.policy.net is None else self.active.rewards

    @property
    def view(self) -> View:
        """The columns that the policy sees, under the scaling of the active version."""
        return self.active.view

    # -- parts ---------------------------------------------------------------------------------

    @property
    def _versions(self) -> list[Version]:
        """The versions that learn."""
        if self.challenger is None:
            return [self.active]
        return [self.active, self.challenger.version]

    def _key(self, number: int) -> str:
        return f"{self._experiment}\0{self.name}\0{number}\0{self.policy.bank_seed}"

    def _bank(self, number: int) -> Bank:
        return Bank(self.policy.draws, self._key(number))

    @cached_property
    def _cold_encoder(self) -> Encoder:
        return cold_encoder(self.policy.net, self._view, self.name)

    @property
    def memory_limit(self) -> int | None:
        """Settlements from which a head can be rebuilt for as long as it serves; None: it needs
        none, once its scaling is measured."""
        return self.settings.window or (REMEMBERED if self.settings.change else None)

    def _masked(self, encoder: Encoder, number: int) -> Encoder:
        """Add the dropout masks of a version, where the policy has any."""
        net = self.policy.net
        if net is None or not net.masks or encoder.trained is None:
            return encoder
        masks = dropout_masks(encoder.trained, net.masks, net.dropout, self._key(number))
        return replace(encoder, masks=masks)

    def version(self, number: int, encoder: Encoder) -> Version:
        """Make a version with an empty head."""

        def head(encoder: Encoder, span: float) -> Head | None:
            make = self.policy.head
            return None if make is None else make.make(encoder, self._view, self.name, span)

        def memory() -> Memory | None:
            limit = self.memory_limit or (WARM_UP if self._view.scaling else None)
            return Memory(self.schema.layout, limit) if limit else None

        return Version(
            number,
            self._view,
            self._masked(encoder, number),
            head,
            self.limits,
            self.settings.forgetting,
            self._bank(number),
            memory,
            DecisionOrder(self.schema.layout) if self.policy.in_order else None,
            predicts=self.policy.predicts,
        )

    def rebuilt(
        self,
        encoder: Encoder,
        history: TrainingSet,
        view: View,
        unseen: int | None = None,
        of: Version | None = None,
    ) -> Version:
        """Return the next version, whose head learned a history.

        encoder   of the active version, of an earlier one, or of a net that was fitted to the
                  history
        view      whose rows the encoder sees
        unseen    first row of the history that a fitted net has not seen
        of        the earlier version
        """
        source, memory = of or self.active, history.memory
        fitted = encoder is not source.encoder
        version = self.version(self.numbered + 1, encoder)
        version.use(view, None if fitted else source.scaled_on)
        version.rewarded = source.rewarded
        version.doubt = 1.0 if fitted else source.doubt
        windowed = self.settings.window is not None
        version.refold(memory, history.watermark + 1 if windowed else history.begins, unseen)
        version.order, version.without = history.order, history.without
        version.trained_to = history.watermark
        version.rewards = history.rewards if fitted or not source.number else source.rewards
        if version.memory is not None:
            version.memory = memory.limited(self.memory_limit)
        return version

    def trained(self, network: Network, output: tuple[Array, Array]) -> Encoder:
        """Return an encoder with a fitted net beside this policy's cold one."""
        return replace(
            self._cold_encoder,
            trained=network,
            output=output,
            logistic=self.policy.net is not None and self.policy.net.log_loss,
        )

    # -- score ---------------------------------------------------------------------------------

    def predicted(
        self, arms: Sequence[str], rows: Sequence[Row], inline: Sequence[bool]
    ) -> list[float | None]:
        """Return the expected reward of each arm; None where the policy predicts none, or no
        number."""
        if self.policy.head is None:
            return [None] * len(arms)
        try:
            means = self.active.expected(self.active.phi_of(rows), arms).tolist()
        except (NotPositiveDefinite, FloatingPointError):
            return [None] * len(arms)
        own = self.policy.per_arm
        return [
            mean if isfinite(mean) and not (own and out) else None
            for mean, out in zip(means, inline, strict=True)
        ]

    @cached_property
    def search_directions(self) -> Bank:
        """Bank of directions in which arms are searched, for rules that draw nothing."""
        return Bank(64, self._key(0))

    # -- learn ---------------------------------------------------------------------------------

    def learn_from(self, *, every: bool, position: int) -> None:
        """Learn from every reward, or from its own alone, after a position of the log."""
        if every != len(self.turns) % 2:
            self.turns.append(position)

    def learns_from(self, policy: str, position: int | None = None) -> bool:
        """Whether it learns from the rewards of a policy's decisions. position: of the event that
        settled them; None: the next one."""
        turns = len(self.turns) if position is None else bisect_left(self.turns, position)
        return policy == self.name or turns % 2 == 1

    def outcomes(self, event: Learned, position: int | None = None) -> list[Outcome]:
        """Return what this policy learns from an event. An arm outside the catalogue gets no head
        of its own. position: as `learns_from` takes it."""
        return self._own(event.settled) if self.learns_from(event.policy, position) else []

    def _own(self, found: list[Outcome]) -> list[Outcome]:
        """Return what it learns of the outcomes of a policy that it learns from."""
        if not (self.policy.per_arm and any(one.inline for one in found)):
            return found
        head = self.policy.head
        if head is None or not (head.shares_features and self._view.arm_only):
            return [one for one in found if not one.inline]
        return [_outside(one) if one.inline else one for one in found]

    def told(self, settlements: Iterable[Learned], position: int | None = None) -> list[Taught]:
        """Return settlements that this policy learns from, with what it learns. position: as
        `learns_from` takes it."""
        return [
            (one, self.outcomes(one, position))
            for one in settlements
            if self.learns_from(one.policy, position)
        ]

    def fold(self, position: int, settlements: Sequence[Learned]) -> None:
        """Learn what one event settles."""
        told = self.told(settlements)
        if not told:
            return
        for _, found in told:
            self._count(found)
        if not self.settings.learning:
            return
        if self.challenger is not None and self._compares:
            for one, found in told:
                self._compare(self.challenger, one.decision, found)
        view = self.view
        for version in self._versions:
            batches = version.in_order(told)
            # A head that is no number learns nothing any more.
            with suppress(NotPositiveDefinite, FloatingPointError):
                if self.detector and version is self.active:
                    for _, batch in batches:
                        self._watch(self.detector, position, batch)
                version.fold(position, batches)
        if self.detector and self.view is not view:  # its sums are in units of the old scaling
            self.detector = self._new_detector()

    @property
    def learns_runs(self) -> bool:
        """Whether it learns many settlements at once, with the bits of one by one."""
        watched = self.detector is not None or self.challenger is not None
        return not watched and self.active.learns_runs

    def fold_run(self, position: int, events: Sequence[Sequence[Learned]]) -> None:
        """Learn first rewards and defaults of events that follow each other from a position on,
        with the bits of `fold` one by one."""
        if not self.learns_runs:
            for place, settlements in enumerate(events, position):
                self.fold(place, settlements)
            return
        keys, found = list[str](), list[Outcome]()
        policies = {one.policy for settlements in events for one in settlements[:1]}
        taught = {policy for policy in policies if self.learns_from(policy)}
        for one in chain.from_iterable(events):
            if one.policy in taught:
                own = self._own(one.settled)
                found += own
                keys += [one.decision] * len(own)
        self._count(found)
        if self.settings.learning:
            self.active.fold_run(keys, found)

    def _count(self, found: Sequence[Outcome]) -> None:
        for one in found:
            if one.was is None:
                self.rewards += 1
                self._count_try(one)

    def _count_try(self, outcome: Outcome) -> None:
        tries = self.tries.get(outcome.arm, 0)
        if tries < MOST_TRIES and not outcome.inline:
            self.tries[outcome.arm] = tries + 1
            self.counted += tries < self.policy.min_tries

    def _watch(self, detector: Detector, position: int, found: list[Outcome]) -> None:
        for outcome in found:
            if outcome.was is None:
                x, version = self.schema.layout.unpack([outcome.row]), self.active
                mean = version.mean(version.phi(x), [outcome.arm])
                residual = outcome.weight * (version.rewarded(outcome.reward) - float(mean[0]))
                if isfinite(residual):
                    detector.observe(position, self.view.standardised(x)[0], residual)

    def change(self, position: int, event: ChangeDetected, columns: list[int]) -> None:
        """Forget what a change of the world made stale, and have the net trained anew soon.

        columns: those that the event names, in the present schema
        """
        self.changes = event.number
        for version in self._versions:
            version.drop(columns, event.since, position)
        if self.detector:
            self.detector.reset(position)
        if self.policy.training is not None:
            self.retrain = self.rewards + self.policy.training.first
        self._remember(event.at, position, change=event.stratum)

    def forget(self, decisions: Collection[str]) -> None:
        """Forget single settlements of erased decisions."""
        for version in self._versions:
            version.forget(decisions)

    # -- challengers ---------------------------------------------------------------------------

    def stage(self, version: Version, training: TrainingReport | None) -> None:
        """Take a version that holds all up to here as the challenger. training: None: its net is
        that of another version."""
        explains = training is None or training.explained >= EXPLAINED
        self.challenger = Challenger(version, training is not None, GateSums(explains))
        self.numbered = version.number
        self.trained_on = max(self.trained_on, version.rewards)
        if self.retrain is not None and version.rewards >= self.retrain:
            self.retrain = None

    def activate(self, position: int, at: float) -> None:
        """Serve from the challenger."""
        assert self.challenger is not None
        self.active, self.challenger = self.challenger.version, None
        self._remember(at, position, version=self.active.number, watermark=self.active.trained_to)

    @property
    def _compares(self) -> bool:
        """Whether a gate compares the challenger with the version that serves: one that predicts
        nothing yet stands behind every other."""
        challenger, training, active = self.challenger, self.policy.training, self.active
        predicts = active.head is not None or active.encoder.trained is not None
        return (
            challenger is not None
            and challenger.trained
            and training is not None
            and training.gate != "off"
            and predicts
        )

    @property
    def gate_outcome(self) -> GateOutcome | None:
        """What the gate says of the challenger; None: it is open, or there is no challenger."""
        if self.challenger is None:
            return None
        return self.challenger.seen.outcome if self._compares else "serves"

    @property
    def rolls_out(self) -> bool:
        """Whether the challenger has passed its gate and takes over traffic in stages."""
        challenger, training = self.challenger, self.policy.training
        return (
            challenger is not None
            and challenger.trained
            and training is not None
            and training.gate == "rollout"
            and self.gate_outcome == "serves"
        )

    @property
    def gate_figures(self) -> GateFigures | None:
        """What the gate has seen of the challenger; None: it has compared nothing."""
        if self.challenger is None or not self._compares:
            return None
        return self.challenger.seen.figures

    def _compare(self, challenger: Challenger, decision: str, found: Sequence[Outcome]) -> None:
        """Have both versions predict the first reward of a decision of this system. The later arms
        of a slate are no fair sample: their misses count less."""
        versions = self._versions
        if any(decision in version.without for version in versions):
            return
        for one in found:
            if one.was is None and one.weight == 1 and one.slot <= 1 and not one.imported:
                challenger.seen.add(*(self._loss(version, one) for version in versions))
                return

    def _loss(self, version: Version, one: Outcome) -> float:
        """Return the loss of what a version predicts for an arm."""
        [predicted] = version.expected(version.phi_of([one.row]), [one.arm]).tolist()
        share = RewardScale.to_shares(self.limits)
        log_loss = self.policy.net is not None and self.policy.net.log_loss
        return loss_of(share(one.reward), share(predicted), log_loss=log_loss)

    def _remember(self, at: float, position: int, **what: int | str | None) -> None:
        self.history.append({**what, "position": position, "at": at})
        del self.history[:-HISTORY]

    # -- training ------------------------------------------------------------------------------

    @property
    def training_due_at(self) -> int | None:
        """The count of rewards at which the next training falls due; None: never trained."""
        net = self.policy.net
        if net is None or not self.settings.learning or (net.alone and self.active.number):
            return None
        if not self.trained_on:
            return net.training.first
        due = ceil(self.trained_on * net.training.growth)
        return due if self.retrain is None else min(due, self.retrain)

    @property
    def next_version(self) -> tuple[int, int]:
        """(born, number): they refuse a version trained under an earlier definition."""
        return self.born, self.numbered + 1

    @property
    def training_due(self) -> bool:
        """Whether a training is due: not while the version of the last one waits at its gate."""
        due = self.training_due_at
        return due is not None and self.challenger is None and self.rewards >= due

    # -- snapshots -----------------------------------------------------------------------------

    def describe(
        self, version: Version, *, learning: bool = True
    ) -> tuple[Meta, dict[str, Stored]]:
        """Meta and arrays of a version, as snapshots and artifacts hold them. learning: with what
        no decision reads."""
        meta, arrays = version.describe(learning=learning)
        return {**meta, "born": self.born}, arrays

    def restored(self, meta: Meta, arrays: Mapping[str, Stored]) -> Version:
        """Do the inverse of `describe`. Raises KeyError or ValueError where it is no version."""
        encoder = self._cold_encoder
        if network := part(arrays, "net."):
            encoder = self.trained(
                Network.from_arrays(
                    network, rectified=self.policy.net is not None and self.policy.net.rectified
                ),
                (arrays["output.weight"], arrays["output.bias"]),
            )
            encoder = replace(encoder, gradient_scale=float(meta["gradient_scale"]))
        version = self.version(int(meta["version"]), encoder)
        version.restore(meta, arrays)
        return version

    def dump(self, *, learning: bool = True) -> tuple[Meta, dict[str, Stored]]:
        """All that the fold has changed. learning: with what no decision reads."""
        meta, arrays = self.describe(self.active, learning=learning)
        meta["challenger"] = None
        if (challenger := self.challenger) is not None:
            told, own = self.describe(challenger.version, learning=learning)
            meta["challenger"] = {
                **told,
                "trained": challenger.trained,
                "seen": asdict(challenger.seen),
            }
            arrays |= {f"challenger.{name}": array for name, array in own.items()}
        if self.detector and learning:
            arrays |= {f"detector.{k}": array for k, array in self.detector.arrays().items()}
        arrays["tried"] = pack_names(self.tries)
        arrays["tries"] = np.array(list(self.tries.values()), np.uint8)
        return {
            **meta,
            "births": self.births,
            "rewards": self.rewards,
            "born_at": self.born_at,
            "changes": self.changes,
            "retrain": self.retrain,
            "numbered": self.numbered,
            "trained_on": self.trained_on,
            "history": self.history if learning else [],
            "turns": self.turns,
        }, arrays

    def load(self, meta: Meta, arrays: Mapping[str, Stored]) -> None:
        """Do the inverse of `dump`, bit for bit."""
        self.births, self.born_at = list(meta["births"]), int(meta["born_at"])
        self.rewards, self.changes = int(meta["rewards"]), int(meta["changes"])
        self.retrain, self.history = meta["retrain"], list(meta["history"])
        self.turns = list(meta["turns"])
        self.numbered, self.trained_on = int(meta["numbered"]), int(meta["trained_on"])
        names, tries = unpack_names(arrays["tried"]), arrays["tries"].tolist()
        self.tries = dict(zip(names, tries, strict=True))
        self.active, told = self.restored(meta, arrays), meta["challenger"]
        if told is not None:
            version = self.restored(told, part(arrays, "challenger."))
            seen = GateSums(**told["seen"])
            self.challenger = Challenger(version, told["trained"], seen)
        if self.detector and (own := part(arrays, "detector.")):
            self.detector.restore(own)

    # -- what deciders are told ----------------------------------------------------------------

    def moving(self) -> tuple[list[Meta], dict[str, Stored]]:
        """Return what settlements move of what a decision reads, but tries."""
        versions, arrays = list[Meta](), dict[str, Stored]()
        for number, version in enumerate(self._versions):
            meta, own = version.moving()
            versions.append(meta)
            arrays |= {f"{number}.{name}": array for name, array in own.items()}
        return versions, arrays

    def move(self, versions: Sequence[Meta], arrays: Mapping[str, Stored]) -> None:
        """Do the inverse of `moving`, bit for bit. Raises KeyError or ValueError where it is of
        other versions."""
        for number, (version, meta) in enumerate(zip(self._versions, versions, strict=True)):
            version.move(meta, part(arrays, f"{number}."))


def _outside(one: Outcome) -> Outcome:
    return msgspec.structs.replace(one, arm=OUTSIDE + one.arm)
