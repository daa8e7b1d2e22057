"""What is counted, as a process of its own: KIND and how many requests of it.

Every process makes the same connections and warms up the same; then come the requests of its kind.
`none` has none. It imports no more than it needs: all of it is counted.
"""

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.http.apps import echo
from tests.support.local import LocalService, local
from tests.support.plug import Connection, Plug, head

EXPERIMENT: Final = Path(__file__).parents[1] / "http" / "experiment.toml"
POLICIES: Final = ("linucb", "lints", "neural_linear_ts")
NONE, ECHO, REWARD = "none", "echo", "reward"
KINDS: Final = (ECHO, *POLICIES, REWARD)
HEADERS: Final = {"Content-Type": "application/json"}
WARM_UP: Final = 20


def question(policy: str, number: int) -> bytes:
    """The arms are left out; no context comes twice."""
    context = {"hour": number / 1_000, "basket": 20.0, "visits": 3.0, "on_phone": True}
    return json.dumps({"policy": policy, "context": context}).encode()


def requests_of(path: str, bodies: list[bytes]) -> list[bytes]:
    return [head(path, len(body), HEADERS) + body for body in bodies]


def work(kind: str, requests: int) -> None:
    """requests: of this kind."""
    count = WARM_UP + requests
    asked = {
        policy: requests_of("/select", [question(policy, number) for number in range(count)])
        for policy in POLICIES
    }
    with asyncio.Runner() as runner:
        bare = Connection(echo.app, "httptools", runner.run)
        bare.ask_all(asked["linucb"][:WARM_UP])
        if kind == ECHO:
            bare.ask_all(asked["linucb"][WARM_UP:])
    with local(LocalService, experiments=[EXPERIMENT]) as wire:
        plug = Plug(wire)
        answers = [
            plug.post("/select", question("linucb", -n), HEADERS) for n in range(1, count + 1)
        ]
        tokens = [answer.json()["decision_id"] for answer in answers]
        bodies = [json.dumps({"decision_id": token, "reward": 1.0}).encode() for token in tokens]
        asked[REWARD] = requests_of("/reward", bodies)
        for each, all_of_it in asked.items():
            plug.ask_all(all_of_it[:WARM_UP])
            if kind == each:
                plug.ask_all(all_of_it[WARM_UP:])


if __name__ == "__main__":
    gc.disable()  # a collection comes when it will, and takes more than a request
    work(sys.argv[1], int(sys.argv[2]))
