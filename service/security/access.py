"""Who may ask for what: keys held against what a request is for.

A request that comes with a key is let in with a `Grant`, which says what the key is good for. The
routes hold the experiment of a request against it, and hand it to whoever finds that experiment out
later. Without keys there is no grant (None), and everything is allowed.
"""

import logging
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import NamedTuple

from limits import RateLimitItem

from service.definition.select_request import SelectRequest
from service.errors import (
    ConfigurationError,
    Forbidden,
    ForeignOrigin,
    Misdirected,
    TooManyRequests,
    Unauthorized,
)
from service.observability.telemetry import Count, Telemetry
from service.security.keys import Key, KeyScope, Ring, digest_of, mint, now, rate_of, read_keys
from service.security.profile import FREE, Profile
from service.security.rates import Rates

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How old what is known of the file may be: so soon a revoked key is refused."""

BEARER = b"bearer "

REASONS = (
    "missing", "wrong", "expired", "revoked", "scope", "experiment", "origin", "host", "profile",
    "rate", "rate_address", "rate_unit",
)  # fmt: skip
"""Why a request was refused, as `forage_refused_total` counts it."""

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, eq=False)
class Grant:
    """What a request may do, by its key.

    experiments   these alone; None: all
    origins       of pages that may use the key; empty: it is not a browser's
    until         unix seconds
    name          as the operator gave it, for people and the log
    """

    id: str
    foreign: Count  # of requests for other experiments
    scopes: frozenset[KeyScope] = frozenset()
    experiments: frozenset[str] | None = frozenset()
    origins: frozenset[bytes] = frozenset()
    until: float = math.inf
    revoked: bool = False
    rate: RateLimitItem | None = None
    name: str = ""
    profile: Profile = FREE

    def covers(self, experiment: str) -> bool:
        return self.experiments is None or experiment in self.experiments

    def expect(self, experiment: str | None) -> None:
        """Raises Forbidden where it is not good for an experiment, or for all of them (None)."""
        if self.experiments is None or experiment in self.experiments:
            return
        self.foreign.inc()
        if experiment is None:
            raise Forbidden("this key is bound to experiments: name one of them")
        raise Forbidden("this key is bound to other experiments")


class Caller(NamedTuple):
    """Who asks. address: of the client, None where it cannot be told."""

    grant: Grant
    address: str | None = None


def expect_granted(grant: Grant | None, experiment: str | None) -> None:
    """Raises Forbidden where a key is not good for an experiment (None: for all of them)."""
    if grant is not None:
        grant.expect(experiment)


def granted(grant: Grant | None, experiment: str) -> bool:
    return grant is None or grant.covers(experiment)


class Access:
    """The keys of a service, read again when their file has changed.

    required   False: keys are off, and nothing else here has to be asked
    """

    def __init__(self, path: Path | None, telemetry: Telemetry) -> None:
        """Raises ConfigurationError where the file cannot be read."""
        self.required = path is not None
        self._refused = {reason: telemetry.refused.labels(reason) for reason in REASONS}
        self._stale = telemetry.keys_stale
        self._lent: list[tuple[Key, Grant]] = []
        self._ring: Ring[Grant] = Ring([])
        self._file: list[tuple[Key, Grant]] = []
        self._seen: tuple[int, ...] | None = None
        self._next_look = -math.inf
        self.path = path
        if path is not None:
            self._seen = _signature(path)
            self._take(read_keys(path))
            self._next_look = monotonic() + LOOK_SECONDS
            if path.stat().st_mode & 0o022:
                logger.warning("%s: others may write it, and so make keys: chmod 600", path)
        self.nobody = Grant("", self._refused["experiment"])
        self.rates = Rates()

    def admit(self, headers: Headers, scope: KeyScope) -> Grant:
        """What the key in the headers is good for, if that is the scope.

        headers: as ASGI has them, names in lower case. Raises Unauthorized, Forbidden.
        """
        if monotonic() >= self._next_look:
            self._look()
        text, origins = self._credential(headers)
        grant = self._ring.find(text)
        if grant is None:
            raise self._no("wrong", "this is no key of this service")
        if grant.revoked:
            raise self._no("revoked", "this key was revoked")
        if grant.until <= time():
            raise self._no("expired", "this key has expired")
        if grant.origins and (len(origins) != 1 or origins[0] not in grant.origins):
            self._refused["origin"].inc()
            raise Forbidden("this key is for pages of other origins")
        if scope not in grant.scopes:
            self._refused["scope"].inc()
            raise Forbidden(f"this key has no scope {scope!r}")
        return grant

    def foreign_page(self) -> ForeignOrigin:
        """The refusal of a page of another origin, counted."""
        self._refused["origin"].inc()
        return ForeignOrigin("this page is of another origin: list it in FORAGE_CORS_ORIGINS")

    def misdirected(self) -> Misdirected:
        """The refusal of a host that is not this service's, counted."""
        self._refused["host"].inc()
        return Misdirected("list the host that requests name in FORAGE_ALLOWED_HOSTS")

    def charge(self, caller: Caller, cost: int, before: int = 0, unit: str | None = None) -> None:
        """Count what a request costs against the rates of its unit, its address and its key: in
        this order, so that what one visitor is refused is not taken from the others. Raises
        TooManyRequests.

        before: what of the cost was counted against address and key when the request came
        """
        grant, rest = caller.grant, cost - before
        profile = grant.profile
        if unit is not None and profile.unit is not None:
            self._hit("unit", grant, profile.unit, unit, cost, cost)
        if rest <= 0:
            return
        if caller.address is not None and profile.address is not None:
            self._hit("address", grant, profile.address, caller.address, rest, cost)
        if grant.rate is not None:
            self._hit("key", grant, grant.rate, "", rest, cost)

    def expect_batch(self, caller: Caller, length: int) -> None:
        """Raises Forbidden where it is longer than the key may send."""
        most = caller.grant.profile.batch
        if length > most:
            self._refused["profile"].inc()
            raise Forbidden(f"this key sends at most {most} in a batch", path="requests")

    def expect_allowed(self, caller: Caller, question: SelectRequest) -> None:
        """Raises Forbidden where the key is not good for all that is asked."""
        try:
            caller.grant.profile.expect(question)
        except Forbidden:
            self._refused["profile"].inc()
            raise

    def lend(self, name: str, scope: KeyScope) -> str:
        """A key that this process alone takes, for a process that it starts."""
        key_id, text = mint()
        digest = digest_of(text.encode()).hex()
        key = Key(id=key_id, name=name, digest=digest, scopes=(scope,), created=now())
        self._lent.append((key, self._grant_of(key)))
        self._ring = Ring([*self._file, *self._lent])
        return text

    def _credential(self, headers: Headers) -> tuple[bytes, list[bytes]]:
        """The key that was sent, and the origins. Raises Unauthorized unless it is one key."""
        keys, origins = list[bytes](), list[bytes]()
        for name, value in headers:
            if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
                keys.append(value[len(BEARER) :].strip())
            elif name == b"x-api-key":
                keys.append(value.strip())
            elif name == b"origin":
                origins.append(value)
        if not any(keys):
            raise self._no("missing", "send a key as `Authorization: Bearer fk_...`")
        if len(keys) > 1:
            raise self._no("wrong", "several keys were sent: send one")
        return keys[0], origins

    def _no(self, reason: str, detail: str) -> Unauthorized:
        self._refused[reason].inc()
        return Unauthorized(detail)

    def _hit(
        self, kind: str, grant: Grant, rate: RateLimitItem, who: str, rest: int, whole: int
    ) -> None:
        """whole: of the request, what was counted of it before included."""
        seconds = self.rates.hit(kind, rate, (grant.id, who), rest)
        if not seconds:
            return
        self._refused["rate" if kind == "key" else f"rate_{kind}"].inc()
        if whole > rate.amount:
            raise TooManyRequests(
                f"so many at once never pass: the rate of this {kind} is {rate}", seconds
            )
        raise TooManyRequests(f"the rate of this {kind} is {rate}", seconds)

    def _look(self) -> None:
        """Read the file where it is another than before; one that is broken changes nothing."""
        self._next_look = monotonic() + LOOK_SECONDS
        path, seen = self.path, self._seen
        if path is None:
            self._next_look = math.inf
            return
        self._seen = _signature(path)
        if self._seen == seen:
            return
        try:
            self._take(read_keys(path))
        except ConfigurationError as fault:
            self._stale.set(1)
            logger.error("the keys of before still hold: %s", fault)
        else:
            self._stale.set(0)
            logger.info("%s: read again, %d keys", path, len(self._file))

    def _take(self, keys: list[Key]) -> None:
        self._file = [(key, self._grant_of(key)) for key in keys]
        self._ring = Ring([*self._file, *self._lent])

    def _grant_of(self, key: Key) -> Grant:
        return Grant(
            key.id,
            self._refused["experiment"],
            frozenset(key.scopes),
            None if key.experiments is None else frozenset(key.experiments),
            frozenset(each.encode() for each in key.origins),
            key.expires.timestamp() if key.expires else math.inf,
            key.revoked is not None,
            rate_of(key.rate) if key.rate else None,
            key.name,
            key.limits,
        )


def _signature(path: Path) -> tuple[int, ...] | None:
    """Another for a file that was changed or put in the place of one; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 (a path's own takes twice as long)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
