"""New names of the columns of a file, as `--map` takes them: `old=new,old=new`."""

import re
import shlex
from collections.abc import Mapping

RENAME_PATTERN = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*|([^",][^,]*|))=([^,="]*)(?:,|$)')


class Renames(dict[str, str]):
    """Name in the file -> name in a visit; "" leaves a column out."""


def read_renames(text: str) -> Renames:
    """Read `old=new,old=new`. An old name with a comma or a quote, or blanks at its ends, stands in
    double quotes, as in CSV; of others, the last `=` divides. Raises ValueError."""
    found, end = Renames(), 0
    while end < len(text):
        part = RENAME_PATTERN.match(text, end)
        if part is None:
            raise ValueError(
                'write NAME=NEW,NAME=NEW, and a NAME with a comma in double quotes: "a,b"=NEW'
            )
        quoted, plain, new = part.groups()
        old = plain.strip() if quoted is None else quoted.replace('""', '"')
        if old in found:
            raise ValueError(f"write NAME=NEW,NAME=NEW, each NAME once: not twice {old!r}")
        found[old], end = new.strip(), part.end()
    return found


def option_of(renames: Mapping[str, str]) -> str:
    """Write the option for a shell."""
    parts = []
    for old, new in renames.items():
        if old != old.strip() or {*old} & {",", '"', "\n"}:
            old = '"{}"'.format(old.replace('"', '""'))
        parts.append(f"{old}={new}")
    return f"--map {shlex.quote(','.join(parts))}"
