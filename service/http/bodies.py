"""Bodies and answers of the routes that decide and learn: one definition for decoder and document.

msgspec decodes a body into these structs and stops at the first fault; `read` says where it is.
`openapi.py` writes their JSON Schema into the document.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from json import JSONDecodeError
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Meta, inspect
from starlette.exceptions import HTTPException

from service.decide.select import Answer
from service.definition.faults import TEXTS, unknown
from service.definition.members import differ, repeated
from service.definition.reward_request import RewardRequest
from service.definition.select_request import (
    NO_DOTS,
    NO_LINE_END,
    RequestedAttribute,
    RequestedValue,
    SelectRequest,
)
from service.errors import Fault, Invalid, Refused
from service.features.declaration import NAME, NAME_RULE
from service.http.schemas import Problem
from service.http.strict import HALF, read_json
from service.settle.settlement import Receipt, Status

T = TypeVar("T")


class Counted(Protocol):
    """A body that can be compared with its JSON."""

    def least_members(self) -> int:
        """Count the members that all objects of the JSON have at least: those without their
        default."""
        ...


CountedT = TypeVar("CountedT", bound=Counted)

RequestedTime = Annotated[datetime, Meta(tz=True)]


FORMS: Final = [
    {
        "title": title,
        "required": [form],
        "properties": {
            form: {"not": {"type": "null"}},
            **{
                other: {"type": "null"}
                for other in ("reward", "rewards", "feedback", "clicked")
                if other != form and (other, form) != ("clicked", "feedback")
            },
        },
    }
    for title, form in (
        ("RewardOfOneArm", "reward"),
        ("RewardsByArm", "rewards"),
        ("Cascade", "feedback"),
    )
]
"""JSON Schema of the checks in `RewardRequest.__post_init__`: one of these."""


class SelectBatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: Annotated[list[SelectRequest], Meta(min_length=1)]


class RewardBatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: Annotated[list[RewardRequest], Meta(min_length=1)]


class Slot(msgspec.Struct):
    """One place of a ranking."""

    arm: str
    propensity: Annotated[
        float,
        Meta(description="Chance of this arm in this slot, given the policy and the slots above."),
    ]


class SelectAnswer(msgspec.Struct):
    id: Annotated[str, Meta(description="Short id, for URLs and logs.")]
    decision_id: Annotated[str, Meta(description="Sealed token: send it back with the reward.")]
    arm: str
    propensity: Annotated[
        float, Meta(description="Chance with which `arm` was chosen, given the policy.")
    ]
    ranking: list[Slot]
    slate_propensity: Annotated[
        float | None,
        Meta(
            description="Chance of the whole ranking; null where top_k is 1, or where a float "
            "cannot hold it."
        ),
    ]
    slate_log_propensity: Annotated[
        float, Meta(description="Natural logarithm of the chance of the whole ranking.")
    ]
    experiment: str
    policy: str
    model_version: Annotated[
        str,
        Meta(
            description="policy/version@position: names the head exactly, which is that of the "
            "fallback where it decided in place of `policy`."
        ),
    ]
    logged: Annotated[
        bool,
        Meta(description="Whether it is logged; false: the log was gone, and it waits in memory."),
    ]
    reward_by: RequestedTime
    accept_until: RequestedTime
    rules: Annotated[
        Sequence[str],
        Meta(description="Names of the rules that removed an arm or held a chance where it is."),
    ]
    relaxed: Annotated[
        Sequence[str],
        Meta(description="Names of the rules that could not hold beside others, and yielded."),
    ]


class RewardAnswer(msgspec.Struct, omit_defaults=True):
    status: Status
    reason: Annotated[
        str | None,
        Meta(description="Why the reward, or that of some arms, cannot count; else left out."),
    ] = None


class SelectItem(msgspec.Struct):
    status: int
    answer: SelectAnswer | None = None
    problem: Problem | None = None


class RewardItem(msgspec.Struct):
    status: int
    answer: RewardAnswer | None = None
    problem: Problem | None = None


class SelectBatchAnswer(msgspec.Struct):
    results: list[SelectItem]


class RewardBatchAnswer(msgspec.Struct):
    results: list[RewardItem]


# -- reading ---------------------------------------------------------------------------------------

JSON: Final = b"application/json"


def is_json(content_type: bytes) -> bool:
    if content_type == JSON:
        return True
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == JSON or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def reader(struct: type[CountedT]) -> Callable[[bytes], CountedT]:
    """Make the function that reads a body of this type. It raises Invalid with the first fault, and
    HTTPException where the body is not JSON.

    msgspec takes the last of two members of one name. Each member has a colon: a body with as many
    colons as members that are certain gives each once, which takes half a microsecond to see.
    Others (a colon in a text, a default that is written out) are parsed again, which takes eight.
    """
    decode = decoder(struct)

    def read(body: bytes) -> CountedT:
        found = decode(body)
        if body.count(b":") != found.least_members():
            expect_each_once(body)
        return found

    return read


def decoder(struct: type[T]) -> Callable[[bytes], T]:
    """Make a `reader` that takes the last of two members of one name."""
    decode = msgspec.json.Decoder(struct).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except UNREADABLE as error:
            _expect_json(body)
            fault = fault_of(str(error), body, struct)
            raise Invalid(fault.message, faults=[fault]) from None

    return read


def expect_each_once(body: bytes, apart: str = "") -> None:
    """Raise Invalid where a member is given more than once. apart: as `repeated` takes it."""
    if not differ(body):
        _parsed(body, apart)


def _parsed(body: bytes, apart: str) -> tuple[Any, bool]:
    """Parse a body as `read_json` does. Raises Invalid as `expect_each_once`, and HTTPException."""
    try:
        value, repeating = read_json(body)
    except JSONDecodeError as fault:
        raise HTTPException(400, fault.msg) from None
    if repeating and (refusal := repeated(value, apart)):
        raise refusal
    return value, repeating


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: Annotated[list[msgspec.Raw], Meta(min_length=1)]


def batch_reader(struct: type[CountedT]) -> Callable[[bytes], list[CountedT | Refused]]:
    """Make the function that reads a batch: each item, or the fault in it. It raises as a `reader`
    where the batch as a whole cannot be read."""
    read_batch, read = decoder(_Batch), reader(struct)

    def each(item: bytes | Refused) -> CountedT | Refused:
        if isinstance(item, Refused):
            return item
        try:
            return read(item)
        except Invalid as fault:
            return fault
        except HTTPException as fault:
            return Invalid(fault.detail)

    def read_each(body: bytes) -> list[CountedT | Refused]:
        try:
            items = [bytes(item) for item in read_batch(body).requests]
        except HTTPException:
            return [each(item) for item in _lenient(body)]
        if body.count(b":") - sum(item.count(b":") for item in items) > 1:
            expect_each_once(body, apart="requests")
        return [each(item) for item in items]

    return read_each


def _lenient(body: bytes) -> list[bytes | Refused]:
    """Return the items of a batch with NaN or Infinity in some of them. Raises HTTPException,
    Invalid."""
    content, repeating = _parsed(body, apart="requests")
    requests = content.get("requests") if isinstance(content, dict) else None
    if not isinstance(requests, list) or len(content) > 1:
        raise HTTPException(400, "the body is not JSON")
    return [(repeating and repeated(item)) or json.dumps(item).encode() for item in requests]


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _expect_json(body: bytes) -> None:
    """Raise Invalid for an empty body, and HTTPException for one that is not JSON."""
    if not body:
        raise Invalid("the body is empty: send a JSON object")
    try:
        msgspec.json.decode(body.decode(), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise HTTPException(400, _malformed(str(error), body)) from None
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8") from None
    except RecursionError:
        raise HTTPException(400, "the body is nested too deep") from None


def _malformed(message: str, body: bytes) -> str:
    """Half of a surrogate pair looks to msgspec like a body that ends too early."""
    if message != "Input data was truncated":
        return message
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return "the body ends too early"
    return HALF


MEMBER_TYPES: Final[dict[str, Any]] = {
    "context": RequestedValue | None,
    "features": RequestedValue | None,
    "attributes": RequestedAttribute | None,
    "rewards": float,
}
"""Types of members that msgspec does not name in the path of a fault."""
PLACE: Final = re.compile(r"(.*) - at (?:`key` in )?`\$((?:\.\w+|\[\d+\]|\[\.{3}\])*)`", re.DOTALL)
PATH_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]|\[\.{3}\]")
TYPE_NAMES: Final = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "a boolean",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip
LENGTH_NOUNS: Final = {"str": "character", "array": "item", "object": "member"}
FIELD: Final = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
LENGTH: Final = re.compile(r"Expected `(str|array|object)` of length ([<>])= (\d+)")
PATTERN: Final = re.compile(r"Expected `str` matching regex '(.*)'")
PATTERNS: Final = {
    NAME.replace("$", NO_LINE_END): NAME_RULE,
    NO_DOTS: "must not be '.' or '..', which no path can carry",
}
KIND: Final = re.compile(r"Expected `([^`]+)`(?: >= (\d+))?")


def fault_of(message: str, body: bytes, struct: type) -> Fault:
    """Translate a message of msgspec about a body of a type: a dotted path, and the permitted
    values."""
    text, path = message, list[str | int]()
    if where := PLACE.fullmatch(message):
        text = where[1]
        for name, index in PATH_STEP.findall(where[2]):
            path.append(name or (int(index) if index else _faulty_member(body, path)))
    if field := FIELD.fullmatch(text):
        known = _fields_at(struct, path)
        text = "is required" if field[1] == "missing required" else unknown(field[2], known)
        path.append(field[2])
    elif length := LENGTH.match(text):
        bound = "at least" if length[2] == ">" else "at most"
        plural = "" if length[3] == "1" else "s"
        text = f"must have {bound} {length[3]} {LENGTH_NOUNS[length[1]]}{plural}"
    elif pattern := PATTERN.match(text):
        text = PATTERNS.get(pattern[1].replace("\\\\", "\\"), TEXTS["string_pattern_mismatch"])
    elif kind := KIND.match(text):
        *others, last = [TYPE_NAMES[each] for each in kind[1].split(" | ")]
        text = f"must be {', '.join(others)}{' or ' * bool(others)}{last}" + (
            f" of at least {kind[2]}" if kind[2] else ""
        )
    elif "of range" in text:
        text = "must be a finite number of 64 bits"
    elif text.startswith("Invalid enum value"):
        text = 'must be "cascade"'
    return Fault(".".join(map(str, path)), text)


def _fields_at(struct: type, path: Sequence[str | int]) -> list[str]:
    """List the names that an object at a path of a body may have; none for a path that only a name
    of the caller's looks like."""
    found: inspect.Type | None = inspect.type_info(struct)
    for step in path:
        if isinstance(found, inspect.StructType):
            found = next((each.type for each in found.fields if each.encode_name == step), None)
        else:
            found = found.item_type if isinstance(found, inspect.ListType) else None
        while isinstance(found, inspect.Metadata | inspect.UnionType):
            found = found.type if isinstance(found, inspect.Metadata) else _structured(found)
    return [each.encode_name for each in getattr(found, "fields", ())]


