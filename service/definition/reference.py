"""docs/experiment.md, from the models that check an experiment.

Written by `python -m service.definition.reference`.
"""

import json
import sys
from collections.abc import Container
from inspect import cleandoc
from typing import get_args

from pydantic.json_schema import JsonSchemaValue, model_json_schema

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
    PolicySettings: "Every kind has these.",
    Featured: "Every kind that looks at features has these as well: all but `popularity` and "
    "`random`.",
    Network: "Kinds with a net have these as well. `greedy` and `epsilon_greedy` use them where "
    '`regressor` is "neural".',
}
"""Introductions of sections, where the docstring of the model does not do."""

MANY = 4
"""A setting of more types than this takes a feature of any kind, or a policy."""

TYPES = {"object": "a table by name", "boolean": "`true` or `false`", "string": "text"}

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


def reference() -> str:
    """The page."""
    net = {*Featured.model_fields, "training"}
    parts = [
        HEAD,
        _section("## The file", Definition),
        _section("## Features: `[features]`", Features),
        "### Kinds of feature\n\n`type` says which.\n",
        *(
            _section(f"#### `{_tag(kind, 'type')}`", kind, omit={"type"})
            for kind in (Numeric, Boolean, Categorical, Hashed, Vector)
        ),
        _section("## Rewards: `[reward]`", RewardRules),
        "## Policies: `[policies.NAME]`\n\n`kind` says which algorithm it is.\n",
        _section("### Common to all", PolicySettings),
        _section("### Features that a policy sees", Featured, omit=PolicySettings.model_fields),
        _section("### The net", Network, omit=net),
        _section("### When it is trained: `[policies.NAME.training]`", Training),
        "### By kind\n",
        "What a kind has beside the above, and where its default is another.\n",
    ]
    for kind in get_args(get_args(AnyPolicy)[0]):
        common = next(
            base for base in (Network, Featured, PolicySettings) if issubclass(kind, base)
        )
        same = {
            name
            for name, field in common.model_fields.items()
            if kind.model_fields[name].default == field.default
        }
        parts.append(_section(f"#### `{_tag(kind, 'kind')}`", kind, omit={"kind"} | same))
    return "\n".join(parts)


def _section(heading: str, model: type[Model], omit: Container[str] = ()) -> str:
    about = ABOUT.get(model) or " ".join(cleandoc(model.__doc__ or "").split())
    schema = model_json_schema(model)
    rows = []
    for name, field in schema["properties"].items():
        if name not in omit:
            default = _default(field) if name not in schema.get("required", ()) else "needed"
            meaning = field.get("description") or _inherited_description(model, name)
            rows.append(f"| `{name}` | {_type(field)} | {default} | {meaning} |")
    table = ["| setting | takes | default | meaning |", "|---|---|---|---|", *rows, ""]
    parts = [f"{heading}\n", f"{about}\n", "\n".join(table) if rows else "Nothing else.\n"]
    return "\n".join(part for part in parts if part.strip())


def _inherited_description(model: type[Model], name: str) -> str:
    """Of a setting that has another default than in the base class which describes it."""
    for base in model.__mro__:
        if issubclass(base, Model) and name in base.model_fields:
            description = base.model_fields[name].description
            if description:
                return description
    return ""


def _default(field: JsonSchemaValue) -> str:
    default = field.get("default")
    if default is None:
        return "left out"
    if not isinstance(default, dict) or not default:
        return f"`{json.dumps(default)}`"
    usual = Training().model_dump()
    other = [f"`{k} = {v}`" for k, v in default.items() if usual.get(k, v) != v]
    return ", ".join(other) or "its defaults"


def _type(field: JsonSchemaValue) -> str:
    """The type in words."""
    if values := field.get("enum") or [field[key] for key in ("const",) if key in field]:
        return " or ".join(f'`"{value}"`' for value in values)
    if members := field.get("anyOf") or field.get("oneOf"):
        types = [_type(member) for member in members if member.get("type") != "null"]
        return "a table" if len(types) > MANY else " or ".join(dict.fromkeys(types))
    if "$ref" in field:
        return "a table"
    if "prefixItems" in field:
        return f"a list: {', '.join(map(_type, field['prefixItems']))}"
    name = str(field.get("type", "any"))
    if name == "array":
        return f"a list of {_type(field.get('items', {}))}{_bounds(field)}"
    return f"{TYPES.get(name, name)}{_bounds(field)}"


def _bounds(field: JsonSchemaValue) -> str:
    bounds = [
        text.format(int(field[name]) if field[name] == int(field[name]) else field[name])
        for name, text in BOUNDS.items()
        if name in field
    ]
    return f" ({', '.join(bounds)})" if bounds else ""


def _tag(model: type[Model], name: str) -> str:
    return str(get_args(model.model_fields[name].annotation)[0])


if __name__ == "__main__":
    sys.stdout.write(reference())
