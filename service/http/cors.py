"""Which pages of other origins may ask: an explicit list, never all of them."""

from collections.abc import Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

HEADERS: Final = ("Authorization", "Content-Type", "Idempotency-Key", "If-Match")
EXPOSED: Final = ("Retry-After", "ETag")
PREFLIGHT_SECONDS: Final = 7_200
"""How long a browser remembers a preflight; no browser keeps it longer."""


def allowing(origins: Sequence[str], app: ASGIApp) -> ASGIApp:
    """Answer preflights, and name the origin in answers.

    This stands outside of all that refuses: a page has to be able to read a refusal as well. There
    are no credentials: a key goes in a header, so no answer depends on a cookie that another site
    could have the browser send.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=list(HEADERS),
        expose_headers=list(EXPOSED),
        max_age=PREFLIGHT_SECONDS,
    )
