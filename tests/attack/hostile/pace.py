"""How fast an attacker asks: a key at its rate, and what needs no key at one of its own."""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Final

KEYLESS: Final = 200
"""Requests a second of those who have no key."""
BEYOND: Final = 1.05
"""Of a key's rate: it is reached, so that some are refused."""


class Pace:
    """Lets requests through one by one, each key at its rate."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        self._gaps = {key: 1 / (BEYOND * rate) for key, rate in rates.items()}
        self._next: dict[str, float] = {}

    async def turn(self, key: str) -> None:
        """Wait until a request with this key is due."""
        kind = key if key in self._gaps else ""
        at = max(self._next.get(kind, 0.0), monotonic())
        self._next[kind] = at + self._gaps.get(kind, 1 / KEYLESS)
        await asyncio.sleep(max(0.0, at - monotonic()))
