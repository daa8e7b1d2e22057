"""A small shop to fold: logs written by hand or by chance, a trainer in numpy, states compared."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from msgspec.structs import replace

from service.bandits.heads import digest
from service.bandits.networks import Network, cold_network
from service.bandits.version import Version
from service.definition.experiment import Definition
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.state import codec
from service.state.artifacts import pack_artifact, read_artifact, read_meta
from service.state.decider import Decider
from service.state.events import (
    AUTOMATIC,
    AnyEvent,
    ArmPatched,
    ArmRemoved,
    ArmUpserted,
    BudgetMoved,
    ChangeDetected,
    Corrected,
    Default,
    Erased,
    ExperimentDefined,
    ExperimentDeleted,
    Expired,
    Learned,
    Outcome,
    PolicyReset,
    Rewarded,
    RolloutStarted,
    RolloutStepped,
    TrafficChanged,
    TrainingReport,
    VersionActivated,
    VersionRejected,
    VersionStaged,
    encode_event,
    settlements_of,
)
from service.state.fold import ErasedParts, State, is_change_of
from service.state.rollout import NO_READING, RolloutPlan, RolloutStep
from service.training.settlements import TrainingSet, collect
from tests.support.clock import run_virtual

NET = {"hidden": [4], "embedding": 2, "training": {"first": 4}}
TRAINED = {
    "kind": "neural_linear_ts",
    "hidden": [8],
    "embedding": 2,
    "draws": 16,
    "training": {"first": 4, "epochs": 8},
}
POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "lints_disjoint": {"kind": "lints", "disjoint": True, "draws": 16},
    "popularity": {"kind": "popularity", "draws": 16},
    "neural": {"kind": "neural_linear_ts", "draws": 16, **NET},
    "neural_disjoint": {"kind": "neural_linear_ts", "disjoint": True, "draws": 16, **NET},
    "neural_ucb": {"kind": "neural_ucb", **NET},
    "watcher": {"kind": "lints", "learns_from": "all", "draws": 16, "features": ["pet x kind"]},
    "random": {"kind": "random"},
    "forgetful": {"kind": "linucb", "learns_from": "all", "gamma": 0.8, "decay_every": 3},
    "windowed": {"kind": "neural_linear_ts", "learns_from": "all", "window": 8, "draws": 16, **NET},
    "changing": {"kind": "neural_linucb", "learns_from": "all", "change": True, **NET},
    "ensemble": {"kind": "bootstrap_ensemble", "members": 3, **NET},
    "dropout": {"kind": "mc_dropout", "masks": 16, **NET},
    "full": {"kind": "neural_ts", "form": "full", "draws": 16, **NET},
    "static": {"kind": "static", "hidden": [4], "training": {"first": 4}},
}
KINDS = ["food", "toy", "bed"]
SHOP: dict[str, Any] = {
    "features": {
        "context": {
            "pet": {"type": "categorical", "values": ["cat", "dog"]},
            "age": {"type": "numeric", "scale": 10.0, "default": 0.0},
        },
        "arm": {"kind": {"type": "categorical", "values": KINDS}},
        "crosses": ["pet x kind"],
    },
    "attributes": {"stock": "number", "brand": "text", "sale": "boolean"},
    "policies": POLICIES,
    "arms": {
        **{f"{kind}{n}": {"kind": kind} for kind in KINDS for n in (1, 2)},
        "bed2": {"kind": "bed", "stock": 4.0, "brand": "Acme"},
    },
    "reward": {"range": [0, 1]},
}


def shop(**policies: dict[str, Any]) -> dict[str, Any]:
    """SHOP with these policies alone, or with all of its own."""
    return {**copy.deepcopy(SHOP), "policies": policies or copy.deepcopy(POLICIES)}


@dataclass
class Shown:
    """A decision that was settled: what a correction of it has to say."""

    event: Learned
    since: int


@dataclass
class Log:
    """Records, and the state that lives through them; `write` appends and folds."""

    records: list[tuple[AnyEvent, bytes | None]] = field(default_factory=list)
    state: State = field(default_factory=lambda: State("shop"))
    settled: list[Shown] = field(default_factory=list)

    def write(self, event: AnyEvent | Default, artifact: bytes | None = None) -> int:
        """Append and fold an event; a default is a block of its own."""
        event = Expired.of([event]) if isinstance(event, Default) else event
        self.records.append((event, artifact))
        step(self.state, self.records)
        return len(self.records)

    def define(self, definition: dict[str, Any]) -> None:
        """As `Admin.define`: other features are another schema version."""
        state, parsed = self.state, Definition.model_validate(definition)
        same = not state.deleted and state.definition.features.same_as(parsed.features)
        self.write(
            ExperimentDefined(
                at=0.0,
                revision=state.revision + 1,
                schema_version=state.schema_version + (not same),
                definition=parsed.model_dump(mode="json"),
            )
        )

    def reset(self, policy: str) -> None:
        self._change(PolicyReset, policy=policy)

    def share(self, **shares: float) -> None:
        self._change(TrafficChanged, shares=shares)

    def roll_out(
        self, policy: str, baseline: str, *stages: float, version: int | None = None
    ) -> None:
        """Start a rollout, at its first stage."""
        plan = RolloutPlan(policy=policy, baseline=baseline, version=version, stages=(*stages, 1.0))
        self._change(RolloutStarted, plan=plan)

    def step(self, policy: str, take: Callable[..., RolloutStep]) -> None:
        """Take a step of a rollout."""
        step = take(self.state.traffic.rollouts[policy], NO_READING, 0.0)
        self._change(RolloutStepped, policy=policy, step=step)

    def move_budget(self, share: float) -> None:
        """Give the learner of the loss budget another share."""
        budget = self.state.traffic.budget
        assert budget is not None
        event = BudgetMoved(
            at=0.0,
            by=AUTOMATIC,
            began=budget.began,
            number=budget.moves + 1,
            share=share,
            before=budget.share,
            ratio=0.9,
            own=20,
            baseline=80,
            sentence="The others may have more.",
        )
        self.write(event)

    def delete(self) -> None:
        self._change(ExperimentDeleted)

    def _change(self, kind: Callable[..., AnyEvent], **fields: Any) -> None:
        self.write(kind(at=0.0, revision=self.state.revision + 1, **fields))

    def upsert(
        self, arm: str, features: dict[str, Any], attributes: dict[str, Any] | None = None
    ) -> None:
        event = ArmUpserted(at=0.0, arm=arm, features=features, attributes=attributes or {})
        self.write(event)

    def patch(self, arm: str, features: dict[str, Any], attributes: dict[str, Any]) -> None:
        self.write(ArmPatched(at=0.0, arm=arm, features=features, attributes=attributes))

    def remove(self, arm: str) -> None:
        self.write(ArmRemoved(at=0.0, arm=arm))

    def settle(
        self,
        policy: str,
        arms: dict[str, float],
        context: dict[str, Any] | None = None,
        kind: type[Rewarded | Default] = Rewarded,
        inline: dict[str, Any] | None = None,
        *,
        imported: bool = False,
    ) -> Shown:
        """The first word on arms of a new decision; inline: features, if not in the catalogue."""
        state = self.state
        told = {"pet": "cat"} if context is None else context
        schema = state.schema
        base = schema.encode_context(told)
        features = {arm: state.arms[arm] if inline is None else inline for arm in arms}
        rows = {arm: schema.row(base, schema.encode_arm(features[arm])) for arm in arms}
        settled = [
            Outcome(arm, reward, rows[arm], inline is not None, imported=imported)
            for arm, reward in arms.items()
        ]
        event = kind(
            at=0.0,
            decision=f"d{len(self.records)}",
            policy=policy,
            version=self._version(policy),
            schema_version=state.schema_version,
            settled=settled,
        )
        self.settled.append(Shown(event, self.write(event)))
        return self.settled[-1]

    def expire(
        self, policy: str, decisions: list[list[str]], context: dict[str, Any]
    ) -> list[Shown]:
        """Defaults of new decisions, which showed these arms, in one block."""
        state, place = self.state, len(self.records)
        base = state.schema.encode_context(context)
        rows = {arm: state.schema.row(base, state.rows[arm]) for arms in decisions for arm in arms}
        block = [
            Default(
                at=0.0,
                decision=f"d{place}.{number}",
                policy=policy,
                version=self._version(policy),
                schema_version=state.schema_version,
                settled=[Outcome(arm, 0.0, rows[arm]) for arm in arms],
            )
            for number, arms in enumerate(decisions)
        ]
        position = self.write(Expired.of(block))
        found = [Shown(one, position) for one in block]
        self.settled += found
        return found

    def _version(self, policy: str) -> int:
        """The version that decides; 0 for a policy that is gone, or never was."""
        learner = self.state.learners.get(policy)
        return 0 if learner is None else learner.active.number

    def correct(self, shown: Shown, reward: float) -> None:
        """A change of every reward of a decision."""
        before = shown.event.settled
        moved = [
            Outcome(one.arm, reward, one.row, one.inline, was=one.reward, since=shown.since)
            for one in before
        ]
        shown.event = self._corrected(shown, moved)

    def withdraw(self, shown: Shown, arm: str) -> None:
        """An arm of a decision was not seen after all."""
        gone = [
            replace(one, was=one.reward, since=shown.since, withdrawn=True)
            for one in shown.event.settled
            if one.arm == arm
        ]
        self._corrected(shown, gone)
        kept = [one for one in shown.event.settled if one.arm != arm]
        known = {name: getattr(shown.event, name) for name in Rewarded.__struct_fields__}
        shown.event = Rewarded(**known | {"settled": kept})

    def _corrected(self, shown: Shown, after: list[Outcome]) -> Corrected:
        known = {name: getattr(shown.event, name) for name in Rewarded.__struct_fields__}
        event = Corrected(**known | {"settled": after})
        self.write(event)
        return event

    def stage(self, policy: str, lag: int = 0, *, gated: bool = False) -> None:
        """A version whose head was rebuilt up to `lag` events ago, by a net of random weights.
        gated: its gate compares it with the one that serves."""
        learner = self.state.folded[policy]
        net = learner.policy.net
        assert net is not None
        watermark = max(1, len(self.records) - lag)
        number = learner.numbered + 1
        features = [] if net.rectified else [net.embedding]
        sizes = [learner.view.width, *net.hidden, *features]
        rng = np.random.default_rng(len(self.records))
        heads = max(1, len(self.state.arms)) if learner.policy.disjoint else 1
        output = rng.standard_normal((sizes[-1], heads)), np.zeros(heads)
        layers = cold_network(sizes, f"net {watermark}").layers
        network = Network(layers, rectified=net.rectified)
        encoder = learner.trained(network, output)
        begins = 1 + next(
            index
            for index, (event, _) in enumerate(self.records)
            if isinstance(event, ExperimentDefined | PolicyReset)
            and event.revision == learner.births[0]
        )
        version = learner.version(number, encoder)
        events = [shown.event for shown in self.settled]
        present = [
            self.state.present(one) for one in events if self.state.knows(one.schema_version)
        ]
        rows = [settled.row for event in present for settled in event.settled]
        version.use(learner.view.measured(self.state.schema.layout.unpack(rows)))
        version.trained_to, version.rewards, version.begins = watermark, learner.rewards, begins
        for position, (event, _) in enumerate(self.records[begins:watermark], begins + 1):
            found = [one for one in settlements_of(event) if self.state.knows(one.schema_version)]
            told = learner.told(map(self.state.present, found), position)
            version.fold(position, [(one.decision, outcomes) for one, outcomes in told])
            if is_change_of(event, learner):
                version.drop(event.columns, event.since, position)
        self.hand_over(policy, pack_artifact(*learner.describe(version)), gated=gated)

    def hand_over(self, policy: str, artifact: bytes, *, gated: bool = False) -> None:
        """As the trainer hands a version over."""
        meta = read_meta(artifact)
        staged = VersionStaged(
            at=0.0,
            policy=policy,
            born=self.state.folded[policy].born,
            version=meta["version"],
            artifact="",
            size=0,
            watermark=meta["trained_to"],
            rewards=meta["version_rewards"],
            training=TrainingReport(meta["version_rewards"], 0.0, 1.0, 1.0, 9.0) if gated else None,
        )
        self.write(staged, artifact)

    def change(self, policy: str, columns: list[int], since: int) -> None:
        """A change of the world, as a policy's residuals would have said it."""
        learner = self.state.folded[policy]
        stratum = ", ".join(map(self.state.schema.column_name, columns)) or "all"
        event = ChangeDetected(
            at=0.0,
            policy=policy,
            born=learner.born,
            number=learner.changes + 1,
            stratum=stratum,
            columns=columns,
            since=since,
            schema_version=self.state.schema_version,
        )
        self.write(event)

    def activate(self, policy: str) -> None:
        learner = self.state.folded[policy]
        number = learner.numbered
        self.write(VersionActivated(at=0.0, policy=policy, born=learner.born, version=number))

    def reject(self, policy: str) -> None:
        learner = self.state.folded[policy]
        number = learner.numbered
        self.write(VersionRejected(at=0.0, policy=policy, born=learner.born, version=number))


