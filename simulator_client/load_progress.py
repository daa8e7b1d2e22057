"""How a load test stands: a bar on a terminal, a line now and then elsewhere (stderr)."""

import sys
import time
from typing import Any, Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_EVERY_S: Final = 5.0


class LoadBoard(Protocol):
    """Shows how a load test stands while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def show(self, at_s: float, told: str) -> None:
        """So many seconds in, this can be said."""
        ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def show(self, at_s: float, told: str) -> None:
        """Nothing."""


def load_board(total_s: float, warmup_s: float) -> LoadBoard:
    """The board that suits the terminal, or the lack of one."""
    console = Console(stderr=True)
    if console.is_terminal:
        return LiveLoad(total_s, warmup_s, console)
    return LineLoad(total_s, warmup_s, sys.stderr)


class LiveLoad:
    """A bar over the seconds of the test."""

    def __init__(self, total_s: float, warmup_s: float, console: Console) -> None:
        self._warmup_s = warmup_s
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TextColumn("{task.fields[told]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("warms up", total=total_s, told="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.refresh()
        self._progress.stop()

    def show(self, at_s: float, told: str) -> None:
        """Redraw the bar."""
        description = "warms up" if at_s < self._warmup_s else "counts"
        self._progress.update(self._task, completed=at_s, description=description, told=told)
        self._progress.refresh()


class LineLoad:
    """A line every LINE_EVERY_S."""

    def __init__(self, total_s: float, warmup_s: float, file: TextIO) -> None:
        self._total_s, self._warmup_s, self._file = total_s, warmup_s, file
        self._next_at = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def show(self, at_s: float, told: str) -> None:
        """Print a line if it is time for one."""
        if time.monotonic() >= self._next_at:
            self._next_at += LINE_EVERY_S
            warm = "" if at_s >= self._warmup_s else " (warms up)"
            line = f"{at_s:.0f}/{self._total_s:.0f} s{warm} {told}"
            print(line, file=self._file, flush=True)


class Standing:
    """What the processes told last, in all."""

    def __init__(self) -> None:
        self._told: dict[int, dict[str, Any]] = {}
        self._answered, self._at_s = 0, 0.0

    def take(self, index: int, told: dict[str, Any]) -> None:
        """What a process told."""
        self._told[index] = told

    def words(self) -> tuple[float, str]:
        """Seconds in, and how it goes since these words were asked for last."""
        at_s = max((told["at_s"] for told in self._told.values()), default=0.0)
        answered, errors, waiting = (
            sum(told[name] for told in self._told.values())
            for name in ("answered", "errors", "waiting")
        )
        took_s = at_s - self._at_s
        rate = (answered - self._answered) / took_s if took_s > 0 else 0.0
        self._answered, self._at_s = answered, at_s
        told = f"{rate:,.0f} answers/s, {errors:,} errors"
        return at_s, told + (f", {waiting:,} wait to be sent" if waiting else "")
