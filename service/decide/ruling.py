"""What the rules of an experiment make of a request."""

from collections.abc import Mapping

from service.bandits.candidates import Candidates
from service.decide.traffic import rules_off
from service.decide.windows import Windows
from service.definition.rules import IF_EMPTY
from service.definition.select_request import InlineArm, SelectRequest
from service.errors import NoEligibleArm
from service.state.fold import State
from service.state.rule_plan import Ruled
from service.state.rulebook import Situation


def situation_of(state: State, request: SelectRequest, at: float, sticky: str) -> Situation:
    """Return what rules look at in a request at a time (unix seconds). sticky: as `rules_off` takes
    it."""
    if not (state.rulebook.measured or request.exclude) and request.only is None:
        return Situation(request.context, at)
    only = None if request.only is None else tuple(request.only)
    off = rules_off(state, sticky)
    return Situation(request.context, at, tuple(request.exclude), only, off)


def rule(
    state: State,
    situation: Situation,
    candidates: Candidates,
    windows: Windows,
    inline: Mapping[str, InlineArm] = {},
) -> Ruled:
    """Return which candidates may be shown, and their limits. inline: the candidates outside the
    catalogue. Raises NoEligibleArm."""
    if not _is_ruled(state, situation):
        return Ruled(candidates)
    outside = {arm: {**own.features, **own.attributes} for arm, own in inline.items()}
    try:
        ruled = state.rule(candidates, situation, outside)
        if ruled.plan is None:
            return ruled
        return ruled.counted(windows.counts(state, ruled.plan, situation.at))
    except NoEligibleArm:
        instead = state.rulebook.if_empty
        if instead is None or instead not in state.rows:
            raise
        row = state.candidates.row_of[instead]
        left_out = len(candidates.ids) - (instead in candidates.row_of)
        removed = ((IF_EMPTY, left_out),)
        return Ruled(state.candidates.choose([instead], [row]), removed=removed, if_empty=True)


def rule_catalogue(state: State, situation: Situation, windows: Windows) -> Ruled | None:
    """Do as `rule` for the whole catalogue; None: all of it may be shown. Raises NoEligibleArm."""
    if not _is_ruled(state, situation):
        return None
    return rule(state, situation, state.candidates, windows)


def rule_shortlist(
    state: State,
    situation: Situation,
    catalogue: Ruled | None,
    found: Candidates,
    windows: Windows,
) -> Ruled:
    """Do as `rule` for some arms that were found in the catalogue. Raises NoEligibleArm."""
    if catalogue is None or not found.ids:
        return Ruled(found)
    ruled = rule(state, situation, found, windows)
    return ruled._replace(removed=catalogue.removed, unknown=catalogue.unknown)


def _is_ruled(state: State, situation: Situation) -> bool:
    return bool(state.rulebook.names or situation.exclude or situation.only is not None)
