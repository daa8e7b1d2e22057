"""docs/experiment.md, from the models that judge an experiment.

Written by `python -m service.definition.reference`.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any, get_args

from pydantic.json_schema import model_json_schema

from service.definition.experiment import (
    Boolean,
    Categorical,
    Definition,
    Features,
    Hashed,
    Numeric,
    RewardRules,
    Vector,
)
from service.definition.policies import (
    AnyPolicy,
    Featured,
    Model,
    Network,
    PolicySettings,
    Training,
)

HEAD = """\
# Experiment files

Every setting of an experiment's definition, with its limits and default. The same keys are taken \
in a TOML file (`forage serve --experiment FILE`) and as JSON (`PUT /experiments/{name}`). \
`forage init` writes a file to begin with, `forage check` says what is wrong with one, and where. \
[concepts.md](concepts.md) says what the words mean, [policies.md](policies.md) which policy to \
take when.

This page is written by `make reference` from the models that check a definition.

```toml
name = "shop"  # letters, digits, "_", "." and "-", at most 64; left out: that of the file

[features]
crosses = ["device x category"]
[features.context.device]
type = "categorical"
values = ["phone", "desktop"]
[features.arm.category]
type = "categorical"
values = ["toys", "food"]

[arms]
ball = { category = "toys" }
kibble = { category = "food" }

[policies.main]
kind = "lints"

[reward]
default = 0.0
```
"""

ABOUT = {
    Definition: "The keys of the file beside `name`. A name of a feature or a policy is like that "
    "of an experiment; the id of an arm is any text of up to 128 characters.",
    Features: "What is known of the visitor and the moment (`context`) and of what can be shown "
    "(`arm`). No name may be in both.",
    Numeric: "",
    Boolean: "",
    Categorical: "",
    Hashed: "",
    Vector: "",
    RewardRules: "",
    Training: "",
    PolicySettings: "Every kind has these.",
    Featured: "Every kind that looks at features has these as well: all but `popularity` and "
    "`random`.",
    Network: "Kinds with a net have these as well. `greedy` and `epsilon_greedy` use them where "
    '`regressor` is "neural".',
}


def reference() -> str:
    """The page."""
    parts = [HEAD]
    parts += _section("## The file", Definition)
    parts += _section("## Features: `[features]`", Features)
    parts.append("### Kinds of feature\n\n`type` says which.\n")
    for feature in (Numeric, Boolean, Categorical, Hashed, Vector):
        parts += _section(f"#### `{_tag(feature, 'type')}`", feature, leave=("type",))
    parts += _section("## Rewards: `[reward]`", RewardRules)
    parts.append("## Policies: `[policies.NAME]`\n\n`kind` says which algorithm it is.\n")
    parts += _section("### Common to all", PolicySettings)
    parts += _section("### Features that a policy sees", Featured, leave=_names(PolicySettings))
    parts += _section("### The net", Network, leave=(*_names(Featured), "training"))
    parts += _section("### When it is trained: `[policies.NAME.training]`", Training)
    parts.append("### By kind\n")
    parts += [
        "What a kind has beside the above, and where its default is another.\n",
    ]
    for kind in get_args(get_args(AnyPolicy)[0]):
        common: type[Model] = PolicySettings
        if issubclass(kind, Featured):
            common = Network if issubclass(kind, Network) else Featured
        leave = [
            name
            for name, field in common.model_fields.items()
            if kind.model_fields[name].default == field.default
        ]
        parts += _section(f"#### `{_tag(kind, 'kind')}`", kind, leave=("kind", *leave))
    return "\n".join(parts)


def _section(heading: str, model: type[Model], leave: tuple[str, ...] = ()) -> Iterator[str]:
    about = ABOUT.get(model)
    if about is None or about == "":
        own = model.__dict__.get("__doc__")
        about = " ".join(cleandoc(own).split()) if own else ""
    yield f"{heading}\n"
    if about:
        yield f"{about}\n"
    schema = model_json_schema(model)
    rows = []
    for name, field in schema["properties"].items():
        if name in leave:
            continue
        default = _default(field) if name not in schema.get("required", ()) else "needed"
        about = field.get("description") or _inherited(model, name)
        rows.append(f"| `{name}` | {_type(field)} | {default} | {about} |")
    if rows:
        yield "\n".join(["| setting | takes | default | meaning |", "|---|---|---|---|", *rows, ""])
    else:
        yield "Nothing else.\n"


def _inherited(model: type[Model], name: str) -> str:
    """What a model further up says of a setting that has another default here."""
    fields = (getattr(base, "model_fields", {}).get(name) for base in model.__mro__)
    return next((field.description for field in fields if field and field.description), "")


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if default is None:
        return "left out"
    if not isinstance(default, dict) or not default:
        return f"`{json.dumps(default)}`"
    usual = Training().model_dump()
    other = [f"`{k} = {v}`" for k, v in default.items() if usual.get(k, v) != v]
    return ", ".join(other) or "its defaults"


def _type(field: Mapping[str, Any]) -> str:
    """Of a JSON Schema, in words."""
    if named := field.get("enum") or [field[key] for key in ("const",) if key in field]:
        return " or ".join(f'`"{each}"`' for each in named)
    if members := field.get("anyOf") or field.get("oneOf"):
        kinds = [_type(each) for each in members if each.get("type") != "null"]
        return "a table" if len(kinds) > UNION else " or ".join(dict.fromkeys(kinds))
    if "$ref" in field:
        return "a table"
    if "prefixItems" in field:
        return f"a list: {', '.join(map(_type, field['prefixItems']))}"
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"a list of {_type(field.get('items', {}))}{_bounds(field)}"
    return f"{KINDS.get(kind, kind)}{_bounds(field)}"


UNION = 4
"""A setting that takes one of more types takes one of all features, or of all policies."""

KINDS = {"object": "a table by name", "boolean": "`true` or `false`", "string": "text"}

BOUNDS = {
    "minimum": "at least {:,}",
    "exclusiveMinimum": "above {:,}",
    "maximum": "at most {:,}",
    "exclusiveMaximum": "below {:,}",
    "minItems": "{:,} or more",
    "maxItems": "at most {:,}",
    "minProperties": "{:,} or more",
    "maxProperties": "at most {:,}",
    "minLength": "{:,} or more characters",
    "maxLength": "at most {:,} characters",
}


def _bounds(field: Mapping[str, Any]) -> str:
    told = [
        text.format(int(field[name]) if field[name] == int(field[name]) else field[name])
        for name, text in BOUNDS.items()
        if name in field
    ]
    return f" ({', '.join(told)})" if told else ""


def _tag(model: type[Model], name: str) -> str:
    return str(get_args(model.model_fields[name].annotation)[0])


def _names(model: type[Model]) -> tuple[str, ...]:
    return tuple(model.model_fields)


if __name__ == "__main__":
    sys.stdout.write(reference())
