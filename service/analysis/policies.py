"""The policies that a request evaluates, checked against the experiment before the long work."""

from service.analysis.request import EvaluationRequest, PolicyFields, Selection
from service.analysis.targets import GUESS, with_policies, with_rules
from service.decide.traffic import no_policy
from service.definition.rules import unknown_arms
from service.errors import ConfigurationError, Invalid, NotFound
from service.naming import quoted
from service.state.fold import State


def chosen_policies(
    state: State, request: EvaluationRequest
) -> tuple[list[str], dict[str, PolicyFields]]:
    """Return the names of all policies to evaluate, and the settings of those that never ran.
    Raises NotFound or Invalid where the request does not fit the experiment."""
    if state.deleted:
        raise NotFound(f"experiment {quoted(state.name)} was deleted", path="experiment")
    live, defined = state.learners, request.definitions
    shadows = state.definition.shadows
    choice = request.policies or defined or request.freeze or request.selection != Selection()
    if request.shadows and choice:
        raise Invalid(
            "shadows are evaluated as they learn, on all decisions since they were defined: leave "
            "out policies, definitions, frozen, and whatever chooses decisions",
            path="shadows",
        )
    asked = list(shadows) if request.shadows else request.policies
    if asked is None:
        asked = [] if defined else list(live)
    if unknown := [policy for policy in asked if policy not in live and policy not in shadows]:
        raise no_policy(state, unknown[0], "policies")
    if both := [policy for policy in defined if policy in state.definition.policies]:
        raise Invalid(
            f"the experiment has a policy {both[0]} already: give the definition another name",
            path="definition",
        )
    if GUESS in live or GUESS in defined:
        raise Invalid(f"a policy cannot be evaluated beside one named {GUESS}", path="policies")
    guess = {GUESS: {"kind": "greedy", "features": ["intercept"]}}
    try:
        with_policies(state.definition.model_dump(mode="json"), {**defined, **guess})
    except ConfigurationError as fault:
        raise Invalid(str(fault), path="definition") from fault
    _expect_rules(state, request)
    found = list(dict.fromkeys([*asked, *defined]))
    if not found and not request.shadows:
        raise Invalid("name at least one policy, or a definition", path="policies")
    added = {each: shadows[each].model_dump(mode="json") for each in asked if each in shadows}
    return found, {**added, **defined}


def _expect_rules(state: State, request: EvaluationRequest) -> None:
    """Raise Invalid where other rules are asked for that no log can tell of."""
    if request.rules and request.shadows:
        raise Invalid("shadows keep the rules of the experiment: leave out rules", path="rules")
    try:
        rules = with_rules(state.definition, request.rules).rules
    except ConfigurationError as fault:
        raise Invalid(str(fault), path="rules") from fault
    for loc, message in unknown_arms(rules, state.arms):
        if loc[0] in request.rules:
            raise Invalid(f"{'.'.join(('rules', *loc))}: {message}", path="rules")
