"""`forage-sim load`: from the options to an exit status."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simulator_client.errors import UsageError
from simulator_client.journal import write_whole
from simulator_client.load import load
from simulator_client.load_progress import load_board
from simulator_client.load_summary import errors_in_words, facts, missed, rows, summary
from simulator_client.summary import table

MISSED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


def run(options: argparse.Namespace, urls: Sequence[str], out: Path) -> int:
    """0 when the test ran and kept its limits, 1 when it missed one, 2 for options that do not fit
    the service, 130 for Ctrl-C. Raises SimulatorError for a service that cannot be tested."""
    try:
        asked, tally = load(options, urls, load_board)
    except UsageError as error:
        print(f"forage-sim: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("\nStopped. Nothing was kept.", file=sys.stderr)
        return INTERRUPTED
    found = summary(asked, tally)
    found["missed"] = missed(found, options.p99_ms, options.errors)
    text = json.dumps(found, indent=2) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "summary.json", text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.json, text)
    print(f"\n{facts(found)}\n\n{table(rows(found))}\n")
    for line in (*found["remarks"], errors_in_words(found)):
        if line:
            print(line)
    from simulator_client.load_report import write_load_report

    print(f"Report: {write_load_report(found, tally, out)}")
    for limit in found["missed"]:
        print(f"Missed: {limit}", file=sys.stderr)
    return MISSED if found["missed"] else 0
