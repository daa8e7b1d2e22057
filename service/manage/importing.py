"""Imports of visits that another system decided: a decision row each, and its reward as an event
that a policy learns from, as it learns from its own.

An import may be repeated, in part or whole: the visit's id is the identity of both.
"""

import base64
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import fsum, isclose, log
from typing import Literal, TypeGuard

import msgspec
import numpy as np

from service.decide.arms import find as find_arms
from service.definition.select_request import InlineArm, RequestedValues
from service.errors import Conflict, Gone, Invalid, Refused
from service.features.schema import Array
from service.log.committer import Submission
from service.log.log import Log
from service.log.replay import Pace
from service.log.stores import Store
from service.log.stores.base import Append, Appended, DecisionRow, Mark
from service.log.unlogged import StoredDecision
from service.manage.admin import find
from service.security.token import TokenSealer
from service.settle.marks import ERASED, ArmValue, arm_mark, read_arm
from service.state.decisions import (
    IMPORTED,
    Decision,
    Shown,
    as_logged,
    decode_decision,
    encode_decision,
)
from service.state.events import AnyEvent, Imported, Outcome, Rewarded, encode_event
from service.state.fold import State
from service.telemetry.logs import log_change

VISITS_PER_COMMIT = 512
"""Visits of one commit of the log: with 128, an import took a fifth more processor time. Others are
served in between, and in slices of the check, the rows and the fold."""

ROUNDED = 1e-4
"""Largest difference from 1 of the sum of chances that were written in decimals: they are divided
by it."""
SLACK = 1e-6
"""Largest error of the chance of the shown arm, which may be rounded to six digits."""

ImportStatus = Literal["imported", "duplicate"]


class Visit(msgspec.Struct, frozen=True):
    """What was shown elsewhere, and its reward.

    id              the import's own; it tells visits of an experiment apart until it is deleted
    at              unix seconds
    arms            the candidates; None: the shown arm alone, of the catalogue
    propensity      chance with which `arm` was shown, in (0, 1]
    probabilities   of all candidates, in their order, where they are known
    reward          None: it is not known; nothing is learned
    """

    id: str
    at: float
    context: RequestedValues
    arm: str
    propensity: float
    arms: Sequence[str | InlineArm] | None = None
    probabilities: Sequence[float] | None = None
    reward: float | None = None
    unit: str | None = None


def decision_id(id: str, first_schema: int = 1) -> str:
    """Return the short id of an imported decision: 128 bits as 22 characters. Another experiment of
    the same name, with another first schema, may import the visit again."""
    digest = sha256(f"import/{first_schema}/{id}".encode()).digest()
    return base64.urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()


