"""What the headers of a caller cost: python -m benchmarks.http.callers [--rounds N] [--seconds S].

Processor time of a select, and of a bare ASGI echo with the same headers: those of a load generator
(plain), of the SDK with an Idempotency-Key, of a browser behind a proxy, and of a load generator
with a key, at a second service that requires keys. Server on core 0, client on core 1, 64
connections, no rewards. Each round measures every case once; a figure is the least of the rounds,
since other load on the machine only adds.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from benchmarks.http.cases import CASES, ECHO, POLICIES, plan
from benchmarks.http.servers import Server, forage, ours, peer, pin_client
from benchmarks.machine import machine
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option, say
from service.security.keys import ApiKey, changing, digest_of, mint, now
from simulator_client.load import SELECT
from simulator_client.load_requests import HEADERS, NUMBER

WARM_UP_S: Final = 0.3
CALLERS: Final = {
    "plain": HEADERS,
    "SDK": (
        "Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
        "User-Agent: forage\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {{unique}}-{NUMBER}\r\n"
    ),
    "proxy": (
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n"
        "Content-Type: application/json; charset=utf-8\r\nCookie: session=5f1c; theme=dark\r\n"
        "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n"
        "X-Request-ID: 4bf92f3577b34da6\r\n"
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    ),
    "keys": f"{HEADERS}Authorization: Bearer {{key}}\r\n",
}


@contextmanager
def _served(folder: Path) -> Iterator[tuple[dict[str, Server], str]]:
    """Serve the echo, Forage, and Forage on the same log with a required key; yield the key too."""
    keys, (id_, key) = folder / "keys.json", mint()
    with changing(keys) as known:
        digest = digest_of(key.encode()).hex()
        known.append(ApiKey(id=id_, digest=digest, name="load", scopes=("select",), created=now()))
    with ours("sqlite", folder / "sqlite"):
        pass  # it learns, and takes a snapshot as it ends
    shutil.copytree(folder / "sqlite", folder / "keys")
    with ExitStack() as stack:
        servers = {ECHO: stack.enter_context(peer(ECHO, folder / "echo.log"))}
        for name, settings in (("sqlite", {}), ("keys", {"FORAGE_KEYS": str(keys)})):
            where = f"sqlite:///{folder / name / 'forage.db'}"
            serving = stack.enter_context(forage(folder / name, where, **settings))
            servers[name] = Server(serving.url, serving.pid)
        yield servers, key


def measured(rounds: int, seconds: float, folder: Path) -> Json:
    """Return the microseconds of the processor by case and caller, a figure a round."""
    found: Json = {case: {caller: [] for caller in CALLERS} for case in (ECHO, *POLICIES)}
    with _served(folder) as (servers, key):
        for turn in range(rounds):
            for name, callers in found.items():
                policy = POLICIES[0] if name == ECHO else name
                case = replace(CASES[f"sqlite-{policy}"], rewards="none")
                for caller, figures in callers.items():
                    home = ECHO if name == ECHO else "keys" if caller == "keys" else "sqlite"
                    headers = CALLERS[caller].format(unique=uuid4().hex, key=key)
                    asked = plan(
                        case, servers[home].url,
                        headers=headers, seconds=seconds, warmup_s=WARM_UP_S, seed=turn,
                    )  # fmt: skip
                    tally, used_s = servers[home].under(asked)
                    if tally.errors:
                        raise SystemExit(f"{name} refused {caller}: {dict(tally.errors)}")
                    figures.append(round(1e6 * used_s / tally.total(SELECT), 1))
            say(f"round {turn + 1}/{rounds}")
    return found


def tables(results: Json) -> dict[str, Cells]:
    """Return the least of the rounds, and the echo's share of it."""
    found = results["server_us"]
    least = {
        name: {caller: min(figures) for caller, figures in callers.items()}
        for name, callers in found.items()
    }
    head = [*(f"{caller}, µs" for caller in CALLERS), *(f"echo / {caller}" for caller in CALLERS)]
    body = [
        [
            name,
            *(f"{figure:.0f}" for figure in own.values()),
            *(f"{least[ECHO][caller] / figure:.3f}" for caller, figure in own.items()),
        ]
        for name, own in least.items()
    ]
    return {"callers": [["case", *head], *body]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and keep the results."""
    parser = parser_of("http.callers", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a case (default: 1.5)")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    pin_client()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(asked.rounds, asked.seconds, Path(folder))
    results = {"machine": machine(), "rounds": asked.rounds, "server_us": found}
    conclude("callers", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
