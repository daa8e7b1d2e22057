"""The hosts that a service answers for, and the origins of pages that may change something there.

A page of another site can have its visitor's browser send requests to a service on loopback. Such
a request names the page's `Origin`, and the browser hides the answer. A site that lets its own name
resolve to 127.0.0.1 (DNS rebinding) escapes both: to the browser, page and service are one origin.
What it cannot change is `Host`: the browser sends the name of the site.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from service.security.addresses import address_of

REMEMBERED_HOSTS: Final = 256
"""Values of `Host` whose verdicts are cached: a client repeats its own."""

WRITTEN: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]{1,5})?", re.ASCII)
HOST_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_-]+)*")

FOREIGN: Final = {b"cross-site", b"same-site"}
"""Values of `Sec-Fetch-Site` in a request by a page of another origin."""


def host_of(text: str) -> str:
    """Return a host as a setting lists it: a name, `*.` and a name, or an address.

    Raises ValueError for anything else.
    """
    text = text.strip().lower()
    bare = text.removeprefix("[").removesuffix("]")
    if address_of(bare) is None and not HOST_NAME.fullmatch(text):
        raise ValueError(
            "write each host as forage.example, *.forage.example or 10.0.0.7: no scheme, no port"
        )
    return bare


def origin_of(text: str) -> str:
    """Return an origin as browsers send it: scheme, host, and a port that is not the scheme's own.

    Raises ValueError for anything else, `*` and `null` included.
    """
    text = text.strip()
    parts = urlsplit(text)
    port = parts.port  # raises ValueError where it is no number
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or not bare:
        raise ValueError("write each origin as https://shop.example: no path, and no wildcard")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    own = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port and port != own else "")


class Hosts:
    """The hosts of one service.

    checked   whether a request has to name one of them
    """

    def __init__(
        self,
        listen: str,
        allowed: Sequence[str] = (),
        origins: Iterable[str] = (),
        *,
        keys: bool = False,
    ) -> None:
        """Allow the hosts of a service.

        listen    address or name that the service listens on
        allowed   as `host_of` gives them
        origins   whose pages may change something, as `origin_of` gives them
        keys      requests need a key, which no page of another site has: then only a list of hosts
                  has `Host` checked
        """
        self.checked = not keys or bool(allowed)
        known = ["localhost", listen.lower(), *allowed]
        self._names = frozenset(known)
        self._addresses = {found for each in known if (found := address_of(each)) is not None}
        bound = address_of(listen)
        self._anywhere = bound is not None and bound.is_unspecified
        self._suffixes = tuple(each[1:] for each in allowed if each.startswith("*."))
        self._origins = frozenset(each.encode() for each in origins)
        self._known = lru_cache(REMEMBERED_HOSTS)(self._judge)

    def serves(self, hosts: Sequence[bytes]) -> bool:
        """Say whether a request with these values of `Host` is for this service. Without any it is:
        no browser sends that."""
        if not self.checked or not hosts:
            return True
        return len(hosts) == 1 and self._known(hosts[0])

    def is_foreign(
        self, origins: Sequence[bytes], hosts: Sequence[bytes], scheme: str, site: bytes | None
    ) -> bool:
        """Say whether a page of another origin sent a request, according to its browser.

        origins   values of `Origin`; the browser sends one with all but GET and HEAD
        site      value of `Sec-Fetch-Site`
        """
        if origins:
            if all(origin in self._origins for origin in origins):
                return False
            return site in FOREIGN or len(hosts) != 1 or not self._own(origins, hosts[0], scheme)
        return site in FOREIGN

    def _own(self, origins: Sequence[bytes], host: bytes, scheme: str) -> bool:
        """Say whether the service serves the page itself. A proxy may terminate TLS in front of
        it."""
        host = host.lower()
        own = (b"https://" + host, scheme.encode() + b"://" + host)
        return all(origin in own for origin in origins)

    def _judge(self, host: bytes) -> bool:
        found = WRITTEN.fullmatch(host)
        if found is None:
            return False
        name = found[1].decode("ascii").lower().removeprefix("[").removesuffix("]")
        address = address_of(name)
        if address is not None:
            # A name has to be rebound; an address is reached where it says.
            return address.is_loopback or self._anywhere or address in self._addresses
        return name in self._names or name.endswith(self._suffixes)
