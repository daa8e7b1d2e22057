"""Authorization: the scopes, experiments and rates of API keys, held against requests.

The key of a request gives it a `Grant`; routes check the request's experiment against it. Without
keys there is no grant (None), and everything is allowed.
"""

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from service.clock import SYSTEM, Clock
from service.definition.select_request import SelectRequest
from service.errors import (
    ConfigurationError,
    Forbidden,
    Refused,
    TooManyRequests,
    Unauthorized,
)
from service.security.addresses import Headers
from service.security.keys import ApiKey, KeyRing, KeyScope, digest_of, now, read_keys
from service.security.profile import UNLIMITED, Profile
from service.security.rates import Rate, Rates
from service.telemetry.metrics import Count, Telemetry

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between looks at the file: a revoked key is refused this soon."""

BEARER = b"bearer "

REASONS = (
    "missing", "wrong", "expired", "revoked", "scope", "experiment", "origin", "host", "profile",
    "rate", "rate_address", "rate_unit",
)  # fmt: skip
"""Reasons of a refusal, as `forage_refused_total` counts them."""

RefusedT = TypeVar("RefusedT", bound=Refused)


@dataclass(frozen=True, eq=False)
class Grant:
    """The permissions of a request, by its key.

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
    rate: Rate | None = None
    name: str = ""
    profile: Profile = UNLIMITED

    def covers(self, experiment: str) -> bool:
        return self.experiments is None or experiment in self.experiments

    def expect(self, experiment: str | None) -> None:
        """Raise Forbidden unless the key permits an experiment (None: all of them)."""
        if self.experiments is None or experiment in self.experiments:
            return
        self.foreign.inc()
        other = "experiments: name one of them" if experiment is None else "other experiments"
        raise Forbidden(f"this key is bound to {other}")


class Caller(NamedTuple):
    """The source of a request. address: of the client; None where it is unknown."""

    grant: Grant
    address: str | None = None


def expect_granted(grant: Grant | None, experiment: str | None) -> None:
    """Raise Forbidden where a key does not permit an experiment (None: all of them)."""
    if grant is not None:
        grant.expect(experiment)


def granted(grant: Grant | None, experiment: str) -> bool:
    return grant is None or grant.covers(experiment)


