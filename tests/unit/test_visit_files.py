"""Files of logged visits: the same three visits in each form, and lines that are none."""

import json
import shlex
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from service.errors import ConfigurationError
from service.offline.dsjson import KnownFeatures
from service.offline.import_client import batches
from service.offline.renames import Renames, option_of, read_renames
from service.offline.visit_files import read

KNOWN = KnownFeatures(
    {"persona": "categorical", "age": "numeric", "member": "boolean", "taste": "vector"}
)
VISITS: list[dict[str, Any]] = [
    {
        "id": "a",
        "at": 1714564800.0,
        "context": {"persona": "cat", "age": 3.5, "member": True, "taste": [0.5, 1.0]},
        "arms": ["4", "17"],
        "arm": "4",
        "propensity": 0.5,
        "probabilities": [0.5, 0.5],
        "reward": 1.0,
        "unit": "7",
    },
    {"id": "b", "at": 1714564801.0, "context": {"persona": "12"}, "arm": "17", "propensity": 1.0},
    {
        "id": "c",
        "at": 1714564802.0,
        "context": {"persona": "dog", "member": False},
        "arms": [{"id": "9", "features": {"category": "toy"}}],
        "arm": "9",
        "propensity": 0.25,
        "reward": 0.0,
    },
]


def visits(path: Path) -> list[Any]:
    return [visit for _, visit in read(path, KNOWN)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_number_that_json_does_not_have_is_refused_in_plain_words(tmp_path: Path) -> None:
    """In CSV it stays text, which the service refuses with its path."""
    cells = ["nan", "inf", "1e999", "9" * 5_001]
    lines = "".join(f"{n},0,a,{cell}\n" for n, cell in enumerate(cells))
    path = written(tmp_path / "log.csv", "id,at,arm,propensity\n" + lines)
    [part] = batches(read(path, KNOWN))
    sent = [json.loads(visit) for _, visit in part]
    assert [visit["propensity"] for visit in sent] == cells
    text = "\n".join(f'{{"id": "a", "propensity": {value}}}' for value in ("NaN", "9" * 5_001))
    [part] = batches(read(written(tmp_path / "log.jsonl", text), KNOWN))
    assert part == [
        (1, "propensity is NaN or infinite, which is no number: leave it out"),
        (2, "not JSON: a number has more than 4,300 digits"),
    ]


@pytest.mark.parametrize("name", ["log.jsonl", "log.ndjson", "LOG.JSONL"])
def test_json_lines_hold_visits_as_they_are_sent(tmp_path: Path, name: str) -> None:
    text = "\n\n".join(map(json.dumps, VISITS)) + "\n"
    path = written(tmp_path / name, text)
    assert list(read(path, KNOWN)) == [(1, VISITS[0]), (3, VISITS[1]), (5, VISITS[2])]


def test_names_may_be_numbers_and_nulls_are_left_out(tmp_path: Path) -> None:
    line = {**VISITS[0], "arm": 4, "arms": [4, {"id": 17, "features": None}], "unit": 7, "id": 1}
    path = written(tmp_path / "log.jsonl", json.dumps({**line, "reward": None}))
    [visit] = visits(path)
    assert (visit["id"], visit["arm"], visit["unit"]) == ("1", "4", "7")
    assert visit["arms"] == ["4", {"id": "17"}]
    assert "reward" not in visit


CSV = """id,at,context.persona,context.age,context.member,context.taste,arms,arm,propensity,\
probabilities,reward,unit
a,1714564800,cat,3.5,true,"[0.5, 1]","[""4"", ""17""]",4,0.5,"[0.5, 0.5]",1,7
b,1714564801,12,,,,,17,1,,,
c,1714564802,dog,,0,,"[{""id"": ""9"", ""features"": {""category"": ""toy""}}]",9,0.25,,0,
"""


def test_cells_are_what_the_definition_says(tmp_path: Path) -> None:
    assert visits(written(tmp_path / "log.csv", CSV)) == VISITS


def test_a_context_may_be_one_cell_of_json(tmp_path: Path) -> None:
    text = (
        'id,at,arm,propensity,context,context.age\na,,,,"{""persona"": ""cat"", ""age"": null}",2\n'
    )
    [visit] = visits(written(tmp_path / "log.csv", text))
    assert visit == {"id": "a", "context": {"persona": "cat", "age": 2.0}}


def test_cells_that_are_not_what_they_should_be_are_left_for_the_service_to_refuse(
    tmp_path: Path,
) -> None:
    head = "id,arm,at,propensity,context.age,context.member,context.taste"
    text = f"{head}\na,4,2024-05-01,half,x,y,{'9' * 5_001}\n"
    [visit] = visits(written(tmp_path / "log.csv", text))
    assert visit["at"] == "2024-05-01"
    assert visit["propensity"] == "half"
    assert visit["context"] == {"age": "x", "member": "y", "taste": "9" * 5_001}


def test_parquet_holds_columns_of_their_own_types(tmp_path: Path) -> None:
    rows = [
        {
            "id": visit["id"],
            "at": datetime.fromtimestamp(visit["at"], UTC),
            "context": visit["context"],
            "arms": json.dumps(visit["arms"]) if "arms" in visit else None,
            "arm": int(visit["arm"]),
            "propensity": visit["propensity"],
            "probabilities": visit.get("probabilities"),
            "reward": visit.get("reward"),
            "unit": visit.get("unit"),
        }
        for visit in VISITS
    ]
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(read(path, KNOWN)) == list(enumerate(VISITS, 1))


def test_a_parquet_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    times = pyarrow.array([datetime(2024, 5, 1, 12)], pyarrow.timestamp("us"))
    own: dict[str, Any] = {"id": ["a"], "arm": ["4"], "propensity": [0.5]}
    parquet.write_table(pyarrow.table({**own, "at": times, "arms": [["4", "17"]]}), path)
    [visit] = visits(path)
    assert (visit["at"], visit["arms"]) == (1714564800.0, ["4", "17"])


def test_lines_that_are_no_visits_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", '{"id": "a"}\n{"id":\n[1]\n')
    assert list(read(path, KNOWN)) == [
        (1, {"id": "a"}),
        (2, "not JSON: Expecting value"),
        (3, "not a JSON object"),
    ]
    path = written(tmp_path / "log.csv", f"{HEAD}\na,4,1,1\nb,5,1,1,6\n")
    say = "has more cells than the first line has names: 5, not 4"
    assert list(read(path, KNOWN))[1] == (3, say)


def test_a_row_with_fewer_cells_is_refused_and_a_blank_line_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", f"{HEAD}\na,4,1,1\n\nb,5,1\nc,5,1,1\n")
    lines = list(read(path, KNOWN))
    assert [number for number, _ in lines] == [2, 4, 5]
    assert lines[1][1] == "has fewer cells than the first line has names: 3, not 4"


HEAD = "id,arm,at,propensity"


@pytest.mark.parametrize("name", ["log.jsonl", "log.dsjson"])
def test_a_line_that_names_a_member_twice_is_refused_with_its_path(
    tmp_path: Path, name: str
) -> None:
    lines = '{"c": {"_multi": [{"i": {"id": "a", "id": "b"}}]}}\n{"id": "a", "id": "a"}'
    assert visits(written(tmp_path / name, lines)) == [
        "c._multi.0.i.id: is given more than once",
        "id: is given more than once",
    ]


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, name: str) -> None:
    content = json.dumps(VISITS[0]) if name == "log.jsonl" else CSV
    path = tmp_path / name
    path.write_text(content, encoding="utf-8-sig")
    assert visits(path)[0] == VISITS[0]


