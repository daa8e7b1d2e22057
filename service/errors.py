"""Everything Forage refuses or fails at, as one tree.

ForageError
|- Refused                      the caller's fault; carries an HTTP status and the path of the fault
|  |- Invalid           422     the request is well-formed and wrong
|  |- Unauthorized      401     no key, or not one that holds
|  |- Forbidden         403     the key is not good for this
|  |- NotFound          404
|  |- Conflict          409     the same identity with another value
|  |- Busy              409     one of its kind is at work
|  |- Gone              410     too late
|  |- PreconditionFailed 412    another revision than If-Match named
|  `- TooManyRequests   429     more than the rate of the key
|- StoreError                   the log or the snapshots
|  |- StoreUnavailable          try again: nothing was acknowledged
|  |- StoreLocked               another process holds the embedded database
|  |- LogTooNew                 written by a newer Forage
|  |- LogGap                    positions are missing
|  |  `- LogLost                they were folded: it came back without its last writes
|  `- Damaged                   a checksum does not match
|- NotPositiveDefinite          a precision matrix lost its meaning
`- ConfigurationError           a setting or an experiment file is wrong
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a request: where it is (dotted path) and what is wrong with it."""

    path: str
    message: str


class ForageError(Exception):
    """The root of the tree above."""


class Refused(ForageError):
    status = 400
    slug = "refused"
    title = "The request was refused"

    def __init__(self, detail: str, path: str = "", faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = tuple(faults) or ((Fault(path, detail),) if path else ())


class Invalid(Refused):
    status = 422
    slug = "invalid"
    title = "The request is not valid"


class Unauthorized(Refused):
    status = 401
    slug = "unauthorized"
    title = "This needs a key"


class Forbidden(Refused):
    status = 403
    slug = "forbidden"
    title = "The key is not good for this"


class NotFound(Refused):
    status = 404
    slug = "not-found"
    title = "There is no such thing"


class Conflict(Refused):
    status = 409
    slug = "conflict"
    title = "The same identity was used with another value"


class Busy(Refused):
    status = 409
    slug = "busy"
    title = "Another one is at work"


class Gone(Refused):
    status = 410
    slug = "too-late"
    title = "The time for this has passed"


class PreconditionFailed(Refused):
    status = 412
    slug = "precondition-failed"
    title = "The experiment has another revision"


class TooManyRequests(Refused):
    """retry_after_s: when one would pass again."""

    status = 429
    slug = "too-many-requests"
    title = "The key has a rate, and it is reached"

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class StoreError(ForageError):
    pass


class StoreUnavailable(StoreError):
    pass


class StoreLocked(StoreError):
    pass


class LogTooNew(StoreError):
    pass


class LogGap(StoreError):
    pass


class LogLost(LogGap):
    pass


class Damaged(StoreError):
    pass


class Outdated(Damaged):
    """A snapshot or an artifact of a layout that this Forage no longer folds into."""


class NotPositiveDefinite(ForageError):
    def __init__(self, size: int, jitter: float) -> None:
        super().__init__(
            f"a {size} x {size} precision matrix is not positive definite, even with {jitter:.0e} "
            "of its mean diagonal added"
        )
        self.size = size
        self.jitter = jitter


class ConfigurationError(ForageError):
    pass
