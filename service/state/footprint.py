"""Estimates an experiment's memory from its definition, before it allocates any.

The estimate counts what grows: heads, nets, draws, remembered settlements, the catalogue and its
encodings. For 17 kinds of definitions between 30 MB and 1 GB it was between half and twice the
measured peak of a process that learns, decides and takes a snapshot.
"""

from itertools import pairwise
from math import prod

from service.bandits.posterior import KEPT_DRAWS, KEPT_PLACES, DisjointRidgeHead
from service.definition.experiment import Definition, is_disjoint
from service.definition.features import Schema, distinct_contexts, width
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
from service.definition.view import View
from service.errors import Invalid
from service.state.fold import State
from service.state.learner import REMEMBERED

NUMBER = 8

SHARED, DISJOINT, MEMBERS = 8, 6, 5
"""Peak number of m x m matrices: of a shared head (A, its root, the root with the mean, a
temporary, the copies of a snapshot), of each arm's own head in stacks that double, and of each
member of an ensemble."""

LOGISTIC = 10
"""Matrices of a logistic head, with F beside A."""

FULL = 8
"""Matrices of a full Z, whose size is the number of distinct rows or of parameters."""

DRAWS = 4
"""Numbers per column and draw: normals, weights in both precisions, weights of another scale."""

RANKED = 2
"""Copies of the rows of all parameters at one time."""

VALUE, STRING, ARM = 32, 120, 1_000
"""Bytes of a number and of a string in the catalogue, and of an arm without either."""

SETTLEMENT = 600
"""Bytes of a remembered settlement without its row."""


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
        own = _policy(definition, policy, schema.width, columns, arms, max(arms, heads))
        found[f"policies.{name}"] = int(own)
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


def _policy(
    definition: Definition, policy: AnyPolicy, base: int, columns: int, arms: int, heads: int
) -> float:
    m, parameters, inner = _widths(policy, columns)
    numbers = 6.0 * parameters  # of the trained and the untrained net, and of a version on its way
    numbers += arms * (3 * columns + m + inner) + _matrices(policy, heads) * m * m
    draws = int(policy.model_dump(include={"draws"}).get("draws", 1))
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
    """Matrices of m x m."""
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
    """Numbers of a head over all parameters of a net."""
    if policy.form == "full":
        return FULL * float(min(FULL_ROWS, distinct_contexts(definition) * (arms + 1))) ** 2
    return parameters * float(2 + RANKED * arms)
