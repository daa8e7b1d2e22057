"""Services on a real PostgreSQL, which others use as well."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from service.log.stores.postgres import PostgresStore
from service.log.stores.postgres_connection import PostgresTimeouts
from service.offline.audit import audit_store
from tests.support.postgres_server import PostgresSchema, postgres_schema
from tests.support.service import UNTIL_S, Wire, serving

pytestmark = pytest.mark.process

PATIENT = PostgresTimeouts(connect_s=30.0, reply_s=30.0)


@pytest.fixture
def schema() -> Iterator[PostgresSchema]:
    with postgres_schema() as made:
        yield made


@contextmanager
def replica(schema: PostgresSchema) -> Iterator[Wire]:
    with serving(PostgresStore(schema.url, patience=PATIENT)) as wire:
        yield wire


def heads(wire: Wire) -> dict[str, Any]:
    found = wire.get("/experiments/shop/policies").json()["policies"]
    return {policy["name"]: policy["head"] for policy in found}


def until_rewards(count: int, *wires: Wire) -> None:
    """Each works only while it is asked: let time pass for all, in turns."""
    deadline = monotonic() + UNTIL_S
    while any(wire.rewards() != count for wire in wires):
        assert monotonic() < deadline
        for wire in wires:
            wire.sleep(0.02)


def test_services_on_one_postgresql_learn_the_same(schema: PostgresSchema) -> None:
    """What one decides another learns of, one that starts later reads it, and the audit follows."""
    with replica(schema) as first, replica(schema) as second:
        for _ in range(5):
            first.teach()
            second.teach(policy="lints")
            assert second.reward(first.select(policy="linucb"), 0.0) == "accepted"
        until_rewards(10, first, second)
        assert first.rewards("lints") == second.rewards("lints") == 5
        assert heads(first) == heads(second)
        with replica(schema) as third:
            assert heads(third) == heads(first)
        [report] = first.run(audit_store(schema.url))
        assert report.clean


def test_ended_connections_lose_nothing_acknowledged(schema: PostgresSchema) -> None:
    """A reward that is answered 503 meanwhile counts when it is sent again."""
    with replica(schema) as wire:
        for number in range(1, 6):
            decision = wire.select(policy="linucb")
            schema.end_connections()
            body = {"decision_id": decision["decision_id"], "reward": 1.0}
            wire.until(lambda body=body: wire.post("/reward", body).status_code == 200)
            assert wire.rewards() == number
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        wire.teach()
        assert wire.metrics()["forage_lost_decisions_total"] == 0
        [report] = wire.run(audit_store(schema.url))
        assert report.clean
