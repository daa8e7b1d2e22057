"""A load test of a running service: what the options ask for, the processes, and their counts.

options + experiment --> Plan --> load_worker (a process or more, JSON lines) --> Tally
"""

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from simulator_client.client import Client, Json
from simulator_client.errors import Problem, SimulatorError, Unreachable, UsageError
from simulator_client.load_plan import Plan
from simulator_client.load_progress import LoadBoard, Standing
from simulator_client.load_requests import head, rewards, selects
from simulator_client.load_tally import Tally

START_S: Final = 0.3  # until every process has been told when to begin
READY_S: Final = 30.0
LINE_BYTES: Final = 1 << 26
CLOSED_CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 256
SHOWN_EVERY_S: Final = 1.0


class LoadClient(Client):
    """A client that can also ask what is served."""

    async def experiments(self) -> list[str]:
        """The names of the experiments."""
        answer = await self._call("GET", "/experiments")
        return [each["name"] for each in answer.body["experiments"]]


@dataclass(frozen=True, slots=True)
class Load:
    """A load test as it was asked for."""

    plan: Plan
    urls: tuple[str, ...]
    experiment: str
    policy: str | None
    arms: int | None  # spelled out in each request; None: left out


async def asked_load(client: LoadClient, options: argparse.Namespace) -> Load:
    """The load test that the options describe, of the experiment that the service has.

    Raises UsageError for what does not fit, Problem where the service refuses such a request.
    """
    if options.rewards_alone and options.rate:
        raise UsageError("--rewards-alone goes as fast as it can; it has no --rate")
    if options.rewards_alone and not options.warm_up:
        raise UsageError("--rewards-alone decides during --warm-up, which is 0")
    connections = options.connections or (OPEN_CONNECTIONS if options.rate else CLOSED_CONNECTIONS)
    if connections < options.processes:
        raise UsageError(f"{options.processes} processes need a connection each, or more")
    name, definition = await _experiment(client, options.experiment)
    if options.policy is not None and options.policy not in definition["policies"]:
        known = ", ".join(definition["policies"])
        raise UsageError(f"experiment {name!r} has no policy {options.policy!r}: {known}")
    arms = list(definition["arms"]) if options.arms == "ids" else None
    if arms == []:
        raise UsageError(f"experiment {name!r} has no arms to spell out")
    asked = {"experiment": name} | ({"policy": options.policy} if options.policy else {})
    rng = random.Random(options.seed)
    fresh = options.contexts == "fresh"
    requests, numbered = selects(
        client.urls[0], definition, asked, arms, rng, fresh=fresh, key=client.key
    )
    plan = Plan(
        addresses=[await asyncio.to_thread(address, url) for url in client.urls],
        selects=requests,
        numbered=numbered,
        reward_head=head(client.urls[0], "/reward", client.key),
        rewards=rewards(definition),
        connections=connections,
        processes=options.processes,
        warmup_s=options.warm_up,
        seconds=options.seconds,
        rate=options.rate,
        spacing=options.spacing,
        rewards_per_select=options.rewards_per_select,
        rewards_alone=options.rewards_alone,
        timeout_s=options.timeout,
        seed=options.seed,
    )
    await _probe(client, requests[0] % 0 if numbered else requests[0])
    return Load(plan, client.urls, name, options.policy, None if arms is None else len(arms))


async def _experiment(client: LoadClient, name: str | None) -> tuple[str, Json]:
    if name is None:
        names = await client.experiments()
        if len(names) != 1:
            raise UsageError(f"name one with --experiment: {', '.join(names) or 'there is none'}")
        name = names[0]
    found = await client.get_experiment(name)
    if found is None:
        raise UsageError(f"the service has no experiment {name!r}")
    return name, found["definition"]


async def _probe(client: LoadClient, request: str) -> None:
    """Ask once as the test will: a request that the service refuses is told before the test."""
    _, _, body = request.partition("\r\n\r\n")
    answer = await client.select(json.loads(body))
    if "decision_id" not in answer.body:
        raise Unreachable("what answers is not Forage (no decision_id)")


def check_url(url: str) -> None:
    """Raises UsageError for https."""
    if urlsplit(url).scheme == "https":
        raise UsageError(f"{url!r}: a load test speaks plain http, behind what ends TLS")


def address(url: str) -> list[Any]:
    """Family, host and port of the first address that a service listens at.

    Raises Unreachable where nobody does.
    """
    where, fault = urlsplit(url), "no address"
    try:
        found = socket.getaddrinfo(where.hostname, where.port or 80, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(f"{url}: {error}") from error
    for family, _, _, _, (host, port, *_) in found:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.settimeout(5.0)
            try:
                tried.connect((host, port))
            except OSError as error:
                fault = str(error)
            else:
                return [int(family), host, port]
    raise Unreachable(f"nobody listens at {url}: {fault}")


async def measure(plan: Plan, board: LoadBoard) -> Tally:
    """Carry the plan out; what was counted, of all processes. Raises SimulatorError."""
    processes: list[asyncio.subprocess.Process] = []
    tally, standing = Tally(), Standing()
    try:
        for index in range(plan.processes):
            process = await _started(index)
            processes.append(process)
            _write(process, plan.as_json())
        for process in processes:
            await _told(process, within_s=READY_S)
        start = time.monotonic() + START_S
        for process in processes:
            _write(process, repr(start))
        with board:
            shown = asyncio.create_task(_show(board, standing))
            try:
                await asyncio.gather(
                    *(_followed(i, each, standing, tally) for i, each in enumerate(processes))
                )
            finally:
                shown.cancel()
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
    return tally


async def _started(index: int) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simulator_client.load_worker", str(index),
        stdin=pipe, stdout=pipe, limit=LINE_BYTES,
    )  # fmt: skip


def _write(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")


async def _told(process: asyncio.subprocess.Process, within_s: float) -> Json:
    """The next line of a process."""
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), within_s)
        found: Json = json.loads(line)
    except (TimeoutError, ValueError) as error:
        raise SimulatorError("a process of the load test ended before its time") from error
    return found


async def _followed(
    index: int, process: asyncio.subprocess.Process, standing: Standing, tally: Tally
) -> None:
    while True:
        told = await _told(process, within_s=READY_S)
        if "tally" in told:
            tally.add(told["tally"])
            return
        standing.take(index, told)


async def _show(board: LoadBoard, standing: Standing) -> None:
    while True:
        await asyncio.sleep(SHOWN_EVERY_S)
        board.show(*standing.words())


def load(options: argparse.Namespace, urls: Sequence[str], board: Any) -> tuple[Load, Tally]:
    """Ask the service what it has, then carry the test out. board: makes one of total and warm-up
    seconds."""

    for url in urls:
        check_url(url)

    async def whole() -> tuple[Load, Tally]:
        client = LoadClient(urls, key=options.key)
        try:
            await client.wait_ready(options.ready_within)
            asked = await asked_load(client, options)
        except Problem as problem:
            raise SimulatorError(f"such a request is refused: {problem}") from problem
        finally:
            await client.aclose()
        plan = asked.plan
        return asked, await measure(plan, board(plan.warmup_s + plan.seconds, plan.warmup_s))

    return asyncio.run(whole())
