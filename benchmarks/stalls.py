"""How long one request keeps all others waiting: python -m benchmarks.stalls.

A service on SQLite in this process, asked by its own protocol; beside it a task that sleeps for a
millisecond at a time. `stall`: the longest that it slept beyond that, while the request went on.
`turn`: the most processor time of one turn of the loop, which other load on the machine does not
count in. Writes out/benchmarks/stalls.json.
"""

import asyncio
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter, thread_time
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks.tables import keep, out_option, parser_of, say
from service.server.serving import COLLECTIONS, SWITCH_SECONDS
from tests.support import plug
from tests.support.local import LocalService, local

ARMS: Final = 10_000
SLOTS: Final = 100
PAGE: Final = 2_000
TICK_S: Final = 0.001
PATIENCE_S: Final = 120.0
POLICIES: Final[dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "lints": {"kind": "lints"},
    "lints_disjoint": {"kind": "lints", "disjoint": True},
}
FEATURES: Final[dict[str, Any]] = {
    "context": {"age": {"type": "numeric", "scale": 10.0, "default": 0.0}},
    "arm": {"v": {"type": "numeric", "default": 0.0}, "w": {"type": "vector", "size": 8}},
}


@dataclass
class Stall:
    """Of one request, in milliseconds."""

    name: str
    stall_ms: float
    turn_ms: float
    took_ms: float
    status: int


class Watch:
    """The longest stall and the longest turn, since it was last set to zero."""

    def __init__(self) -> None:
        self.stall = self.turn = 0.0
        whole = asyncio.events.Handle._run

        def run(handle: Any) -> None:
            start = thread_time()
            whole(handle)
            self.turn = max(self.turn, thread_time() - start)

        asyncio.events.Handle._run = run  # type: ignore[assignment,method-assign]

    async def tick(self) -> None:
        last = perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = perf_counter()
            self.stall, last = max(self.stall, now - last - TICK_S), now


class Asking:
    """Requests to a service, and what each did to its loop."""

    def __init__(self, wire: LocalService) -> None:
        self._wire, self._plug, self._watch = wire, plug.Plug(wire), Watch()

    def ask(self, name: str, path: str, body: Mapping[str, Any] | None) -> tuple[Stall, Any]:
        """body: None where it is a GET."""
        content = b"" if body is None else json.dumps(body).encode()
        fields = {} if body is None else {"Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        request = plug.head(path, len(content), fields, method) + content

        async def go() -> tuple[Stall, Any]:
            ticking = asyncio.create_task(self._watch.tick())
            await asyncio.sleep(5 * TICK_S)
            self._watch.stall = self._watch.turn = 0.0
            start = perf_counter()
            asyncio.get_running_loop().call_soon(self._plug.protocol.data_received, request)
            answer = await self._plug._receive()
            took = perf_counter() - start
            await asyncio.sleep(3 * TICK_S)
            ticking.cancel()
            stall, turn = self._watch.stall * 1e3, self._watch.turn * 1e3
            return Stall(name, stall, turn, took * 1e3, answer.status_code), answer.json()

        return self._wire.run(go())


def define(wire: LocalService, name: str, arms: Mapping[str, Any]) -> None:
    """An experiment of these arms."""
    definition = {"features": FEATURES, "policies": POLICIES, "reward": {"range": [0, 1]}}
    wire.put(f"/experiments/{name}", {**definition, "arms": {}})
    items = list(arms.items())
    for start in range(0, len(items), PAGE):
        page = {"arms": dict(items[start : start + PAGE])}
        assert wire.post(f"/experiments/{name}/arms", page).status_code == 200


def catalogues(wire: LocalService) -> None:
    """Arms that are all alike, alike in pairs, all different; and few."""
    chance = np.random.default_rng(0)

    def vector() -> list[float]:
        return [round(float(x), 3) for x in chance.standard_normal(8)]

    zeros = [0.0] * 8
    define(wire, "alike", {f"arm-{n}": {"w": zeros} for n in range(ARMS)})
    define(wire, "pairs", {f"arm-{n}": {"v": n // 2 / ARMS, "w": zeros} for n in range(ARMS)})
    define(wire, "apart", {f"arm-{n}": {"v": n / ARMS, "w": vector()} for n in range(ARMS)})
    define(wire, "small", {f"arm-{n}": {"v": float(n), "w": vector()} for n in range(50)})


def asked(asking: Asking) -> Iterator[Stall]:
    """What one caller may ask for, each twice: the second time what is kept is there."""
    inline = [{"id": f"i{n}", "features": {"w": [0] * 8}} for n in range(ARMS)]
    for policy in POLICIES:
        questions: list[tuple[str, dict[str, Any]]] = [
            ("inline, all alike", {"experiment": "small", "arms": inline, "top_k": SLOTS}),
            ("catalogue, alike", {"experiment": "alike", "top_k": SLOTS}),
            ("catalogue, pairs", {"experiment": "pairs", "top_k": SLOTS}),
            ("catalogue, apart", {"experiment": "apart", "top_k": SLOTS}),
            ("catalogue, apart, one slot", {"experiment": "apart"}),
        ]
        for name, question in questions:
            for _ in range(2):
                found, answer = asking.ask(
                    f"{policy}: {name}", "/select", {**question, "policy": policy}
                )
            yield found
            if policy == "lints" and "one slot" in name:
                path = f"/decisions/{answer['id']}?experiment=apart"
                yield asking.ask("explained: 10,000 candidates", path, None)[0]
    batch = [{"experiment": "small", "context": {"age": float(n)}} for n in range(1_000)]
    found, answer = asking.ask("batch of 1,000", "/select/batch", {"requests": batch})
    yield found
    tokens = [each["answer"]["decision_id"] for each in answer["results"]]
    rewards = [{"decision_id": token, "reward": 1.0} for token in tokens]
    yield asking.ask("rewards of 1,000", "/reward/batch", {"requests": rewards})[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask, print, keep."""
    options = parser_of("stalls", __doc__)
    out_option(options, "stalls", published=False)
    chosen = options.parse_args(arguments)
    plug.ANSWER_S = PATIENCE_S
    sys.setswitchinterval(SWITCH_SECONDS)
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        local(
            LocalService, store=f"sqlite:///{folder}/forage.db", select_log_seconds=PATIENCE_S
        ) as wire,
    ):
        catalogues(wire)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        for each in asked(Asking(wire)):
            found.append(each)
            say(
                f"{each.name:45} stall {each.stall_ms:8.1f} ms, turn {each.turn_ms:8.1f} ms, "
                f"took {each.took_ms:8.1f} ms"
            )
    keep({"arms": ARMS, "slots": SLOTS, "requests": [asdict(each) for each in found]}, chosen.out)


if __name__ == "__main__":
    main()
