"""Lifecycle: where a process stands between its start and its end."""

from dataclasses import dataclass


@dataclass(slots=True)
class Lifecycle:
    """The phases of a process.

    starting   the log is being recovered, and only probes are answered
    draining   a signal has stopped the process: each answer is the last of its connection
    """

    starting: bool = True
    draining: bool = False
