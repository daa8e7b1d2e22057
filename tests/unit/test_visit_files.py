"""Files of logged visits: the same three visits in each form, and lines that are none."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from service.errors import ConfigurationError
from service.maintenance.visit_files import read

TYPES = {"persona": "categorical", "age": "numeric", "member": "boolean", "taste": "vector"}
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
    return [visit for _, visit in read(path, TYPES)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.ndjson", "LOG.JSONL"])
def test_json_lines_hold_visits_as_they_are_sent(tmp_path: Path, name: str) -> None:
    text = "\n\n".join(map(json.dumps, VISITS)) + "\n"
    path = written(tmp_path / name, text)
    assert list(read(path, TYPES)) == [(1, VISITS[0]), (3, VISITS[1]), (5, VISITS[2])]


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
    text = 'id,context,context.age\na,"{""persona"": ""cat"", ""age"": null}",2\n'
    [visit] = visits(written(tmp_path / "log.csv", text))
    assert visit == {"id": "a", "context": {"persona": "cat", "age": 2.0}}


def test_cells_that_are_not_what_they_should_be_are_left_for_the_service_to_refuse(
    tmp_path: Path,
) -> None:
    text = "id,at,propensity,context.age,context.member,context.taste\na,2024-05-01,half,x,y,z\n"
    [visit] = visits(written(tmp_path / "log.csv", text))
    assert visit["at"] == "2024-05-01"
    assert visit["propensity"] == "half"
    assert visit["context"] == {"age": "x", "member": "y", "taste": "z"}


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
    assert list(read(path, TYPES)) == list(enumerate(VISITS, 1))


def test_a_parquet_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    times = pyarrow.array([datetime(2024, 5, 1, 12)], pyarrow.timestamp("us"))
    parquet.write_table(pyarrow.table({"at": times, "arms": [["4", "17"]]}), path)
    assert visits(path) == [{"at": 1714564800.0, "arms": ["4", "17"]}]


def test_lines_that_are_no_visits_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", '{"id": "a"}\n{"id":\n[1]\n')
    assert list(read(path, TYPES)) == [
        (1, {"id": "a"}),
        (2, "not JSON: Expecting value"),
        (3, "not a JSON object"),
    ]
    path = written(tmp_path / "log.csv", "id,arm\na,4\nb,5,6\n")
    assert list(read(path, TYPES))[1] == (3, "has more cells than the first line has names")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("log.txt", b"", "must end with .jsonl, .ndjson, .csv, .parquet"),
        ("log.jsonl", b"\xff\xfe", "cannot be read"),
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
