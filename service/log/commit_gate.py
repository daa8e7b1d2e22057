"""CommitGate: requests under way and commits, as writer, batcher and routes share them."""

from collections.abc import Callable


class CommitGate:
    """committing   a commit is under way
    waiting      requests that wait for their answers
    """

    def __init__(self) -> None:
        self.committing = False
        self.waiting = 0
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back between two commits."""
        self._subscribers.append(callback)

    def begin(self) -> None:
        self.committing = True

    def end(self) -> None:
        self.committing = False
        for callback in self._subscribers:
            callback()