def opened(policy: dict[str, Any]) -> Log:
    """A log of one policy `p`."""
    log = Log()
    log.define(shop(p=policy))
    return log


def staged_by(state: State, event: VersionStaged, artifact: bytes, records: Any) -> Version | None:
    """The version that the next event stages, caught up from these records."""
    learner = state.awaits(event)
    if learner is None:
        return None
    version = read_artifact(learner, artifact)
    later = list(enumerate(records[: state.position], 1))[version.trained_to :]
    erased = [event for _, (event, _) in later if isinstance(event, Erased)]
    gone = ErasedParts(
        {position for event in erased for position in event.positions},
        {decision for event in erased for decision in event.decisions},
    )
    for position, (each, _) in later:
        state.catch_up(learner, version, position, each, gone)
    return version


def step(state: State, records: list[Any]) -> None:
    """Fold the next record."""
    event, artifact = records[state.position]
    version = None
    if isinstance(event, VersionStaged) and artifact is not None:
        version = staged_by(state, event, artifact, records)
    state.apply(state.position + 1, event, version)


def replay(
    records: list[Any],
    start: State | None = None,
    *,
    watch: Callable[[State], None] = lambda state: None,
) -> State:
    """Fold records from a state on, or from the beginning; `watch` sees every state."""
    state = start or State("shop")
    while state.position < len(records):
        step(state, records)
        watch(state)
    return state


