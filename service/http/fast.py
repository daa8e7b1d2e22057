"""Bodies of the hot routes, decoded once into typed values, and their answers.

A body that is unusual in any way is not read here: the ordinary route judges it, and says what is
wrong with it. What is read here the ordinary route reads as equal values.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from service.engine import Answer
from service.experiment import NAME
from service.question import Id, InlineArm, Question, Text, Values
from service.settlement import Outcome, Status

Name = Annotated[str, Meta(pattern=NAME.replace("$", r"\Z"))]  # Python's $ lets a line end there


class _Select(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `schemas.SelectBody`."""

    experiment: Name | None = None
    policy: Name | None = None
    unit: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    context: Values = {}
    arms: Annotated[list[Id | InlineArm], Meta(min_length=1)] | None = None
    top_k: Annotated[int, Meta(ge=1)] = 1
    deferred: bool = False

    def question(self) -> Question:
        return Question(
            self.context, self.experiment, self.policy, self.unit, self.arms, self.top_k, None,
            self.deferred,
        )  # fmt: skip


class _Reward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `schemas.RewardBody`."""

    decision_id: Annotated[str, Meta(min_length=1, max_length=1_024)]
    reward: float | None = None
    rewards: Annotated[dict[Id, float], Meta(min_length=1, max_length=100)] | None = None
    feedback: Literal["cascade"] | None = None
    clicked: Id | None = None
    reward_id: Text = ""

    def __post_init__(self) -> None:
        given = (self.reward is not None) + (self.rewards is not None) + (self.feedback is not None)
        if given != 1 or (self.clicked is not None and self.feedback is None):
            raise ValueError("not one form")

    def outcome(self) -> Outcome:
        return Outcome(
            self.decision_id,
            self.reward,
            self.rewards,
            self.feedback is not None,
            self.clicked,
            self.reward_id,
        )


class _Ranked(msgspec.Struct):
    arm: str
    propensity: float


class _SelectAnswer(msgspec.Struct):
    """As `schemas.SelectAnswer`."""

    id: str
    decision_id: str
    arm: str
    propensity: float
    ranking: list[_Ranked]
    slate_propensity: float | None
    experiment: str
    policy: str
    model_version: str
    logged: bool
    reward_by: datetime
    accept_until: datetime


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of a body: of one nested too deep, RecursionError."""

_decode_select = msgspec.json.Decoder(_Select).decode
_decode_reward = msgspec.json.Decoder(_Reward).decode
_encode = msgspec.json.Encoder().encode
_REWARDED: dict[Status, bytes] = {
    status: _encode({"status": status}) for status in ("accepted", "duplicate", "corrected")
}


def read_select(body: bytes) -> Question | None:
    """None: not for here."""
    try:
        return _decode_select(body).question()
    except UNREADABLE:
        return None


def read_reward(body: bytes) -> Outcome | None:
    """None: not for here."""
    try:
        return _decode_reward(body).outcome()
    except UNREADABLE:
        return None


def write_answer(answer: Answer) -> bytes:
    """As the ordinary route writes it."""
    decision = answer.decision
    shown = decision.shown
    first = shown[0]
    return _encode(
        _SelectAnswer(
            decision.id,
            answer.token,
            first.arm,
            first.propensity,
            [_Ranked(arm.arm, arm.propensity) for arm in shown],
            decision.slate if len(shown) > 1 else None,
            answer.experiment,
            decision.policy,
            decision.model_version,
            answer.logged,
            datetime.fromtimestamp(decision.reward_by, UTC),
            datetime.fromtimestamp(decision.accept_until, UTC),
        )
    )


def write_status(status: Status) -> bytes:
    """As the ordinary route writes it."""
    return _REWARDED[status]
