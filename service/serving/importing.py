"""Imports of visits that another system decided: a decision row each, and its reward as an event
that a policy learns from, as it learns from its own.

An import may be repeated, in part or whole: the visit's id is the identity of both.
"""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isclose, log
from typing import Literal

from service.definition.select_request import InlineArm, Values
from service.errors import Conflict, Gone, Invalid, Refused
from service.log.log import Log
from service.log.stores import Store
from service.log.stores.base import Append, Appended, DecisionRow, Mark
from service.observability.logs import log_change
from service.security.token import TokenSealer
from service.serving.admin import find
from service.serving.arms import find as find_arms
from service.serving.marks import ERASED, ArmValue, arm_mark, read_arm
from service.serving.rederive import IMPORTED
from service.state.events import (
    Decision,
    Imported,
    Rewarded,
    Settled,
    Shown,
    decode_decision,
    encode_decision,
    encode_event,
)
from service.state.fold import State

COMMIT = 32
"""Visits of one commit of the log, which are folded together: others are served in between."""

SLACK = 1e-6
"""Chances that were written in decimals may miss their sum by so much."""

ImportStatus = Literal["imported", "duplicate"]


@dataclass(frozen=True, slots=True)
class Visit:
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
    context: Values
    arm: str
    propensity: float
    arms: Sequence[str | InlineArm] | None = None
    probabilities: Sequence[float] | None = None
    reward: float | None = None
    unit: str | None = None


