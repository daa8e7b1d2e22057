"""What the rules of an experiment make of a request."""

from collections.abc import Mapping, Sequence

from service.bandits.candidates import Candidates
from service.decide.windows import Windows
from service.definition.rules import IF_EMPTY
from service.definition.select_request import InlineArm, SelectRequest
from service.errors import NoEligibleArm
from service.state.fold import State
from service.state.rule_plan import Ruled
from service.state.rulebook import Situation


def rule(
    state: State,
    request: SelectRequest,
    candidates: Candidates,
    at: float,
    windows: Windows,
    inline: Mapping[str, InlineArm] = {},
) -> Ruled:
    """Return which candidates may be shown at a time (unix seconds), and their limits. inline: the
    candidates outside the catalogue. Raises NoEligibleArm."""
    if not _is_ruled(state, request):
        return Ruled(candidates)
    outside = {arm: {**own.features, **own.attributes} for arm, own in inline.items()}
    try:
        ruled = state.rule(candidates, _situation(request, at), outside)
        if ruled.plan is None:
            return ruled
        return ruled.counted(windows.counts(state, ruled.plan, at))
    except NoEligibleArm:
        instead = state.rulebook.if_empty
        if instead is None or instead not in state.rows:
            raise
        row = state.candidates.row_of[instead]
        left_out = len(candidates.ids) - (instead in candidates.row_of)
        removed = ((IF_EMPTY, left_out),)
        return Ruled(state.candidates.choose([instead], [row]), removed=removed, if_empty=True)


def rule_catalogue(
    state: State, request: SelectRequest, at: float, windows: Windows
) -> Ruled | None:
    """Do as `rule` for the whole catalogue; None: all of it may be shown. Raises NoEligibleArm."""
    if not _is_ruled(state, request):
        return None
    return rule(state, request, state.candidates, at, windows)


def rule_shortlist(
    state: State,
    request: SelectRequest,
    catalogue: Ruled | None,
    found: Candidates,
    at: float,
    windows: Windows,
) -> Ruled:
    """Do as `rule` for some arms that were found in the catalogue. Raises NoEligibleArm."""
    if catalogue is None or not found.ids:
        return Ruled(found)
    ruled = rule(state, request, found, at, windows)
    return ruled._replace(removed=catalogue.removed, unknown=catalogue.unknown)


def _is_ruled(state: State, request: SelectRequest) -> bool:
    return bool(state.rulebook or request.exclude or request.only is not None)


def _situation(request: SelectRequest, at: float) -> Situation:
    return Situation(request.context, at, tuple(request.exclude), as_tuple(request.only))


def as_tuple(ids: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if ids is None else tuple(ids)
