"""Policies against each other over several stream seeds: a replay per seed, one after another."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from simulator_client.client import Client
from simulator_client.course import Results, load
from simulator_client.errors import UsageError
from simulator_client.journal import Run, load_run, records, write_whole
from simulator_client.progress import Board, Tally, board
from simulator_client.replay import new_run_id, play
from simulator_client.summary import summary_text

# In whose stead a seed's run has its own.
OF_A_SEED: Final = frozenset({"run", "experiment", "seed", "training_timeouts"})


def seed_folder(out: Path, seed: int) -> Path:
    """The run of a seed."""
    return out / f"seed-{seed}"


def check(out: Path, asked: Run, seeds: Sequence[int]) -> None:
    """UsageError where the folder holds runs of another showdown."""
    for seed in seeds:
        folder = seed_folder(out, seed)
        if not (folder / "run.json").exists():
            continue
        found = load_run(folder)
        for name in (field.name for field in fields(Run) if field.name not in OF_A_SEED):
            there, wanted = getattr(found, name), getattr(asked, name)
            if there != wanted:
                raise UsageError(
                    f"{folder} was played with {name.replace('_', '-')} {there}, not {wanted}; "
                    "give another --out"
                )


async def showdown(
    client: Client,
    asked: Run,
    seeds: Sequence[int],
    out: Path,
    *,
    keep: bool = False,
    patience_s: float = 120.0,
    show: Callable[[list[Tally]], Board] = board,
) -> dict[int, Results]:
    """Play every seed that is not done yet, each on an experiment of its own; the runs.

    A seed is done once its summary is written; its experiment was deleted before, unless `keep`.
    """
    runs = {}
    for number, seed in enumerate(seeds, 1):
        folder = seed_folder(out, seed)
        done = (folder / "summary.json").exists()
        if not done:
            print(f"Seed {seed}, {number} of {len(seeds)}:", file=sys.stderr, flush=True)
            run = await _played(client, asked, seed, folder, patience_s, show)
            if not keep:
                await client.delete_experiment(run.experiment)
        runs[seed] = load(folder)
        if not done:
            write_whole(folder / "summary.json", summary_text(runs[seed]))
    return runs


async def _played(
    client: Client,
    asked: Run,
    seed: int,
    folder: Path,
    patience_s: float,
    show: Callable[[list[Tally]], Board],
) -> Run:
    """The run of a seed with every visit done, begun or gone on with."""
    fresh = not (folder / "run.json").exists()
    run = _new(asked, seed) if fresh else load_run(folder)
    if not fresh and _is_complete(folder, run):
        return run  # perhaps its experiment is deleted already
    try:
        await play(client, run, folder, fresh=fresh, patience_s=patience_s, show=show)
    except UsageError as error:
        if fresh:
            raise
        raise UsageError(f"{error}; remove {folder} to play its seed anew") from error
    return run


def _new(asked: Run, seed: int) -> Run:
    run_id = f"{new_run_id()}-{seed}"
    return replace(asked, run=run_id, experiment=f"{asked.world}-{run_id}", seed=seed)


def _is_complete(folder: Path, run: Run) -> bool:
    """Whether every visit of every policy is done."""
    return all(sum(1 for _ in records(folder, p)) >= run.visits for p in run.policies)
