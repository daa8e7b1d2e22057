"""forage-sim: replay a world with a known optimum against a Forage service, and report on it."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

NEEDED: Final = ("forage_client", "matplotlib", "hdrh")
"""The packages of the extra sim: a service is installed without them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or say which package it lacks; return the exit status."""
    for name in NEEDED:
        if find_spec(name) is None:
            say = f"{name} is not installed; pip install 'forage-bandits[sim]'"
            print(f"forage-sim: {say}", file=sys.stderr)
            return 1
    from simulator_client.command import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
