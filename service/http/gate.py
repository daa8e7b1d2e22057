"""The gate of every route: each check of a head in one place, and what every answer has."""

import logging
import re
from time import perf_counter
from typing import Final

from starlette.exceptions import HTTPException

from service.errors import ForeignOrigin, LearnersOnly, Misdirected, Refused, Starting
from service.http import request_id
from service.http.access import NO_KEY, caller_of, needs
from service.http.cors import Cors
from service.http.request_head import PROBES, Fields, RequestHead
from service.http.services import Services
from service.security.access import Caller
from service.telemetry.logs import REQUEST_ID

logger = logging.getLogger(__name__)

VERSIONS: Final = re.compile(r"/experiments/[^/]+/policies/[^/]+/versions")
DECIDED: Final = re.compile(
    r"/(select|reward)(/batch)?|/beacon|/decisions/[^/]+/activate|/healthz|/readyz|/metrics|/sdk/.*"
)
"""Paths that a decider answers."""
METHODS: Final = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
SAFE: Final = {"GET", "HEAD", "OPTIONS"}
UNCOMPRESSED: Final = (b"identity", b"")


def expect_size(size: int, limit: float) -> None:
    """Raise HTTPException for a body of more bytes than it may have."""
    if size > limit:
        raise HTTPException(413, f"at most {limit} bytes")


class Passage:
    """One request at the gate.

    limit     bytes that its body may have
    caller    None where keys are off
    refusal   what the first check that failed says of it
    start     when it came, by `perf_counter`
    """

    __slots__ = ("caller", "id", "limit", "refusal", "start")

    def __init__(self, id: str, limit: float) -> None:
        self.id, self.limit = id, limit
        self.caller: Caller | None = None
        self.refusal: Refused | HTTPException | None = None
        self.start = perf_counter()


class Gate:
    """Holds requests against hosts, keys, origins and bounds before anything looks at their
    content; gives each answer its id and what its browser has to know, and counts it."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services, self._access, self._hosts = services, services.access, services.hosts
        self.cors = Cors(settings.cors_origins, services.hosts, services.clock)
        self._body_bytes = settings.max_body_bytes
        self._artifact_bytes = settings.max_artifact_bytes
        self._decides, self._learner = settings.role == "decider", settings.learner_url

    def begin(self, head: RequestHead, method: str | None = None) -> Passage:
        """Hold a request against each check, in the order of docs/architecture.md, until one fails.

        method   the only one that its route has; None: the router knows
        """
        self.cors.note(head)
        passage = Passage(request_id.sane(head.last(request_id.HEADER_NAME)), self._limit(head))
        REQUEST_ID.set(passage.id)  # for the server too: it logs a bug in the same task
        try:
            self._check(head, passage, method)
        except (Refused, HTTPException) as fault:
            passage.refusal = fault
        return passage

    def _limit(self, head: RequestHead) -> int:
        artifact = head.path.endswith("/versions") and VERSIONS.fullmatch(head.path)
        return self._artifact_bytes if artifact else self._body_bytes

    def _check(self, head: RequestHead, passage: Passage, method: str | None) -> None:
        expect_size(head.declared_length(), passage.limit)
        probe = head.path in PROBES
        if not self._hosts.serves(head.all(b"host")):
            if not (probe and head.method in SAFE):
                detail = "list the host that requests name in FORAGE_ALLOWED_HOSTS"
                raise self._access.count("host", Misdirected(detail))
            passage.caller = Caller(self._access.nobody)
        if self._access.required:
            passage.caller = self._by_key(head)
            passage.limit = min(passage.limit, passage.caller.grant.profile.body_bytes)
        if self._is_foreign(head, passage.caller):
            detail = "this page is of another origin: list it in FORAGE_CORS_ORIGINS"
            raise self._access.count("origin", ForeignOrigin(detail))
        if self._services.lifecycle.starting and not probe:
            raise Starting
        if self._decides and not DECIDED.fullmatch(head.path):
            raise LearnersOnly(self._learner)
        encoding = head.last(b"content-encoding")
        if encoding and encoding.strip().lower() not in UNCOMPRESSED:
            accepted = {"Accept-Encoding": "identity"}
            raise HTTPException(415, "send it without Content-Encoding", accepted)
        if method is not None and head.method != method:
            raise HTTPException(405, f"the path takes {method}", {"Allow": method})

    def _by_key(self, head: RequestHead) -> Caller:
        needed = needs(head.method, head.path)
        if needed == NO_KEY:
            return Caller(self._access.nobody)
        length = head.declared_length()
        return caller_of(self._services, head.client, head.fields, needed, length)

    def _is_foreign(self, head: RequestHead, caller: Caller | None) -> bool:
        """Say whether a page of another origin asks for a change. A key that lists origins was held
        against them."""
        origins, sites = head.all(b"origin"), head.all(b"sec-fetch-site")
        if head.method in SAFE or not (origins or sites):
            return False
        if caller is not None and caller.grant.origins:
            return False
        site = sites[-1] if sites else None
        return self._hosts.is_foreign(origins, head.all(b"host"), head.scheme, site)

    def dress(self, head: RequestHead, passage: Passage, fields: Fields) -> Fields:
        """Return the header fields of an answer with its id, and what its browser has to know."""
        dressed = request_id.write(fields, passage.id)
        self.cors.dress(head, dressed)
        return dressed

    def count(self, head: RequestHead, passage: Passage, route: str, status: int) -> None:
        method = head.method if head.method in METHODS else "other"
        self._services.telemetry.requests.labels(route, method, str(status)).inc()
        # A 503 is no fault of its request: what caused it is reported when it begins and ends.
        level = logging.WARNING if status >= 500 and status != 503 else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s %s answered %d after %.1f ms",
                head.method,
                route,  # not the path: it may name a unit
                status,
                1_000 * (perf_counter() - passage.start),
            )