def contents(state: State) -> bytes:
    """All that a snapshot of a state holds, without the archive around it: two states have the same
    contents where their snapshots have the same bytes, and that takes a quarter of the time."""
    with mock.patch.object(codec, "seal", _plain):
        return state.snapshot().payload


def _plain(text: bytes, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Text, and of each array all that the archive says of it, with the length of every part."""
    parts = [text]
    for name, array in arrays.items():
        turned = array.flags.f_contiguous and not array.flags.c_contiguous
        parts += [repr((name, array.dtype.str, array.shape, turned)).encode(), array.tobytes("A")]
    return b"".join(b"%d %b" % (len(part), part) for part in parts)


def bits(state: State) -> tuple[Any, ...]:
    """All that a state holds and all that it answers: its contents, and the scores of its arms."""
    scores = []
    if not state.deleted and state.arms:
        context = np.linspace(0.0, 1.0, state.schema.context.width)
        for learner in state.folded.values():
            table = Decider.serving(learner).score(context, state.candidates)
            scores.append((learner.name, table.rows.tobytes(), table.of.tobytes()))
    return contents(state), scores


def head_of(state: State, policy: str) -> str:
    """The fingerprint of a policy's head."""
    head = state.folded[policy].active.head
    assert head is not None
    return digest(head)


def store_of(log: Log) -> MemoryStore:
    """A store that holds the log's records, for who reads them there."""
    store = MemoryStore()
    run_virtual(store.commit([Append("shop", encode_event(event), {}) for event, _ in log.records]))
    return store


def trainable(**more: Any) -> Log:
    """A log of a policy `p` with a net, and of another one."""
    log = Log()
    log.define(shop(p=TRAINED | more, other={"kind": "random"}))
    return log


def collected(log: Log, count: int) -> TrainingSet:
    """The settlements of `p` up to a count of rewards."""
    learner = log.state.learners["p"]
    return run_virtual(collect(store_of(log), log.state, learner, count))
