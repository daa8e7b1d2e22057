"""Where the keys of a TOML file stand. `tomllib` reads values and forgets their lines, so it reads
the text once more, a statement at a time.
"""

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from typing import Any

Path = tuple[str | int, ...]

ENDS = [
    "".join(end)
    for end in product(("", '"""', "'''"), ("", "]", "]]", "}", "]}", "}]", "}]}", "]]]"))
]
"""What ends a value in the middle of which a line ends."""

LONG = 200
"""Lines of a statement within which each item has its own line; further ones have its first."""
MAY_END = re.compile(r"""[]}]|\"{3}|'{3}""")


class Lines:
    """Of a text that `tomllib` accepts: the line of each path of keys and of each item of a list,
    from 1."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        table: Path = ()
        statement, begun, since = "", 1, 1
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            statement += f"{line}\n"
            long = number - begun > LONG
            if long and not MAY_END.search(line):
                continue
            found = _read(statement, [""] if long else ENDS)
            if found is None:
                continue
            content, whole = found
            if statement.lstrip(" \t").startswith("["):
                table = self._header(content, since)
            elif not long:  # to read each beginning of a long one takes seconds
                for path in _paths(content, table):
                    self._lines.setdefault(path, since)
            since = number + 1
            if whole:
                statement, begun = "", since

    def of(self, path: Path) -> int | None:
        """The line of a path, or of the nearest that holds it; None: of the file as a whole."""
        for length in range(len(path), 0, -1):
            if line := self._lines.get(path[:length]):
                return line
        return None

    def _header(self, content: Any, line: int) -> Path:
        """Of `[a.b]` or `[[a.b]]`, as it is read alone: the table that begins here."""
        path: Path = ()
        while content:
            [(key, content)] = content.items()
            path = (*path, key)
            self._lines.setdefault(path, line)
            if isinstance(content, list):
                [content] = content
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:  # the last item of a list
                path = (*path, self._counts[path] - 1)
                self._lines.setdefault(path, line)
        return path


def _read(statement: str, ends: list[str]) -> tuple[Any, bool] | None:
    """Its content, and whether it ends here; None: it cannot be read so far."""
    for end in ends:
        try:
            return tomllib.loads(f"{statement}{end}"), not end
        except tomllib.TOMLDecodeError:
            pass
    return None


def _paths(content: Any, path: Path) -> Iterator[Path]:
    """Of all that is in it."""
    if path:
        yield path
    items: Any = content.items() if isinstance(content, dict) else ()
    for key, value in enumerate(content) if isinstance(content, list) else items:
        yield from _paths(value, (*path, key))
