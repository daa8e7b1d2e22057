"""Bodies of the routes that decide and learn, decoded into typed values, and their answers.

msgspec decodes a body. Only where it cannot, the pydantic model of the body (`schemas`) judges it:
the model tells each fault and where it is, and takes what msgspec is too strict for (a `top_k` of
2.0). `tests/http/test_codec.py` holds both against the same bodies.
"""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from fastapi.exceptions import RequestValidationError
from msgspec import Meta
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from service.definition.experiment import NAME
from service.definition.select_request import Id, InlineArm, SelectRequest, Text, Values
from service.http.schemas import RewardBatchBody, RewardBody, SelectBatchBody, SelectBody
from service.serving.engine import Answer
from service.serving.settlement import RewardRequest, Status

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

    def question(self, key: str | None = None, caller: str = "") -> SelectRequest:
        return SelectRequest(
            self.context, self.experiment, self.policy, self.unit, self.arms, self.top_k, key,
            self.deferred, caller,
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

    def outcome(self) -> RewardRequest:
        return RewardRequest(
            self.decision_id,
            self.reward,
            self.rewards,
            self.feedback is not None,
            self.clicked,
            self.reward_id,
        )


class _SelectBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `schemas.SelectBatchBody`."""

    requests: Annotated[list[_Select], Meta(min_length=1)]


class _RewardBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `schemas.RewardBatchBody`."""

    requests: Annotated[list[_Reward], Meta(min_length=1)]


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


JSON = b"application/json"

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of a body: of one nested too deep, RecursionError."""

_encode = msgspec.json.Encoder().encode
_REWARDED: dict[Status, bytes] = {
    status: _encode({"status": status}) for status in ("accepted", "duplicate", "corrected")
}

Decoded = TypeVar("Decoded", bound=msgspec.Struct)
Judged = TypeVar("Judged", bound=BaseModel)


class Codec(Generic[Decoded, Judged]):
    """Bodies of one route."""

    def __init__(self, struct: type[Decoded], model: type[Judged]) -> None:
        self.decode = msgspec.json.Decoder(struct).decode
        self._model = model

    def read(self, body: bytes, content_type: bytes) -> Decoded | Judged:
        """Raises RequestValidationError with each fault, or HTTPException where the body is no
        JSON that can be read."""
        if content_type == JSON or _is_json(content_type):
            try:
                return self.decode(body)
            except UNREADABLE:
                return self._judge(_loaded(body))
        raise RequestValidationError([_fault("model_attributes_type")], body=body)

    def _judge(self, given: Any) -> Judged:
        try:
            return self._model.model_validate(given)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            raise RequestValidationError(
                [{**fault, "loc": ("body", *fault["loc"])} for fault in faults], body=given
            ) from error


SELECT = Codec(_Select, SelectBody)
REWARD = Codec(_Reward, RewardBody)
SELECT_BATCH = Codec(_SelectBatch, SelectBatchBody)
REWARD_BATCH = Codec(_RewardBatch, RewardBatchBody)


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == JSON or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def _loaded(body: bytes) -> Any:
    if not body:
        raise RequestValidationError([_fault("missing")], body=None)
    try:
        return json.loads(body)
    except json.JSONDecodeError as fault:
        told = _fault("json_invalid", fault.pos) | {"ctx": {"error": fault.msg}}
        raise RequestValidationError([told], body=fault.doc) from fault
    except (ValueError, RecursionError) as fault:
        raise HTTPException(400, "There was an error parsing the body") from fault


def _fault(kind: str, *where: int) -> dict[str, Any]:
    messages = {"missing": "Field required", "json_invalid": "JSON decode error"}
    return {"type": kind, "loc": ("body", *where), "msg": messages.get(kind, "is not JSON")}


def write_answer(answer: Answer) -> bytes:
    """As `schemas.SelectAnswer`."""
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
    """As `schemas.RewardAnswer`."""
    return _REWARDED[status]