def test_a_line_that_cannot_be_read_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    good = b'{"id": "a"}'
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b"\n".join(
            [
                good,
                b'{"id": "\xff"}',
                b'{"id": "\\ud800"}',
                b'{"reward": ' + b"1" * 5_001 + b"}",
                b'{"context": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
                b'{"reward": 1e999}',
                good,
            ]
        )
    )
    [part] = batches(read(path, KNOWN))
    assert part == [
        (1, b'{"id":"a"}'),
        (2, "not UTF-8"),
        (3, "holds half of a surrogate pair, which is no character"),
        (4, "not JSON: a number has more than 4,300 digits"),
        (5, "not JSON: it is nested too deeply"),
        (6, "reward is NaN or infinite, which is no number: leave it out"),
        (7, b'{"id":"a"}'),
    ]


def test_a_csv_row_that_cannot_be_read_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [b"a,4,1,1", b"b\xff,4,1,1", b"c," + b"4" * 200_000 + b",1,1", b"d,4,1,1"]
    path.write_bytes(b"\n".join([HEAD.encode(), *rows]))
    (_, first), second, third, (number, last) = read(path, KNOWN)
    assert second == (3, "not UTF-8")
    assert third == (4, "not CSV: a cell has more than 131,072 characters")
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert (number, first["id"], last["id"]) == (5, "a", "d")


