"""What the headers of a caller cost: python -m benchmarks.http.callers [--rounds N] [--seconds S].

Processor time of a select, and of a bare ASGI echo that gets the same headers: those of a load
generator, of our SDK (with an `Idempotency-Key`), of a browser behind a proxy, and those of a load
generator with a key, asked of a second service that requires keys. Server on core 0, client on core
1, 64 connections, no rewards. In each round every case has its turn; a figure is the least of the
rounds, since other load on the machine only adds. Writes benchmarks/results/callers.json.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from benchmarks.http.cases import CASES, ECHO, POLICIES, plan
from benchmarks.http.servers import CLIENT_CORE, QUIET, SERVER_CORE, Server, on_core, ours, peer
from benchmarks.http.turns import expect_two_cores
from benchmarks.machine import machine
from benchmarks.tables import Json, keep, out_option, parser_of, say
from service.security.keys import Key, changing, digest_of, mint, now
from simulator_client.load import measure
from simulator_client.load_plan import Plan
from simulator_client.load_progress import Silent
from simulator_client.summary import table
from tests.support.service_process import service

PLAIN: Final = "User-Agent: forage-sim\r\nContent-Type: application/json\r\n"
SLOT: Final = "%08d"
WARM_UP_S: Final = 0.3
CALLERS: Final = {
    "plain": PLAIN,
    "SDK": (
        "Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
        "User-Agent: forage\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {{unique}}-{SLOT}\r\n"
    ),
    "proxy": (
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n"
        "Content-Type: application/json; charset=utf-8\r\nCookie: session=5f1c; theme=dark\r\n"
        "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n"
        "X-Request-ID: 4bf92f3577b34da6\r\n"
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    ),
    "keys": f"{PLAIN}Authorization: Bearer {{key}}\r\n",
}


def with_headers(asked: Plan, caller: str, key: str) -> Plan:
    """The same requests, by another caller."""
    headers = CALLERS[caller].format(unique=uuid4().hex, key=key)
    if not asked.numbered:
        raise ValueError("every request needs a number")
    selects = [each.replace(PLAIN, headers, 1) for each in asked.selects]
    return replace(asked, selects=selects, numbered=1 + headers.count(SLOT))


@contextmanager
def _served(folder: Path) -> Iterator[tuple[dict[str, Server], str]]:
    """Echo, a service, and one with the same log that requires a key; the key."""
    keys, (id_, key) = folder / "keys.json", mint()
    with changing(keys) as known:
        digest = digest_of(key.encode()).hex()
        known.append(Key(id=id_, digest=digest, name="load", scopes=("select",), created=now()))
    with ours("sqlite", folder / "sqlite"):
        pass  # learns, and takes a snapshot
    shutil.copytree(folder / "sqlite", folder / "keys")
    with ExitStack() as stack:
        servers = {ECHO: stack.enter_context(peer(ECHO, folder / "echo.log"))}
        for name, settings in (("sqlite", {}), ("keys", {"FORAGE_KEYS": str(keys)})):
            with on_core(SERVER_CORE):
                where = f"sqlite:///{folder / name / 'forage.db'}"
                run = stack.enter_context(service(folder / name, where, **QUIET, **settings))
            servers[name] = Server(run.url, run.pid)
        yield servers, key


def measured(rounds: int, seconds: float, folder: Path) -> Json:
    """Microseconds of the processor by case and caller, a figure a round."""
    found: Json = {case: {caller: [] for caller in CALLERS} for case in (ECHO, *POLICIES)}
    with _served(folder) as (servers, key):
        for turn in range(rounds):
            for name, callers in found.items():
                for caller, figures in callers.items():
                    home = ECHO if name == ECHO else "keys" if caller == "keys" else "sqlite"
                    asked = _plan(name, servers[home].url, seconds, turn)
                    figures.append(_server_us(servers[home], with_headers(asked, caller, key)))
            say(f"round {turn + 1}/{rounds}")
    return found


def _plan(name: str, url: str, seconds: float, seed: int) -> Plan:
    policy = POLICIES[0] if name == ECHO else name
    case = replace(CASES[f"sqlite-{policy}"], rewards="none")
    return plan(case, url, seconds=seconds, warmup_s=WARM_UP_S, rate=None, seed=seed)


def _server_us(server: Server, asked: Plan) -> float:
    """Of a select, those of the warm-up included."""
    before = server.cpu_seconds()
    tally = asyncio.run(measure(asked, Silent()))
    used_s = server.cpu_seconds() - before
    if tally.errors:
        raise SystemExit(f"{server.url} refused: {dict(tally.errors)}")
    return round(1e6 * used_s / sum(tally.seconds["select"]), 1)


def rows(kept: Json) -> list[list[str]]:
    """The least of the rounds, and the echo's share of them."""
    found = kept["server_us"]
    cells = [
        [
            "case",
            *(f"{caller}, µs" for caller in CALLERS),
            *(f"echo / {caller}" for caller in CALLERS),
        ]
    ]
    echo = {caller: min(found[ECHO][caller]) for caller in CALLERS}
    for name, callers in found.items():
        least = {caller: min(figures) for caller, figures in callers.items()}
        cells.append(
            [name, *(f"{figure:.0f}" for figure in least.values()),
             *(f"{echo[caller] / figure:.3f}" for caller, figure in least.items())]
        )  # fmt: skip
    return cells


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = parser_of("http.callers", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn (default: 1.5)")
    out_option(parser, "callers")
    asked = parser.parse_args(arguments)
    expect_two_cores()
    os.sched_setaffinity(0, {CLIENT_CORE})
    with tempfile.TemporaryDirectory() as folder:
        found = measured(asked.rounds, asked.seconds, Path(folder))
    kept = {"machine": machine(), "rounds": asked.rounds, "server_us": found}
    print(table(rows(kept)))
    keep(kept, asked.out)


if __name__ == "__main__":
    main()
