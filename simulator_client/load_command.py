"""`forage-sim load`: from the options to an exit status."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from simulator_client.client import Client
from simulator_client.errors import UsageError
from simulator_client.journal import write_whole
from simulator_client.load import Plan, run
from simulator_client.load_report import write_load_report
from simulator_client.load_requests import origin_of, requests_for
from simulator_client.load_summary import errors_in_words, facts, missed, rows, summary
from simulator_client.summary import table

MISSED: Final = 1
USAGE: Final = 2
CLOSED_CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 256


def load(options: argparse.Namespace, urls: list[str], out: Path) -> int:
    """Run a load test. Return 0 if it kept its limits, 1 if it missed one, 2 for options that do
    not fit the service. Raises ClientError if the service cannot be tested."""
    try:
        plan, about = asyncio.run(_planned(options, urls))
        print(
            f"Warming up for {plan.warmup_s:g} s, then measuring for {plan.seconds:g} s ...",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        tally = run(plan)
    except UsageError as error:
        print(f"forage-sim: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("\nStopped. Nothing was kept.", file=sys.stderr)
        raise
    found = summary(plan, tally, **about)
    found["missed"] = missed(found, options.p99_ms, options.errors)
    for path in filter(None, (out / "summary.json", options.json)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=2) + "\n")
    print(f"\n{facts(found)}\n\n{table(rows(found))}\n")
    for line in filter(None, (*found["remarks"], errors_in_words(found))):
        print(line)
    print(f"Report: {write_load_report(found, tally, out)}")
    for limit in found["missed"]:
        print(f"Missed: {limit}", file=sys.stderr)
    return MISSED if found["missed"] else 0


async def _planned(options: argparse.Namespace, urls: list[str]) -> tuple[Plan, dict[str, Any]]:
    """Make the plan, and what the summary tells of it. Raises UsageError."""
    if options.rewards_alone and options.rate:
        raise UsageError("--rewards-alone goes as fast as it can; leave out --rate")
    if options.rewards_alone and not options.warm_up:
        raise UsageError("--rewards-alone decides during --warm-up, which is 0")
    client = Client(urls, key=options.key)
    try:
        await client.wait_ready(options.ready_within)
        arms = options.arms == "ids"
        experiment, requests = await requests_for(
            client, options.experiment, options.policy,
            arms=arms, fresh=options.contexts == "fresh", seed=options.seed,
        )  # fmt: skip
    finally:
        await client.aclose()
    plan = Plan(
        origins=[origin_of(url) for url in client.urls],
        requests=requests,
        connections=options.connections
        or (OPEN_CONNECTIONS if options.rate else CLOSED_CONNECTIONS),
        rate=options.rate,
        warmup_s=options.warm_up,
        seconds=options.seconds,
        rewards_per_select=options.rewards_per_select,
        rewards_alone=options.rewards_alone,
        timeout_s=options.timeout,
        seed=options.seed,
    )
    about = {"urls": urls, "experiment": experiment, "policy": options.policy, "arms": arms}
    return plan, about