class Importer:
    def __init__(self, log: Log, store: Store, sealer: TokenSealer, max_arms: int) -> None:
        self._log, self._store = log, store
        self._sealer, self._max_arms = sealer, max_arms

    async def take(
        self,
        state: State,
        policy: str,
        visits: Sequence[Visit | Refused],
        by: str,
        *,
        skip_refused: bool,
    ) -> list[ImportStatus | Refused]:
        """Import visits in order, and return the result of each; the policy learns from them in
        that order. The first refused visit is the last, unless `skip_refused`.

        visits   those that could be read, and the faults of the others
        by       as in `events.Change`
        Raises NotFound where there is no such policy, StoreUnavailable: then some may have been
        taken, and the same again is safe.
        """
        find(state, policy)
        taken: list[ImportStatus | Refused] = []
        for part in _commits(visits):
            checked = await self._check(state, policy, part)
            refused = [n for n, each in enumerate(checked) if isinstance(each, Refused)]
            stops = bool(refused) and not skip_refused
            checked = checked[: refused[0] + 1] if stops else checked
            taken += await self._write(state, policy, checked, by)
            if stops:
                break
        if count := taken.count("imported"):
            log_change(state.name, f"{count} visits imported for {policy}", by)
        return taken

    async def _check(
        self, state: State, policy: str, visits: Sequence[Visit | Refused]
    ) -> list["_Checked | Refused"]:
        """Against the definition, and against an earlier import of the same id."""
        read = [visit for visit in visits if isinstance(visit, Visit)]
        ids = [decision_id(visit.id, state.first_schema) for visit in read]
        held = await self._log.committer.decisions(state.name, ids)
        arms = [arm_mark(own, visit.arm) for own, visit in zip(ids, read, strict=True)]
        marks = await self._store.marks(state.name, arms)
        earlier, pace = iter(zip(ids, arms, strict=True)), Pace()
        checked: list[_Checked | Refused] = []
        for visit in visits:
            if isinstance(visit, Refused):
                checked.append(visit)
                continue
            own, arm = next(earlier)
            try:
                row, kept = self._row(state, policy, visit, own), held.get(own)
                decision = None if kept is None else decode_decision(kept.payload)
                checked.append(_compared(row, decision, visit.reward, marks.get(arm)))
            except Refused as fault:
                checked.append(fault)
            await pace.keep()
        return checked

    def _row(self, state: State, policy: str, visit: Visit, own: str) -> Decision:
        """Return the row of a visit. own: the id of its decision. Raises Invalid."""
        if visit.at > self._log.clock.now(state):
            raise Invalid("lies in the future", path="at")
        low, high = state.definition.reward.range
        if visit.reward is not None and not low <= visit.reward <= high:
            raise Invalid(f"must lie between {low:g} and {high:g}", path="reward")
        context = state.schema.encode_context(visit.context)
        arms = [visit.arm] if visit.arms is None else visit.arms
        ids, inline, row = self._find(state, arms, visit.arm)
        chances = list[float]()
        if visit.probabilities is not None:
            index = ids.index(visit.arm)
            given = _normalised(visit.probabilities, len(ids), index, visit.propensity)
            chances = as_logged(np.array(given), index, visit.propensity)
        rules = state.definition.reward
        shown = Shown(
            arm=visit.arm,
            propensity=visit.propensity,
            row=state.schema.row(context, row),
            inline=visit.arm in inline,
        )
        return Decision(
            id=own,
            at=visit.at,
            policy=policy,
            assignment=1.0,
            model_version=IMPORTED,
            schema_version=state.schema_version,
            unit=None if visit.unit is None else self._sealer.unit_hash(visit.unit),
            context=visit.context,
            arms=list(ids),
            inline={arm: dict(inline[arm].features) for arm in inline},
            probabilities=chances,
            seed=0,
            bank=0,
            shown=[shown],
            slate_log=log(visit.propensity),
            reward_by=visit.at + rules.wait_seconds,
            accept_until=visit.at + rules.wait_seconds + rules.accept_seconds,
        )

    def _find(
        self, state: State, arms: Sequence[str | InlineArm], shown: str
    ) -> tuple[Sequence[str], Mapping[str, InlineArm], Array]:
        """Return the ids of all arms, those outside the catalogue, and the encoded features of the
        shown one. Raises Invalid."""
        if len(arms) <= self._max_arms and _are_listed(arms, state.rows) and shown in arms:
            return arms, {}, state.rows[shown]
        candidates, inline = find_arms(state, arms, self._max_arms)
        if shown not in candidates.row_of:
            raise Invalid("is not one of `arms`", path="arm")
        return candidates.ids, inline, candidates.x[candidates.row_of[shown]]

    async def _write(
        self, state: State, policy: str, checked: Sequence["_Checked | Refused"], by: str
    ) -> list[ImportStatus | Refused]:
        """Log rows, events and who imports them in one commit, and say what was new."""
        entries: list[Submission] = []
        results: list[ImportStatus | Refused] = []
        owners, pace = list[int](), Pace()
        for number, each in enumerate(checked):
            if isinstance(each, Refused):
                results.append(each)
                continue
            results.append("duplicate")
            own = self._entries(state, each)
            entries += own
            owners += [number] * len(own)
            await pace.keep()
        note = self._note(state, policy, checked, by)
        logged = await self._log.committer.append_all([*note, *entries])
        for number, entry, result in zip(owners, entries, logged[len(note) :], strict=True):
            if isinstance(entry, DecisionRow):
                new = isinstance(result, StoredDecision) and result.payload == entry.payload
            else:
                new = isinstance(result, Appended)
            if new:
                results[number] = "imported"
        return results

    def _note(
        self, state: State, policy: str, checked: Sequence["_Checked | Refused"], by: str
    ) -> list[Submission]:
        """Return an event that says who imports these visits, if any of them is new."""
        fresh = [one for one in checked if isinstance(one, _Checked) and one.is_new]
        if not fresh:
            return []
        event = Imported(at=self._log.clock.now(state), by=by, policy=policy, visits=len(fresh))
        marks = {f"imported/{secrets.token_hex(16)}": ""}
        return [(Append(state.name, encode_event(event), marks), event)]

    def _entries(self, state: State, checked: "_Checked") -> list[Submission]:
        row, entries = checked.row, list[Submission]()
        if not checked.kept:
            record = DecisionRow(state.name, row.id, row.series, encode_decision(row))
            entries.append(record)
        if checked.learns is not None:
            entries.append(self._reward(state, row, checked.learns))
        return entries

    def _reward(self, state: State, row: Decision, reward: float) -> tuple[Append, AnyEvent]:
        [shown] = row.shown
        event = Rewarded(
            at=self._log.clock.now(state),
            decision=row.id,
            policy=row.policy,
            schema_version=row.schema_version,
            settled=[Outcome(shown.arm, reward, shown.row, shown.inline, imported=True)],
        )
        mark = {arm_mark(row.id, shown.arm): ArmValue(reward, default=False).text()}
        # Kept for ever: an import may be repeated at any time.
        return Append(state.name, encode_event(event), mark), event


