"""Rows: base vectors packed, side by side, and moved to other features, to the last bit."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import Damaged
from service.features.declaration import Features
from service.features.row import PackedRows, Row, RowLayout
from service.features.schema import Schema
from tests.unit.folding import Log, shop

NUMBERS, CATEGORIES = 3, (2, 1, 300)
BLOCKS = np.array([0, 0, -1, 1, -1, *[2] * 300, -1])
"""Two values, a number, a boolean, a number, three hundred values, a number."""
STARTS = (0, 3, 5)
LAYOUT = RowLayout(BLOCKS)

rows = st.builds(
    lambda numbers, places: Row(np.array(numbers).tobytes(), places),
    st.lists(st.floats(width=64), min_size=NUMBERS, max_size=NUMBERS),
    st.tuples(*(st.integers(0, size) for size in CATEGORIES)),
)


def dense(row: Row) -> np.ndarray:
    """The base vector of a row, column by column."""
    x, numbers = np.zeros(len(BLOCKS)), np.frombuffer(row.numbers)
    x[[2, 4, 305]] = numbers
    for start, place in zip(STARTS, row.places, strict=True):
        if place:
            x[start + place - 1] = 1.0
    return x


@given(st.lists(rows, max_size=5))
def test_rows_are_read_as_they_were_packed_one_by_one_and_side_by_side(some: list[Row]) -> None:
    """Numbers keep their bits, also those of -0.0 and of what is not a number."""
    expected = np.array([dense(row) for row in some]).reshape(len(some), len(BLOCKS))
    packed = PackedRows(LAYOUT, some)
    for x in (LAYOUT.unpack(some), packed[:]):
        assert x.tobytes() == expected.tobytes()
    assert [LAYOUT.pack(x) for x in expected] == some
    assert list(packed) == some
    for column in (1, 2, 3, 304, 305):
        assert packed.column(column).tobytes() == expected[:, column].tobytes()
    again = PackedRows(LAYOUT)
    again.restore(packed.arrays(), len(some))
    assert list(again) == some


@settings(deadline=None)
@given(st.lists(rows, max_size=140), st.data())
def test_packed_rows_are_a_list_of_rows(some: list[Row], data: Any) -> None:
    found, expected = PackedRows(LAYOUT), list[Row]()
    for row in some:
        found.append(row)
        expected.append(row)
    if expected:
        gone = data.draw(st.integers(0, len(expected) - 1))
        found.remove(gone)
        del expected[gone]
    assert (len(found), list(found)) == (len(expected), expected)
    kept = [index for index in range(len(expected)) if index % 3]
    found.keep(kept)
    found.append(Row(bytes(24), (2, 1, 300)))
    expected = [*(expected[index] for index in kept), Row(bytes(24), (2, 1, 300))]
    assert list(found) == expected


def test_a_category_takes_a_byte_of_a_row_and_a_number_eight() -> None:
    names = [f"c{number}" for number in range(10)]
    category = {"type": "categorical", "values": [str(value) for value in range(20)]}
    schema = Schema(
        Features.model_validate(
            {"context": dict.fromkeys(names, category) | {"age": {"type": "numeric"}}}
        )
    )
    told = dict.fromkeys(names, "7") | {"age": 3.0}
    row = schema.row(schema.encode_context(told), np.zeros(0))
    assert row.places == (8,) * 10
    assert row.lists() == {"numbers": [3.0], "places": [8] * 10}
    assert PackedRows(schema.layout, [row]).arrays()["rows.places"].nbytes == 10


@pytest.mark.parametrize(
    "row",
    [
        Row(bytes(16), (0, 0, 0)),
        Row(bytes(25), (0, 0, 0)),
        Row(bytes(24), (0, 0)),
        Row(bytes(24), (0, 0, 0, 0)),
        Row(bytes(24), (3, 0, 0)),
        Row(bytes(24), (2, 1, 301)),
    ],
)
def test_a_row_of_another_layout_is_damaged(row: Row) -> None:
    LAYOUT.expect(Row(bytes(24), (2, 1, 300)))
    with pytest.raises(Damaged):
        LAYOUT.expect(row)


def test_no_place_lies_before_a_feature() -> None:
    sent = msgspec.json.encode(Row(b"", (-1,)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(sent, type=Row)


def test_saved_rows_of_another_layout_are_refused() -> None:
    saved = PackedRows(LAYOUT, [Row(bytes(24), (2, 1, 300))]).arrays()
    for other in (np.array([0, 0, -1, 1, -1, 2, -1]), BLOCKS[:-1]):
        with pytest.raises(ValueError, match=r"reshape|place"):
            PackedRows(RowLayout(other)).restore(saved, 1)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("row", [Row(b"", (1, 1)), Row(bytes(8), (1,)), Row(bytes(8), (1, 4))])
def test_an_event_whose_row_does_not_fit_is_not_folded(row: Row, later: bool) -> None:
    """Nor is it once the features have changed: it is read by those of its decision."""
    log = Log()
    definition = shop(p={"kind": "linucb"})
    log.define(definition)
    log.settle("p", {"toy1": 1.0})
    event = log.settled[0].event
    if later:
        definition["features"]["context"]["size"] = {"type": "numeric", "default": 1.0}
        log.define(definition)
    changed = log.settled[0].event.settled[0]
    assert log.state.present(event)
    broken = type(event)(
        **{name: getattr(event, name) for name in event.__struct_fields__ if name != "settled"},
        settled=[type(changed)(changed.arm, changed.reward, row)],
    )
    with pytest.raises(Damaged):
        log.write(broken)


def test_rows_follow_the_meaning_of_their_columns() -> None:
    """A value that is gone is none, a new number that is measured is not known, others stay."""
    log, definition = Log(), shop(p={"kind": "linucb", "window": 50})
    definition["features"]["context"]["age"] = {"type": "numeric"}
    log.define(definition)
    for pet in ("cat", "dog"):
        log.settle("p", {"bed1": 1.0}, {"pet": pet, "age": 2.5})
    context = definition["features"]["context"]
    context["pet"] = {"type": "categorical", "values": ["bird", "dog"]}
    context["size"] = {"type": "numeric"}
    context["young"] = {"type": "boolean"}
    log.define(definition)
    memory = log.state.learners["p"].active.memory
    assert memory is not None
    moved = [log.state.present(shown.event).settled[0].row for shown in log.settled]
    numbers = np.array([2.5, np.nan]).tobytes()
    assert moved == [Row(numbers, (0, 0, 3)), Row(numbers, (2, 0, 3))]
    assert list(memory.rows) == moved
