"""The memory that an experiment will take, from its definition: before any of it is made.

What is counted is what grows: heads, nets, draws, settlements that are remembered, the catalogue
and what policies make of it. Measured against the peak of a process that learns, decides and takes
a snapshot, 17 kinds of definitions between 30 MB and 1 GB lay between half and twice of it.
"""

from itertools import pairwise
from math import inf, prod

from service.bandits.posterior import KEPT_DRAWS, KEPT_PLACES, DisjointRidgeHead
from service.definition.experiment import Boolean, Categorical, Definition, Hashed, is_disjoint
from service.definition.features import Schema, width
from service.definition.policies import (
    AnyPolicy,
    BootstrapEnsemble,
    Gradient,
    McDropout,
    Network,
    NeuralGlmTs,
    Static,
)
from service.definition.view import View
from service.errors import Invalid
from service.state.fold import State
from service.state.learner import REMEMBERED

NUMBER = 8

SHARED, DISJOINT, MEMBERS = 8, 6, 5
"""Matrices of m x m that a shared head comes to, at its peak: A, its root and the root with the
mean beside it, one more while they are made, and what a snapshot copies; that each head of its own
comes to, in stacks that double; and each member of an ensemble."""

LOGISTIC = 10
"""The same of a logistic head, with F beside A."""

FULL = 8
"""Matrices of as many rows as differ, or parameters, where Z is whole."""

DRAWS = 4
"""Numbers of a column and a draw: normals, weights in both precisions, those of another scale."""

RANKED = 2
"""Times that rows of all parameters are held at once."""

VALUE, STRING, ARM = 32, 120, 1_000
"""Bytes of a number and of a string as the catalogue has them, and of an arm without either."""

SETTLEMENT = 600
"""Bytes of a settlement that is remembered, without its row."""


def footprint(definition: Definition, arms: int, heads: int = 0) -> dict[str, int]:
    """Bytes of each part, with so many arms in the catalogue. heads: arms that have one of their
    own already, where they are more."""
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
        own = _policy(definition, policy, schema.width, columns, arms, max(arms, heads))
        found[f"policies.{name}"] = int(own)
    return found


def footprint_of(state: State) -> dict[str, int]:
    """Of an experiment as it stands."""
    return footprint(state.definition, len(state.arms), heads_of(state))


def heads_of(state: State) -> int:
    """Arms that have a head of their own: those that were removed keep theirs."""
    heads = (learner.active.head for learner in state.learners.values())
    return max((head.count for head in heads if isinstance(head, DisjointRidgeHead)), default=0)


def expect_room(quota: int, state: State, definition: Definition, arms: int) -> None:
    """Raises Invalid where an experiment would take more than the quota, and more than it does."""
    parts = footprint(definition, arms, 0 if state.deleted else heads_of(state))
    wanted = sum(parts.values())
    if wanted <= quota or (not state.deleted and wanted <= sum(footprint_of(state).values())):
        return
    raise Invalid(
        f"would take some {wanted / 2**20:,.0f} MiB of memory, and an experiment may take "
        f"{quota / 2**20:,.0f} (FORAGE_EXPERIMENT_MEMORY_BYTES)",
        path=max(parts, key=parts.__getitem__),
    )


def _policy(
    definition: Definition, policy: AnyPolicy, base: int, columns: int, arms: int, heads: int
) -> float:
    m, parameters, inner = _widths(policy, columns)
    numbers = 6.0 * parameters  # of the trained and the untrained net, and of a version on its way
    numbers += arms * (3 * columns + m + inner) + _matrices(policy, heads) * m * m
    draws = getattr(policy, "draws", 1)
    if is_disjoint(policy) or not policy.sees_features:
        numbers += (min(arms * draws, KEPT_PLACES) + min(arms * draws, KEPT_DRAWS)) / 3
    else:
        numbers += DRAWS * m * draws
    if isinstance(policy, Gradient) and policy.form != "last_layer":
        numbers += _gradient(definition, policy, parameters, arms)
    if isinstance(policy, McDropout):
        numbers += 2 * policy.masks * prod([*policy.hidden, 1][:2])
    if kept := policy.window or (REMEMBERED if policy.change else 0):
        numbers += kept * (3 * base + 2 * columns + SETTLEMENT / NUMBER)
    return NUMBER * numbers


def _widths(policy: AnyPolicy, columns: int) -> tuple[int, int, int]:
    """Columns of the head, parameters of the net, and outputs of both nets' first layers."""
    if not isinstance(policy, Network) or not policy.has_net:
        return columns, 0, 0
    layers = [columns, *policy.hidden, policy.embedding]
    if isinstance(policy, Gradient) and policy.form != "last_layer":
        layers[-1] = 1
    parameters = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(layers))
    last = layers[-2] if layers[-1] == 1 else layers[-1]
    m = last if isinstance(policy, Static) else 2 * last + columns + 1
    return m, parameters, 2 * layers[1]


def _matrices(policy: AnyPolicy, heads: int) -> int:
    """Of m x m, that its head comes to."""
    if is_disjoint(policy):
        return DISJOINT * heads
    match policy:
        case BootstrapEnsemble():
            return MEMBERS * policy.members + SHARED
        case NeuralGlmTs():
            return LOGISTIC
        case Static():
            return 0
        case _:
            return SHARED


def _gradient(definition: Definition, policy: Gradient, parameters: int, arms: int) -> float:
    """Of all parameters of a net."""
    if policy.form == "full":
        return FULL * float(min(parameters, _combinations(definition) * (arms + 1))) ** 2
    held = 4 * policy.rank if policy.form == "low_rank" else 2
    return parameters * float(held + RANKED * arms)


def _combinations(definition: Definition) -> float:
    """Contexts that differ."""
    found = 1.0
    for feature in definition.features.context.values():
        match feature:
            case Boolean():
                found *= 2
            case Categorical() | Hashed():
                found *= width(feature)
            case _:
                return inf
    return found
