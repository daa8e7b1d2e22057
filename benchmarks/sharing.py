"""What processes that share a log cost: python -m benchmarks.sharing [--policies A,B]
[--stores redis,postgresql,sqlite] [--rates R,S] [--rounds N].

Selects at a rate, a reward for every fifth of them, and the default reward for all others five
seconds later. A round measures the processor time of one process, of two that share the load, and
of two of which one gets all of it, once that many defaults fall due as decisions are made. Two
processes are two services on Redis and PostgreSQL, and two workers of one service on SQLite, whose
sockets share the connections.

follower   processor time of a process that only follows, as a share of the one that decides
two        processor time of both under the same load, as a share of the one process
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the services, too

from benchmarks.following import KINDS, definition_of
from benchmarks.machine import machine
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option, say
from simulator_client.load import SELECT, Plan, run
from simulator_client.load_requests import Requests, origin_of
from tests.support.postgres_server import postgres_schema
from tests.support.redis_server import redis_server
from tests.support.service_process import Service, service

WAIT_S: Final = 5.0  # of a decision for its reward
WARM_UP_S: Final = 9.0  # until as many defaults fall due as decisions are made
TOGETHER: Final = {"one": (1, 1), "two": (2, 2), "one of two": (2, 1)}
"""How many processes there are, and how many of them get the load."""


@contextmanager
def store_of(name: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty store."""
    with ExitStack() as stack:
        if name == "redis":
            yield stack.enter_context(redis_server(folder, "--appendfsync", "everysec")).url
        elif name == "postgresql":
            yield stack.enter_context(postgres_schema()).url
        else:
            yield f"sqlite:///{folder / 'forage.db'}"


def experiment(kind: str, path: Path) -> Path:
    """Write the experiment of `benchmarks.http` with one policy, whose defaults fall due soon."""
    definition = definition_of(kind)
    definition["reward"] |= {"wait_seconds": WAIT_S}
    path.write_text('name = "bench"\n' + "".join(_lines(definition)))
    return path


def _lines(definition: Json) -> Iterator[str]:
    """Yield a definition as TOML: a table for each of its members, with inline values."""
    for member, values in definition.items():
        yield f"[{member}]\n"
        yield from (f"{_key(name)} = {_inline(value)}\n" for name, value in values.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(name)} = {_inline(own)}' for name, own in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value)


_key = json.dumps


@contextmanager
def serving(kind: str, store: str, processes: int) -> Iterator[list[Service]]:
    """Serve an experiment in so many processes; those of SQLite are workers of one service."""
    workers = processes if store == "sqlite" else 1
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        where = stack.enter_context(store_of(store, folder))
        settings = {
            "FORAGE_TRAINER": "off",
            "FORAGE_LOG_LEVEL": "error",
            "FORAGE_EXPERIMENTS": str(experiment(kind, folder / "experiment.toml")),
            "FORAGE_WORKERS": str(workers),
        }
        started = range(processes // workers)
        yield [stack.enter_context(service(folder, where, **settings)) for _ in started]


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found = subprocess.run(["pgrep", "--parent", str(pid)], capture_output=True, text=True)
    return own + sum(processor_seconds(int(child)) for child in found.stdout.split())


def measure(
    kind: str, store: str, together: str, rate: float, seconds: float, seed: int
) -> list[float]:
    """Return microseconds of the processor for a select, by process. Raises SystemExit where a
    request fails."""
    processes, loaded = TOGETHER[together]
    with serving(kind, store, processes) as services:
        definition = definition_of(kind)
        urls = [each.url for each in services][:loaded]
        requests = Requests(urls[0], definition, {"experiment": "bench"}, seed=seed)
        plan = Plan(
            origins=[origin_of(url) for url in urls],
            requests=requests,
            rate=rate,
            warmup_s=0.0,
            seconds=WARM_UP_S,
            seed=seed,
        )
        run(plan)
        before, began = [processor_seconds(each.pid) for each in services], time.monotonic()
        tally = run(
            Plan(
                origins=plan.origins,
                requests=requests,
                rate=rate,
                warmup_s=0.0,
                seconds=seconds,
                seed=seed + 1,
            )
        )
        used = [
            processor_seconds(each.pid) - own for each, own in zip(services, before, strict=True)
        ]
        if tally.errors:
            raise SystemExit(f"{kind} on {store}: {dict(tally.errors)}")
        selects, took = tally.total(SELECT), time.monotonic() - began
        say(
            f"{kind} on {store}, {together}: {selects} selects in {took:.0f} s, "
            + ", ".join(f"{1e6 * each / selects:.0f} µs" for each in used)
        )
        return [round(1e6 * each / selects, 1) for each in used]


def cases(asked_stores: Sequence[str], together: Sequence[str]) -> list[tuple[str, str]]:
    """Return what is measured on each store: workers of one service cannot be loaded singly."""
    return [
        (store, each)
        for store in asked_stores
        for each in together
        if store != "sqlite" or each != "one of two"
    ]


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of the page."""
    cells = [["policy", "store", "selects a second", "one, µs", "follower", "two"]]
    for kind, stores in results["select_us"].items():
        for store, rates in stores.items():
            for rate, own in rates.items():
                one = median(sum(each) for each in own["one"])
                two = median(
                    sum(both) / sum(single)
                    for both, single in zip(own["two"], own["one"], strict=True)
                )
                follower = "-"
                if "one of two" in own:
                    shares = (follows / decides for decides, follows in own["one of two"])
                    follower = f"{median(shares):.3f}"
                cells.append([f"`{kind}`", store, rate, f"{one:.0f}", follower, f"{two:.2f}"])
    return {"sharing": cells}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of("sharing", __doc__)
    parser.add_argument("--policies", default="linucb,auto", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--stores", default="redis,postgresql,sqlite", help="default: all three")
    parser.add_argument("--rates", default="300,80", help="selects a second; default: 300,80")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a case; default: 20")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    found: Json = {}
    for turn in range(asked.rounds):
        for kind in asked.policies.split(","):
            for rate in asked.rates.split(","):
                for store, together in cases(asked.stores.split(","), list(TOGETHER)):
                    used = measure(kind, store, together, float(rate), asked.seconds, 10 * turn)
                    own = found.setdefault(kind, {}).setdefault(store, {}).setdefault(rate, {})
                    own.setdefault(together, []).append(used)
    results = {"machine": machine(), "select_us": found}
    conclude("sharing", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
