"""Rollouts of an experiment and its loss budget: their start, their steps, their guardrails, and
what is known of them."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, nan

from msgspec import convert
from msgspec.structs import replace

from service.analysis.challenger_value import ChallengerValue, challenger_value, unvalued
from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.rollout_forecast import RolloutForecast, RolloutTraffic, rollout_forecast
from service.analysis.rollouts import PolicyTraffic, RolloutLook, RolloutLooks
from service.errors import (
    ConfigurationError,
    Conflict,
    Invalid,
    NotFound,
    ProcessEnded,
    Refused,
    StoreError,
)
from service.log.log import Log
from service.log.stores.base import Append, MarkConflict
from service.log.upkeep import gate_mark
from service.manage.admin import Admin, expect_no_rollout, find
from service.naming import not_found, quoted
from service.state.events import (
    AUTOMATIC,
    BudgetMoved,
    RolloutStarted,
    RolloutStepped,
    encode_event,
)
from service.state.fold import State
from service.state.guardrails import Finding, findings_here, findings_of_log
from service.state.loss_budget import (
    BudgetReading,
    LossBudget,
    budget_sentence,
    next_share,
    unread,
)
from service.state.rollout import (
    NO_READING,
    Rollout,
    RolloutPlan,
    RolloutReading,
    RolloutStep,
    advance,
    by_person,
    guarded_step,
    hold,
    last_words,
    next_step,
    resume,
    roll_back,
    standing,
)
from service.state.version_gate import gate_sentence
from service.telemetry.logs import log_change
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

JUDGE_SECONDS = 30.0
"""Seconds between two judgements of the rollouts under way and of loss budgets."""

WATCH_SECONDS = 15.0
"""Seconds between two judgements of the last decisions of rollouts under way: a broken challenger
is taken back within a minute, whatever its reward waits for."""

RECENT_SECONDS, LOOK_PATIENCE_SECONDS = 120.0, 3.0
"""Age, in seconds, up to which a look is recent enough for a person's step, and the longest that a
step waits for another."""

FORECAST_VALUE_SECONDS, START_VALUE_SECONDS = 20.0, 10.0
"""The longest, in seconds, that a forecast, and the answer of a start, wait for the value of the
challenger."""

RolloutLooker = Callable[[State], Awaitable[RolloutLooks]]
"""Looks at the rollouts of an experiment. Raises Refused or StoreError where that fails."""

ChallengerComparer = Callable[[State, RolloutPlan], Awaitable[EvaluationAnswer]]
"""Evaluates the two policies of a rollout on the log. Raises Refused, StoreError, ProcessEnded or
ConfigurationError where that fails."""

PersonStep = Callable[[Rollout, RolloutReading, float], RolloutStep]

PERSON_STEPS: Mapping[str, PersonStep] = {
    "advance": advance,
    "hold": hold,
    "resume": resume,
    "back": roll_back,
}
"""Steps that a person may take, by their names on the wire."""

NO_LOOK = RolloutLook(0, NO_READING, nan, nan, nan)
"""What is known of a rollout whose log could not be read, or was not yet."""


@dataclasses.dataclass(frozen=True)
class RolloutStatus:
    """A rollout and what is known of it.

    look       NO_LOOK: nothing
    findings   of its guardrails; none once it has ended
    sentence   where it stands
    forecast   None: there is no traffic to forecast from, or it has ended
    warning    what the log says against a rollout that has just been started
    """

    rollout: Rollout
    look: RolloutLook
    findings: Sequence[Finding]
    sentence: str
    forecast: RolloutForecast | None
    warning: str = ""


@dataclasses.dataclass(frozen=True)
class RolloutOutlook:
    """What a rollout that could be started would take, and what its challenger would have earned.

    forecast   None: too few decisions of its baseline are settled
    """

    forecast: RolloutForecast | None
    value: ChallengerValue


@dataclasses.dataclass(frozen=True)
class BudgetStatus:
    """A loss budget, what the log says of it, and where it stands in words."""

    budget: LossBudget
    reading: BudgetReading
    sentence: str


class Rollouts:
    """Judges the rollouts under way and loss budgets, and takes the steps of people.

    The revision of the experiment is the mark of each step: of several processes that take one, or
    of a step and a definition, the first counts. A move of a loss budget makes no revision, as it
    is no change that a client's If-Match should meet: its number is its mark.

    The process that leads judges by the log. Each process watches the decisions that it made, and
    may hold a rollout or take it back by them.
    """

    def __init__(
        self,
        admin: Admin,
        log: Log,
        look: RolloutLooker,
        compare: ChallengerComparer,
        telemetry: Telemetry,
    ) -> None:
        self._admin, self._log, self._look, self._compare = admin, log, look, compare
        self._telemetry = telemetry
        self._latest = dict[str, tuple[float, RolloutLooks]]()

    # -- people --------------------------------------------------------------------------------

    async def forecast(self, state: State, plan: RolloutPlan) -> RolloutOutlook:
        """Forecast a rollout that could be started. Raises as `check`, or as a look."""
        self.check(state, plan)
        value = self._begin_value(state, plan)
        forecast = await _forecast(plan, await self._look(state))
        return RolloutOutlook(forecast, await _in_time(value, plan, FORECAST_VALUE_SECONDS))

    def _begin_value(self, state: State, plan: RolloutPlan) -> asyncio.Future[ChallengerValue]:
        """Begin to value a challenger. It goes on where nobody waits for it any more, and the next
        one who asks has the answer."""
        found: asyncio.Future[ChallengerValue] = asyncio.get_running_loop().create_future()

        async def fill() -> None:
            found.set_result(await self._value(state, plan))

        self._log.background.spawn(fill())
        return found

    async def _value(self, state: State, plan: RolloutPlan) -> ChallengerValue:
        """Value a challenger on the log, or say why that cannot be done."""
        low, _ = state.definition.reward.limits
        try:
            return challenger_value(plan, await self._compare(state, plan), low)
        except (Refused, StoreError, ProcessEnded, ConfigurationError) as fault:
            return unvalued(plan, fault.detail if isinstance(fault, Refused) else str(fault))

    @staticmethod
    def check(state: State, plan: RolloutPlan) -> None:
        """Check a rollout that is to be started. Raises NotFound, Invalid, or Conflict."""
        if plan.policy in state.definition.shadows:
            raise Conflict(_of_shadow(state, plan.policy))
        for name in (plan.policy, plan.baseline):
            find(state, name)
            expect_no_rollout(state, name, "a part of its traffic")
        if plan.policy == plan.baseline:
            raise Invalid("is the baseline: name another policy", path="policy")
        budget = state.traffic.budget
        if budget is not None and budget.policy in (plan.policy, plan.baseline):
            raise Conflict(
                f"never_below names {quoted(budget.policy)}, whose share it sets: name another "
                "policy in the rollout, or take never_below out of the definition first"
            )
        if state.definition.reward.default is None:
            raise Invalid(
                "a rollout needs a default reward (reward.default): without one, decisions that "
                "earned nothing are not known",
                path="policy",
            )
        shares = state.traffic.given
        if shares[plan.policy]:
            raise Conflict(
                f"{quoted(plan.policy)} has a share of the traffic already, {shares[plan.policy]:g}"
                ": set it to 0 first, so that the rollout alone says what it gets"
            )
        if not shares[plan.baseline]:
            raise Conflict(f"{quoted(plan.baseline)} has no traffic that could be taken over")

    async def start(
        self,
        state: State,
        plan: RolloutPlan,
        by: str,
        if_match: int | None = None,
        reason: str = "",
    ) -> RolloutStatus:
        """Start a rollout at its first stage; where it stands, with a warning where the log says
        that the challenger loses, and can say so soon. Raises as `check`, PreconditionFailed, or
        Conflict where another revision came between."""
        self._admin.check_revision(state, if_match)
        self.check(state, plan)
        valued = self._begin_value(state, plan)
        event = RolloutStarted(
            at=self._log.clock.now(state),
            by=by,
            plan=plan,
            revision=state.revision + 1,
            reason=reason,
        )
        await self._admin.append_revision(state, event, f"rollout of {plan.policy} started")
        looks, value = await asyncio.gather(
            self._look_soon(state), _in_time(valued, plan, START_VALUE_SECONDS)
        )
        status = await self._status(state, found(state, plan.policy), looks)
        return dataclasses.replace(status, warning=value.sentence if value.loses else "")

    async def step(
        self,
        state: State,
        policy: str,
        kind: str,
        by: str,
        if_match: int | None = None,
        reason: str = "",
    ) -> RolloutStatus:
        """Take a step that a person wants, with the figures of a recent look, if there can be one
        soon; where the rollout stands then. Raises NotFound, PreconditionFailed, or Conflict where
        the rollout cannot take it, or another revision came between.

        kind   one of PERSON_STEPS
        """
        self._admin.check_revision(state, if_match)
        rollout = found(state, policy)
        if rollout.ended:
            raise Conflict(f"the rollout of {quoted(policy)} is {rollout.state.replace('_', ' ')}")
        if kind == "resume" and rollout.state == "running":
            raise Conflict(f"the rollout of {quoted(policy)} is not held")
        if kind == "hold" and rollout.state != "running":
            raise Conflict(f"the rollout of {quoted(policy)} is held already")
        revision, looks = state.revision, await self._look_soon(state)
        now, reading = self._log.clock.now(state), _look_of(rollout, looks).reading
        step = by_person(PERSON_STEPS[kind](rollout, reading, now))
        await self._append(state, policy, step, revision, by, reason)
        return await self._status(state, found(state, policy), looks)

    async def status(self, state: State, policy: str) -> RolloutStatus:
        """Say where a rollout stands. Raises NotFound."""
        return (await self.all(state))[found(state, policy).policy]

    async def all(self, state: State) -> dict[str, RolloutStatus]:
        """Say where each rollout stands, by challenger."""
        looks = await self._look_if_possible(state) if _under_way(state) else None
        return {
            name: await self._status(state, rollout, looks)
            for name, rollout in state.traffic.rollouts.items()
        }

    async def _status(
        self, state: State, rollout: Rollout, looks: RolloutLooks | None
    ) -> RolloutStatus:
        if rollout.ended:
            said = last_words(rollout)
            return RolloutStatus(rollout, NO_LOOK, (), said, None)
        look, findings = _look_of(rollout, looks), self._findings(state, rollout, looks)
        forecast = None if looks is None else await _forecast(rollout, looks)
        now = self._log.clock.now(state)
        said = standing(rollout, look.reading, now, _breached(findings))
        return RolloutStatus(rollout, look, findings, said, forecast)

    def _findings(
        self, state: State, rollout: Rollout, looks: RolloutLooks | None
    ) -> list[Finding]:
        """Return what is known of the guardrails of a rollout."""
        return [*self._watched(state, rollout), *_judged(state, rollout, looks)]

    def _watched(self, state: State, rollout: Rollout) -> list[Finding]:
        """Return what the last decisions of this process say of the guardrails of a rollout."""
        guardrails = state.definition.rollout.guardrails
        windows = self._telemetry.rollout_samples.of(state, rollout)
        return findings_here(guardrails, rollout.challenger, rollout.baseline, *windows)

    async def budget(self, state: State) -> BudgetStatus:
        """Say where the loss budget stands. Raises NotFound where there is none."""
        budget = state.traffic.budget
        if budget is None:
            raise NotFound("the definition has no loss budget (never_below)", path="budget")
        looks = await self._look_if_possible(state)
        found = looks and looks.budget
        reading = found if found and found.began == budget.began else unread(budget)
        return BudgetStatus(budget, reading, budget_sentence(budget, reading))

    # -- by itself -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Judge all rollouts under way and loss budgets every JUDGE_SECONDS, for ever, in the
        process that leads."""

        async def judge(state: State) -> None:
            if self._log.presence.leads:
                await self.judge(state)

        await self._repeat(JUDGE_SECONDS, judge)

    async def watch(self) -> None:
        """Judge all rollouts under way by the decisions of this process every WATCH_SECONDS, for
        ever, in each process."""
        await self._repeat(WATCH_SECONDS, self.guard)

    async def _repeat(self, seconds: float, judge: Callable[[State], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            for state in list(self._log.replicas.states.values()):
                try:
                    await judge(state)
                except StoreError as fault:
                    logger.warning("experiment %s: no step can be logged: %s", state.name, fault)
                except Exception:  # the other experiments are judged
                    logger.exception("experiment %s: its rollouts are not judged", state.name)

    async def judge(self, state: State) -> None:
        """Start the rollouts of versions that are due, look at an experiment, take the steps of
        rollouts that are due, and move its loss budget."""
        await self._start_versions(state)
        seen = state.revision
        idle = state.traffic.budget is None and not _under_way(state)
        if idle or (looks := await self._look_if_possible(state)) is None:
            return
        for rollout in _each_under_way(state):
            revision, now = state.revision, self._log.clock.now(state)
            breaches = _breached(self._findings(state, rollout, looks))
            step = next_step(rollout, _look_of(rollout, looks).reading, now, breaches)
            await self._take(state, rollout.policy, step, revision)
        if looks.budget is not None and state.revision == seen:
            await self._move(state, looks.budget)

    async def _start_versions(self, state: State) -> None:
        """Start to roll out versions that have passed their gates. One whose policy is in another
        rollout waits for its end."""
        for name, learner in list(state.learners.items()):
            busy = state.traffic.rollout_of(name) is not None
            if busy or learner.challenger is None or not state.rolls_out(learner):
                continue
            number = learner.challenger.version.number
            before, seen = learner.active.number, learner.gate_figures
            event = RolloutStarted(
                at=self._log.clock.now(state),
                by=AUTOMATIC,
                plan=plan_of(state, policy=name, baseline=name, version=number),
                revision=state.revision + 1,
                reason=gate_sentence(number, before, seen, "rolls out"),
            )
            mark = gate_mark(name, learner.born, number)
            try:
                await self._admin.append_revision(state, event, event.reason, mark)
            except Conflict:
                logger.info("experiment %s: another process was first", state.name)

    async def guard(self, state: State) -> None:
        """Judge the rollouts of an experiment by the last decisions of this process, and take the
        steps that follow. None advances by them."""
        self._telemetry.rollout_samples.forget_ended(state)
        _, looks = self._latest.get(state.name, (-inf, None))
        if not self._log.presence.leads:  # what it looked at last may be long ago
            looks = None
        for rollout in _each_under_way(state):
            revision, now = state.revision, self._log.clock.now(state)
            reading, own = _look_of(rollout, looks).reading, self._watched(state, rollout)
            self._note(state, rollout, [*own, *_judged(state, rollout, looks)])
            step = guarded_step(rollout, reading, now, _breached(own))
            await self._take(state, rollout.policy, step, revision)

    def _note(self, state: State, rollout: Rollout, findings: Sequence[Finding]) -> None:
        """Note which guardrails are breached, and say so where that is new and no step follows."""
        key = state.name, rollout.policy
        position, before = self._telemetry.breached.get(key, (0, {}))
        now: dict[str, bool] = {each.guardrail: False for each in findings if each.state != "off"}
        for each in _breached(findings):
            now[each.guardrail] = True
            known = position == rollout.position and before.get(each.guardrail)
            if not known and rollout.only_warns(each):
                logger.warning("experiment %s: a guardrail: %s", state.name, each.sentence)
        self._telemetry.breached[key] = rollout.position, now

    async def _take(
        self, state: State, policy: str, step: RolloutStep | None, revision: int
    ) -> None:
        """Log a step that a rollout takes by itself. Of several processes that do, the first
        counts."""
        if step is None:
            return
        try:
            await self._append(state, policy, step, revision, AUTOMATIC)
        except Conflict:
            logger.info("experiment %s: another process was first", state.name)

    async def _move(self, state: State, reading: BudgetReading) -> None:
        """Move the loss budget, where that is due. Of several processes that do, the first
        counts."""
        budget, now = state.traffic.budget, self._log.clock.now(state)
        if budget is None or (share := next_share(budget, reading, now)) is None:
            return
        moved = replace(budget, share=share, moves=budget.moves + 1)
        event = BudgetMoved(
            at=now,
            by=AUTOMATIC,
            began=budget.began,
            number=moved.moves,
            share=share,
            before=budget.share,
            ratio=reading.ratio,
            own=reading.own,
            baseline=reading.baseline,
            sentence=budget_sentence(moved, reading),
        )
        mark = f"budget/{budget.began}/{moved.moves}"
        entry = Append(state.name, encode_event(event), {mark: ""})
        if isinstance(await self._log.committer.append(entry, event), MarkConflict):
            logger.info("experiment %s: another process was first", state.name)
        else:
            log_change(state.name, f"loss budget: {event.sentence}", AUTOMATIC)

    async def _append(
        self,
        state: State,
        policy: str,
        step: RolloutStep,
        revision: int,
        by: str,
        reason: str = "",
    ) -> None:
        event = RolloutStepped(
            at=step.at, by=by, policy=policy, step=step, revision=revision + 1, reason=reason
        )
        what = f"rollout of {policy}: {step.kind}. {step.sentence}"
        await self._admin.append_revision(state, event, what)

    async def _look_if_possible(self, state: State) -> RolloutLooks | None:
        """Look at an experiment. None: that failed, and nothing is known of it now."""
        try:
            looks = await self._look(state)
        except (Refused, StoreError) as fault:
            logger.warning("experiment %s: its rollouts cannot be judged: %s", state.name, fault)
            return None
        self._latest[state.name] = asyncio.get_running_loop().time(), looks
        return looks

    async def _look_soon(self, state: State) -> RolloutLooks | None:
        """Return a look that a person need not wait for; None: there is none so soon."""
        at, looks = self._latest.get(state.name, (-inf, None))
        if asyncio.get_running_loop().time() - at < RECENT_SECONDS:
            return looks
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_PATIENCE_SECONDS):
                return await self._look_if_possible(state)
        return None


def plan_of(state: State, **given: object) -> RolloutPlan:
    """Return the plan of a rollout, with what the definition says where nothing is given."""
    return convert(
        {**state.definition.rollout.model_dump(exclude={"guardrails"}), **given}, RolloutPlan
    )


def _of_shadow(state: State, policy: str) -> str:
    """Say how a shadow can be rolled out."""
    keeps = "it keeps what it learned"
    if policy not in state.shadows:
        keeps = "it starts from nothing, since its fold is false"
    return (
        f"{quoted(policy)} is a shadow, which decides nothing: set shadow = false and share = 0 "
        f"first ({keeps})"
    )


async def _in_time(
    value: asyncio.Future[ChallengerValue], plan: RolloutPlan, seconds: float
) -> ChallengerValue:
    """Wait for the value of a challenger, or say that it takes too long."""
    done, _ = await asyncio.wait({value}, timeout=seconds)
    if done:
        return value.result()
    return unvalued(plan, f"that takes longer than {seconds:g} seconds: ask again in a while")


def _under_way(state: State) -> bool:
    return any(not each.ended for each in state.traffic.rollouts.values())


def _each_under_way(state: State) -> Iterator[Rollout]:
    """Yield the rollouts under way, each as it is when its turn comes."""
    for policy in list(state.traffic.rollouts):
        rollout = state.traffic.rollouts.get(policy)
        if rollout is not None and not rollout.ended:
            yield rollout


def _judged(state: State, rollout: Rollout, looks: RolloutLooks | None) -> list[Finding]:
    """Return what a look says of the guardrails of a rollout."""
    look = _look_of(rollout, looks)
    return findings_of_log(
        state.definition.rollout.guardrails,
        rollout.challenger,
        rollout.baseline,
        rollout.margin,
        look.visitors,
        look.segments,
    )


def _breached(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.state == "breached"]


def _look_of(rollout: Rollout, looks: RolloutLooks | None) -> RolloutLook:
    """Return what a look says of a rollout, and not of an earlier one of its challenger."""
    look = NO_LOOK if looks is None else looks.rollouts.get(rollout.policy, NO_LOOK)
    return look if look.position == rollout.position else NO_LOOK


def found(state: State, policy: str) -> Rollout:
    """Find the rollout of a challenger: the one under way, or its last. Raises NotFound."""
    rollouts = state.traffic.rollouts
    if policy not in rollouts:
        raise not_found("rollout", policy, sorted(rollouts))
    return rollouts[policy]


async def _forecast(plan: RolloutPlan, looks: RolloutLooks) -> RolloutForecast | None:
    """Forecast a rollout by the recent traffic of its baseline, which it is to share."""
    nobody = PolicyTraffic(0, 0.0, 0.0, 0.0)
    baseline = looks.traffic.get(plan.baseline, nobody)
    own = nobody if plan.version is not None else looks.traffic.get(plan.policy, nobody)
    if not baseline.per_second or not baseline.variance:
        return None
    low, high = looks.limits
    traffic = RolloutTraffic(
        per_second=baseline.per_second + own.per_second,
        variance=(baseline.variance, baseline.variance),
        baseline=baseline.reward - low,
        span=high - low,
    )
    shares = [share for share in plan.stages if share < 1]
    given = plan.margin, plan.stage_hours, plan.undecided_after_days
    return await asyncio.to_thread(rollout_forecast, traffic, shares, *given)
