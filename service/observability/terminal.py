"""Colour for a terminal."""

import os
from typing import IO

BOLD, RESET = "\033[1m", "\033[0m"


def coloured(stream: IO[str]) -> bool:
    """Whether to write colours: on a terminal, unless NO_COLOR says not to (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
