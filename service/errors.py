"""Everything Forage refuses or fails at, as one tree.

ForageError
|- Refused                      the caller's fault; carries an HTTP status and the path of the fault
|  |- Invalid           422     the request is well-formed and wrong
|  |- Unauthorized      401     no key, or not one that holds
|  |- Forbidden         403     the key lacks permission
|  |- ForeignOrigin     403     a page of an origin that no setting lists
|  |- Misdirected       421     a host that this service does not answer for
|  |- NotFound          404
|  |- Conflict          409     the same identity with another value
|  |  `- NoEligibleArm  409     rules leave nothing to show
|  |- UnknownSecret     409     the log has units that were hashed under another secret
|  |- LearnersOnly      409     a decider was asked for what learners answer
|  |- Exhausted         409     the arm can take no further rewards
|  |- Gone              410     too late
|  |- PreconditionFailed 412    another revision than If-Match named
|  |- TooLarge          413     more bytes than the key may send
|  |- TooManyRequests   429     more than the rate of the key
|  |  `- Busy           429     too many evaluations or verdicts are running
|  |- Starting          503     the log is still being recovered
|  |- Overloaded        503     too many requests are under way
|  `- Overdue           504     its caller has stopped waiting: nothing was done
|- StoreError                   the log or the snapshots
|  |- StoreUnavailable          try again: nothing was acknowledged
|  |  |- NoTables                the store has none yet: a service creates them when it starts
|  |  |- StoreReplaced           the files of the embedded database are others now
|  |  |- Quarantined     503     this experiment alone: its log cannot be folded
|  |  `- NoFiniteScores  503     this policy alone, where it is the fallback as well
|  |- StoreLocked               another process holds the embedded database
|  |- UnknownSchema             written by another version of Forage
|  |- LogGap                    positions are missing
|  |  `- LogLost                they were folded: it came back without its last writes
|  |- FoldFailed                an event cannot be read or folded
|  |- FoldedBeforeSkipped       an event that was folded here has been skipped since
|  `- Damaged                   a checksum does not match
|- ProcessEnded                 an evaluation's process ended before it answered
|- NotLoggable                  an event that no replica could read back: it is not appended
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
    title = "A valid key is required"


class Forbidden(Refused):
    status = 403
    slug = "forbidden"
    title = "The key lacks permission"


class ForeignOrigin(Refused):
    status = 403
    slug = "foreign-origin"
    title = "The origin is not allowed"


class Misdirected(Refused):
    status = 421
    slug = "misdirected"
    title = "The host is not allowed"


class NotFound(Refused):
    status = 404
    slug = "not-found"
    title = "Not found"


class Conflict(Refused):
    status = 409
    slug = "conflict"
    title = "The request conflicts with what is recorded"


class NoEligibleArm(Conflict):
    """Refusal because rules left no arm. rule: that removed the last ones."""

    slug = "no-eligible-arm"
    title = "No arm is eligible"

    def __init__(self, rule: str, last: int) -> None:
        arms = "the last arm" if last == 1 else f"the last {last:,} arms"
        super().__init__(f"no arm is eligible: {rule!r} removed {arms}")
        self.rule = rule


class UnknownSecret(Refused):
    status = 409
    slug = "unknown-secret"
    title = "The log has units of an unknown secret"


class LearnersOnly(Refused):
    """Refusal of a decider. learner: where learners are; None: nobody has said."""

    status = 409
    slug = "learners-only"
    title = "Only a learner answers this"

    def __init__(self, learner: str | None) -> None:
        where = f"ask {learner}" if learner else "ask a learner (FORAGE_LEARNER_URL names none)"
        super().__init__(f"this process decides and takes rewards, and nothing else: {where}")


class Exhausted(Refused):
    status = 409
    slug = "exhausted"
    title = "The arm can take no further rewards"


class Gone(Refused):
    status = 410
    slug = "too-late"
    title = "Too late"


class PreconditionFailed(Refused):
    status = 412
    slug = "precondition-failed"
    title = "The revision does not match"


class TooLarge(Refused):
    status = 413
    slug = "too-large"
    title = "The body is too large"


class TooManyRequests(Refused):
    """Refusal by a rate. retry_after_s: when one would pass again."""

    status = 429
    slug = "too-many-requests"
    title = "Rate limit exceeded"

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Busy(TooManyRequests):
    slug = "busy"
    title = "Too many evaluations are running"


class Starting(Refused):
    status = 503
    slug = "starting"
    title = "The service is starting"

    def __init__(self) -> None:
        super().__init__("it reads its log, and GET /readyz says how far it is: try again")


class Overloaded(Refused):
    status = 503
    slug = "overloaded"
    title = "The service is overloaded"

    def __init__(self) -> None:
        super().__init__("nothing was changed: try again")


class Overdue(Refused):
    status = 504
    slug = "overdue"
    title = "The caller's deadline has passed"

    def __init__(self) -> None:
        super().__init__("nothing was changed: it was not begun in time")


class StoreError(ForageError):
    pass


class StoreUnavailable(StoreError):
    pass


class NoTables(StoreUnavailable):
    pass


class StoreReplaced(StoreUnavailable):
    pass


class Quarantined(StoreUnavailable):
    """Experiment whose log cannot be folded. position: of the event that cannot be folded; None:
    the log itself is lost or cannot be read. reason: why, for people."""

    def __init__(self, experiment: str, position: int | None, reason: str) -> None:
        why = reason
        if position is not None:
            why = (
                f"the event at position {position} cannot be folded ({reason}); an operator has "
                "to run `forage repair`"
            )
        super().__init__(f"experiment {experiment} is quarantined: {why}")
        self.experiment, self.position, self.reason = experiment, position, reason


class NoFiniteScores(StoreUnavailable):
    def __init__(self, policy: str) -> None:
        super().__init__(
            f"policy {policy} gives no finite scores: look at its head and its settings"
        )


class StoreLocked(StoreError):
    pass


class UnknownSchema(StoreError):
    pass


class LogGap(StoreError):
    pass


class LogLost(LogGap):
    pass


class FoldFailed(StoreError):
    def __init__(self, position: int, fault: Exception) -> None:
        super().__init__(f"the event at position {position} cannot be folded: {fault}")
        self.position = position
        self.reason = str(fault) or type(fault).__name__


class RunFailed(StoreError):
    """One of several events that were folded at once cannot be folded."""


class FoldedBeforeSkipped(StoreError):
    pass


class Damaged(StoreError):
    pass


class ProcessEnded(ForageError):
    pass


class NotLoggable(ForageError):
    pass


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
