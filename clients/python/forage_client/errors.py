"""Errors of the client.

ClientError
 +-- Unsendable     a value of the call that no request can carry: NaN in a context, a lone
 |                  surrogate, an object of yours, a budget that is no number
 +-- Unreachable    no usable answer in time
 +-- Problem        the service refused the request, and a retry cannot mend it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ClientError(Exception):
    """The root; its text is one line that says what is wrong."""


class Unsendable(ClientError):
    """A value of the call cannot be sent, or is none that it takes."""


class Unreachable(ClientError):
    """No usable answer in time: refused, timed out, or 'try later' to the end."""


class Problem(ClientError):
    """An `application/problem+json` answer.

    errors   path and message of each fault
    """

    def __init__(
        self, status: int, title: str, detail: str = "", errors: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, list(errors)
        faults = "; ".join(f"{e.get('path', '')}: {e.get('message', '')}" for e in self.errors)
        told = ": ".join(part for part in (f"{status} {title}", detail, faults) if part)
        super().__init__(told)
