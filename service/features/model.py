"""The base of everything that a definition declares."""

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticKnownError


def whole(value: object) -> object:
    """2.0 as 2: to JSON they are one number, and to JSON Schema both are integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, serialize_by_alias=True
    )

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: object) -> object:
        return {k: whole(v) for k, v in given.items()} if isinstance(given, dict) else given


def at_most(members: int) -> BeforeValidator:
    """Refuse a longer mapping before its members are validated: each might be a fault of its own,
    and a hundred thousand of them take a second."""

    def check(given: object) -> object:
        if isinstance(given, dict) and len(given) > members:
            lengths = {"max_length": members, "actual_length": len(given)}
            raise PydanticKnownError("too_long", {"field_type": "Dictionary", **lengths})
        return given

    return BeforeValidator(check)
