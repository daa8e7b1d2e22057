"""Faults and warnings of an experiment file, each with its dotted path and the nearest known name.

The verdict is that of `forage serve`; this module explains it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from service.definition.experiment import Definition, load_definition
from service.definition.faults import faults_of, path_of
from service.definition.files import text_of, toml_of
from service.definition.lint import lint
from service.errors import Invalid
from service.features.declaration import NAME, NAME_RULE
from service.manage.admin import Admin
from service.naming import nearest
from service.offline.definition_client import send_definition
from service.settings import Settings

Keys = tuple[str | int, ...]
FindingLevel = Literal["fault", "warning"]


@dataclass(frozen=True, slots=True)
class FileFinding:
    """Fault or warning of a file. path: of the setting, dotted (`policies.main.alpha`); empty for
    the file as a whole."""

    level: FindingLevel
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of one file. experiment, arms and policies are those of a file without a
    fault."""

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
        """Lay out a line a finding, and one for the whole file."""
        lines = []
        for each in self.findings:
            path = f"{each.path}: " if each.path else ""
            lines.append(f"{self.file}: {each.level}: {path}{each.message}")
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
        text = text_of(path)
    except ValueError as error:
        return _unreadable(str(path), str(error))
    return check(text, str(path), path.stem)


def effects(path: Path, settings: Settings) -> list[FileFinding]:
    """Ask a service which policies a file would start from the prior, and which parts of the
    experiment would go. Raises ConfigurationError where it does not answer."""
    told = send_definition(*load_definition(path), settings, dry_run=True)
    anew = [
        FileFinding("warning", f"policies.{policy}", f"starts from the prior: {reason}")
        for policy, reason in told.restarted.items()
    ]
    return anew + [FileFinding("warning", *each) for each in told.changes.losses()]


def _unreadable(file: str, message: str) -> Checked:
    return Checked(file, [FileFinding("fault", "", message)])


def check(text: str, file: str, stem: str) -> Checked:
    """Check the text of a file. stem: the experiment's name where the text has none."""
    try:
        content = toml_of(text)
    except ValueError as error:
        return _unreadable(file, str(error))
    name = content.pop("name", stem)
    findings = []
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        findings.append(FileFinding("fault", "name", NAME_RULE))
    found = Checked(file, findings)
    try:
        definition = Definition.model_validate(content).completed()
        Admin.check(definition)
    except ValidationError as error:
        findings += [_finding("fault", *each) for each in _faults(error, content)]
        findings += _behind(error, toml_of(text), {each.path for each in findings})
    except Invalid as error:
        findings += [FileFinding("fault", fault.path, fault.message) for fault in error.faults]
    else:
        findings += [_finding("warning", *each) for each in lint(definition)]
        arms, policies = len(definition.arms), len(definition.policies)
        found = Checked(file, findings, str(name), arms, policies)
    return found


def _behind(
    error: ValidationError, mended: dict[str, object], known: set[str]
) -> list[FileFinding]:
    """Return the faults that a wrong `kind` or `type` hides, as they are under the nearest name.
    mended: the content of the file, which this changes."""
    mended.pop("name", None)
    changed = False
    for cause in error.errors():
        if cause["type"] == "union_tag_invalid":
            tags = re.findall(r"'([^']+)'", str(cause["ctx"]["expected_tags"]))
            *keys, tag = path_of(cause, mended)
            near, table = nearest(str(cause["ctx"]["tag"]), tags), _at(mended, tuple(keys))
            if near and isinstance(table, dict):
                table[tag] = near
                changed = True
    if not changed:
        return []
    try:
        Definition.model_validate(mended)
    except ValidationError as further:
        found = [_finding("fault", *each) for each in _faults(further, mended)]
        return [each for each in found if each.path not in known]
    return []


def _finding(level: FindingLevel, keys: Keys, message: str) -> FileFinding:
    return FileFinding(level, ".".join(map(str, keys)), message)


def _faults(error: ValidationError, content: object) -> Iterator[tuple[Keys, str]]:
    """Yield one fault a value, under the path of what has to be mended."""
    errors = error.errors()
    by_path = {".".join(map(str, path_of(each, content))): each for each in reversed(errors)}
    for fault in faults_of(errors, content, Definition):
        cause = by_path[fault.path]
        keys, message = path_of(cause, content), fault.message
        if cause["type"] == "value_error":
            keys, message = _of_the_whole(keys, message, content)
        yield keys, message


def _of_the_whole(keys: Keys, message: str, content: object) -> tuple[Keys, str]:
    """Find the keys of a fault between settings, whose text names the setting and the feature."""
    setting = re.match(r"(\w+): ", message)
    if setting and setting[1] in _table(content, *keys):
        keys, message = (*keys, setting[1]), message.removeprefix(setting[0])
    for kind, place in (("cross", "crosses"), ("feature", "features")):
        listed = _at(content, (*keys, place))
        found = re.match(rf"{kind} '([^']*)'", message)
        if found and isinstance(listed, list) and found[1] in listed:
            keys = (*keys, place, listed.index(found[1]))
    return keys, message


def _at(content: object, keys: Keys) -> object:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _table(content: object, *keys: str | int) -> Mapping[str, object]:
    """Find the table at these keys; empty where there is none."""
    found = _at(content, keys)
    return found if isinstance(found, dict) else {}


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"
