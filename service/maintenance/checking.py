"""What is wrong with an experiment file, and where: each fault with its line and the nearest name.

What is judged is what `forage serve` judges; this only says more of it.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from service.definition.experiment import NAME, Definition
from service.definition.faults import faults_of, path_of
from service.definition.lint import lint
from service.definition.toml_lines import Lines
from service.errors import Invalid
from service.serving.admin import Admin

Level = Literal["fault", "warning"]
Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """line: from 1; None where the file as a whole is meant. path: of the setting, dotted."""

    level: Level
    line: int | None
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What there is to say of one file. experiment, arms, policies: of a file without a fault."""

    file: str
    findings: list[Finding]
    experiment: str | None = None
    arms: int = 0
    policies: int = 0

    @property
    def faults(self) -> list[Finding]:
        return [each for each in self.findings if each.level == "fault"]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": not self.faults}

    def text(self) -> str:
        """A line a finding, FILE:LINE first as compilers have it, and one for the whole."""
        lines = []
        for each in self.findings:
            where = f"{self.file}:{each.line}" if each.line else self.file
            path = f"{each.path}: " if each.path else ""
            lines.append(f"{where}: {each.level}: {path}{each.message}")
        if self.faults:
            lines.append(f"{self.file}: {_count(len(self.faults), 'fault')}")
        else:
            warned = len(self.findings)
            more = f", {_count(warned, 'warning')}" if warned else ""
            lines.append(
                f"{self.file}: ok: experiment {self.experiment!r}, {_count(self.arms, 'arm')}, "
                f"{_count(self.policies, 'policy', 'policies')}{more}"
            )
        return "\n".join(lines)


def check_file(path: Path) -> Checked:
    """Read a file and judge it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as fault:
        return Checked(str(path), [Finding("fault", None, "", fault.strerror or "cannot be read")])
    except UnicodeDecodeError as fault:
        line = path.read_bytes().count(b"\n", 0, fault.start) + 1
        return Checked(str(path), [Finding("fault", line, "", "not UTF-8")])
    return check(text, str(path), path.stem)


def check(text: str, file: str, stem: str) -> Checked:
    """Judge the text of a file. stem: the experiment's name where the text has none."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        message, line = _syntax(str(fault), text)
        return Checked(file, [Finding("fault", line, "", message)])
    lines = Lines(text)
    name = content.pop("name", stem)
    findings = []
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        say = "letters, digits, '_', '.' and '-', at most 64"
        findings.append(Finding("fault", lines.of(("name",)), "name", say))
    try:
        definition = Definition.model_validate(content).completed()
        Admin.check(definition)
    except ValidationError as error:
        findings += _faults(error, content, lines)
    except Invalid as fault:
        for each in fault.faults:
            keys = _keys(each.path, content)
            findings.append(Finding("fault", lines.of(keys), each.path, each.message))
    else:
        findings += [
            Finding("warning", lines.of(keys), ".".join(map(str, keys)), message)
            for keys, message in lint(definition)
        ]
        findings.sort(key=lambda each: each.line or 0)
        return Checked(file, findings, name, len(definition.arms), len(definition.policies))
    return Checked(file, sorted(findings, key=lambda each: each.line or 0))


def _syntax(message: str, text: str) -> tuple[str, int]:
    """What tomllib said, and the line that it stopped at."""
    found = re.search(r"\(at line (\d+), column (\d+)\)", message)
    line = int(found[1]) if found else text.count("\n") + 1
    said = re.sub(r" \(at .*\)$", "", message)
    return f"not TOML: {said[:1].lower()}{said[1:]}", line


