"""One of our policies in this process, in a world or as a test drives it.

It decides and learns with the service's code: schema, `decide`, the rules of settlement, the fold,
the trainer. The wire, the token and the disk are left out.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self, cast

import msgspec

from benchmarks.learning.course import Chance
from service.bandits.candidates import Candidates
from service.bandits.version import Version
from service.decide.scoring import decide
from service.decide.tries import Tries
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.log.stores import Store
from service.log.stores.base import Mark, Record
from service.settle import settlement
from service.state.artifacts import read_artifact, read_meta, report_of
from service.state.decider import Decider
from service.state.events import (
    AnyEvent,
    ExperimentDefined,
    Outcome,
    Rewarded,
    VersionStaged,
    encode_event,
)
from service.state.fold import ErasedParts, State, changes_due, gates_due
from service.state.learner import Learner

EXPERIMENT = "bench"


class Log:
    """An experiment's events in memory, which the trainer reads as from a store.

    Events are encoded when they are first read: most runs never train.
    """

    def __init__(self, events: Sequence[AnyEvent] = ()) -> None:
        self.events = list(events)
        self._records: list[Record] = []

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        """Read as `Store.read` does."""
        stop = min(after + limit, len(self.events))
        for position in range(len(self._records) + 1, stop + 1):
            self._records.append(Record(position, encode_event(self.events[position - 1])))
        return self._records[after:stop]

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]:
        """Return no marks: no event is skipped."""
        return {}


class Experiment:
    """An experiment of one policy, with its state and its log. Gates and changes of the world end
    as soon as they are due, trainings wait for `train`."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        parsed = Definition.model_validate(definition).completed()
        (self._policy,) = parsed.policies
        self.log, self.state = Log(), State(EXPERIMENT)
        self.append(
            ExperimentDefined(
                at=0.0,
                revision=1,
                schema_version=1,
                definition=parsed.model_dump(mode="json"),
            )
        )

    @property
    def learner(self) -> Learner:
        return self.state.learners[self._policy]

    def append(self, event: AnyEvent, version: Version | None = None) -> None:
        """Log and fold an event, and what is due after it. version: that it stages."""
        self.log.events.append(event)
        self.state.apply(len(self.log.events), event, version)
        for due in (*changes_due(self.state, 0.0), *gates_due(self.state, 0.0)):
            self.append(due)

    def reward(self, decision: str, settled: list[Outcome]) -> None:
        """Settle a decision of the policy."""
        self.append(
            Rewarded(
                at=0.0,
                decision=decision,
                policy=self._policy,
                schema_version=self.state.schema_version,
                settled=settled,
            )
        )

    def copy(self) -> Self:
        """Return another one that goes on from here."""
        twin = copy(self)
        twin.log = Log(self.log.events)
        twin.state = State.restore(self.state.snapshot())
        return twin

    def train(self, *, gated: bool = True) -> None:
        """Train a version and hand it over, as trainer and service do together. gated: its gate
        decides whether it serves."""
        import torch  # costs two seconds, and linear policies never train

        from service.training.trainer import train

        torch.set_num_threads(1)
        learner = self.learner
        artifact = asyncio.run(train(cast(Store, self.log), self.state, learner))
        assert artifact is not None
        meta, version = read_meta(artifact), read_artifact(learner, artifact)
        for position in range(version.trained_to + 1, self.state.position + 1):
            self.state.catch_up(
                learner, version, position, self.log.events[position - 1], ErasedParts()
            )
        self.append(
            VersionStaged(
                at=0.0,
                policy=learner.name,
                born=learner.born,
                version=version.number,
                artifact=hashlib.sha256(artifact).hexdigest(),
                size=len(artifact),
                watermark=version.trained_to,
                rewards=version.rewards,
                training=report_of(meta) if gated else None,
            ),
            version,
        )


class Forage(Experiment):
    """An `Agent`: it chooses as the service does, and trains whenever that is due."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        super().__init__(definition)
        self._tries = Tries()

    def copy(self) -> Self:
        twin = super().copy()
        twin._tries = Tries()
        return twin

    def show(self, request: Mapping[str, Any], chance: Chance) -> list[str]:
        """Choose as POST /select does."""
        self._context = self.state.schema.encode_context(request["context"])
        self._candidates = self._of(request.get("arms"))
        top_k = request.get("top_k", 1)
        decider = Decider.serving(self.learner)
        facts = self._tries.facts(decider, self._candidates, ())
        _, slate = decide(decider, self._context, self._candidates, top_k, chance.seed, facts)
        self._shown = {self._candidates.ids[index]: index for index in slate.arms}
        self._tries.show(self.learner, list(self._shown))
        return list(self._shown)

    def _of(self, arms: Sequence[str] | None) -> Candidates:
        catalogue = self.state.candidates
        if arms is None:
            return catalogue
        return Candidates(tuple(arms), catalogue.x[[catalogue.row_of[arm] for arm in arms]])

    def _settled(self, arm: str, reward: float) -> Outcome:
        features = self._candidates.x[self._shown[arm]]
        return Outcome(arm, reward, self.state.schema.row(self._context, features))

    def settle(self, feedback: Mapping[str, Any], chance: Chance) -> None:
        """Learn as POST /reward does, and train if that is due."""
        rewards = rewards_of(feedback, list(self._shown), self.state.definition)
        self.reward(
            chance.decision, [self._settled(arm, reward) for arm, reward in rewards.items()]
        )
        if self.learner.training_due:
            self.train()


def rewards_of(
    feedback: Mapping[str, Any], shown: list[str], definition: Definition
) -> dict[str, float]:
    """Return the reward of each arm by the rules of POST /reward."""
    request = msgspec.convert({"decision_id": "any", **feedback}, RewardRequest)
    return settlement._rewards(request, shown, definition.reward)
