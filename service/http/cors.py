"""Which pages of other origins may ask: an explicit list, never all of them."""

from collections.abc import Sequence
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from service.hosts import Hosts
from service.http.beacon import Beacon

HEADERS: Final = ("Authorization", "Content-Type", "Idempotency-Key", "If-Match")
EXPOSED: Final = ("Retry-After", "ETag")
PREFLIGHT_SECONDS: Final = 7_200
"""How long a browser remembers a preflight; no browser keeps it longer."""


def install(app: FastAPI, origins: Sequence[str], hosts: Hosts) -> None:
    """Answer preflights and name the origin in answers; and take beacons, from the same origins.

    Goes on last: a refusal by whatever lies inside has to be readable by the page as well.
    No credentials: a key goes in a header, so no answer depends on a cookie that another site could
    have the browser send.
    """
    app.add_middleware(Beacon, hosts=hosts)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=list(HEADERS),
            expose_headers=list(EXPOSED),
            max_age=PREFLIGHT_SECONDS,
        )
