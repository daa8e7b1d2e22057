"""The policies that are evaluated: live ones, shadows, and definitions that never ran.

All are part of the fold. A definition is put into every `ExperimentDefined` on the way as a shadow:
it meets the features, arms and erasures of the log as a live policy does, and learns from every
policy's rewards in log order. So is a shadow of the experiment, which then learns from what came
before it, too; and the guess of the reward that doubly robust estimates start from: a ridge
regression.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pydantic import ValidationError

from service.analysis.request import PolicyFields, RuleFields
from service.bandits.candidates import Candidates
from service.definition.experiment import Definition
from service.definition.faults import faults_of
from service.definition.files import json_of, text_of, toml_of
from service.errors import ConfigurationError, StoreUnavailable
from service.features.schema import Array, Schema
from service.features.view import View
from service.log.stores import Store
from service.state.artifacts import read_artifact, read_meta, report_of
from service.state.events import (
    AnyEvent,
    ChangeDetected,
    ExperimentDefined,
    VersionActivated,
    VersionRejected,
    VersionStaged,
)
from service.state.fold import State, changes_due, gates_due
from service.state.learner import Learner
from service.training import expect_torch

DefinitionJson = dict[str, Any]

GUESS = "_guess_of_reward"
"""Name of the regression among the policies of the fold."""

AS_SHADOW = {"share": 0.0, "shadow": True, "fold": True}
"""Settings of a policy that has no part in the traffic and learns from all of it."""

MOST_CROSSED_COLUMNS = 512
"""Most columns up to which the regression sees the crosses of features: its cost is their
square."""


def read_definitions(path: Path) -> dict[str, PolicyFields]:
    """Policies by name from a file, JSON if it is named so, else TOML: an experiment's file, of
    which the `policies` count alone, or name -> settings. Raises ConfigurationError."""
    policies: dict[str, PolicyFields] = _content_of(path)
    inner = policies.get("policies")
    if isinstance(inner, dict) and not isinstance(inner.get("kind"), str):
        policies = inner
    if not policies or not all(isinstance(each, dict) for each in policies.values()):
        raise ConfigurationError(f"{path}: there is no policy in it: [policies.NAME] or [NAME]")
    for name, settings in policies.items():
        if not isinstance(settings.get("kind"), str):
            raise ConfigurationError(f"{path}: policy {name!r} has no kind")
    return policies


def with_policies(definition: DefinitionJson, extra: Mapping[str, PolicyFields]) -> DefinitionJson:
    """Return a copy of a definition with more policies, which get no traffic and learn from all of
    it.

    Raises ConfigurationError where they are wrong, or do not fit the experiment.
    """
    own = {
        name: {**settings, **AS_SHADOW} if isinstance(settings, dict) else {}
        for name, settings in extra.items()
    }
    whole = {**definition, "policies": {**definition["policies"], **own}}
    parsed = _parsed(whole)
    schema = Schema(parsed.features)
    for name in own:
        policy = parsed.policies[name]
        names = parsed.features_of(policy)
        if policy.policy().sees_features and (fault := View(schema, names).fault):
            raise ConfigurationError(f"policies.{name}.features: {fault}")
    return parsed.completed().model_dump(mode="json")


def with_rules(definition: Definition, rules: Mapping[str, RuleFields | None]) -> Definition:
    """Return a copy of a definition with other rules; None takes a rule away.

    Raises ConfigurationError where they are wrong, do not fit the experiment, or hold over a
    window: what would have been shown in it, no log can tell.
    """
    written = definition.model_dump(mode="json")
    merged = {**written["rules"], **rules}
    whole = {**written, "rules": {name: own for name, own in merged.items() if own is not None}}
    parsed = _parsed(whole)
    for name in rules:
        rule = parsed.rules.named.get(name)
        if rule is not None and rule.window is not None:
            say = "a log cannot tell what would have been shown in a window: leave `every` out"
            raise ConfigurationError(f"rules.{name}: {say}")
    return parsed


def _parsed(whole: DefinitionJson) -> Definition:
    """Read a definition. Raises ConfigurationError that names each fault."""
    try:
        return Definition.model_validate(whole)
    except ValidationError as error:
        faults = [
            f"{fault.path}: {fault.message}"
            for fault in faults_of(error.errors(), whole, Definition)
        ]
        raise ConfigurationError("\n".join(faults)) from error


def read_rules(path: Path) -> dict[str, RuleFields | None]:
    """Rules by name from a file, JSON if it is named so, else TOML: an experiment's file, of which
    the `rules` count alone, or name -> settings. Raises ConfigurationError."""
    content = _content_of(path)
    inner = content.get("rules", content)
    if not isinstance(inner, dict) or not inner:
        raise ConfigurationError(f"{path}: there is no rule in it: [rules.NAME] or [NAME]")
    return inner


def _content_of(path: Path) -> dict[str, Any]:
    """Read a table of a file. Raises ConfigurationError."""
    try:
        text = text_of(path)
        content = json_of(text) if path.suffix == ".json" else toml_of(text)
    except ValueError as fault:
        raise ConfigurationError(f"{path}: {fault}") from fault
    return content if isinstance(content, dict) else {}


def regression(definition: DefinitionJson) -> PolicyFields:
    """Return the settings of the regression: over context, arm and crosses; over the context for
    each arm apart where arms have no features."""
    whole = Definition.model_validate(definition)
    features = whole.features
    if not features.arm:
        return {"kind": "greedy", "disjoint": True}
    names = ["intercept", *features.context, *features.arm]
    schema = Schema(features)
    for chosen in ([*names, *features.crosses], names):
        view = View(schema, chosen)
        if view.width <= min(MOST_CROSSED_COLUMNS, whole.max_vector) and not view.fault:
            return {"kind": "greedy", "features": chosen}
    return {"kind": "greedy", "disjoint": True, "features": ["intercept"]}


@dataclass
class ExtraPolicies:
    """The policies added to the fold of a log. faults: by name, why one does not fit the latest
    definition."""

    policies: Mapping[str, PolicyFields]
    faults: dict[str, str] = field(default_factory=dict)

    def into(self, event: ExperimentDefined) -> ExperimentDefined:
        """Return the event with those policies that fit it (a feature may have come later). A
        policy that served under one of their names decides as it did."""
        served = Definition.model_validate(event.definition).serving
        self.faults = {}
        whole = with_policies(event.definition, {GUESS: regression(event.definition)})
        for name, settings in self.policies.items():
            if name in served:
                continue
            try:
                whole = with_policies(whole, {name: settings})
            except ConfigurationError as fault:
                self.faults[name] = str(fault)
        return msgspec.structs.replace(event, definition=whole)

    def into_origin(self, state: State) -> None:
        """Add them to a state that a log begins with."""
        if state.deleted:
            return
        event = ExperimentDefined(
            at=0.0,
            revision=state.revision,
            schema_version=state.schema_version,
            definition=state.current_definition.model_dump(mode="json"),
        )
        state.position -= 1
        state.apply(state.position + 1, self.into(event))

    def concerns(self, event: AnyEvent, state: State) -> bool:
        """Whether an event tells of the head that a shadow has in the service: here it has another,
        which `follow` looks after."""
        if not isinstance(
            event, ChangeDetected | VersionStaged | VersionActivated | VersionRejected
        ):
            return False
        return event.policy in self._shadows_of(state)

    async def follow(self, store: Store, state: State, position: int, at: float) -> None:
        """Apply at once to added shadows what a service logs as events: a change of the world, a
        net whose training fell due, the end of its gate."""
        own = self._shadows_of(state)
        for event in changes_due(state, at):
            if event.policy in own:
                own[event.policy].change(position, event, event.columns)
        for gate in gates_due(state, at):
            if gate.policy in own:
                state.end_gate(position, gate)
        for learner in own.values():
            if learner.training_due:
                await _train(store, state, learner, position, at)

    def _shadows_of(self, state: State) -> dict[str, Learner]:
        return {name: state.shadows[name] for name in self.policies if name in state.shadows}


async def _train(store: Store, state: State, learner: Learner, position: int, at: float) -> None:
    expect_torch()
    import torch

    from service.training.trainer import train

    torch.set_num_threads(1)
    try:
        artifact = await train(store, state, learner)
    except StoreUnavailable as fault:
        raise ConfigurationError(
            f"policy {learner.name}: its net cannot be trained, for the rewards it would be "
            "trained on were trimmed from the log"
        ) from fault
    if artifact is not None:
        version = read_artifact(learner, artifact)
        event = VersionStaged(
            at=at,
            policy=learner.name,
            born=learner.born,
            version=version.number,
            artifact=sha256(artifact).hexdigest(),
            size=len(artifact),
            watermark=version.trained_to,
            rewards=version.rewards,
            training=report_of(read_meta(artifact)),
        )
        state.stage(position, event, version)


def frozen(state: State, learner: Learner) -> Learner:
    """Copy a policy, so that the fold does not change it. The copy tries no arm for its own
    sake."""
    twin = Learner(
        state.name,
        learner.name,
        learner.settings,
        state.definition,
        state.schema,
        learner.born,
        learner.born_at,
    )
    meta, arrays = learner.describe(learner.active)
    twin.active = twin.restored(meta, {name: array.copy() for name, array in arrays.items()})
    return twin


def guesses(state: State, context: Array, candidates: Candidates) -> Array:  # (K,)
    """Predict the reward of each candidate from earlier rewards, within the range of rewards."""
    learner = state.shadows[GUESS]
    version = learner.active
    phi = version.encoder(learner.view.design(context[None], candidates.x))
    low, high = state.definition.reward.range
    return np.clip(version.expected(phi, candidates.ids), low, high)
