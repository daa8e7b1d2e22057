"""What the gate lets serve in the pet shop: `python -m benchmarks.learning.gates`

An incumbent serves that was trained on the rewards of its first 20,000 visits, and learns those of
20,000 more. Beside it a version is trained N times in each way, with other seeds: on all rewards,
on shuffled ones, and at a learning rate at which the descent diverges. Further visitors come until
its gate lets it serve or not. Prints how often it did, and the mean gain that the gates saw.

With --regret STREAMS it prints the regret of 20,000 visits with the gate and without.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any, Final, Literal, get_args
from unittest import mock

import numpy as np

from benchmarks.learning.course import Array, chance, figures, play, serve
from benchmarks.learning.forage import Forage
from benchmarks.learning.worlds import WORLD_SEED, world_of
from benchmarks.tables import Cells, markdown, parser_of, say
from service.state.events import Rewarded, VersionActivated, VersionRejected
from service.training import trainer
from service.training.fit import Fitted, NetPlan, fit
from simulator_client.worlds import World

REWARDS: Final = 20_000
KIND: Final = "neural_linear_ts"
BY_HAND: Final = {"first": 10**9, "growth": 100.0}  # nothing falls due by itself
DIVERGING_RATE: Final = 100.0

Way = Literal["true", "shuffled", "diverging"]
Ended = VersionActivated | VersionRejected


@contextmanager
def trained(way: Way, seed: int, rewards: int) -> Iterator[None]:
    """Have the trainer read so many rewards and fit a net in this way. seed: of the net, and of the
    order of shuffled rewards."""
    fitted = mock.patch.object(trainer, "fit", _fit(way, seed))
    due = mock.patch.object(trainer, "due_count", return_value=rewards)
    with fitted, due:
        yield


def _fit(way: Way, own: int) -> Callable[..., Fitted]:
    def fitted(
        x: Array, column: Any, reward: Array, plan: NetPlan, *, seed: int, weight: Array
    ) -> Fitted:
        if way == "shuffled":
            reward = np.random.default_rng(own).permutation(reward)
        elif way == "diverging":
            rate = {"learning_rate": DIVERGING_RATE}
            plan = replace(plan, training=plan.training.model_copy(update=rate))
        return fit(x, column, reward, plan, seed=1_000 * seed + own, weight=weight)

    return fitted


def incumbent(world: World[Any], kind: str) -> Forage:
    """Return a shop whose version was trained on REWARDS, after twice as many."""
    shop = Forage(world.definition([kind], {kind: {"kind": kind, "training": BY_HAND}}))
    play(world, shop, 0, REWARDS)
    with trained("true", 0, REWARDS):
        shop.train(gated=False)
    play(world, shop, 1, REWARDS)
    return shop


def judged(world: World[Any], incumbent: Forage, way: Way, seed: int) -> Ended:
    """Train a version beside the incumbent, and serve visits until its gate ends. Return how."""
    shop, stream, visit = incumbent.copy(), world.stream(1_000 + seed), 0
    with trained(way, seed, 2 * REWARDS):
        shop.train()
    while shop.learner.challenger:
        serve(world, shop, stream.visit(visit), chance(1_000 + seed, visit))
        visit += 1
    [*_, ended] = (one for one in shop.log.events if isinstance(one, Ended))
    return ended


def trainings_table(kind: str, count: int) -> Cells:
    """Return a row for each way."""
    world = world_of("zooplus", WORLD_SEED)
    shop = incumbent(world, kind)
    found: dict[Way, list[Ended]] = {way: [] for way in get_args(Way)}
    for seed in range(count):
        for way, ended in found.items():
            ended.append(judged(world, shop, way, seed))
            say(f"{way} {seed}: {ended[-1].reason}")
    cells = [["rewards", "trainings", "serve", "mean gain", "longest gate"]]
    for way, ended in found.items():
        seen = [one.gate for one in ended if one.gate is not None]
        served = sum(isinstance(one, VersionActivated) for one in ended)
        gain, longest = fmean(one.gain for one in seen), max(one.settlements for one in seen)
        cells.append([way, f"{count}", f"{served}", f"{gain:.6f}", f"{longest:,}"])
    return cells


def served(kind: str, gate: str, stream: int) -> tuple[float, int | None]:
    """Return the regret of a stream in percent of uniform's, and the rewards after which version 1
    served; None: it never did."""
    world = world_of("zooplus", WORLD_SEED)
    training = {"training": {"gate": gate}}
    shop = Forage(world.definition([kind], {kind: {"kind": kind, **training}}))
    regret = figures(play(world, shop, stream, REWARDS), oracle_ctr=1.0)["relative_regret"]
    assert regret is not None
    rewards = 0
    for event in shop.log.events:
        rewards += isinstance(event, Rewarded)
        if isinstance(event, VersionActivated) and event.version == 1:
            return regret, rewards
    return regret, None


def regret_table(kind: str, streams: int) -> Cells:
    """Return a row with the gate and one without."""
    cells = [["gate", "streams", "regret, % of uniform's", "version 1 serves at"]]
    for gate in ("progressive", "off"):
        found = [served(kind, gate, stream) for stream in range(1, streams + 1)]
        at = ", ".join("never" if first is None else f"{first:,}" for _, first in found)
        cells.append([gate, f"{streams}", f"{fmean(regret for regret, _ in found):.3f}", at])
    return cells


def main() -> None:
    """Measure and print."""
    parser = parser_of("learning.gates", __doc__)
    parser.add_argument("--kind", default=KIND, help=f"of the policy; default: {KIND}")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trainings", type=int, default=50, metavar="N", help="default: 50")
    what.add_argument("--regret", type=int, metavar="STREAMS", help="with the gate and without")
    asked = parser.parse_args()
    if asked.regret:
        print(markdown(regret_table(asked.kind, asked.regret)))
    else:
        print(markdown(trainings_table(asked.kind, asked.trainings)))


if __name__ == "__main__":
    main()
