"""A learner and two deciders under load: python -m benchmarks.fleet [--rate N] [--kinds A,B].

Three processes on Redis (appendfsync everysec), defaults that fall due after two seconds, selects
at a rate to both deciders in turn, and a reward for every five. The log tells how old what a
decision was made by was: the time since the first event after its position was appended. Then the
log is audited. How long a decider takes to start is measured with a log of some events and with one
of `--events` more. All share the cores of this machine with the client.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks.following import append, settlements
from benchmarks.http.cases import CASES, plan
from benchmarks.http.servers import QUIET, Server
from benchmarks.tables import Cells, Json, conclude, parser_of, say
from service.log.replay import row_pages
from service.log.stores import open_store
from service.offline.audit import audit_store
from service.state.decisions import decode_decision, model_version
from service.state.events import decode_event
from simulator_client.load import SELECT, run
from simulator_client.load_requests import origin_of
from tests.support.redis_server import redis_server
from tests.support.service_process import Service, service

EXPERIMENT: Final = Path(__file__).parent / "http" / "experiment.toml"
EVERYSEC: Final = ("--appendfsync", "everysec")
DECIDER: Final = {"FORAGE_ROLE": "decider"}
PAGE: Final = 5_000


async def ages(url: str, since: float) -> np.ndarray:
    """Return how old what each decision was made by was, in seconds, of those since a time."""
    store = open_store(url, readonly=True)
    await store.open()
    appended = [0.0]
    while page := await store.read("bench", len(appended) - 1, PAGE):
        appended += [decode_event(record.payload).at for record in page]
    found = list[float]()
    async for rows in row_pages(store, "bench"):
        for row in rows:
            decision = decode_decision(row.payload)
            place = model_version(decision.model_version)
            assert place is not None
            later = appended[place.position + 1 : place.position + 2]
            if decision.at >= since:
                found.append(max(decision.at - later[0], 0.0) if later else 0.0)
    await store.close()
    return np.array(found)


def definition(folder: Path) -> str:
    """Write the experiment with defaults that fall due."""
    text = EXPERIMENT.read_text()
    assert "wait_seconds = 86400" in text
    path = folder / "experiment.toml"
    path.write_text(text.replace("wait_seconds = 86400", "wait_seconds = 2"))
    return str(path)


def live(kind: str, rate: float, seconds: float, folder: Path) -> Json:
    """Return figures of a fleet under load."""
    with redis_server(folder, *EVERYSEC) as redis, ExitStack() as stack:
        quiet = QUIET | {"FORAGE_EXPERIMENTS": definition(folder)}
        learner = stack.enter_context(service(folder, redis.url, **quiet))
        deciders = [
            stack.enter_context(service(folder, redis.url, **quiet, **DECIDER)) for _ in range(2)
        ]
        case = replace(CASES[f"redis-everysec-{kind}"])
        asked = plan(case, deciders[0].url, rate=rate, seconds=seconds, warmup_s=10.0)
        asked = replace(asked, origins=[origin_of(each.url) for each in deciders])
        servers = [Server(each.url, each.pid) for each in (learner, *deciders)]
        before, since = [each.cpu_s() for each in servers], time.time() + 10.0
        tally = run(asked)
        used = [each.cpu_s() - then for each, then in zip(servers, before, strict=True)]
        selects = tally.total(SELECT)
        found = asyncio.run(ages(redis.url, since))
        [report] = asyncio.run(audit_store(redis.url))
        return {
            "rate": rate,
            "selects": selects,
            "errors": tally.errors.total(),
            "learner_us": round(1e6 * used[0] / selects),
            "decider_us": round(1e6 * sum(used[1:]) / selects),
            "age_p50_ms": round(1e3 * float(np.quantile(found, 0.5))),
            "age_p99_ms": round(1e3 * float(np.quantile(found, 0.99))),
            "differences": report.counts.total(),
        }


def started(folder: Path, url: str) -> float:
    """Return the seconds of a decider's start, its imports included."""
    quiet = QUIET | {"FORAGE_EXPERIMENTS": str(EXPERIMENT)}
    decider, start = Service(folder, url, **quiet, **DECIDER), time.monotonic()
    try:
        decider.start()
        return time.monotonic() - start
    finally:
        decider.close()


def starts(counts: Sequence[int], folder: Path) -> Json:
    """Return the seconds of a decider's start by the events of the log."""
    with redis_server(folder, *EVERYSEC) as redis:
        found, source, length = dict[str, list[float]](), settlements("linucb", 1), 0
        for count in counts:
            asyncio.run(_append(redis.url, source, count - length))
            length = count
            with service(folder, redis.url, **QUIET):
                found[str(count)] = [round(started(folder, redis.url), 2) for _ in range(3)]
            say(f"start with {count:,} events: {found[str(count)]}")
        return found


async def _append(url: str, source: object, count: int) -> None:
    store = open_store(url)
    await store.open()
    await append(store, "bench", source, count)  # type: ignore[arg-type]
    await store.close()


def tables(results: Json) -> dict[str, Cells]:
    """Return the tables that are printed."""
    cells = [["policy", "selects/s", "learner, µs a select", "decider, µs a select",
              "age p50, p99", "audit differences"]]  # fmt: skip
    for kind, own in results["live"].items():
        age = f"{own['age_p50_ms']}, {own['age_p99_ms']} ms"
        cells.append([f"`{kind}`", f"{own['rate']:.0f}", str(own["learner_us"]),
                      str(own["decider_us"]), age, str(own["differences"])])  # fmt: skip
    started = [["events in the log", "start of a decider, s"]]
    started += [[f"{int(count):,}", ", ".join(map(str, own))]
                for count, own in results["starts"].items()]  # fmt: skip
    return {"fleet": cells, "starts of deciders": started}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of("fleet", __doc__)
    parser.add_argument("--kinds", default="linucb,auto", help="default: linucb,auto")
    parser.add_argument("--rate", type=float, default=500.0, help="selects a second (500)")
    parser.add_argument("--seconds", type=float, default=20.0, help="default: 20")
    parser.add_argument("--events", default="10000,100000", help="of logs, for starts")
    asked = parser.parse_args(arguments)
    found: Json = {"live": {}, "starts": {}}
    for kind in filter(None, asked.kinds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            found["live"][kind] = live(kind, asked.rate, asked.seconds, Path(folder))
            say(f"{kind}: {found['live'][kind]}")
    with tempfile.TemporaryDirectory() as folder:
        counts = [int(each) for each in asked.events.split(",") if each]
        found["starts"] = starts(counts, Path(folder)) if counts else {}
    conclude("fleet", found, tables(found), publish=False)


if __name__ == "__main__":
    main()
