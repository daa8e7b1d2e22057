"""What rules cost a decision, in process: python -m benchmarks.rules [--rounds N].

`linucb` over a log in memory, with one reward for every five decisions; every context holds a new
number. Five rules over 50 arms are an eligibility, a pin, a cap of each arm, a cap of a category
and a floor of new arms; over 1,000 arms there is an eligibility alone. A condition reads attributes
only, or also the number, so that no finding of an earlier request can answer. Decisions come one at
a time, and 64 together.

A figure is the processor time of a decision with its part of a reward: the median over rounds,
which alternate between the cases. A ratio is the median of the rounds' ratios to the same arms
without rules.
"""

import asyncio
import os
from collections.abc import Sequence
from random import Random
from statistics import median
from time import process_time
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.tables import Cells, Json, conclude, parser_of
from service.app import open_store_services, start
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.server.allocator import keep_freed_memory
from service.settings import Settings

KINDS: Final = ("food", "toy", "bed", "book", "tool")
SELECTS: Final = 5  # decisions for each reward
TOGETHER: Final = (1, 64)
BATCH: Final = 320  # decisions of a case in a round
BARE: Final = "no rules"

IN_STOCK: Final = {"eligible_if": "stock > 0"}
AFFORDABLE: Final = {"eligible_if": "stock > 0 and price <= budget"}
FOUR: Final[dict[str, Any]] = {
    "pinned": {"pin": {"arm": "arm 1", "share": 0.05}},
    "each": {"cap": {"of": "arm", "share": 0.3}},
    "food": {"cap": {"of": "kind", "is": "food", "share": 0.4}},
    "new": {"floor": {"of": "new", "fewer_than": 20, "share": 0.1}},
}
CASES: Final[dict[int, dict[str, dict[str, Any]]]] = {
    50: {
        BARE: {},
        "five rules": {"stocked": IN_STOCK, **FOUR},
        "five rules, a new context": {"stocked": AFFORDABLE, **FOUR},
    },
    1_000: {
        BARE: {},
        "eligibility": {"stocked": IN_STOCK},
        "eligibility, a new context": {"stocked": AFFORDABLE},
    },
}
"""Rules by number of arms and name of the case."""


def definition(arms: int, rules: dict[str, Any]) -> Definition:
    """Return a shop of 9 columns; every tenth arm is out of stock."""
    return Definition.model_validate(
        {
            "features": {
                "context": {"budget": {"type": "numeric"}},
                "arm": {
                    "kind": {"type": "categorical", "values": [*KINDS]},
                    "price": {"type": "numeric"},
                },
            },
            "attributes": {"stock": "number"},
            "arms": {
                f"arm {number}": {
                    "kind": KINDS[number % len(KINDS)],
                    "price": number % 17 / 10,
                    "stock": number % 10,
                }
                for number in range(arms)
            },
            "policies": {"linucb": {"kind": "linucb"}},
            "reward": {"range": [0, 1]},
            "rules": rules,
        }
    )


async def visit(services: Services, experiment: str, budget: float, *, rewarded: bool) -> None:
    answer = await services.selector.select(SelectRequest({"budget": budget}, experiment))
    if rewarded:
        reward = float(budget > 1.5)
        await services.settlements.reward(RewardRequest(answer.token, reward=reward))


async def seconds_each(services: Services, experiment: str, together: int, rng: Random) -> float:
    """Return the processor time of a decision."""
    start_s = process_time()
    for first in range(0, BATCH, together):
        visits = [
            visit(services, experiment, 1 + rng.random(), rewarded=number % SELECTS == 0)
            for number in range(first, first + together)
        ]
        await asyncio.gather(*visits)
    return (process_time() - start_s) / BATCH


async def measured(rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each case, by decisions that come together."""
    names = {
        (arms, case): f"shop_{arms}_{number}"
        for arms, cases in CASES.items()
        for number, case in enumerate(cases)
    }
    settings, rng = Settings(store="memory://", trainer="off", experiments=[]), Random(1)
    found: dict[str, list[dict[str, float]]] = {}
    async with open_store_services(settings, MemoryStore()) as services:
        await start(services)
        for (arms, case), name in names.items():
            await services.admin.define(name, definition(arms, CASES[arms][case]), "")
        for together in TOGETHER:
            times: dict[tuple[int, str], list[float]] = {key: [] for key in names}
            for number in range(rounds + 1):
                for key, name in names.items():
                    seconds = await seconds_each(services, name, together, rng)
                    if number:  # the first one warms up
                        times[key].append(seconds)
            for (arms, case), own in times.items():
                pairs = [*zip(own, times[arms, BARE], strict=True)]
                figures = {
                    "us": round(median(own) * 1e6, 1),
                    "more_us": round(median(one - bare for one, bare in pairs) * 1e6, 1),
                    "ratio": round(median(one / bare for one, bare in pairs), 2),
                }
                found.setdefault(f"{arms:,} arms, {case}", []).append(figures)
    return found


def tables(results: Json) -> dict[str, Cells]:
    """Return the table."""
    head = ["", *(f"{number} together, µs (more, ratio)" for number in results["together"])]
    rows = [
        [case, *(f"{each['us']} ({each['more_us']}, {each['ratio']})" for each in figures)]
        for case, figures in results["cases"].items()
    ]
    return {"rules": [head, *rows]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    keep_freed_memory()  # as the service does
    parser = parser_of("rules", __doc__)
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    asked = parser.parse_args(arguments)
    results = {"together": TOGETHER, "cases": asyncio.run(measured(asked.rounds))}
    conclude("rules", results, tables(results), publish=False)


if __name__ == "__main__":
    main()
