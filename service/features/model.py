"""The base of everything that a definition declares."""

from pydantic import BaseModel, ConfigDict, model_validator


def whole(value: object) -> object:
    """2.0 as 2: to JSON they are one number, and to JSON Schema both are integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: object) -> object:
        return {k: whole(v) for k, v in given.items()} if isinstance(given, dict) else given