@dataclass(frozen=True, slots=True)
class _Checked:
    """Visit compared with the log. kept: the log has the row. learns: the reward that the log
    lacks, if there is one."""

    row: Decision
    kept: bool
    learns: float | None

    @property
    def is_new(self) -> bool:
        """Whether the log lacks its row or its reward."""
        return not self.kept or self.learns is not None


def _compared(
    row: Decision, earlier: Decision | None, reward: float | None, mark: Mark | None
) -> _Checked:
    """Compare a visit with what the log holds of it. Raises Conflict, or Gone."""
    if mark is not None and mark.value == ERASED:
        raise Gone("was erased", path="id")
    if earlier is not None and _content(row) != _content(earlier):
        raise Conflict("was imported before with another content, or for another policy", path="id")
    if reward is not None and mark is not None:
        if read_arm(mark).reward != reward:
            raise Conflict("was imported before with another reward", path="reward")
        reward = None
    known = earlier is not None or mark is not None  # its row may have been trimmed since
    return _Checked(earlier or row, known, reward)


def _content(row: Decision) -> tuple[object, ...]:
    """Return the content of a visit, without its row: other features may encode it by now."""
    [shown] = row.shown
    choice = shown.arm, shown.propensity, row.probabilities, row.arms, row.inline
    return row.policy, row.at, row.unit, row.context, *choice


def _are_listed(
    arms: Sequence[str | InlineArm], catalogue: Mapping[str, Array]
) -> TypeGuard[Sequence[str]]:
    """Say whether all arms are of the catalogue, and each is given once."""
    try:
        return len(arms) == len({*arms} & catalogue.keys())
    except TypeError:  # one is outside the catalogue
        return False


def _normalised(p: Sequence[float], arms: int, shown: int, propensity: float) -> list[float]:
    """Return chances that add up to 1. Raises Invalid."""
    if len(p) != arms:
        raise Invalid(f"has {len(p)} numbers for {arms} arms", path="probabilities")
    total = fsum(p)
    if abs(total - 1.0) > ROUNDED:
        say = f"adds up to {total:.6g}: must add up to 1, within {ROUNDED:g}"
        raise Invalid(say, path="probabilities")
    if not isclose(p[shown], propensity, rel_tol=SLACK, abs_tol=SLACK):
        raise Invalid("gives the shown arm another chance than `propensity`", path="probabilities")
    return [*p] if isclose(total, 1.0, rel_tol=1e-9) else [chance / total for chance in p]


def _commits(visits: Sequence[Visit | Refused]) -> Iterator[list[Visit | Refused]]:
    """Yield visits in order, one commit at a time; a repeated id begins a new commit, which finds
    the first in the log."""
    part, ids = list[Visit | Refused](), set[str]()
    for visit in visits:
        named = {visit.id} if isinstance(visit, Visit) else set[str]()
        if len(part) == VISITS_PER_COMMIT or named & ids:
            yield part
            part, ids = [], set()
        part.append(visit)
        ids |= named
    if part:
        yield part
