"""Where the keys of a TOML file stand. `tomllib` reads values and forgets their lines.

One pass over text that `tomllib` has accepted, so nothing is judged here (toml.io, version 1.0).
"""

import re
import tomllib

Path = tuple[str | int, ...]

_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


class Lines:
    """Of a text: the line of each path of keys and of each item of a list, from 1."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text.removeprefix("\ufeff"), 0
        self._number, self._counted = 1, 0
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        self._table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            if self._peek("["):
                self._header()
            else:
                self._pair(self._table)

    def of(self, path: Path) -> int | None:
        """The line of a path, or of the nearest that holds it; None: of the file as a whole."""
        for length in range(len(path), 0, -1):
            if line := self._lines.get(path[:length]):
                return line
        return None

    def _header(self) -> None:
        listed = self._peek("[[")
        self._at += 2 if listed else 1
        self._skip(_SPACE)
        line, keys = self._line(), self._keys()
        path: Path = ()
        for key in keys[:-1]:
            path = (*path, key)
            self._note(path, line)
            if path in self._counts:  # a table of the last item of a list
                path = (*path, self._counts[path] - 1)
        path = (*path, keys[-1])
        self._note(path, line)
        if listed:
            index = self._counts.get(path, 0)
            self._counts[path] = index + 1
            path = (*path, index)
            self._note(path, line)
        self._at += 2 if listed else 1
        self._table = path

    def _pair(self, table: Path) -> None:
        self._skip(_SPACE)
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._note(path, line)
        self._at += 1  # the equals sign
        self._value(path)

    def _keys(self) -> list[str]:
        """A dotted key, up to what follows it."""
        keys = []
        while found := _KEY.match(self._text, self._at):
            self._at = found.end()
            key = found[0]
            keys.append(tomllib.loads(f"v = {key}")["v"] if key[0] in "\"'" else key)
            self._skip(_SPACE)
            if not self._peek("."):
                break
            self._at += 1
            self._skip(_SPACE)
        return keys

    def _value(self, path: Path) -> None:
        self._skip(_BLANK)
        if self._peek("["):
            self._at += 1
            index = 0
            while self._skip(_BLANK) and not self._peek("]"):
                self._note((*path, index), self._line())
                self._value((*path, index))
                index += 1
                self._comma()
            self._at += 1
        elif self._peek("{"):
            self._at += 1
            while self._skip(_BLANK) and not self._peek("}"):
                self._pair(path)
                self._comma()
            self._at += 1
        else:
            found = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
            self._at = found.end() if found else self._at + 1

    def _comma(self) -> None:
        self._skip(_BLANK)
        if self._peek(","):
            self._at += 1

    def _peek(self, mark: str) -> bool:
        return self._text.startswith(mark, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at

    def _line(self) -> int:
        self._number += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._number

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)
