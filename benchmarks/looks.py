"""Processor time of looks at a verdict and at shadows: `python -m benchmarks.looks`

Plays the pet shop on SQLite: a tenth clicks. Then it looks twice at each, with N decisions and
after NEW more, and once without what the first look kept, which must tell the same.

--decisions N   in place of 200,000
"""

import asyncio
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.analysis.evaluate import evaluate
from service.analysis.request import EvaluationRequest
from service.analysis.verdict import verdict_on
from service.app import EXAMPLE, open_store_services, start
from service.definition.experiment import Definition, load_definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores import Store, open_store
from service.settings import Settings
from service.tables import aligned

DECISIONS, NEW = 200_000, 1_000
CLICK_RATE = 0.1
TOGETHER = 50
"""Visitors at a time."""

PERSONAS = ["new_puppy_parent", "cat_connoisseur", "budget_shopper", "fish_hobbyist"]
POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb", "epsilon": 0.2},
    "random": {"kind": "random", "share": 0.25},
    "shadow": {"kind": "lints", "shadow": True},
}

Look = Callable[[Store, Checkpoints], Awaitable[object]]


async def play(services: Services, name: str, decisions: int, rng: Random) -> None:
    """Visitors, some at a time, and what came of each."""
    for _ in range(decisions // TOGETHER):
        await asyncio.gather(*(visit(services, name, rng) for _ in range(TOGETHER)))


async def visit(services: Services, name: str, rng: Random) -> None:
    answer = await services.selector.select(SelectRequest({"persona": rng.choice(PERSONAS)}, name))
    reward = float(rng.random() < CLICK_RATE)
    await services.settlements.reward(RewardRequest(answer.token, reward=reward))


async def timed(look: Look, store: Store, checkpoints: Checkpoints) -> tuple[object, float]:
    """Return what a look tells, and its seconds of processor time."""
    began = process_time()
    found = await look(store, checkpoints)
    return found, process_time() - began


async def compared(decisions: int, folder: Path) -> list[list[str]]:
    url, rng, checkpoints = f"sqlite:///{folder}/forage.db", Random(1), Checkpoints(folder / "kept")
    store = open_store(url)
    name, example = load_definition(EXAMPLE)
    content = {**example.model_dump(mode="json"), "policies": POLICIES, "control": "random"}
    looks: dict[str, Look] = {
        "verdict": lambda store, kept: verdict_on(store, name, checkpoints=kept),
        "shadows": lambda store, kept: evaluate(
            store, EvaluationRequest(name, shadows=True), checkpoints=kept
        ),
    }
    rows, first = [["look", "first, s", f"after {NEW:,} more, s", "anew, s", "equal"]], {}
    settings = Settings(store=url, trainer="off", experiments=[])
    async with open_store_services(settings, store) as services:
        await start(services)
        await services.admin.define(name, Definition.model_validate(content), "")
        await play(services, name, decisions, rng)
        for title, look in looks.items():
            _, first[title] = await timed(look, store, checkpoints)
        await play(services, name, NEW, rng)
        for title, look in looks.items():
            later, seconds = await timed(look, store, checkpoints)
            anew, whole = await timed(look, store, NOWHERE)
            told = [f"{each:.2f}" for each in (first[title], seconds, whole)]
            rows.append([title, *told, str(later == anew)])
    return rows


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    with TemporaryDirectory() as folder:
        rows = asyncio.run(compared(parser.parse_args().decisions, Path(folder)))
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