def _faults(error: ValidationError, content: Any, lines: Lines) -> Iterator[Finding]:
    """A finding a value: the messages of `faults_of`, with what is near where a name is wrong."""
    errors = error.errors()
    by_path = {".".join(map(str, path_of(each, content))): each for each in reversed(errors)}
    for fault in faults_of(errors, content):
        cause = by_path[fault.path]
        keys, message = path_of(cause, content), fault.message
        if cause["type"] == "extra_forbidden":
            names = valid_names(Definition, keys[:-1], content)
            message = f"there is no such setting{_near(str(keys[-1]), names)}"
        elif cause["type"] == "union_tag_invalid":
            names = re.findall(r"'([^']+)'", str(cause["ctx"]["expected_tags"]))
            keys = (*keys, str(cause["ctx"]["discriminator"]).strip("'"))
            message = f"there is no such {keys[-1]}{_near(str(cause['ctx']['tag']), names)}"
        elif cause["type"] == "union_tag_not_found":
            message = f"needs a {cause['ctx']['discriminator']}"
        elif cause["type"] == "missing":
            message = "is missing"
        elif cause["type"] == "literal_error":
            names = re.findall(r"'([^']+)'", str(cause["ctx"]["expected"]))
            message += _suggested(str(cause["input"]), names)
        elif cause["type"] == "value_error":
            keys, message = _of_the_whole(keys, message, content)
        yield Finding("fault", lines.of(keys), ".".join(map(str, keys)), message)


def _of_the_whole(keys: Keys, message: str, content: Mapping[str, Any]) -> tuple[Keys, str]:
    """A fault between settings names the policy and the feature in its text: where they stand."""
    policies = content.get("policies")
    names = policies if isinstance(policies, dict) else {}
    for name in sorted(names, key=len, reverse=True):
        if not keys and message.startswith(f"policies.{name}: "):
            keys, message = ("policies", name), message.removeprefix(f"policies.{name}: ")
    setting = re.match(r"(\w+): ", message)
    parent = _at(content, keys)
    if setting and isinstance(parent, dict) and setting[1] in parent:
        keys, message = (*keys, setting[1]), message.removeprefix(setting[0])
    for kind, place in (("cross", "crosses"), ("feature", "features")):
        listed = _at(content, (*keys, place))
        found = re.match(rf"{kind} '([^']*)'", message)
        if found and isinstance(listed, list) and found[1] in listed:
            keys = (*keys, place, listed.index(found[1]))
    if unknown := re.search(r"there is no feature '([^']*)'", message):
        features = content.get("features", {})
        message += _suggested(unknown[1], [*features.get("context", {}), *features.get("arm", {})])
    return keys, message


def valid_names(model: Any, keys: Keys, content: Any) -> list[str]:
    """The settings that there are at a path of a definition."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
        model = _inside(model, key, content)
    return [*model.model_fields] if _is_model(model) else []


def _inside(model: Any, key: str | int, content: Any) -> Any:
    """The type of a setting: of a union, the member that `kind` or `type` names."""
    if _is_model(model):
        field = model.model_fields.get(key)
        found = field.annotation if field else None
    else:
        found = (get_args(model) or (None,))[-1]  # of a dict: its values
    while get_origin(found) is Annotated:
        found = get_args(found)[0]
    if get_origin(found) not in (Union, UnionType):
        return found
    given = content if isinstance(content, dict) else {}
    for member in filter(_is_model, get_args(found)):
        for tag in ("kind", "type"):
            named = member.model_fields.get(tag)
            if named is not None and given.get(tag) in get_args(named.annotation):
                return member
    return None


def _is_model(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _at(content: Any, keys: Keys) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _keys(path: str, content: Any) -> Keys:
    """A dotted path as keys; names may have dots in them."""
    keys: list[str] = []
    while path and isinstance(content, dict):
        fitting = [key for key in content if path == key or path.startswith(f"{key}.")]
        if not fitting:
            break
        key = max(fitting, key=len)
        keys.append(key)
        content, path = content[key], path[len(key) + 1 :]
    return tuple(keys)


def _suggested(given: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(given, list(names), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _near(given: str, names: Iterable[str]) -> str:
    """The nearest name, or where none is near: all of them."""
    names = list(names)
    return _suggested(given, names) or f"; there are: {', '.join(names)}" * bool(names)


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"
