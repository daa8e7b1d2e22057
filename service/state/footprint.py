"""Estimates of memory before it is allocated: of an experiment, and of one decision.

For 17 kinds of definitions between 30 MB and 1 GB the estimate was between half and twice the
measured peak of a process that learns, decides and takes a snapshot.
"""

from itertools import pairwise
from math import prod

from service.bandits.heads import KEPT_DRAWS, DisjointRidgeHead, GradientHead
from service.bandits.version import Version
from service.definition.experiment import Definition, is_disjoint
from service.definition.policies import (
    FULL_ROWS,
    AnyPolicy,
    BootstrapEnsemble,
    Gradient,
    McDropout,
    Network,
    NeuralGlmTs,
    Static,
)
from service.errors import Invalid
from service.features.schema import Schema, distinct_contexts, width
from service.features.view import View
from service.state.fold import State
from service.state.learner import REMEMBERED

NUMBER = 8

SHARED, DISJOINT, LOGISTIC, MEMBERS, FULL = 8, 6, 10, 5, 8
"""Peak number of m x m matrices of a head: A, its root, the root with the mean, a temporary and
those of a snapshot. Of a shared head, of each arm's own head in stacks that double, of a logistic
head, of each member of an ensemble, and of a full Z, whose m is the number of its rows."""

RANKED = 4
"""Copies of the scores of all draws while a slate is ranked."""

VALUE, STRING, ARM, SETTLEMENT = 32, 120, 1_000, 600
"""Bytes of a number and of a string in the catalogue, of an arm without either, and of a remembered
settlement without its row."""


def footprint(definition: Definition, arms: int, heads: int = 0) -> dict[str, int]:
    """Bytes of each part. arms: in the catalogue; heads: arms with a head of their own, if more."""
    schema = Schema(definition.features)
    raw = sum(
        VALUE * width(feature) if feature.type in ("vector", "numeric") else STRING
        for feature in definition.features.arm.values()
    )
    found = {"arms": arms * (ARM + raw + 3 * NUMBER * schema.arm.width)}
    for name, policy in definition.policies.items():
        columns = 0
        if policy.sees_features:
            columns = View(schema, definition.features_of(policy)).width
        m, parameters = _widths(policy, columns)
        numbers = 6.0 * parameters  # of the trained and the untrained net, and of a version to come
        rows = distinct_contexts(definition.features) * (arms + 1)
        numbers += _head(policy, m, parameters, rows, arms, max(arms, heads))
        numbers += _draws(policy, m, arms) + arms * (3 * columns + m)
        if kept := policy.window or (REMEMBERED if policy.change else 0):
            numbers += kept * (3 * schema.width + 2 * columns + SETTLEMENT / NUMBER)
        found[f"policies.{name}"] = int(NUMBER * numbers)
    return found


def footprint_of(state: State) -> dict[str, int]:
    """Of the present state."""
    return footprint(state.definition, len(state.arms), heads_of(state))


def heads_of(state: State) -> int:
    """Arms with a head of their own; removed ones keep theirs."""
    heads = (learner.active.head for learner in state.learners.values())
    return max((head.count for head in heads if isinstance(head, DisjointRidgeHead)), default=0)


def expect_room(quota: int, state: State, definition: Definition, arms: int) -> None:
    """Raises Invalid where an experiment would exceed the quota and its present memory."""
    parts = footprint(definition, arms, 0 if state.deleted else heads_of(state))
    wanted = sum(parts.values())
    if wanted <= quota or (not state.deleted and wanted <= sum(footprint_of(state).values())):
        return
    raise Invalid(
        f"would take some {wanted / 2**20:,.0f} MiB of memory, and an experiment may take "
        f"{quota / 2**20:,.0f} (FORAGE_EXPERIMENT_MEMORY_BYTES)",
        path=max(parts, key=parts.__getitem__),
    )


def decision_bytes(version: Version, draws: int, arms: int, slots: int) -> float:
    """Of one decision. draws: that its rule ranks arms by."""
    head = version.head
    each = 2 * version.view.width + version.columns
    if version.encoder.masks:
        each += version.bank.draws
    if slots > 1:
        each += RANKED * max(draws, 1)
    match head:
        case DisjointRidgeHead():
            each += 2 * version.columns**2
        case GradientHead():
            each += version.encoder.layout.parameters + (arms if draws > 1 else 0)
    return float(NUMBER * arms * each)


def _widths(policy: AnyPolicy, columns: int) -> tuple[int, int]:
    """Columns of the head, and parameters of the net."""
    if not isinstance(policy, Network) or not policy.has_net:
        return columns, 0
    gradient = isinstance(policy, Gradient) and policy.form != "last_layer"
    layers = [columns, *policy.hidden, 1 if gradient else policy.embedding]
    parameters = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(layers))
    last = layers[-2] if gradient else layers[-1]
    return last if isinstance(policy, Static) else 2 * last + columns + 1, parameters


def _head(policy: AnyPolicy, m: int, parameters: int, rows: float, arms: int, heads: int) -> float:
    """Numbers of a head's matrices. rows: that a full Z may tell apart."""
    if is_disjoint(policy):
        return float(DISJOINT * heads * m * m)
    match policy:
        case Gradient(form="full"):
            return SHARED * m * m + FULL * min(FULL_ROWS, rows) ** 2
        case Gradient(form="diagonal"):
            return SHARED * m * m + 2.0 * parameters * (1 + arms)
        case BootstrapEnsemble():
            return float((SHARED + MEMBERS * policy.members) * m * m)
        case NeuralGlmTs():
            return float(LOGISTIC * m * m)
        case Static():
            return 0.0
        case _:
            return float(SHARED * m * m)


def _draws(policy: AnyPolicy, m: int, arms: int) -> float:
    """Numbers of the draws: of each column of a shared head in four forms, or of each arm."""
    if isinstance(policy, McDropout):  # of each weight of the first two layers
        return 2.0 * policy.masks * prod([*policy.hidden, 1][:2])
    draws = int(getattr(policy, "draws", 1))
    if is_disjoint(policy) or not policy.sees_features:
        return float(min(arms * draws, KEPT_DRAWS))
    return 4.0 * m * draws
