"""The way from the options of the command line to a checked run."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator_client.arguments import DEFAULTS, OUT
from simulator_client.errors import UsageError
from simulator_client.journal import Run, world_of
from simulator_client.reporting import check, implied
from simulator_client.worlds.policies import read_policies
from simulator_client.worlds.synthetic import Synthetic, policies_of


def requested_run(options: argparse.Namespace, run_id: str, experiment: str | None = None) -> Run:
    """Return the run of the options, on an experiment named after it if none is given.

    Raises UsageError for what does not fit together.
    """
    given = _given(options)
    fields: dict[str, Any] = DEFAULTS | implied(given) | given
    own = read_policies(options.policy_file) if options.policy_file else {}
    if fields["world"] == Synthetic.name and fields["data"]:
        own = policies_of(Path(fields["data"])) | own
    if own and options.policies is None:
        fields["policies"] = tuple(own)
    fields["own"] = {name: own[name] for name in fields["policies"] if name in own}
    name = experiment or f"{fields['world']}-{run_id}"
    run = Run(run=run_id, experiment=name, **fields)
    if len(set(run.policies)) != len(run.policies):
        raise UsageError("a policy is named twice")
    check(run)
    world = world_of(run)
    if experiment is None:
        world.definition(run.policies, run.own)
    if world.longest is not None and run.visits > world.longest:
        if options.visits is not None:
            raise UsageError(f"{run.data} has {world.longest:,} rows; --visits is more")
        run = replace(run, visits=world.longest)
    return run


def run_folder(named: Path) -> Path:
    """Return the folder of a run, given by path or by its id under out/."""
    inside = OUT / named
    return inside if not named.exists() and inside.exists() else named


def _given(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in DEFAULTS}
    if given["data"] is not None:
        given["data"] = str(given["data"].resolve())  # a report may be written from any folder
    return {name: value for name, value in given.items() if value is not None}
