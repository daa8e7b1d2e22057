"""What can go wrong, as the person at the terminal has to hear it.

SimulatorError            one line for the terminal, no traceback
 +-- UsageError           an option, a world or a run folder that does not fit
 +-- Unreachable          no usable answer within the time bound of a call
 +-- Problem              the service answered with an error that a retry cannot mend
"""

from collections.abc import Sequence
from typing import Any


class SimulatorError(Exception):
    """The root; its text is one line that says what is wrong."""


class UsageError(SimulatorError):
    """What was asked for does not exist or does not fit together."""


class Unreachable(SimulatorError):
    """No usable answer within the bound: refused, timed out, or 'try later' to the end."""


class Unsettled(SimulatorError):
    """Rewards of a run that the service had not learned when patience ran out."""


class Problem(SimulatorError):
    """An `application/problem+json` answer."""

    def __init__(
        self, status: int, title: str, detail: str = "", errors: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, list(errors)
        faults = "; ".join(f"{e.get('path', '')}: {e.get('message', '')}" for e in self.errors)
        told = ": ".join(part for part in (f"{status} {title}", detail, faults) if part)
        super().__init__(told)
