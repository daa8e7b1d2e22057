"""The progress of a replay: a line on stderr now and then."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator_client.journal import Record

LINE_EVERY_S: Final = 10.0


@dataclass(slots=True)
class Tally:
    """The visits of one policy so far. matched: those that count."""

    policy: str
    visits: int
    done: int = 0
    matched: int = 0
    clicks: float = 0.0
    expected: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        """Return the number of visits, clicks per visit, and their true expectation."""
        text = f"{self.policy} {self.done:,}/{self.visits:,}"
        if self.matched:
            text += f" CTR {self.clicks / self.matched:.3f}"
        if self.matched < self.done:
            text += f" over {self.matched:,} matched"
        elif self.matched:
            text += f" (expected {self.expected / self.matched:.3f})"
        return text + (f" [{self.note}]" if self.note else "")


def count(tally: Tally, record: Record) -> None:
    tally.done += 1
    tally.matched += record.matched
    tally.clicks += record.clicks
    tally.expected += record.expected


async def show_regularly(tallies: Sequence[Tally]) -> None:
    """Show a line every LINE_EVERY_S, until cancelled."""
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        show(tallies)


def show(tallies: Sequence[Tally]) -> None:
    print(" | ".join(map(str, tallies)), file=sys.stderr, flush=True)
