"""One thing that was examined, and how it is reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

COLOURS = {"ok": "\033[32m", "warning": "\033[33m", "fault": "\033[31m"}
RESET = "\033[0m"


@dataclass(frozen=True, slots=True)
class Check:
    """name: of what was examined. advice: what to do; empty where all is well."""

    name: str
    level: Literal["ok", "warning", "fault"]
    message: str
    advice: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warning(name: str, message: str, advice: str) -> Check:
    return Check(name, "warning", message, advice)


def fault(name: str, message: str, advice: str) -> Check:
    return Check(name, "fault", message, advice)


def text(checks: Sequence[Check], *, colour: bool = False) -> str:
    """A line each with the advice under it, and a summary."""
    lines = []
    width = max(len(each.name) for each in checks)
    for each in checks:
        level = f"{each.level:7}"
        if colour:
            level = f"{COLOURS[each.level]}{level}{RESET}"
        lines.append(f"{level}  {each.name:{width}}  {each.message}")
        if each.advice:
            lines.append(f"{'':7}  {'':{width}}  -> {each.advice}")
    counts = {level: sum(each.level == level for each in checks) for level in COLOURS}
    lines.append(f"{counts['ok']} ok, {counts['warning']} to look at, {counts['fault']} to mend")
    return "\n".join(lines)


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
