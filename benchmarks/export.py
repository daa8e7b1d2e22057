"""How fast `forage export` is and what it holds in memory: python -m benchmarks.export.

Writes SQLite logs of two sizes through the store's own `commit`: decisions over 50 arms with nine
features, each settled by a reward or by its default, spread over 35 days, so that all but the last
week of them are final. Then runs `forage export` as a process of its own: the first run over all of
it, and a second one that finds nothing new. Memory is the process's own high-water mark (VmHWM);
`start_mb` is that of an export of an empty log.

Writes out/benchmarks/export.json.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.tables import OUT, keep
from service.log.stores import open_store
from service.log.stores.base import Append, DecisionRow, Entry
from service.state.events import (
    AnyEvent,
    ArmRemoved,
    Decision,
    Expired,
    Rewarded,
    Settled,
    Shown,
    encode_decision,
    encode_event,
)

SHOP = "shop"
ARMS = [f"product-{number}" for number in range(50)]
FEATURES = 9
BATCH = 2_000  # decisions a commit
DAYS = 35
START = 1_767_225_600.0  # 2026-01-01
WAIT_S, ACCEPT_S = 600.0, 604_800.0
STATUS = """
import sys
from service.cli.program import main
status = main(sys.argv[1:])
lines = open("/proc/self/status").read().splitlines()
print(next(line for line in lines if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(status)
"""


def made(number: int, at: float, rng: np.random.Generator) -> Decision:
    probabilities = rng.dirichlet(np.ones(len(ARMS)))
    slot = int(rng.integers(len(ARMS)))
    return Decision(
        id=rng.bytes(11).hex(),
        at=at,
        policy="lints",
        assignment=1.0,
        model_version=f"lints/0@{number}",
        schema_version=1,
        unit=rng.bytes(16).hex(),
        context={"persona": "new_puppy_parent", "hour": number % 24, "basket": float(rng.random())},
        arms=ARMS,
        inline={},
        probabilities=probabilities.tolist(),
        seed=int(rng.integers(2**62)),
        bank=0,
        shown=[Shown(ARMS[slot], float(probabilities[slot]), rng.random(FEATURES).tolist())],
        slate=float(probabilities[slot]),
        reward_by=at + WAIT_S,
        accept_until=at + WAIT_S + ACCEPT_S,
    )


def entries_of(decision: Decision, rewarded: bool) -> list[Entry]:
    kind: type[Rewarded] | type[Expired] = Rewarded if rewarded else Expired
    shown = decision.shown[0]
    event: AnyEvent = kind(
        at=decision.at + (60.0 if rewarded else WAIT_S),
        decision=decision.id,
        policy=decision.policy,
        schema_version=1,
        settled=[Settled(shown.arm, float(rewarded), shown.x)],
    )
    row = DecisionRow(SHOP, decision.id, "lints", encode_decision(decision), decision.reward_by)
    mark = {f"{decision.id}#0/{shown.arm}": "[1.0,false]"}
    return [row, Append(SHOP, encode_event(event), mark, decision.id, decision.accept_until)]


async def write_log(url: str, decisions: int) -> None:
    store, rng = open_store(url), np.random.default_rng(1)
    await store.open()
    apart = DAYS * 86_400.0 / max(decisions, 1)
    await store.commit([Append(SHOP, encode_event(ArmRemoved(at=START, arm="none")), {"0": ""})])
    for start in range(0, decisions, BATCH):
        entries: list[Entry] = []
        for number in range(start, min(start + BATCH, decisions)):
            entries += entries_of(made(number, START + apart * number, rng), rng.random() < 0.2)
        await store.commit(entries)
    await store.close()


def exported(url: str, to: Path) -> tuple[float, float]:
    """Seconds and the high-water mark of memory, MB, of one run."""
    command = [sys.executable, "-c", STATUS, "export", "--store", url, "--to", str(to)]
    start = perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    print(ended.stdout)
    kib = next(line for line in ended.stderr.splitlines() if line.startswith("VmHWM"))
    return perf_counter() - start, int(kib.split()[1]) / 1024


def measured(folder: Path, decisions: int) -> dict[str, Any]:
    """One log, written and exported twice."""
    database, to = folder / f"{decisions}.db", folder / f"archive-{decisions}"
    url = f"sqlite:///{database}"
    start = perf_counter()
    asyncio.run(write_log(url, decisions))
    wrote = perf_counter() - start
    seconds, mb = exported(url, to)
    again, mb_again = exported(url, to)
    size = sum(path.stat().st_size for path in to.rglob("*.parquet"))
    figures = {
        "decisions": decisions,
        "store_mb": round(database.stat().st_size / 1e6),
        "log_written_seconds": round(wrote, 1),
        "archive_mb": round(size / 1e6),
        "seconds": round(seconds, 1),
        "rows_per_second": round(decisions / seconds),
        "peak_mb": round(mb),
        "again_seconds": round(again, 1),
        "again_peak_mb": round(mb_again),
    }
    database.unlink()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        start_mb = measured(folder, 0)["peak_mb"]
        runs = [measured(folder, each) for each in (asked.decisions // 10, asked.decisions)]
    figures = {
        "start_mb": start_mb,
        "peak_ratio": round(runs[1]["peak_mb"] / runs[0]["peak_mb"], 2),
        "runs": runs,
    }
    print(json.dumps(figures, indent=2))
    keep(figures, OUT / "export.json")


if __name__ == "__main__":
    main()
