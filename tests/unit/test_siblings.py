"""What workers counted, added up: sums that never run back, also where a worker has died."""

import asyncio
from collections.abc import Sequence

import pytest

from service.errors import StoreUnavailable
from service.telemetry.metrics import Telemetry, left_of
from service.telemetry.siblings import LARGEST_COUNTS, SMALLEST_COUNTS, Subject
from tests.support.clock import FixedClock
from tests.support.metrics import documented

SERVED = {"shop": {"linucb", "lints"}}


def worker(decisions: int, minimum: float = 0.5) -> Telemetry:
    telemetry = Telemetry(FixedClock(100.0))
    for number in range(decisions):
        recent = (f"d{number}", float(number), "arm", "linucb/0@0", 1, 3, minimum)
        telemetry.decided("shop", "linucb", minimum, 1.0, recent)
    telemetry.append_seconds.observe(0.003, times=decisions)
    telemetry.connections.set(decisions)
    telemetry.degraded.set(decisions > 2)
    return telemetry


def ask(workers: Sequence[Telemetry], *left: bytes, about: Subject = "metrics") -> list[bytes]:
    return [*(each.answer(about, SERVED) for each in workers), *left]


def exposed(telemetry: Telemetry, answers: list[bytes]) -> str:
    async def siblings(about: Subject) -> list[bytes]:
        return answers

    telemetry.siblings = siblings
    return asyncio.run(telemetry.expose(SERVED)).decode()


def value_of(text: str, series: str) -> float:
    [value] = [
        line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{series} ")
    ]
    return float(value)


DECISIONS = 'forage_decisions_total{experiment="shop",policy="linucb"}'


def test_any_worker_tells_the_sums_of_all() -> None:
    workers = [worker(2), worker(5)]
    answers = ask(workers)
    first, second = (exposed(each, answers) for each in workers)
    assert first == second
    assert value_of(first, DECISIONS) == 7
    assert value_of(first, "forage_log_append_seconds_count") == 7
    assert value_of(first, 'forage_log_append_seconds_bucket{le="0.004"}') == 7
    assert value_of(first, 'forage_log_append_seconds_bucket{le="0.002"}') == 0
    assert value_of(first, "forage_connections") == 7
    assert value_of(first, "forage_degraded") == 1


def test_what_a_worker_counted_outlasts_it_and_what_it_had_open_does_not() -> None:
    alive, dead = worker(2), worker(5)
    [last] = ask([dead])
    left = left_of("metrics", [left_of("metrics", [last]), *ask([worker(3)])])
    text = exposed(alive, ask([alive], left))
    assert value_of(text, DECISIONS) == 10
    assert value_of(text, "forage_connections") == 2
    assert value_of(text, "forage_degraded") == 0


def test_what_a_dead_worker_counted_of_a_deleted_policy_is_not_told() -> None:
    dead = worker(5)
    dead.decisions.labels("shop", "lints").inc()
    [left] = ask([dead])
    alive = worker(1)

    async def siblings(about: Subject) -> list[bytes]:
        return [left]

    alive.siblings = siblings
    text = asyncio.run(alive.expose({"shop": {"linucb"}})).decode()
    assert value_of(text, DECISIONS) == 5
    assert 'policy="lints"' not in text


def test_a_scrape_fails_where_the_others_do_not_answer_and_the_console_does_not() -> None:
    telemetry = worker(1)

    async def nobody(about: Subject) -> list[bytes]:
        raise TimeoutError

    telemetry.siblings = nobody
    with pytest.raises(StoreUnavailable, match="do not say what they have counted"):
        asyncio.run(telemetry.expose(SERVED))
    assert asyncio.run(telemetry.statistics())["shop", "linucb"].count == 1


def test_statistics_of_decisions_are_weighed_by_their_number() -> None:
    workers = [worker(30, 0.2), worker(10, 0.6)]
    [left] = [left_of("decisions", ask([worker(40, 0.4)], about="decisions"))]

    async def siblings(about: Subject) -> list[bytes]:
        return ask(workers, left, about=about)

    workers[0].siblings = siblings
    found = asyncio.run(workers[0].statistics())["shop", "linucb"]
    assert (found.count, found.minimum, len(found.recent)) == (80, 0.2, 50)
    assert found.propensity == pytest.approx((30 * 0.2 + 10 * 0.6 + 40 * 0.4) / 80)
    assert [each[1] for each in found.recent] == sorted(each[1] for each in found.recent)
    assert max(each[1] for each in found.recent) == 39.0


def test_rules_are_of_metrics_that_exist() -> None:
    rules = LARGEST_COUNTS | SMALLEST_COUNTS
    assert not LARGEST_COUNTS & SMALLEST_COUNTS
    assert {name.removesuffix("_info") for name in documented()} >= rules
