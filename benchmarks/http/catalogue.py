"""A catalogue of a million arms over HTTP: python -m benchmarks.http.catalogue [--arms N].

Of policies with `retrieve` over `image x taste` (32 columns) on SQLite, which have learned from
5,000 visits that were imported; the arms, those of `benchmarks.retrieval`, come in pages over
POST /arms. Server on core 0, client on core 1.

load      pages of arms, one after another, and then the index: until the process is idle again
equal     share of decisions over HTTP that an exact search gives too: the logged seed, the head
          that decided, and as candidates the best of all arms
recall    share of the candidates of an exact search that were among the logged ones
peak_mb   the most that the process held, until it was ended the first time
selects   due (Poisson) at 200 a second, a reward for every five; latency from when each was due
changing  the same, while pages of arms come anew with other features
restart   the service ended (it takes a last snapshot) and started again, until it is ready, and
          until its first decision

Writes benchmarks/results/catalogue.json.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import httpx
import numpy as np

from benchmarks.http.cases import CASES, plan
from benchmarks.http.servers import CLIENT_CORE, QUIET, Server, forage
from benchmarks.http.turns import at_least, cell, expect_two_cores, figures, turn
from benchmarks.machine import machine
from benchmarks.memory import resident_mb
from benchmarks.retrieval import COMPARED, LEARNED, WIDTH, decided, vectors
from benchmarks.tables import Json, keep, out_option, parser_of, say
from service.log.stores import open_store
from service.serving.arm_index import ArmIndex
from service.state.events import decode_event
from service.state.fold import State
from service.state.learner import Learner
from simulator_client.load_plan import Plan
from simulator_client.load_requests import selects
from simulator_client.summary import table

NAME: Final = "catalogue"
VECTOR: Final = {"type": "vector", "size": WIDTH}
FEATURES: Final[Json] = {
    "context": {"taste": VECTOR},
    "arm": {"image": VECTOR},
    "crosses": ["taste x image"],
}
DECIMALS: Final = 4  # of an arm's numbers: some 240 bytes an arm
PAGE: Final = 2_500  # arms of a request, below FORAGE_MAX_BODY_BYTES
VISITS: Final = 250  # of a request
CHANGED: Final = 25_000  # arms that come anew: a snapshot falls due meanwhile
WARMUP_S: Final = 2.0
LONG_MS: Final = 50.0
LOOK_S: Final = 2.0
IDLE_CORE: Final = 0.1
PATIENCE_S: Final = 1_800.0  # of one request, of an index, of a start or an end
TIMEOUT_S: Final = 300.0  # of a select: it is to be answered, however late
Rows = dict[str, np.ndarray[Any, Any]]


def definition(policies: Sequence[str], retrieve: int) -> Json:
    """The experiment, without arms."""
    return {
        "features": FEATURES,
        "policies": {
            kind: {"kind": kind, "retrieve": retrieve, "features": ["taste x image"]}
            for kind in policies
        },
        "reward": {"range": [0, 1], "wait_seconds": 86_400},
    }


def peak_mb(pid: int) -> float:
    """The most that a process held of memory so far: while a snapshot was taken."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


