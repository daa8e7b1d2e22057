"""Lint: settings that a definition may have and had better not, each with the reason."""

from collections.abc import Iterator

from service.bandits.kinds import AnyPolicy
from service.bandits.kinds.base import Featured
from service.definition.experiment import Definition
from service.definition.rules import ValueTypes, impossible_values
from service.features.declaration import (
    CROSS,
    INTERCEPT,
    Boolean,
    Features,
    Numbers,
    Numeric,
)
from service.features.schema import Schema, distinct_contexts
from service.features.view import View
from service.naming import listed

Warned = tuple[tuple[str | int, ...], str]
"""Keys of a setting, and the reason."""

FAR = 10.0
"""Least scaled value that is no longer "about 1"."""
HEADS_BYTES = 1 << 30
LARGE_REWARD = EXTREME_REWARD = 100.0
"""Size of a reward in its own unit, and in that of usual ones, from which on it may be a false
report. A definition does not say what is usual; counts, clicks and ratings stay below."""


def lint(definition: Definition) -> Iterator[Warned]:
    yield from _rewards(definition)
    yield from _traffic(definition)
    yield from _scales(definition)
    yield from _arms(definition)
    yield from _rules(definition)
    for name, policy in definition.policies.items():
        keys = ("policies", name)
        if not policy.shadow:
            yield from ((keys + more, text) for more, text in _exploration(policy))
        rows = distinct_contexts(definition.features) * max(len(definition.arms), 1)
        for setting, text in policy.warnings(len(definition.arms), rows):
            yield (*keys, setting), text
        yield from ((keys + more, text) for more, text in _sight(definition, policy))


def _rewards(definition: Definition) -> Iterator[Warned]:
    rules = definition.reward
    if rules.default is None:
        yield (
            ("reward", "default"),
            "without a default reward, a visit whose reward never comes teaches nothing: where "
            "only clicks are reported, every arm looks perfect. Set it to the reward of a miss",
        )
    low, high = rules.limits
    largest = max(abs(low - rules.nothing), abs(high - rules.nothing))
    if largest >= LARGE_REWARD:
        yield (
            ("reward", "range" if rules.total is None else "total"),
            f"one report may be worth {largest:g}: where usual rewards are below "
            f"{largest / EXTREME_REWARD:g}, a single false one outweighs a hundred honest ones. "
            "Narrow it to what honest rewards can be",
        )
    if rules.wait_seconds < 5:
        yield (
            ("reward", "wait_seconds"),
            "visitors take longer than this to click: clicks will come as corrections",
        )


def _traffic(definition: Definition) -> Iterator[Warned]:
    policies = definition.serving
    for name, policy in policies.items():
        if policy.share == 0 and name != definition.fallback:
            yield (
                ("policies", name, "share"),
                "gets no traffic: it is asked only where a request names it",
            )
    if definition.fallback is not None and policies[definition.fallback].policy().sees_features:
        yield (
            ("fallback",),
            "it sees features, and a value too large for other policies may be too large for it: "
            "popularity and random see none",
        )
    learns = [p for p in policies.values() if p.learning and p.policy().learns]
    if not learns:
        yield ("policies",), "no policy learns"
    elif all(policy.share == 0 for policy in learns):
        yield ("policies",), "no policy that learns has a share of the traffic"


def _scales(definition: Definition) -> Iterator[Warned]:
    """Numbers of the context with a declared scale, unless their bounds say that it is meant."""
    declared = [
        name
        for name, feature in definition.features.context.items()
        if isinstance(feature, Numeric) and feature.declared and not feature.has_bounds
    ]
    if declared:
        yield (
            ("features", "context"),
            f"center or scale is declared of {listed(declared)}: policies measure both, and learn "
            "as well or better from that. Leave them out unless you know that the unit means "
            "something",
        )


def _arms(definition: Definition) -> Iterator[Warned]:
    if not definition.arms:
        yield (
            ("arms",),
            "there are no arms: every request has to bring them, or PUT /arms/{id} adds them",
        )
    elif len(definition.arms) == 1:
        yield ("arms",), "with one arm there is nothing to choose"
    for name, feature in definition.features.arm.items():
        if not isinstance(feature, Numeric) or not feature.declared:
            continue
        for arm, values in definition.arms.items():
            value = values.get(name)
            if isinstance(value, float | int) and not isinstance(value, bool):
                scaled = feature.scaled(value)
                if abs(scaled) > FAR:
                    yield (
                        ("features", "arm", name),
                        f"arm {arm!r} has {value:g}, which becomes {scaled:.3g}: leave center and "
                        "scale out, or set them so that usual values come to about 1",
                    )
                    break


def _rules(definition: Definition) -> Iterator[Warned]:
    """Values of rules and segments that no visitor and no arm has, so that nothing comes of
    them."""
    types = ValueTypes(definition.features, definition.attributes)
    found = impossible_values(definition.rules, definition.features, types)
    yield from ((("rules", *keys), text) for keys, text in found)
    guardrails = definition.rollout.guardrails
    found = guardrails.impossible_values(definition.features, types.context)
    yield from ((("rollout", "guardrails", *keys), text) for keys, text in found)


def _exploration(policy: AnyPolicy) -> Iterator[Warned]:
    converted = policy.policy()
    if policy.epsilon == 1 and converted.learns:
        yield ("epsilon",), "every choice is uniform chance: nothing of what is learned is used"
    if policy.epsilon == 0 and not converted.rule.explores:
        yield (
            ("epsilon",),
            f"{policy.kind} shows one arm with propensity 1: its log has no support for the "
            "off-policy evaluation of others. An epsilon of 0.05 gives it",
        )


def _sight(definition: Definition, policy: AnyPolicy) -> Iterator[Warned]:
    """Features by which a policy cannot tell arms apart, heads that are too large, or a level of
    rewards that it cannot learn."""
    names = definition.features_of(policy)
    if not names:
        return
    parts = [set(name.split(CROSS)) for name in names]
    context, arm = set(definition.features.context), set(definition.features.arm)
    keys = ("features",) if isinstance(policy, Featured) and policy.features else ()
    kind = policy.policy()
    linear = kind.net is None and kind.head is not None and kind.head.linear
    if linear and not any(_is_constant(definition.features, each) for each in parts):
        yield (
            keys,
            "without 'intercept' the mean of all rewards counts as exact, and the policy is too "
            "sure of what it knows: add it",
        )
    if kind.disjoint:
        width = View(Schema(definition.features), names).width
        size = 8 * width * width * len(definition.arms)
        if size > HEADS_BYTES:
            yield (
                ("disjoint",),
                f"a head for each of {len(definition.arms):,} arms over {width:,} columns takes "
                f"{size / (1 << 30):,.0f} GiB",
            )
    elif kind.per_arm:  # it tells arms apart by their ids
        return
    elif not any(part & arm for part in parts):
        yield keys, "it sees nothing of the arms, so that all look alike to it"
    elif (
        kind.net is None
        and any(part & context for part in parts)
        and not any(part & context and part & arm for part in parts)
    ):
        yield (
            keys,
            "a linear policy without a cross of context and arm ranks the arms alike for every "
            "context: add one to features.crosses, or set disjoint",
        )


def _is_constant(features: Features, parts: set[str]) -> bool:
    """Say whether columns of a feature or cross add up to 1 in every row."""
    known = features.context | features.arm
    numbers = (Numbers, Boolean)
    return parts == {INTERCEPT} or not any(isinstance(known[part], numbers) for part in parts)
