"""Tables of the settings of policies in docs/, from the kinds and what they say of themselves.

`python -m tests.docs.settings` writes them anew. A table stands between `<!-- settings NAME -->`
and `<!-- /settings -->`.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.bandits.kinds import KINDS
from service.bandits.kinds.base import Featured, Kind
from service.bandits.settings import Training
from tests.docs.page import DOCS

REFERENCE, POLICIES = DOCS / "experiment.md", DOCS / "policies.md"

NET = ("hidden", "embedding")
ON_A_NET = KINDS["neural_linear_ts"]
SHARED = {*Featured.model_fields, *NET, "training"}
"""Settings with a section for several kinds; their usual defaults are those of `ON_A_NET`."""

SAME = "As for the linear policies."


class Row:
    """What a table says of one setting of a model."""

    def __init__(self, model: type[BaseModel], name: str) -> None:
        self.name, self.field = name, model.model_fields[name]
        self.meaning = self.field.description or ""
        self.takes = _takes(_properties(model)[name])

    @property
    def default(self) -> str:
        value = self.field.default
        if value is None:
            return "left out"
        if not isinstance(value, BaseModel):
            return f"`{json.dumps(value)}`"
        usual = type(value)().model_dump()
        own = [f"`{k} = {v}`" for k, v in value.model_dump().items() if usual[k] != v]
        return ", ".join(own) or "its defaults"


@cache
def _properties(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = model.model_json_schema()["properties"]
    return found


def _takes(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_takes(each) for each in schema["anyOf"] if each != {"type": "null"})
    if "enum" in schema or "const" in schema:
        return " or ".join(f'`"{each}"`' for each in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return "a table"
    match schema["type"]:
        case "boolean":
            return "`true` or `false`"
        case "array":
            length = f"({schema['minItems']} or more, at most {schema['maxItems']:,})"
            return f"a list of {_takes(schema['items'])} {length}"
        case "string":
            return "text"
        case kind:
            words = {
                "exclusiveMinimum": "above", "minimum": "at least",
                "exclusiveMaximum": "below", "maximum": "at most",
            }  # fmt: skip
            limits = [f"{say} {schema[key]:,.0f}" for key, say in words.items() if key in schema]
            return f"{kind} ({', '.join(limits)})" if limits else kind


def _table(heading: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |\n" for cells in [heading, *rows]]
    lines.insert(1, "|" + "---|" * len(heading) + "\n")
    return "".join(lines)


def reference(model: type[BaseModel], names: Iterable[str]) -> str:
    rows = [Row(model, name) for name in names]
    cells = [[f"`{row.name}`", row.takes, row.default, row.meaning] for row in rows]
    return _table(["setting", "takes", "default", "meaning"], cells)


def kinds() -> str:
    """A section for each kind: settings that it alone has, and where its default is another."""
    usual = {name: ON_A_NET.model_fields[name].default for name in SHARED}
    sections = []
    for kind, model in KINDS.items():
        own = [
            name
            for name, field in model.model_fields.items()
            if name != "kind" and not (name in usual and field.default == usual[name])
        ]
        text = re.sub(r"\s+", " ", model.__doc__.strip()) + "\n\n" if model.__doc__ else ""
        table = reference(model, own) if own else "Nothing else.\n"
        sections.append(f"#### `{kind}`\n\n{text}{table}\n")
    return "\n" + "".join(sections)


def overview() -> str:
    """One row for each setting, default and meaning that kinds have."""
    found: dict[tuple[str, str, str], list[str]] = {}
    meanings: dict[str, str] = {}
    own = [name for model in KINDS.values() for name in model.model_fields if name != "kind"]
    for name in dict.fromkeys([*Kind.model_fields, *own]):
        for kind, model in KINDS.items():
            if name in model.model_fields:
                row = Row(model, name)
                first = meanings.setdefault(name, row.meaning)
                meaning = first if row.meaning == SAME else row.meaning
                found.setdefault((name, row.default, meaning), []).append(kind)
    return _table(
        ["setting", "kinds", "default", "a change keeps the head", "meaning"],
        (
            [f"`{name}`", _listed(having), default, _keeps(name, having[0]), meaning]
            for (name, default, meaning), having in found.items()
        ),
    )


def _keeps(name: str, kind: str) -> str:
    if name == "features":
        return "as far as columns stay"
    return "yes" if name in KINDS[kind].keeps_head else "no"


def _listed(kinds: list[str]) -> str:
    if len(kinds) == len(KINDS):
        return "all"
    without = [kind for kind in KINDS if kind not in kinds]
    if len(without) < 5:
        return "all but " + ", ".join(f"`{kind}`" for kind in without)
    return ", ".join(f"`{kind}`" for kind in kinds)


TABLES = {
    REFERENCE: {
        "common": reference(Kind, Kind.model_fields),
        "features": reference(Featured, ["features"]),
        "net": reference(ON_A_NET, NET),
        "training": reference(Training, Training.model_fields),
        "kinds": kinds(),
    },
    POLICIES: {"policies": overview()},
}


def rewritten(text: str, tables: dict[str, str]) -> str:
    """Return a page with these tables. Raises ValueError where it has no place for one."""
    for name, table in tables.items():
        start, end = f"<!-- settings {name} -->\n", "<!-- /settings -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"no settings {name!r} on the page")
        text = before + start + table + end + after
    return text


def write(page: Path) -> None:
    page.write_text(rewritten(page.read_text(encoding="utf-8"), TABLES[page]), encoding="utf-8")


if __name__ == "__main__":
    for page in TABLES:
        write(page)
