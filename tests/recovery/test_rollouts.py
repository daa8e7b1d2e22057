"""Kill -9 at each event of a rollout, under traffic: no stage is lost, none is taken twice.

ROLLOUT_KILLS is the number of kills on each store: the full row has 20.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import httpx
import pytest

from service.log.stores import open_store
from service.state.events import RolloutStarted, RolloutStepped, decode_event
from service.state.rollout import Rollout, applied, begun
from tests.recovery.serving import eventually, folded
from tests.support.redis_server import redis_server
from tests.support.service_process import Service, service

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("ROLLOUT_KILLS", "2"))
SHOP = {
    "arms": {"kibble": {}, "ball": {}},
    "policies": {"old": {"kind": "random"}, "new": {"kind": "random", "share": 0.0}},
    "reward": {"range": [0, 1], "wait_seconds": 1.0},
}
PLAN = {"policy": "new", "baseline": "old", "stages": [0.2, 0.4, 0.6, 0.8, 1.0]}
STEPS = ["start", "hold", "resume", "advance", "advance", "back"]
"""Steps of a rollout that is begun again and again."""


@contextmanager
def visited(urls: Sequence[str]) -> Iterator[None]:
    """Visitors who come and click all the while, whatever is answered."""
    over = threading.Event()

    def visit(url: str) -> None:
        with httpx.Client(base_url=url, timeout=5, trust_env=False) as client:
            while not over.is_set():
                try:
                    shown = client.post("/select", json={"experiment": "shop"}).json()
                    body = {"decision_id": shown["decision_id"], "reward": 1.0}
                    client.post("/reward", json=body)
                except (httpx.HTTPError, KeyError, ValueError):
                    time.sleep(0.01)

    threads = [threading.Thread(target=visit, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def asked(url: str, step: str, revision: int) -> int | None:
    """Ask for a step of the present revision; the status, or None where nothing is answered."""
    path = "/experiments/shop/rollouts" + ("" if step == "start" else f"/new/{step}")
    body = PLAN if step == "start" else {}
    match = {"If-Match": f'"{revision}"'}
    try:
        found = httpx.post(url + path, json=body, headers=match, timeout=30, trust_env=False)
    except httpx.HTTPError:
        return None
    return found.status_code


def stepped(store: str) -> list[Rollout]:
    """The rollout after each of its events, by the log."""

    async def read() -> list[Rollout]:
        log = open_store(store, readonly=True)
        await log.open()
        try:
            records = await log.read("shop", 0, 1_000_000)
        finally:
            await log.close()
        found = list[Rollout]()
        for record in records:
            event = decode_event(record.payload)
            if isinstance(event, RolloutStarted):
                found.append(begun(event.plan, record.position, event.at))
            elif isinstance(event, RolloutStepped):
                found.append(applied(found[-1], event.step))
        return found

    return asyncio.run(read())


def kill_at_each_step(services: Sequence[Service], rng: Random, kills: int) -> list[str]:
    """Take the steps in turn at all services at once, and kill one of them at some time before the
    first answer, or right after it; the steps that were taken."""
    taken = list[str]()
    while len(taken) < kills:
        step = STEPS[len(taken) % len(STEPS)]
        revision = services[0].get("/experiments/shop")["revision"]
        victim = rng.choice(list(services))
        with ThreadPoolExecutor(len(services)) as pool:
            answers = [pool.submit(asked, each.url, step, revision) for each in services]
            wait(answers, rng.choice([rng.uniform(0, 3), 60.0]), FIRST_COMPLETED)
            victim.kill()
        codes = [answer.result() for answer in answers]
        victim.start()
        eventually(
            lambda: len({each.get("/experiments/shop")["revision"] for each in services}) == 1
        )
        now = services[0].get("/experiments/shop")["revision"]
        assert sum(code in (200, 201) for code in codes) <= 1
        assert now - revision in (0, 1)
        if any(code in (200, 201) for code in codes):
            assert now == revision + 1
        if now == revision + 1:
            taken.append(step)
    return taken


def expect_each_step_once(services: Sequence[Service], store: str, taken: Sequence[str]) -> None:
    states = {"start": "running", "hold": "held", "resume": "running", "advance": "running"}
    found = stepped(store)
    assert [each.state for each in found] == [states.get(step, "rolled_back") for step in taken]
    advances = 0
    for step, rollout in zip(taken, found, strict=True):
        advances = 0 if step == "start" else advances + (step == "advance")
        assert rollout.stage == advances
    state = folded(store, "shop")
    for each in services:
        shares = each.get("/experiments/shop")["definition"]["policies"]
        assert {name: policy["share"] for name, policy in shares.items()} == state.traffic.shares
    audited = subprocess.run(
        [sys.executable, "-m", "service", "audit", "--store", store],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert audited.returncode == 0, audited.stdout + audited.stderr
    print(len(taken), "steps;", audited.stdout)  # noqa: T201


def test_killed_at_each_event_of_a_rollout_a_service_takes_it_once(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    with service(tmp_path, store) as serving:
        httpx.put(f"{serving.url}/experiments/shop", json=SHOP, trust_env=False).raise_for_status()
        with visited([serving.url]):
            taken = kill_at_each_step([serving], Random(1), KILLS)
        expect_each_step_once([serving], store, taken)


def test_of_two_replicas_that_are_killed_one_takes_each_step(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(tmp_path))
        both = [stack.enter_context(service(tmp_path, server.url)) for _ in range(2)]
        answer = httpx.put(f"{both[0].url}/experiments/shop", json=SHOP, trust_env=False)
        answer.raise_for_status()
        with visited([each.url for each in both]):
            taken = kill_at_each_step(both, Random(2), KILLS)
        expect_each_step_once(both, server.url, taken)
