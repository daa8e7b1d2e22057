"""Replay a world against the service: visit, select, click or not, reward, one after another.

Each policy is a chain of its own over the same visits; the chains run side by side. At a rate
(`paced`) the visits of a chain overlap.
"""

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from forage_client import ClientError

from simulator_client.client import Client
from simulator_client.errors import UsageError
from simulator_client.health import LOOK_AT_LEAST_VISITS, LOOKS, HealthLog
from simulator_client.journal import Lines, Run, file_of, save_run, world_of
from simulator_client.paced import PacedChain
from simulator_client.player import Player
from simulator_client.progress import Tally, count, show, show_regularly
from simulator_client.reporting import check_rules, definition
from simulator_client.training import TrainingGate

DEFINED_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Chain:
    """The visits of one policy, one after another."""

    player: Player
    journal: Lines
    tally: Tally
    gate: TrainingGate | None  # None: free-running
    health: HealthLog | None  # None: nobody asks

    async def play(self) -> None:
        if self.gate:
            await self.gate.start()
        for number in range(self.player.run.visits):
            if self.gate and self.gate.due:
                self.tally.note = "waits for training"
                await self.gate.wait()
                self.tally.note = ""
            pending = await self.player.select(number)
            record = await self.player.finish(pending, self.player.outcome(pending))
            self.journal.add(asdict(record))
            count(self.tally, record)
            if self.gate:
                self.gate.rewarded(record.settled)
            if self.health:
                status = await self.health.look(self.tally.done)
                if status and self.gate:
                    self.gate.learn(status)


def new_run_id() -> str:
    """Make the name of a run, which sorts by time: its start (UTC) and four random hex digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def prepare(client: Client, run: Run) -> None:
    """Define the run's experiment, or check that an existing one can be used.

    An experiment that is there already is used as it is defined, never redefined: its policies
    may be the very thing that somebody wants to try.
    """
    there = await client.get_experiment(run.experiment)
    if there is None:
        defined = definition(run)
        await client.put_experiment(run.experiment, defined)
        arms = len(defined["arms"])
    else:
        arms = 0
        check_rules(run, there["definition"])
        by_name = {status["name"]: status for status in await client.policies(run.experiment)}
        missing = [policy for policy in run.policies if policy not in by_name]
        if missing:
            raise UsageError(
                f"experiment {run.experiment!r} has no policy {missing[0]!r}; "
                f"it has: {', '.join(by_name)}"
            )
        warm = [name for name, s in by_name.items() if s["decisions"] or s["rewards"]]
        if warm:
            raise UsageError(
                f"experiment {run.experiment!r} is warm: {warm[0]!r} has decided or learned "
                "already, so its figures would not be those of a fresh start; "
                "take another --experiment"
            )
    await client.wait_defined(run.experiment, DEFINED_WITHIN_S, arms=arms)


async def play(
    client: Client,
    run: Run,
    folder: Path,
    *,
    patience_s: float = 120.0,
    expiry_patience_s: float = 60.0,
) -> None:
    """Make a run, from its definition to its last visit."""
    await prepare(client, run)
    save_run(folder, run)
    print(f"Run {run.run} on experiment {run.experiment}, in {folder}", file=sys.stderr)
    await replay(client, run, folder, patience_s=patience_s, expiry_patience_s=expiry_patience_s)


async def replay(
    client: Client,
    run: Run,
    folder: Path,
    *,
    patience_s: float = 120.0,
    expiry_patience_s: float = 60.0,
    looks: int = LOOKS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Run:
    """Make the visits of a run; return the run with the number of waits that timed out.

    looks: of each head, over the run; 0: none. expiry_patience_s: how long, after the last wait
    window of a run at a rate, its last rewards may take to be learned.
    """
    world = world_of(run)
    stream = world.stream(run.seed)
    tallies = [Tally(policy, run.visits) for policy in run.policies]
    with ExitStack() as stack:
        chains: list[Chain | PacedChain] = []
        gates = []
        for tally in tallies:
            player = Player(run, tally.policy, client, world, stream)
            journal = Lines(file_of(folder, "visits", tally.policy))
            stack.callback(journal.close)
            health = gate = None
            if looks:
                every_visits = max(1, min(run.visits // looks, LOOK_AT_LEAST_VISITS))
                health = HealthLog(client, run.experiment, tally.policy, folder, every_visits)
                stack.callback(health.close)
            if run.rate is not None:
                paced = PacedChain(
                    player, run.rate, folder, journal, tally, health, expiry_patience_s, sleep
                )
                chains.append(paced)
                continue
            if run.wait_for_training:
                gate = TrainingGate(
                    client, run.experiment, tally.policy, patience_s=patience_s, sleep=sleep
                )
                gates.append(gate)
            chains.append(Chain(player, journal, tally, gate, health))
        try:
            await _together(chains, tallies)
        finally:
            timeouts = sum(gate.timeouts for gate in gates)
            if timeouts:
                run = replace(run, training_timeouts=run.training_timeouts + timeouts)
                save_run(folder, run)
    return run


async def _together(chains: Sequence[Chain | PacedChain], tallies: Sequence[Tally]) -> None:
    """Play all chains at once; the first fault stops the others, and is raised."""
    telling = asyncio.create_task(show_regularly(tallies))
    try:
        async with asyncio.TaskGroup() as group:
            for chain in chains:
                group.create_task(chain.play())
    except* ClientError as faults:
        raise faults.exceptions[0] from None
    finally:
        telling.cancel()
        show(tallies)