class Shop:
    """The service as somebody with a large catalogue uses it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = httpx.Client(base_url=server.url, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer. Raises HTTPStatusError."""
        content = None if body is None else json.dumps(body, separators=(",", ":"))
        headers = {"Content-Type": "application/json"}
        answer = self.client.request(method, path, content=content, headers=headers)
        return answer.raise_for_status().json()

    def learn(self, policy: str) -> None:
        """Of visits to other arms: a click is more likely where taste and image agree, as in
        `benchmarks.retrieval.policy`."""
        rng, taste = np.random.default_rng(1), np.random.default_rng(4).standard_normal(WIDTH)
        visits = []
        for number, (user, arm) in enumerate(rng.standard_normal((LEARNED, 2, WIDTH))):
            chance = 1 / (1 + np.exp(-(user * taste * arm).sum() / 2))
            visits.append(
                {
                    "id": f"{policy}/{number}",
                    "at": 0,
                    "context": {"taste": user.tolist()},
                    "arms": [{"id": f"visited-{number}", "features": {"image": arm.tolist()}}],
                    "arm": f"visited-{number}",
                    "propensity": 1.0,
                    "reward": float(rng.random() < chance),
                }
            )
        for start in range(0, len(visits), VISITS):
            body = {"policy": policy, "visits": visits[start : start + VISITS]}
            results = self.ask("POST", f"/experiments/{NAME}/import", body)["results"]
            if any(each["status"] != httpx.codes.OK for each in results):
                raise RuntimeError(f"an import was refused: {results[-1]}")

    def position(self) -> int:
        """Of the log."""
        found: int = self.ask("GET", "/readyz")["positions"][NAME]
        return found

    def put(self, rows: Rows) -> Iterator[float]:
        """Arms in pages; the seconds that each page took."""
        ids = list(rows)
        for start in range(0, len(ids), PAGE):
            page = {arm: {"image": rows[arm].tolist()} for arm in ids[start : start + PAGE]}
            begun = time.perf_counter()
            self.ask("POST", f"/experiments/{NAME}/arms", {"arms": page})
            yield time.perf_counter() - begun

    def select(self, policy: str, taste: np.ndarray[Any, Any]) -> str:
        """A decision's id."""
        asked = {"experiment": NAME, "policy": policy, "context": {"taste": taste.tolist()}}
        found: str = self.ask("POST", "/select", asked)["id"]
        return found

    def idle(self) -> None:
        """Wait until the process does nothing: until its indices are built."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            before = self.server.cpu_seconds()
            time.sleep(LOOK_S)
            if self.server.cpu_seconds() - before < IDLE_CORE * LOOK_S:
                return
        raise RuntimeError("the service does not come to rest")


@contextmanager
def shop(store: str, folder: Path) -> Iterator[Shop]:
    """The service on a store, started and ended as an operator does it."""
    environment = {
        **QUIET,
        "FORAGE_EXPERIMENTS": "",
        "FORAGE_EXPERIMENT_MEMORY_BYTES": str(32 * 2**30),
    }
    with forage(store, folder / "service.log", PATIENCE_S, **environment) as server:
        one = Shop(server)
        try:
            yield one
        finally:
            one.client.close()


def loaded(one: Shop, rows: Rows) -> Json:
    """Give the whole catalogue, page by page. The longest page is one behind a snapshot."""
    pages = []
    for number, seconds in enumerate(one.put(rows)):
        pages.append(seconds)
        if number % 10 == 0:
            say(f"{number * PAGE:>9,} arms, a page in {seconds:.2f} s")
    tenth = max(1, len(pages) // 10)
    return {
        "load_s": round(sum(pages), 1),
        "arms_per_second": round(len(rows) / sum(pages)),
        "median_page_s": [
            round(float(np.median(part)), 3) for part in (pages[:tenth], pages[-tenth:])
        ],
        "longest_page_s": round(max(pages), 2),
    }


def indexed(one: Shop, policies: Sequence[str]) -> Json:
    """Ask each policy twice, which takes the catalogue in and has its index built; wait for it."""
    begun = time.perf_counter()
    for policy in policies:
        for _ in range(2):
            one.select(policy, np.ones(WIDTH))
    first_s = time.perf_counter() - begun
    one.idle()
    return {
        "first_decisions_s": round(first_s, 2),
        "index_s": round(time.perf_counter() - begun - LOOK_S, 1),
        "resident_mb": round(resident_mb(one.server.pid), 1),
    }


class Made:
    """Decisions of a policy over HTTP, as the log has them."""

    def __init__(self, one: Shop, policy: str) -> None:
        tastes = np.random.default_rng(3).standard_normal((COMPARED, WIDTH))
        self.policy = policy
        self._found = []
        for taste in tastes:
            told = one.ask("GET", f"/decisions/{one.select(policy, taste)}?experiment={NAME}")
            candidates = [each["arm"] for each in told["candidates"]]
            self._found.append((taste, told["seed"], told["ranking"][0]["arm"], candidates))

    def compared(self, learner: Learner, rows: Rows) -> Json:
        """Against a search that looks at every arm."""
        exact, equal, recall = ArmIndex(learner.view), 0, 0.0
        exact.load(rows)
        for taste, seed, arm, candidates in self._found:
            best, every = decided(learner, exact, rows, taste, seed)
            equal += arm == best
            recall += len(set(candidates) & set(every)) / len(every)
        return {"equal": equal / COMPARED, "recall": round(recall / COMPARED, 4)}


async def state_at(store: str, position: int) -> State:
    """The experiment as its log was then."""
    log, state = open_store(store, readonly=True), State(NAME)
    await log.open()
    try:
        while state.position < position:
            for record in await log.read(NAME, state.position, position - state.position):
                state.apply(record.position, decode_event(record.payload))
    finally:
        await log.close()
    return state


def asked_of(url: str, policy: str, rate: float, seconds: float, seed: int) -> Plan:
    """Selects that leave the arms out, in contexts that never repeat."""
    requests, numbered = selects(
        url, {"features": FEATURES}, {"experiment": NAME, "policy": policy}, None, Random(seed),
        fresh=True,
    )  # fmt: skip
    due = plan(
        CASES["sqlite-linucb"], url, seconds=seconds, warmup_s=WARMUP_S, rate=rate, seed=seed
    )  # fmt: skip
    return replace(due, selects=requests, numbered=numbered, timeout_s=TIMEOUT_S)


def due(one: Shop, policy: str, rate: float, seconds: float, seed: int) -> Json:
    """Selects at a rate; what they saw."""
    asked = asked_of(one.server.url, policy, rate, seconds, seed)
    found = turn([asked], {"server": one.server.pid})
    (tally,) = found.tallies
    told = figures(tally)
    say(f"{policy} at {rate:g}/s: p99 {cell(told['p99'])} ms, max {cell(told['max'])} ms")
    return {
        **told,
        "long": at_least(tally.latencies["select"], LONG_MS),
        "server_us": round(1e6 * found.cpu_s["server"] / sum(tally.seconds["select"])),
    }


def changing(one: Shop, policy: str, rate: float, seconds: float, rows: Rows) -> Json:
    """The same, while arms come with the features of others."""
    ids = list(rows)[:CHANGED]
    others = dict(zip(ids, reversed([rows[arm] for arm in ids]), strict=True))

    def change() -> float:
        time.sleep(WARMUP_S)
        return sum(one.put(others))

    with ThreadPoolExecutor(1) as aside:
        changed = aside.submit(change)
        found = due(one, policy, rate, seconds, seed=2)
        return {**found, "changed": len(ids), "change_s": round(changed.result(), 1)}


def restarted(store: str, folder: Path, policies: Sequence[str]) -> Json:
    """Started on what is there, until it is ready and until each policy has decided."""
    begun = time.perf_counter()
    with shop(store, folder) as one:
        ready_s = time.perf_counter() - begun
        one.select(policies[0], np.ones(WIDTH))
        first_s = time.perf_counter() - begun
        found = indexed(one, policies)
    return {
        "ready_s": round(ready_s, 1),
        "first_decision_s": round(first_s, 1),
        "index_s": found["index_s"],
        "resident_mb": found["resident_mb"],
    }


def measured(folder: Path, asked: argparse.Namespace) -> Json:
    """All of it, in the order of the figures."""
    policies: list[str] = asked.policies.split(",")
    arms = np.round(vectors(asked.arms, asked.catalogue), DECIMALS)
    rows: Rows = dict(zip(map(str, range(asked.arms)), arms, strict=True))
    store = f"sqlite:///{folder / 'forage.db'}"
    with shop(store, folder) as one:
        one.ask("PUT", f"/experiments/{NAME}", definition(policies, asked.retrieve))
        for policy in policies:
            one.learn(policy)
        learned = one.position()
        results: Json = {"load": loaded(one, rows)}
        say(f"loaded in {results['load']['load_s']:g} s")
        results["load"] |= indexed(one, policies)
        made = [Made(one, policy) for policy in policies]
        found: Json = {
            policy: {"selects": due(one, policy, asked.rate, asked.seconds, seed=1)}
            for policy in policies
        }
        for policy in policies:
            found[policy]["changing"] = changing(one, policy, asked.rate, asked.seconds, rows)
        results["peak_mb"] = round(peak_mb(one.server.pid), 1)
        ending = time.perf_counter()
    results["restart"] = {
        "end_s": round(time.perf_counter() - ending, 1),
        **restarted(store, folder, policies),
    }
    state = asyncio.run(state_at(store, learned))
    for each in made:
        found[each.policy] |= each.compared(state.learners[each.policy], rows)
    return {**results, "policies": found}


def rows_of(results: Json) -> list[list[str]]:
    """A row a policy and phase."""
    long = f"{LONG_MS:g} ms or more"
    cells = [
        ["policy", "", "selects", "p50 ms", "p99 ms", "max ms", long, "errors", "server us",
         "equal", "recall"]
    ]  # fmt: skip
    for policy, found in results["policies"].items():
        for phase in ("selects", "changing"):
            each = found[phase]
            quality = [cell(found[name], "{:.3f}") for name in ("equal", "recall")]
            cells.append(
                [
                    policy,
                    "catalogue stays" if phase == "selects" else f"{each['changed']:,} arms change",
                    f"{each['count']:,}",
                    *(cell(each[name]) for name in ("p50", "p99", "max")),
                    f"{each['long']:,}",
                    f"{each['errors']:,}",
                    cell(each["server_us"], "{:,.0f}"),
                    *(quality if phase == "selects" else ("", "")),
                ]
            )
    return cells


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("http.catalogue", __doc__)
    options.add_argument("--arms", type=int, default=1_000_000, help="default: 1,000,000")
    options.add_argument("--retrieve", type=int, default=20, help="default: 20")
    options.add_argument("--rate", type=float, default=200.0, help="a second; default: 200")
    options.add_argument(
        "--seconds", type=float, default=60.0, help="of selects, each phase (default: 60)"
    )
    options.add_argument("--catalogue", choices=("mixed", "even"), default="mixed")
    options.add_argument("--policies", default="linucb,lints", help="default: linucb,lints")
    out_option(options, "catalogue")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    asked = parser().parse_args(arguments)
    expect_two_cores()
    os.sched_setaffinity(0, {CLIENT_CORE})
    with tempfile.TemporaryDirectory() as place:
        found = measured(Path(place), asked)
    results: Json = {
        "machine": machine(),
        "arms": asked.arms,
        "retrieve": asked.retrieve,
        "catalogue": asked.catalogue,
        "rate": asked.rate,
        "seconds": asked.seconds,
        "long_ms": LONG_MS,
        **found,
    }
    print(table(rows_of(results)))
    for part in ("load", "restart"):
        told = ", ".join(f"{name} {value}" for name, value in results[part].items())
        print(f"{part}: {told}")
    print(f"at most {results['peak_mb']:,.0f} MB")
    keep(results, asked.out)


if __name__ == "__main__":
    main()
