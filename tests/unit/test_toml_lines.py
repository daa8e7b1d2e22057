"""Lines: every path of a TOML file has its line, however it is written."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.definition.toml_lines import Lines

AWKWARD = '''\
# a comment = 1
name = "a # [not] = a comment"
a.b . "c d" = 1
"q\\u0041.z" = { x = 1, "y" = [1,
  2, { deep = """
[no]
k = 1
"four quotes"""" }], z.w = 'v]' }
list = [ # ]
  "one", # , two
  "tw\\"o",
  [3, 4],
]
m = \'\'\'it's ''\'\'\'
empty = ""
[ t . "u.v" ]
k = 1979-05-27 07:32:00
[[aot]]
n=1
[aot.sub]
z=1
[[aot]]
n=2
[[aot.inner]]
x = -inf
[[aot.inner]]
x = +1_0
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("a", "b", "c d"), 3),
        (("qA.z", "x"), 4),
        (("qA.z", "y", 1), 5),
        (("qA.z", "y", 2, "deep"), 5),
        (("qA.z", "z", "w"), 8),
        (("list", 1), 11),
        (("list", 2, 1), 12),
        (("m",), 14),
        (("t", "u.v", "k"), 17),
        (("aot", 0, "n"), 19),
        (("aot", 0, "sub", "z"), 21),
        (("aot", 1, "n"), 23),
        (("aot", 1, "inner", 1, "x"), 27),
        (("t", "u.v", "missing"), 16),
        (("list", 9), 9),
        (("nowhere",), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_path_has_its_line(path: tuple[str | int, ...], line: int | None, end: str) -> None:
    assert Lines(AWKWARD.replace("\n", end)).of(path) == line


def paths(content: Any, prefix: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content)
    for key, value in items:
        yield (*prefix, key)
        yield from paths(value, (*prefix, key))


def test_every_path_of_the_awkward_file_is_found() -> None:
    lines = Lines(AWKWARD)
    assert set(paths(tomllib.loads(AWKWARD))) == set(lines._lines)


names = st.text(st.sampled_from("ab.# ]=\"'\\é"), max_size=4)
scalars = st.one_of(
    st.booleans(), st.integers(-9, 9), st.text(st.sampled_from("a#]},=[\n\"'\\"), max_size=6)
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(names, v, max_size=3), max_leaves=8
)


def written(value: Any, spread: bool) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(k)} = {written(v, spread)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        gap = " # , ]\n " if spread else " "
        return "[" + "".join(f"{gap}{written(v, spread)}," for v in value) + gap.rstrip(" ") + "]"
    if isinstance(value, str) and spread and "\\" not in value:
        return f'"""\n{value.replace(chr(34), chr(92) + chr(34))}"""'
    return json.dumps(value, ensure_ascii=False)


@given(st.dictionaries(names, values, max_size=4), st.booleans(), st.booleans())
def test_the_paths_found_are_those_that_tomllib_reads(
    content: dict[str, Any], spread: bool, tables: bool
) -> None:
    parts = []
    for key, value in content.items():
        if tables and isinstance(value, dict):
            body = "\n".join(f"{json.dumps(k)} = {written(v, spread)}" for k, v in value.items())
            parts.append(f"[{json.dumps(key, ensure_ascii=False)}]\n{body}")
        else:
            parts.insert(0, f"{json.dumps(key, ensure_ascii=False)} = {written(value, spread)}")
    text = "\n".join(parts)
    assert set(paths(tomllib.loads(text))) == set(Lines(text)._lines)


def test_late_items_of_a_long_list_have_the_line_of_the_list() -> None:
    items = "\n".join(f'  "value {number}",' for number in range(1_000))
    lines = Lines(f"a = 1\nlist = [\n{items}\n]\nb = 2\n")
    assert (lines.of(("list", 9)), lines.of(("list", 900)), lines.of(("b",))) == (12, 2, 1_004)
