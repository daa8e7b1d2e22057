"""Rows as columns: what comes back from Parquet is what was decided, bit for bit."""

import io
import struct
from datetime import timedelta

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from service.maintenance.archive.columns import ArchivedRow, batch, day_of, schema_of
from service.maintenance.archive.index import Reward, RewardHistory
from service.state.events import Shown
from tests.unit.archived import a_decision

doubles = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
lists = st.lists(doubles, max_size=4)


def bits(numbers: list[float]) -> list[bytes]:
    return [struct.pack("<d", number) for number in numbers]


@given(
    st.lists(
        st.tuples(lists, st.lists(st.tuples(texts, doubles, lists), max_size=3), doubles),
        max_size=5,
    ),
    st.floats(-1e9, 1e10),
)
def test_rows_come_back_as_they_were(
    given_rows: list[tuple[list[float], list[tuple[str, float, list[float]]], float]], at: float
) -> None:
    rows = [
        ArchivedRow(
            number,
            a_decision(
                number,
                at,
                probabilities=probabilities,
                assignment=reward,
                shown=[Shown(*slot) for slot in shown],
                unit=None if number % 2 else "u",
            ),
            RewardHistory([Reward(arm, p, True, at, number, 1) for arm, p, _ in shown]),
        )
        for number, (probabilities, shown, reward) in enumerate(given_rows)
    ]
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema_of("shop")) as writer:
        writer.write_batch(batch(rows))
    found = pq.read_table(io.BytesIO(file.getvalue())).to_pylist()
    assert len(found) == len(rows)
    for row, back in zip(rows, found, strict=True):
        decision = row.decision
        assert bits(back["probabilities"]) == bits(decision.probabilities)
        assert bits([back["assignment"], back["slate"]]) == bits(
            [decision.assignment, decision.slate]
        )
        assert (back["unit"], back["arms"]) == (decision.unit, decision.arms)
        slots = [(each["arm"], *bits([each["propensity"], *each["x"]])) for each in back["shown"]]
        assert slots == [(each.arm, *bits([each.propensity, *each.x])) for each in decision.shown]
        told = [(each["arm"], *bits([each["reward"]])) for each in back["rewards"]]
        assert told == [(each.arm, *bits([each.reward])) for each in row.history.rewards]
        assert abs(back["at"].timestamp() - at) < 1e-5
        assert back["accept_until"] - back["reward_by"] - timedelta(hours=1) < timedelta(seconds=1)


def test_a_day_is_that_of_utc() -> None:
    """2026-01-01 is 20,454 days after 1970-01-01."""
    midnight = 20_454 * 86_400.0
    assert (day_of(midnight), day_of(midnight - 1e-3)) == ("2026-01-01", "2025-12-31")