def test_a_parquet_row_that_cannot_be_read_is_refused_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    binary = pyarrow.array([b"a", b"\xff", b"c"], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(3, binary.buffers()[1], binary.buffers()[2])
    table = pyarrow.table({"id": text, "arm": ["4"] * 3, "at": [1] * 3, "propensity": [1.0] * 3})
    path = tmp_path / "log.parquet"
    parquet.write_table(table, path)
    first, second, third = visits(path)
    assert (first["id"], second, third["id"]) == ("a", "not UTF-8", "c")


RAW = "id,at,shown,prob,page\na,1714564800,4,0.5,home\n"


def test_columns_are_renamed_or_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", RAW)
    names = {"shown": "arm", "prob": "propensity", "page": ""}
    [(_, visit)] = read(path, KNOWN, Renames(names))
    assert visit == {"id": "a", "at": 1714564800.0, "arm": "4", "propensity": 0.5}
    path = written(tmp_path / "log.jsonl", '{"id": "a", "shown": 4, "page": "home"}')
    assert list(read(path, KNOWN, Renames(names))) == [(1, {"id": "a", "arm": "4"})]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            {},
            "no column arm, propensity, only 'id', 'at', 'shown', 'prob', 'page': rename columns "
            "with --map shown=arm,prob=propensity,page=$",
        ),
        (
            {"shown": "", "prob": ""},
            "with --map shown=,prob=,page=,YOUR_ARM=arm,YOUR_PROPENSITY=propensity$",
        ),
        (
            {"shown": "arm", "prob": "propensity"},
            "a visit has no 'page': .* with --map shown=arm,prob=propensity,page= ",
        ),
        (
            {"shown": "arm", "prob": "propensity", "page": "persona"},
            "a visit has no 'persona': .* "
            "with --map shown=arm,prob=propensity,page=context.persona ",
        ),
        ({"show": "arm"}, "--map: there is no column 'show', only 'id', 'at', 'shown', 'prob'"),
        ({"shown": "arm", "prob": "arm", "page": ""}, "two columns are named 'arm'"),
    ],
)
def test_columns_that_no_visit_has_are_named(
    tmp_path: Path, names: dict[str, str], said: str
) -> None:
    path = written(tmp_path / "log.csv", RAW)
    with pytest.raises(ConfigurationError, match=said):
        list(read(path, KNOWN, Renames(names)))


def test_no_feature_is_taken_for_what_a_visit_needs(tmp_path: Path) -> None:
    """Neither a declared one of a likely name, nor a column whose name says nothing."""
    known = KnownFeatures({"time": "numeric", "item_price": "numeric"})
    path = written(tmp_path / "log.csv", "id,time,item_price,age,weekday_p\n")
    with pytest.raises(
        ConfigurationError, match=r"time=context\.time,item_price=context\.item_price"
    ):
        list(read(path, known))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("log.txt", b"", "must end with .jsonl, .ndjson, .dsjson, .csv, .parquet"),
        ("log.csv", b"x" * 200_000, "cannot be read: a cell has more than 131,072 characters"),
        ("log.parquet", b"no parquet", "cannot be read"),
        ("nowhere/log.csv", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_said(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        visits(path)


# -- names of columns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a=b, c = d ,e=", {"a": "b", "c": "d", "e": ""}),
        ("=,x=id", {"": "", "x": "id"}),
        ("=id", {"": "id"}),
        ("a=b=arm", {"a=b": "arm"}),
        ('"a,b"=arm,"say ""hi"""=', {"a,b": "arm", 'say "hi"': ""}),
        ('" at"=at,""=', {" at": "at", "": ""}),
        ('"a=b"=arm', {"a=b": "arm"}),
    ],
)
def test_every_name_of_a_column_can_be_written(text: str, names: dict[str, str]) -> None:
    assert read_renames(text) == names
    [flag, value] = shlex.split(option_of(names))
    assert (flag, read_renames(value)) == ("--map", names)