class Access:
    """The keys of a service, read again when their file has changed.

    required   False: keys are off, and nothing else here has to be asked
    """

    def __init__(
        self,
        path: Path | None,
        telemetry: Telemetry,
        clock: Clock = SYSTEM,
        *,
        workers: int = 1,
    ) -> None:
        """Read the file of keys. Raises ConfigurationError where it cannot be read. workers: of
        this service, which share the rates."""
        self._clock = clock
        self.required = path is not None
        self._refused = {reason: telemetry.refused.labels(reason) for reason in REASONS}
        self._stale = telemetry.keys_stale
        self._issued: list[tuple[ApiKey, Grant]] = []
        self._ring: KeyRing[Grant] = KeyRing([])
        self._file: list[tuple[ApiKey, Grant]] = []
        self._seen: tuple[int, ...] | None = None
        self._next_look = -math.inf
        self.path = path
        if path is not None:
            self._seen = _signature(path)
            self._take(read_keys(path))
            self._next_look = self._clock.monotonic() + LOOK_SECONDS
            if path.stat().st_mode & 0o022:
                logger.warning("%s: others may write it, and so make keys: chmod 600", path)
        self.nobody = Grant("", self._refused["experiment"])
        self.rates = Rates(clock, workers)

    def admit(self, headers: Headers, scope: KeyScope) -> Grant:
        """Return the grant of the key in the headers.

        Raises Unauthorized, or Forbidden where the key lacks the scope.
        """
        if self._clock.monotonic() >= self._next_look:
            self.look()
        text, origins = self._credential(headers)
        grant = self._ring.find(text)
        if grant is None:
            raise self.count("wrong", Unauthorized("this is no key of this service"))
        if grant.revoked:
            raise self.count("revoked", Unauthorized("this key was revoked"))
        if grant.until <= self._clock.time():
            raise self.count("expired", Unauthorized("this key has expired"))
        if grant.origins and (len(origins) != 1 or origins[0] not in grant.origins):
            raise self.count("origin", Forbidden("this key is for pages of other origins"))
        if scope not in grant.scopes:
            raise self.count("scope", Forbidden(f"this key has no scope {scope!r}"))
        return grant

    def count(self, reason: str, refusal: RefusedT) -> RefusedT:
        """Count a refusal, and return it."""
        self._refused[reason].inc()
        return refusal

    def charge(self, caller: Caller, cost: int, before: int = 0, unit: str | None = None) -> None:
        """Count the cost of a request against the rates of its unit, its address and its key: in
        this order, so that a refused visitor uses up nothing of the others' rates. Raises
        TooManyRequests.

        before: the part of the cost that address and key were charged when the request arrived
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
        """Raise Forbidden for a batch that is longer than the key may send."""
        most = caller.grant.profile.batch
        if length > most:
            detail = f"this key sends at most {most} in a batch"
            raise self.count("profile", Forbidden(detail, path="requests"))

    def expect_allowed(self, caller: Caller, question: SelectRequest) -> None:
        """Raise Forbidden where the request exceeds the profile of the key."""
        try:
            caller.grant.profile.expect(question)
        except Forbidden as refusal:
            raise self.count("profile", refusal) from None

    def accept(self, text: str, name: str, scope: KeyScope) -> None:
        """Accept a minted key that is not in the file: a process of this service has it."""
        _, key_id, _ = text.split("_")
        digest = digest_of(text.encode()).hex()
        key = ApiKey(id=key_id, name=name, digest=digest, scopes=(scope,), created=now())
        self._issued.append((key, self._grant_of(key)))
        self._ring = KeyRing([*self._file, *self._issued])

    def _credential(self, headers: Headers) -> tuple[bytes, list[bytes]]:
        """Return the one key of the headers, and their origins. Raises Unauthorized."""
        keys, origins = list[bytes](), list[bytes]()
        for name, value in headers:
            if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
                keys.append(value[len(BEARER) :].strip())
            elif name == b"x-api-key":
                keys.append(value.strip())
            elif name == b"origin":
                origins.append(value)
        if not any(keys):
            detail = "send a key as `Authorization: Bearer fk_...`"
            raise self.count("missing", Unauthorized(detail))
        if len(keys) > 1:
            raise self.count("wrong", Unauthorized("several keys were sent: send one"))
        return keys[0], origins

    def _hit(self, kind: str, grant: Grant, rate: Rate, who: str, rest: int, whole: int) -> None:
        """Count a request against a rate. Raises TooManyRequests.

        rest: the cost to be counted now. whole: that of the request.
        """
        seconds = self.rates.hit(kind, rate, (grant.id, who), rest)
        if not seconds:
            return
        detail = f"the rate of this {kind} is {rate}"
        if whole > rate.amount:
            detail = f"one request exceeds the whole rate: {detail}"
        reason = "rate" if kind == "key" else f"rate_{kind}"
        raise self.count(reason, TooManyRequests(detail, seconds))

    def look(self) -> None:
        """Read the file again where it has changed; a broken one changes nothing."""
        self._next_look = self._clock.monotonic() + LOOK_SECONDS
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
            logger.error("the previous keys stay valid: %s", fault)
        else:
            self._stale.set(0)
            logger.info("%s: read again, %d keys", path, len(self._file))

    def _take(self, keys: list[ApiKey]) -> None:
        self._file = [(key, self._grant_of(key)) for key in keys]
        self._ring = KeyRing([*self._file, *self._issued])

    def _grant_of(self, key: ApiKey) -> Grant:
        return Grant(
            key.id,
            self._refused["experiment"],
            frozenset(key.scopes),
            None if key.experiments is None else frozenset(key.experiments),
            frozenset(each.encode() for each in key.origins),
            key.expires.timestamp() if key.expires else math.inf,
            key.revoked is not None,
            Rate.parse(key.rate) if key.rate else None,
            key.name,
            key.limits,
        )


def _signature(path: Path) -> tuple[int, ...] | None:
    """Differs after a change or a replacement of the file; None where there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 (a path's own takes twice as long)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
