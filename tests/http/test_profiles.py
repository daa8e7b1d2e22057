"""What a public key may do: less than a secret one, at a cost, and by visitor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.security.profile import cost
from tests.support.clock import FixedClock
from tests.support.keys import PAGE, Keys
from tests.support.plug import Plug
from tests.support.service import Wire, expect_problem, paths, serving

VISITOR, OTHER, PROXY = "198.51.100.7", "198.51.100.8", "10.0.0.1"
CONTEXT = {"persona": "cat"}
INLINE = {"id": "rope", "features": {"category": "toy"}}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path / "keys.json")
    keys.add("page", "select", "reward", experiments=["shop"], origins=[PAGE])
    keys.add("secret", "select", "reward")
    return keys


@pytest.fixture
def wire(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr("service.security.access.LOOK_SECONDS", 0.0)  # changed keys hold at once
    networks = "127.0.0.0/8,10.0.0.0/8"
    with serving(keys=keys.path, trusted_proxies=networks, cors_origins=[PAGE]) as wire:
        rates = wire.services.access.rates
        rates.clock = FixedClock(rates.clock.monotonic())  # it stands still
        yield wire


class Visitor:
    """Asks with a key from a page, through a proxy."""

    def __init__(self, wire: Wire, keys: Keys, name: str = "page", address: str = VISITOR) -> None:
        self._wire = wire
        self._headers = {**keys.headers(name), "Origin": PAGE, "X-Forwarded-For": address}

    def post(self, path: str, body: Any) -> Any:
        return self._wire.post(path, body, headers=self._headers)

    def select(self, **more: Any) -> Any:
        return self.post("/select", {"context": CONTEXT, **more})

    def status(self, **more: Any) -> int:
        status: int = self.select(**more).status_code
        return status


REFUSED = {
    "arms.1": {"arms": ["ball", INLINE]},
    "policy": {"policy": "linucb"},
    "top_k": {"top_k": 21},
    "unit": {"unit": "u" * 129},
    "context.persona": {"context": {"persona": "p" * 129}},
    "arms": {"arms": [f"a{index}" for index in range(101)]},
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_page_may_not_ask_for_all_that_a_secret_key_can(
    wire: Wire, keys: Keys, path: str
) -> None:
    page, secret = Visitor(wire, keys), Visitor(wire, keys, "secret")
    problem = expect_problem(page.select(**REFUSED[path]), 403)
    assert paths(problem) == [path]
    assert wire.services.telemetry.refused.labels("profile").count == 1
    assert page.status(unit="u" * 128, top_k=3, arms=["ball", "mouse", "kibble"]) == 200
    assert secret.status(arms=["ball", INLINE], policy="linucb", unit="u" * 200) == 200


def test_a_key_may_be_given_more_or_less_than_its_kind(wire: Wire, keys: Keys) -> None:
    keys.change("page", profile={"policies": "named", "top_k": 1})
    keys.change("secret", profile={"arms": "catalogue", "most_arms": 1})
    page, secret = Visitor(wire, keys), Visitor(wire, keys, "secret")
    assert page.status(policy="linucb") == 200
    assert page.status(top_k=2) == 403
    assert page.status(arms=[INLINE]) == 403
    assert secret.status(policy="linucb", arms=["ball"]) == 200
    assert secret.status(arms=[INLINE]) == 403
    assert secret.status(arms=["ball", "mouse"]) == 403


def test_in_a_batch_each_request_is_looked_at_by_itself(wire: Wire, keys: Keys) -> None:
    asked = [{"context": CONTEXT}, {"context": CONTEXT, "policy": "linucb"}]
    answer = Visitor(wire, keys).post("/select/batch", {"requests": asked})
    assert [each["status"] for each in answer.json()["results"]] == [200, 403]


def test_a_page_sends_short_batches_and_short_bodies(wire: Wire, keys: Keys) -> None:
    page, reward = Visitor(wire, keys), {"decision_id": "x", "reward": 1.0}
    for path, item in (("/select/batch", {"context": CONTEXT}), ("/reward/batch", reward)):
        problem = expect_problem(page.post(path, {"requests": [item] * 21}), 403)
        assert paths(problem) == ["requests"]
    expect_problem(page.select(arms=["x" * 120] * 200), 413)


def test_a_long_body_is_refused_before_it_is_read(wire: Wire, keys: Keys) -> None:
    keys.add("narrow", "select", profile={"body_bytes": 100})
    headers = {**keys.headers("narrow"), "Content-Type": "application/json"}
    unreadable = b"[" * 101
    expect_problem(Plug(wire).post("/select", unreadable, headers), 413)


# -- rates ----------------------------------------------------------------------------------------


def test_one_visitor_cannot_use_up_what_others_have(wire: Wire, keys: Keys) -> None:
    keys.change("page", profile={"rate_per_address": "5/minute"}, rate="100/minute")
    greedy, other = Visitor(wire, keys), Visitor(wire, keys, address=OTHER)
    statuses = [greedy.status() for _ in range(120)]
    assert statuses == [200] * 5 + [429] * 115
    assert other.status() == 200
    answer = greedy.select()
    assert "this address" in expect_problem(answer, 429)["detail"]
    refused = wire.services.telemetry.refused
    assert refused.labels("rate_address").count == 116
    assert refused.labels("rate").count == 0


def test_a_visitor_who_says_another_address_is_counted_as_one(wire: Wire, keys: Keys) -> None:
    """A proxy writes who asked it behind what the client wrote."""
    keys.change("page", profile={"rate_per_address": "3/minute"})
    statuses = [
        Visitor(wire, keys, address=f"1.1.1.{n}, {VISITOR}, {PROXY}").status() for n in range(5)
    ]
    assert statuses == [200] * 3 + [429] * 2


def test_a_unit_has_a_rate_of_its_own(wire: Wire, keys: Keys) -> None:
    keys.change("page", profile={"rate_per_unit": "3/minute"})
    page = Visitor(wire, keys)
    assert [page.status(unit="one") for _ in range(5)] == [200] * 3 + [429] * 2
    assert page.status(unit="another") == 200
    assert page.status() == 200
    batch = {"requests": [{"context": CONTEXT, "unit": "three"}] * 5}
    results = page.post("/select/batch", batch).json()["results"]
    assert [each["status"] for each in results] == [200] * 3 + [429] * 2


def test_a_ranking_costs_as_much_as_it_takes(wire: Wire, keys: Keys) -> None:
    """1 before its body is read, and the rest afterwards."""
    keys.add("counted", "select", rate="20/minute")
    keys.add("poor", "select", rate="5/minute")
    costly = {"arms": [{"id": f"i{n}", "features": {"category": "toy"}} for n in range(120)]}
    assert cost(120, 1, 120) == 10
    secret = Visitor(wire, keys, "counted")
    assert [secret.status(**costly) for _ in range(3)] == [200, 200, 429]
    problem = expect_problem(Visitor(wire, keys, "poor").select(**costly), 429)
    assert "exceeds the whole rate" in problem["detail"]


def test_costs_as_documented() -> None:
    asked = [(50, 1), (50, 10), (10_000, 1), (10_000, 100), (10_000, 100, 10_000)]
    assert [cost(*each) for each in asked] == [1, 6, 101, 944, 1_611]


def test_a_visitor_never_meets_the_default_rates(wire: Wire, keys: Keys) -> None:
    """Twenty pages in a minute, each with two rankings that are rewarded."""
    page = Visitor(wire, keys)
    for _ in range(20):
        for _ in range(2):
            decision = page.select(unit="visitor", top_k=3).json()
            reward = {"decision_id": decision["decision_id"], "rewards": {decision["arm"]: 1.0}}
            assert page.post("/reward", reward).status_code == 200