@pytest.mark.parametrize("text", ["a", "a,b=c", '"a=b', '"a"b=c', 'a="b"', "a=b,a=c", ","])
def test_what_renames_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write NAME=NEW,NAME=NEW"):
        read_renames(text)


@pytest.mark.parametrize(
    "text",
    [
        "id;when;time;item;prob\na;x;1714564800;4;0.5\n",
        "id\tat\tarm\tpropensity\na\t1714564800\t4\t0.5\n",
        "id, at, arm, propensity\na, 1714564800, 4, 0.5\n",
        "id, at,arm,propensity\na,1714564800,4,0.5\n",
        ",id,at,arm,propensity\n0,a,1714564800,4,0.5\n",
        'id,"time, UTC",arm,"p=x","say ""hi""",persona\na,1714564800,4,0.5,,cat\n',
        "key,ts,$item,`p`,it's,a b\na,1714564800,4,0.5,1,2\n",
    ],
)
def test_each_hint_works_as_it_is_pasted(tmp_path: Path, text: str) -> None:
    """Each run names one more option, until the file is taken."""
    path, options = written(tmp_path / "log.csv", text), dict[str, str]()

    def taken() -> list[Any]:
        renames, separator = read_renames(options.get("--map", "")), options.get("--separator", ",")
        return [visit for _, visit in read(path, KNOWN, renames, separator)]

    for _ in range(3):
        try:
            [visit] = taken()
        except ConfigurationError as fault:
            hint = str(fault).partition(" with ")[2].partition(" (a visit")[0]
            flag, value = shlex.split(hint)
            options[flag] = value
    [visit] = taken()
    assert isinstance(visit, dict)
    values = {name: visit[name] for name in ("id", "at", "arm", "propensity")}
    assert values == {"id": "a", "at": 1714564800.0, "arm": "4", "propensity": 0.5}


# -- types of Parquet ------------------------------------------------------------------------------


def parquet_of(path: Path, **columns: Any) -> Path:
    own: dict[str, Any] = {"id": ["a"], "at": [1], "arm": ["4"], "propensity": [0.5]}
    parquet.write_table(pyarrow.table({**own, **columns}), path)
    return path


@pytest.mark.parametrize(
    ("column", "values", "visit"),
    [
        ("propensity", pyarrow.array([Decimal("0.25")], pyarrow.decimal128(9, 4)), 0.25),
        ("reward", pyarrow.array([Decimal("1.00")], pyarrow.decimal128(9, 2)), 1),
        ("arm", pyarrow.array([Decimal(17)], pyarrow.decimal128(20, 0)), "17"),
        ("arm", pyarrow.array([17.0]), "17"),
        ("unit", pyarrow.array([7.0]), "7"),
        ("at", pyarrow.array([date(2024, 5, 1)]), 1714521600.0),
        ("at", pyarrow.array([Decimal("1714564800.5")], pyarrow.decimal128(20, 1)), 1714564800.5),
    ],
)
def test_a_decimal_and_a_day_are_taken(
    tmp_path: Path, column: str, values: Any, visit: object
) -> None:
    [found] = visits(parquet_of(tmp_path / "log.parquet", **{column: values}))
    assert found[column] == visit


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("reward", pyarrow.array([float("nan")]), "reward is nan, which is no number"),
        ("context.age", pyarrow.array([float("inf")]), "context.age is inf, which is no number"),
        ("context.age", pyarrow.array([date(2024, 5, 1)]), "context.age is a time, which only"),
        ("unit", pyarrow.array([datetime(2024, 5, 1)]), "unit is a time, which only `at` may be"),
        ("unit", pyarrow.array([b"x"], pyarrow.binary()), "unit holds bytes: make it text"),
        (
            "context",
            pyarrow.array([{"age": date(2024, 5, 1)}]),
            "context.age is a time, which only `at` may be",
        ),
        ("probabilities", pyarrow.array([[0.5, float("nan")]]), "probabilities.1 is nan"),
        ("context", ['{"age": 1, "age": 2}'], "context: age: is given more than once"),
    ],
)
def test_a_value_without_a_meaning_is_refused_with_its_column(
    tmp_path: Path, column: str, values: Any, said: str
) -> None:
    [found] = visits(parquet_of(tmp_path / "log.parquet", **{column: values}))
    assert isinstance(found, str)
    assert found.startswith(said)