def _structured(union: inspect.UnionType) -> inspect.Type | None:
    """Find the member of a union that has members or items itself."""
    kinds = inspect.StructType, inspect.ListType, inspect.Metadata
    return next((each for each in union.types if isinstance(each, kinds)), None)


def _faulty_member(body: bytes, path: Sequence[str | int]) -> str:
    """Name the first member of a wrong type in the object at a path, which msgspec calls `...`."""
    value = msgspec.Raw(body)
    try:
        for step in path:
            inner: Any = dict[str, msgspec.Raw] if isinstance(step, str) else list[msgspec.Raw]
            value = msgspec.json.decode(value, type=inner)[step]
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        kind = MEMBER_TYPES[str(path[-1])]
    except (*UNREADABLE, LookupError):  # the name of an unknown field that looks like a path
        return "..."
    for name, member in members.items():
        try:
            msgspec.json.decode(member, type=kind)
        except UNREADABLE:
            return name
    return "..."


# -- writing ---------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


def write_answer(answer: Answer) -> bytes:
    """Encode a SelectAnswer."""
    decision = answer.decision
    shown = decision.shown
    first = shown[0]
    return _encode(
        SelectAnswer(
            decision.id,
            answer.token,
            first.arm,
            first.propensity,
            [Slot(arm.arm, arm.propensity) for arm in shown],
            decision.slate if len(shown) > 1 else None,
            decision.slate_log,
            answer.experiment,
            decision.policy,
            decision.model_version,
            answer.logged,
            datetime.fromtimestamp(decision.reward_by, UTC),
            datetime.fromtimestamp(decision.accept_until, UTC),
            decision.rules,
            decision.relaxed,
        )
    )


def write_outcome(outcome: Receipt) -> bytes:
    """Encode a RewardAnswer."""
    return _encode(RewardAnswer(outcome.status, outcome.reason))
