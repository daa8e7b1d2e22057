"""What a service starts with: experiment files, and a log that is there already."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from service.app import open_services
from service.errors import ConfigurationError
from service.log.stores.memory import MemoryStore
from service.settings import Settings
from tests.support.clock import run_virtual
from tests.support.service import SHOP, serving
from tests.support.stores import SharedStore


def test_nothing_given_the_zooplus_example_is_served() -> None:
    with serving(experiments=[]) as wire:
        answer = wire.select(context={"persona": "new_puppy_parent"})
        assert answer["experiment"] == "zooplus"
        assert len(wire.get("/arms").json()["arms"]) == 50
        assert {policy["name"] for policy in wire.get("/policies").json()["policies"]} == {
            "auto",
            *("linucb", "linucb_disjoint", "lints", "neural_linear_ts", "neural_ucb"),
            *("popularity", "epsilon_greedy", "random"),
        }


def test_what_the_log_holds_goes_before_a_file_of_the_same_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    with serving(store):
        pass
    with serving(store) as wire:
        assert "another definition" not in caplog.text
        wire.redefine(arms={})
    with serving(store) as wire:
        assert "another definition of shop" in caplog.text
        assert wire.get("/experiments/shop").json()["revision"] == 2
        assert wire.definition()["arms"] == {}


def test_what_was_acknowledged_is_there_after_a_restart() -> None:
    store = MemoryStore()
    key = {"Idempotency-Key": "k"}
    with serving(store) as wire:
        [decision] = wire.teach()
        body = {"context": {"persona": "cat"}, "policy": "linucb"}
        open_decision = wire.post("/select", body, headers=key).json()
        head = wire.policy("linucb")["head"]
    with serving(store) as wire:
        assert wire.policy("linucb")["head"] == head
        assert wire.policy("linucb")["decisions"] == 2
        assert wire.reward(decision, 1.0) == "duplicate"
        again = wire.post("/select", body, headers=key).json()
        assert (again["id"], again["arm"]) == (open_decision["id"], open_decision["arm"])
        assert wire.reward(open_decision, 1.0) == "accepted"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('category = "food"', 'category = "drink"'), "arms.kibble.category"),
        (('kind = "linucb"', 'kind = "linucb", ridges = 2'), "ridges"),
        (('name = "shop"', 'name = "a shop"'), "name"),
    ],
)
def test_a_fault_in_an_experiment_file_is_told_with_file_and_path(
    tmp_path: Path, change: tuple[str, str], fault: str
) -> None:
    path = tmp_path / "faulty.toml"
    path.write_text(SHOP.read_text().replace(*change))
    with pytest.raises(ConfigurationError) as error, serving(experiments=[path]):
        pass
    assert str(path) in str(error.value)
    assert fault in str(error.value)


def test_two_services_that_start_on_one_log_define_once() -> None:
    store = SharedStore()
    settings = Settings(store="memory://", experiments=[SHOP])

    async def start_both() -> None:
        async with AsyncExitStack() as stack:
            opened = [stack.enter_async_context(open_services(settings, store)) for _ in range(2)]
            both = await asyncio.gather(*opened)
            for services in both:
                assert services.log.replicas.states["shop"].revision == 1

    run_virtual(start_both())
