"""The lines of the keys of a TOML file. `tomllib` forgets them, so it reads the text once more, one
statement at a time.
"""

import re
import tomllib
from collections.abc import Iterator
from itertools import product

Path = tuple[str | int, ...]

ENDS = [
    "".join(end)
    for end in product(("", '"""', "'''"), ("", "]", "]]", "}", "]}", "}]", "}]}", "]]]"))
]
"""Closings that complete a value which goes on in the next line."""

LONG = 200
"""Lines of a statement within which each item is found at its own line; later items are reported
at the first."""
MAY_END = re.compile(r"""[]}]|\"{3}|'{3}""")


class Lines:
    """The line, from 1, of each path of keys and of each item of a list, in a text that `tomllib`
    accepts."""

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
            content, whole = _read(statement, [""] if long else ENDS)
            if content is None:
                continue
            if statement.lstrip(" \t").startswith("["):
                table = self._header(content, since)
            elif not long:  # to read each beginning of a long one takes seconds
                for path in _paths(content, table):
                    self._lines.setdefault(path, since)
            since = number + 1
            if whole:
                statement, begun = "", since

    def of(self, path: Path) -> int | None:
        """The line of a path, or of its innermost part that has one; None: of the file."""
        for length in range(len(path), 0, -1):
            if line := self._lines.get(path[:length]):
                return line
        return None

    def _header(self, content: object, line: int) -> Path:
        """The path of the table that `[a.b]` or `[[a.b]]` begins. content: of the header alone."""
        path: Path = ()
        while isinstance(content, dict) and content:
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


def _read(statement: str, ends: list[str]) -> tuple[dict[str, object] | None, bool]:
    """Its content (None: it cannot be read so far), and whether it ends here."""
    for end in ends:
        try:
            return tomllib.loads(f"{statement}{end}"), not end
        except tomllib.TOMLDecodeError:
            pass
    return None, False


def _paths(content: object, path: Path) -> Iterator[Path]:
    """The path itself and those of all its content."""
    if path:
        yield path
    if isinstance(content, list):
        content = dict(enumerate(content))
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _paths(value, (*path, key))
