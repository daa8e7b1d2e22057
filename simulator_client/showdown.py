"""Policies against each other over several stream seeds: a replay per seed, one after another."""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from simulator_client.client import Client
from simulator_client.course import Results, load
from simulator_client.errors import UsageError
from simulator_client.journal import Run, load_run, write_whole
from simulator_client.replay import new_run_id, play
from simulator_client.summary import summary_text

# Fields that differ between the seeds.
OF_A_SEED: Final = frozenset({"run", "experiment", "seed", "training_timeouts"})


def seed_folder(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def check(out: Path, asked: Run, seeds: Sequence[int]) -> None:
    """Raise UsageError if the folder holds runs of another showdown."""
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
) -> dict[int, Results]:
    """Play every seed that is not done yet, each on an experiment of its own; return the runs.

    A seed is done once its summary is written. An experiment is deleted once its visits are done,
    unless `keep`; that of a seed that was interrupted is deleted before the seed starts again.
    """
    runs = {}
    for number, seed in enumerate(seeds, 1):
        folder = seed_folder(out, seed)
        if not (folder / "summary.json").exists():
            print(f"Seed {seed}, {number} of {len(seeds)}:", file=sys.stderr, flush=True)
            if (folder / "run.json").exists():
                await client.delete_experiment(load_run(folder).experiment)
            run_id = f"{new_run_id()}-{seed}"
            run = replace(asked, run=run_id, experiment=f"{asked.world}-{run_id}", seed=seed)
            await play(client, run, folder, patience_s=patience_s)
            if not keep:
                await client.delete_experiment(run.experiment)
            write_whole(folder / "summary.json", summary_text(load(folder)))
        runs[seed] = load(folder)
    return runs
