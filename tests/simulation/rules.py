"""What may happen next, each a small change of a world by chance."""

import asyncio
from functools import partial
from random import Random

from tests.simulation.disk import Fault
from tests.simulation.ledger import Visit
from tests.simulation.world import LEEWAY_S, Rule, World

RECENT = 6
FAULTS: tuple[Fault, ...] = ("refuse", "lose", "lose", "lose", "part", "late")
OUTAGES_S = (150.0, 1_000.0)
HOUR_S = 3_600.0
AHEAD_S = (3 * HOUR_S, 55 * HOUR_S)
SKEWS_S = (0.0, -3.0, 3.0, -30.0, 30.0, -3 * HOUR_S, *AHEAD_S)


def _visit(world: World, rng: Random) -> Visit | None:
    """A decision of late, now and then any."""
    visits = list(world.ledger.visits.values())
    if not visits:
        return None
    return rng.choice(visits if rng.random() < 0.2 else visits[-RECENT:])


async def select(world: World, rng: Random) -> None:
    for _ in range(rng.choice((1, 2, 4))):
        world.select(rng)


async def reward(world: World, rng: Random) -> None:
    for _ in range(rng.choice((1, 2, 4))):
        if visit := _visit(world, rng):
            world.contribute(visit, rng)


async def duplicate(world: World, rng: Random) -> None:
    """A caller that has waited too long, or forgot that it was answered: twice at once."""
    visit = _visit(world, rng)
    if visit and visit.sent:
        own = rng.choice(visit.sent)
        world.report(visit, own, rng)
        world.report(visit, own, rng)


async def reorder(world: World, rng: Random) -> None:
    """Two new contributions and all earlier ones, in any order."""
    if visit := _visit(world, rng):
        world.contribute(visit, rng)
        world.contribute(visit, rng)
        for own in rng.sample(visit.sent, len(visit.sent)):
            world.report(visit, own, rng)


async def contradict(world: World, rng: Random) -> None:
    """Another value under an identity that was taken."""
    if visit := _visit(world, rng):
        taken = [own for own in visit.sent if own.took]
        if taken:
            world.report(visit, rng.choice(taken), rng, factor=0.9)


async def crash(world: World, rng: Random) -> None:
    if process := world.any_process(rng):
        await world.lose(process)


async def stop(world: World, rng: Random) -> None:
    if process := world.any_process(rng):
        await process.stop()
        await world.lose(process)


async def restart(world: World, rng: Random) -> None:
    await world.start_all()


async def snapshot(world: World, rng: Random) -> None:
    if process := world.serving(rng):
        log = process.parts.log
        for replica in log.replicas.by_name.values():
            world.ask(process, partial(log.snapshots.save, replica), lambda *_: None, rng)


async def expire(world: World, rng: Random) -> None:
    """Every process looks for what is due at once."""
    for process in world.processes:
        if process.services:
            world.ask(process, process.parts.expiry.expire_due, lambda *_: None, rng)


async def race(world: World, rng: Random) -> None:
    """Decisions fall due while their rewards are on their way."""
    if visit := _visit(world, rng):
        world.jump_to(visit.decision.reward_by)
        world.contribute(visit, rng)
        await expire(world, rng)
        world.contribute(visit, rng)


async def trim(world: World, rng: Random) -> None:
    if process := world.serving(rng):
        world.ask(process, process.parts.retention.trim_all, lambda *_: None, rng)


async def erase(world: World, rng: Random) -> None:
    world.erase(rng)


async def fault_commit(world: World, rng: Random) -> None:
    if process := world.any_process(rng):
        process.line.faults.append(rng.choice(FAULTS))


async def store_down_or_slow(world: World, rng: Random) -> None:
    if process := world.any_process(rng):
        until = world.now + rng.choice((0.1, 1.0, 4.0))
        setattr(process.line, rng.choice(("down", "slow")), until)


async def corrupt_snapshot(world: World, rng: Random) -> None:
    world.disk.corrupt(rng)


async def pass_time(world: World, rng: Random) -> None:
    world.jump(rng.choice((0.5, 2.0, 5.0, 20.0, 50.0)))


async def outage(world: World, rng: Random) -> None:
    """Longer than rewards are accepted."""
    await world.outage(rng.choice(OUTAGES_S))


async def skew_clock(world: World, rng: Random) -> None:
    """A wall clock alone; it goes back before or after the next start of its process."""
    if process := world.any_process(rng):
        process.skew = rng.choice(SKEWS_S)


async def swing_clock(world: World, rng: Random) -> None:
    """A wall clock runs far ahead, perhaps over a restart; what is old by it is trimmed; it goes
    back, and a caller repeats itself."""
    if process := world.any_process(rng):
        process.skew = rng.choice(AHEAD_S)
        if rng.random() < 0.5:
            await world.lose(process)
            await world.start_all()
            await asyncio.sleep(1.0)
        await trim(world, rng)
        await asyncio.sleep(rng.choice((0.1, 2.0)))
        for process in world.processes:
            process.skew = 0.0
        await duplicate(world, rng)


async def train(world: World, rng: Random) -> None:
    world.train(rng)


async def hand_over(world: World, rng: Random) -> None:
    world.hand_over(rng)


async def define(world: World, rng: Random) -> None:
    world.define(rng)


async def calm(world: World, rng: Random) -> None:
    await world.calm()


RULES: dict[Rule, int] = {
    select: 16,
    reward: 14,
    duplicate: 5,
    reorder: 3,
    contradict: 1,
    crash: 3,
    stop: 1,
    restart: 10,
    snapshot: 3,
    expire: 2,
    trim: 3,
    erase: 2,
    race: 3,
    fault_commit: 6,
    store_down_or_slow: 2,
    corrupt_snapshot: 1,
    pass_time: 2,
    outage: 1,
    skew_clock: 1,
    swing_clock: 2,
    train: 4,
    hand_over: 4,
    define: 2,
    calm: 1,
}
"""Rules and how often each comes, beside the others."""


def run(seed: int, steps: int, leeway_s: float = LEEWAY_S) -> World:
    """A world of this seed after so many steps and its end.

    Raises AssertionError at the first violation, with the step at which it was seen.
    """
    rng, world = Random(f"steps of {seed}"), World(seed, leeway_s)
    rules, weights = list(RULES), list(RULES.values())
    done: list[str] = []
    try:
        with world.open():
            for rule in rng.choices(rules, weights, k=steps):
                done.append(rule.__name__)
                world.step(rule, rng)
            world.finish()
    except AssertionError as violation:
        violation.add_note(f"seed {seed}, step {len(done)}, after {', '.join(done[-12:])}")
        raise
    return world
