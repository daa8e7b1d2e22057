"""Estimates of memory before it is allocated: of an experiment, and of one decision.

For 17 kinds of definitions between 30 MB and 1 GB the estimate was between half and twice the
measured peak of a process that learns, decides and takes a snapshot.
"""

from collections.abc import Collection

from service.bandits.heads import Head
from service.bandits.makers import Sizes
from service.bandits.order import MOST, MOST_NUMBERS
from service.bandits.version import Version
from service.definition.experiment import FALLBACK, Definition
from service.errors import Invalid
from service.features.schema import Schema, distinct_contexts, width
from service.features.view import View
from service.state.fold import State
from service.state.learner import REMEMBERED

NUMBER = 8

RANKED = 4
"""Copies of the scores of all draws while a slate is ranked."""

VALUE, STRING, ARM, SETTLEMENT = 32, 120, 1_000, 600
"""Bytes of a number and of a string in the catalogue, of an arm without either, and of a remembered
settlement without its row."""


def footprint(
    definition: Definition, arms: int, heads: int = 0, twins: Collection[str] = ()
) -> dict[str, int]:
    """Bytes of each part. arms: in the catalogue; heads: arms with a head of their own, if more;
    twins: policies whose heads have a twin.

    A policy with a net counts as two versions: while one waits at its gate, both learn.
    """
    schema = Schema(definition.features)
    raw = sum(
        VALUE * width(feature) if feature.type in ("vector", "numeric") else STRING
        for feature in definition.features.arm.values()
    )
    raw += sum(STRING if kind == "text" else VALUE for kind in definition.attributes.values())
    found = {"arms": arms * (ARM + raw + 3 * NUMBER * schema.arm.width)}
    policies = {f"policies.{name}": policy for name, policy in definition.folded.items()}
    if definition.built_in_fallback is not None:
        policies[FALLBACK] = definition.built_in_fallback
    for path, policy in policies.items():
        columns = arm_columns = 0
        parts = policy.policy()
        if parts.sees_features:
            view = View(schema, definition.features_of(policy))
            columns, arm_columns = view.width, view.arm_only
        net, head = parts.net, parts.head
        sizes = Sizes(
            columns=net.columns(columns) if net else columns,
            parameters=net.parameters(columns) if net else 0,
            rows=distinct_contexts(definition.features) * (arms + 1),
            arm_columns=arm_columns,
            arms=arms,
            heads=max(arms, heads),
        )
        numbers = 6.0 * sizes.parameters  # of the trained and the untrained net, and of one to come
        numbers += parts.draw_numbers(sizes) + arms * (3 * columns + sizes.columns)
        versions = 2 if net else 1
        if head:
            numbers += head.numbers(sizes) * (1 + (path.removeprefix("policies.") in twins))
            numbers += (versions - 1) * head.waiting_numbers(sizes)
        remembered = 0.0
        if kept := (
            policy.window
            or (REMEMBERED if policy.change else 0)
            or (head.remembered(sizes) if head else 0)
        ):
            remembered += kept * (3 * schema.width + 2 * columns + SETTLEMENT / NUMBER)
        if parts.in_order:
            remembered += min(MOST * schema.width, MOST_NUMBERS) + MOST * SETTLEMENT / NUMBER
        found[path] = int(NUMBER * (numbers + versions * remembered))
    return found


def footprint_of(state: State) -> dict[str, int]:
    """Estimate the memory of the present state, by part."""
    return footprint(state.definition, len(state.arms), heads_of(state), twins_of(state))


def heads_of(state: State) -> int:
    """Arms with a head of their own; removed ones keep theirs."""
    return max((head.count for head in _heads(state).values()), default=0)


def twins_of(state: State) -> list[str]:
    """Policies that imports taught."""
    return [name for name, head in _heads(state).items() if head.twin]


def _heads(state: State) -> dict[str, Head]:
    heads = {name: learner.active.head for name, learner in state.folded.items()}
    return {name: head for name, head in heads.items() if head is not None}


def expect_room(quota: int, state: State, definition: Definition, arms: int) -> None:
    """Raise Invalid where an experiment would exceed the quota and its present memory."""
    parts = footprint(definition, arms, 0 if state.deleted else heads_of(state), twins_of(state))
    wanted = sum(parts.values())
    if wanted <= quota or (not state.deleted and wanted <= sum(footprint_of(state).values())):
        return
    raise Invalid(
        f"would take some {wanted / 2**20:,.0f} MiB of memory, and an experiment may take "
        f"{quota / 2**20:,.0f} (FORAGE_EXPERIMENT_MEMORY_BYTES)",
        path=max(parts, key=parts.__getitem__),
    )


def decision_bytes(version: Version, draws: int, arms: int, slots: int) -> float:
    """Estimate the memory of one decision. draws: that its rule ranks arms by."""
    head = version.head
    each = 2 * version.view.width + version.columns
    if version.encoder.masks:
        each += version.bank.draws
    if slots > 1:
        each += RANKED * max(draws, 1)
    own = 0.0 if head is None else head.decision_numbers(arms, draws)
    return float(NUMBER * arms * (each + own))
