"""What is wrong with an experiment file, and where: each fault with its line and the nearest name.

The verdict is that of `forage serve`; this only explains it.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from service.definition.experiment import NAME, Definition
from service.definition.faults import faults_of, path_of
from service.definition.lint import lint
from service.definition.toml_lines import Lines
from service.errors import Invalid
from service.serving.admin import Admin

Keys = tuple[str | int, ...]
Level = Literal["fault", "warning"]


@dataclass(frozen=True, slots=True)
class FileFinding:
    """line: from 1; None where the file as a whole is meant. path: of the setting, dotted."""

    level: Level
    line: int | None
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of one file. experiment, arms, policies: of a file without a fault."""

    file: str
    findings: list[FileFinding]
    experiment: str | None = None
    arms: int = 0
    policies: int = 0

    @property
    def faults(self) -> list[FileFinding]:
        return [each for each in self.findings if each.level == "fault"]

    def as_json(self) -> dict[str, object]:
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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        return _unreadable(str(path), None, error.strerror or "cannot be read")
    except UnicodeDecodeError as error:
        line = path.read_bytes().count(b"\n", 0, error.start) + 1
        return _unreadable(str(path), line, "not UTF-8")
    return check(text, str(path), path.stem)


def _unreadable(file: str, line: int | None, message: str) -> Checked:
    return Checked(file, [FileFinding("fault", line, "", message)])


def check(text: str, file: str, stem: str) -> Checked:
    """Check the text of a file. stem: the experiment's name where the text has none."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, line = _syntax(str(error), text)
        return _unreadable(file, line, message)
    lines = Lines(text)
    name = content.pop("name", stem)
    findings = []
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        say = "letters, digits, '_', '.' and '-', at most 64"
        findings.append(_finding("fault", lines, ("name",), say))
    found = Checked(file, findings)
    try:
        definition = Definition.model_validate(content).completed()
        Admin.check(definition)
    except ValidationError as error:
        findings += [_finding("fault", lines, *each) for each in _faults(error, content)]
    except Invalid as error:
        for fault in error.faults:
            place = lines.of(_keys(fault.path, content))
            findings.append(FileFinding("fault", place, fault.path, fault.message))
    else:
        findings += [_finding("warning", lines, *each) for each in lint(definition)]
        arms, policies = len(definition.arms), len(definition.policies)
        found = Checked(file, findings, name, arms, policies)
    findings.sort(key=lambda each: each.line or 0)
    return found


def _finding(level: Level, lines: Lines, keys: Keys, message: str) -> FileFinding:
    return FileFinding(level, lines.of(keys), ".".join(map(str, keys)), message)


def _syntax(message: str, text: str) -> tuple[str, int]:
    """The message of tomllib, and the line that it stopped at."""
    found = re.search(r"\(at line (\d+), column (\d+)\)", message)
    line = int(found[1]) if found else text.count("\n") + 1
    said = re.sub(r" \(at .*\)$", "", message)
    return f"not TOML: {said[:1].lower()}{said[1:]}", line


def _faults(error: ValidationError, content: object) -> Iterator[tuple[Keys, str]]:
    """One a value: the messages of `faults_of`, with the nearest name where one is wrong."""
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
        yield keys, message


def _of_the_whole(keys: Keys, message: str, content: object) -> tuple[Keys, str]:
    """A fault between settings names the policy and the feature in its text: their keys."""
    for name in sorted(_table(content, "policies"), key=len, reverse=True):
        if not keys and message.startswith(f"policies.{name}: "):
            keys, message = ("policies", name), message.removeprefix(f"policies.{name}: ")
    setting = re.match(r"(\w+): ", message)
    if setting and setting[1] in _table(content, *keys):
        keys, message = (*keys, setting[1]), message.removeprefix(setting[0])
    for kind, place in (("cross", "crosses"), ("feature", "features")):
        listed = _at(content, (*keys, place))
        found = re.match(rf"{kind} '([^']*)'", message)
        if found and isinstance(listed, list) and found[1] in listed:
            keys = (*keys, place, listed.index(found[1]))
    if unknown := re.search(r"there is no feature '([^']*)'", message):
        names = [*_table(content, "features", "context"), *_table(content, "features", "arm")]
        message += _suggested(unknown[1], names)
    return keys, message


def valid_names(model: object, keys: Keys, content: object) -> list[str]:
    """The settings at a path of a definition."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
        model = _inside(model, key, content)
    return [*model.model_fields] if _is_model(model) else []


def _inside(model: object, key: str | int, content: object) -> object:
    """The type of a setting: of a union, the member that `kind` or `type` names."""
    if _is_model(model):
        field = model.model_fields.get(str(key))
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


def _is_model(found: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _at(content: object, keys: Keys) -> object:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _table(content: object, *keys: str | int) -> Mapping[str, object]:
    """The table at these keys; empty where there is none."""
    found = _at(content, keys)
    return found if isinstance(found, dict) else {}


def _keys(path: str, content: object) -> Keys:
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