def decision_id(id: str, first_schema: int = 1) -> str:
    """The short id of an imported decision: 128 bits as 22 characters. Another experiment of the
    same name, with another first schema, may import the visit again."""
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
        """The result of each visit, in order; the policy learns from them in that order. The first
        refused visit is the last, unless `skip_refused`.

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
            writes = [self._write(state, each) for each in checked]
            note = self._note(state, policy, checked, by)
            _, written = await asyncio.gather(note, asyncio.gather(*writes))  # of one commit
            taken += written
            if stops:
                break
        if count := taken.count("imported"):
            log_change(state.name, f"{count} visits imported for {policy}", by)
        return taken

    async def _note(
        self, state: State, policy: str, checked: Sequence["_Checked | Refused"], by: str
    ) -> None:
        """Log who imports these visits, if any of them is new."""
        fresh = [one for one in checked if isinstance(one, _Checked) and one.is_new]
        if not fresh:
            return
        event = Imported(at=self._log.clock.now(state), by=by, policy=policy, visits=len(fresh))
        marks = {f"imported/{secrets.token_hex(16)}": ""}
        await self._log.committer.append(Append(state.name, encode_event(event), marks), event)

    async def _check(
        self, state: State, policy: str, visits: Sequence[Visit | Refused]
    ) -> list["_Checked | Refused"]:
        """Against the definition, and against an earlier import of the same id."""
        read = [visit for visit in visits if isinstance(visit, Visit)]
        ids = [decision_id(visit.id, state.first_schema) for visit in read]
        held = await asyncio.gather(*(self._log.committer.decision(state.name, own) for own in ids))
        arms = [arm_mark(own, visit.arm) for own, visit in zip(ids, read, strict=True)]
        marks = await self._store.marks(state.name, arms)
        earlier = iter(zip(held, arms, strict=True))
        checked: list[_Checked | Refused] = []
        for visit in visits:
            if isinstance(visit, Refused):
                checked.append(visit)
                continue
            kept, arm = next(earlier)
            try:
                row = self._row(state, policy, visit)
                decision = None if kept is None else decode_decision(kept.payload)
                checked.append(_compared(row, decision, visit.reward, marks.get(arm)))
            except Refused as fault:
                checked.append(fault)
        return checked

    def _row(self, state: State, policy: str, visit: Visit) -> Decision:
        """Raises Invalid."""
        if visit.at > self._log.clock.now(state):
            raise Invalid("lies in the future", path="at")
        low, high = state.definition.reward.range
        if visit.reward is not None and not low <= visit.reward <= high:
            raise Invalid(f"must lie between {low:g} and {high:g}", path="reward")
        context = state.schema.encode_context(visit.context)
        arms = [visit.arm] if visit.arms is None else visit.arms
        candidates, inline = find_arms(state, arms, self._max_arms)
        if visit.arm not in candidates.row_of:
            raise Invalid("is not one of `arms`", path="arm")
        index = candidates.row_of[visit.arm]
        if visit.probabilities is not None:
            _check_probabilities(visit.probabilities, len(candidates.ids), index, visit.propensity)
        rules = state.definition.reward
        shown = Shown(
            arm=visit.arm,
            propensity=visit.propensity,
            x=[*context.tolist(), *candidates.x[index].tolist()],
            inline=visit.arm in inline,
        )
        return Decision(
            id=decision_id(visit.id, state.first_schema),
            at=visit.at,
            policy=policy,
            assignment=1.0,
            model_version=IMPORTED,
            schema_version=state.schema_version,
            unit=None if visit.unit is None else self._sealer.unit_hash(visit.unit),
            context=visit.context,
            arms=list(candidates.ids),
            inline={arm: dict(inline[arm].features) for arm in inline},
            probabilities=[] if visit.probabilities is None else list(visit.probabilities),
            seed=0,
            bank=0,
            shown=[shown],
            slate_log=log(visit.propensity),
            reward_by=visit.at + rules.wait_seconds,
            accept_until=visit.at + rules.wait_seconds + rules.accept_seconds,
        )

    async def _write(self, state: State, checked: "_Checked | Refused") -> ImportStatus | Refused:
        """Row and event are enqueued before the committer wakes, so they are of one commit."""
        if isinstance(checked, Refused):
            return checked
        row, work = checked.row, list[Awaitable[bool]]()
        if not checked.kept:
            entry = DecisionRow(state.name, row.id, row.series, encode_decision(row))
            work.append(self._keep(entry))
        if checked.learns is not None:
            work.append(self._learn(state, row, checked.learns))
        return "imported" if any(await asyncio.gather(*work)) else "duplicate"

    async def _keep(self, row: DecisionRow) -> bool:
        return (await self._log.committer.record(row, required=True)).payload == row.payload

    async def _learn(self, state: State, row: Decision, reward: float) -> bool:
        [shown] = row.shown
        event = Rewarded(
            at=self._log.clock.now(state),
            decision=row.id,
            policy=row.policy,
            schema_version=row.schema_version,
            settled=[Settled(shown.arm, reward, shown.x, shown.inline)],
        )
        mark = {arm_mark(row.id, shown.arm): ArmValue(reward, default=False).text()}
        # Kept for ever: an import may be repeated at any time.
        entry = Append(state.name, encode_event(event), mark)
        return isinstance(await self._log.committer.append(entry, event), Appended)


@dataclass(frozen=True, slots=True)
class _Checked:
    """kept: the log has the row. learns: the reward that the log lacks, if there is one."""

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
    """Raises Conflict, or Gone."""
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
    """Of a visit, without x: other features may encode it by now."""
    [shown] = row.shown
    choice = shown.arm, shown.propensity, row.probabilities, row.arms, row.inline
    return row.policy, row.at, row.unit, row.context, *choice


def _check_probabilities(p: Sequence[float], arms: int, shown: int, propensity: float) -> None:
    if len(p) != arms:
        raise Invalid(f"has {len(p)} numbers for {arms} arms", path="probabilities")
    if min(p) < 0 or not isclose(sum(p), 1.0, abs_tol=SLACK):
        raise Invalid("must be at least 0 each and 1 in all", path="probabilities")
    if not isclose(p[shown], propensity, rel_tol=SLACK):
        raise Invalid("gives the shown arm another chance than `propensity`", path="probabilities")


def _commits(visits: Sequence[Visit | Refused]) -> Iterator[list[Visit | Refused]]:
    """In order; a repeated id begins a new one, which finds the first in the log."""
    part, ids = list[Visit | Refused](), set[str]()
    for visit in visits:
        named = {visit.id} if isinstance(visit, Visit) else set[str]()
        if len(part) == COMMIT or named & ids:
            yield part
            part, ids = [], set()
        part.append(visit)
        ids |= named
    if part:
        yield part
