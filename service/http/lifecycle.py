"""Lifecycle: where a process stands between its start and its end."""

from dataclasses import dataclass


@dataclass(slots=True)
class Lifecycle:
    """draining   a signal has stopped the process: each answer is the last of its connection"""

    draining: bool = False
