"""CommitGate: requests under way and commits, as writer, batcher and routes share them."""

import asyncio
from collections.abc import Callable, Sized

SOME, ENOUGH, APART_SECONDS = 6, 32, 0.003
"""After a commit of at least SOME entries the next begins APART_SECONDS after that one began, or
once ENOUGH entries wait: a commit costs as much as three decisions, whatever its size."""


class CommitGate:
    """committing   a commit, or the pause after it, is under way
    waiting      requests that wait for their answers
    """

    def __init__(self, connections: Sized = ()) -> None:
        """connections   the open ones; each sends one request at a time"""
        self.committing = False
        self._connections = connections
        self.waiting = 0
        self._hurry = asyncio.Event()
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back between two commits."""
        self._subscribers.append(callback)

    # -- requests ------------------------------------------------------------------------------

    def enter(self) -> None:
        """Count a waiting request. Once every connection waits, the pause ends."""
        self.waiting += 1
        if self.waiting >= len(self._connections):
            self._hurry.set()

    def leave(self) -> None:
        self.waiting -= 1

    # -- the writer ----------------------------------------------------------------------------

    def begin(self) -> None:
        self.committing = True

    def end(self) -> None:
        self.committing = False
        for callback in self._subscribers:
            callback()

    def hurry(self) -> None:
        """End the pause that is under way."""
        self._hurry.set()

    async def pause(self, until: float) -> None:
        """Wait for more entries, up to a time of the loop's clock. No wait where every open
        connection waits for its answer: no further request can come."""
        if 0 < self.waiting >= len(self._connections):
            return
        self._hurry.clear()
        timer = asyncio.get_running_loop().call_at(until, self.hurry)
        await self._hurry.wait()
        timer.cancel()
