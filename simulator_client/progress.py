"""How far a replay is: a live board on a terminal, a line now and then elsewhere (stderr)."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulator_client.journal import Record

REFRESH_S: Final = 0.25
LINE_EVERY_S: Final = 10.0


@dataclass(slots=True)
class Tally:
    """One policy's standing; the replay counts, the board reads."""

    policy: str
    visits: int
    done: int = 0
    matched: int = 0  # of them, those that count
    clicks: float = 0.0
    expected: float = 0.0
    note: str = ""

    def told(self) -> str:
        """Clicks per visit so far, and their true expectation."""
        if not self.matched:
            return "CTR -"
        ctr, expected = self.clicks / self.matched, self.expected / self.matched
        if self.matched < self.done:
            return f"CTR {ctr:.3f} over {self.matched:,} matched"
        return f"CTR {ctr:.3f} (expected {expected:.3f})"


def count(tally: Tally, record: Record) -> None:
    """Add a finished visit to the standing."""
    tally.done += 1
    tally.matched += record.matched
    tally.clicks += record.clicks
    tally.expected += record.expected


class Board(Protocol):
    """Shows tallies while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def refresh(self) -> None:
        """Show how things stand; called every REFRESH_S."""
        ...

    def say(self, message: str) -> None:
        """Show a line that stays."""
        ...


def board(tallies: Sequence[Tally]) -> Board:
    """The board that suits the terminal, or the lack of one."""
    console = Console(stderr=True)
    return LiveBoard(tallies, console) if console.is_terminal else LineBoard(tallies, sys.stderr)


class LiveBoard:
    """A bar per policy."""

    def __init__(self, tallies: Sequence[Tally], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
            auto_refresh=False,
        )
        self._tasks = [
            (t, self._progress.add_task(t.policy, total=t.visits, told="", note=""))
            for t in tallies
        ]

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.refresh()
        self._progress.stop()

    def refresh(self) -> None:
        """Redraw the bars."""
        for tally, task in self._tasks:
            self._progress.update(task, completed=tally.done, told=tally.told(), note=tally.note)
        self._progress.refresh()

    def say(self, message: str) -> None:
        """Print above the bars."""
        self._progress.console.print(message, markup=False, highlight=False)


class LineBoard:
    """A line for all policies every LINE_EVERY_S."""

    def __init__(self, tallies: Sequence[Tally], file: TextIO) -> None:
        self._tallies, self._file = tallies, file
        self._next_at = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._line()

    def refresh(self) -> None:
        """Print a line if it is time for one."""
        if time.monotonic() >= self._next_at:
            self._next_at += LINE_EVERY_S
            self._line()

    def say(self, message: str) -> None:
        """Print the message."""
        print(message, file=self._file, flush=True)

    def _line(self) -> None:
        parts = [
            f"{t.policy} {t.done:,}/{t.visits:,} {t.told()}" + (f" [{t.note}]" if t.note else "")
            for t in self._tallies
        ]
        print(" | ".join(parts), file=self._file, flush=True)
