"""The client address of a request, behind trusted proxies too."""

import ipaddress
import logging
import re
from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Headers = Iterable[tuple[bytes, bytes]]

FORWARDED_FOR = re.compile(r'(?:^|[;,])\s*for="?(\[[^\]]*\]|[^";,\s]*)', re.IGNORECASE)
"""Pattern of the client of each proxy in a `Forwarded` header (RFC 7239)."""

PROXY_HEADERS = (b"x-forwarded-for", b"forwarded")
"""Headers in which a proxy names the client whose request it forwards."""

HOPS = 32
"""Most proxies that a request may pass through."""


class Addresses:
    """Tells visitors apart by the address of the connection, or by the word of a trusted proxy.

    trusted   networks of proxies; empty: none are declared
    """

    def __init__(self, trusted: Sequence[IpNetwork] = ()) -> None:
        self._trusted = tuple(trusted)
        self._warned = False

    def of(self, peer: str | None, headers: Headers) -> str | None:
        """Return the client's address, as `client_of` gives it; None where it is not
        distinguishable."""
        near = _parsed(peer or "")
        if near is None:
            return None
        forwarded = [(name, value) for name, value in headers if name in PROXY_HEADERS]
        if self._is_trusted(near):
            return self._forwarded(near, forwarded)
        if forwarded and not self._trusted and not near.is_global:
            self._warn(near)
        return client_of(near)

    def _forwarded(self, near: IpAddress, forwarded: list[tuple[bytes, bytes]]) -> str | None:
        """Return the nearest hop that is not a trusted proxy. Of two headers, the client may have
        written one: then the proxy's own address counts."""
        if not forwarded:
            return None
        if len({name for name, _ in forwarded}) > 1:
            return client_of(near)
        text = b",".join(value for _, value in forwarded).decode("latin-1")
        hops = (
            text.split(",") if forwarded[0][0] == PROXY_HEADERS[0] else FORWARDED_FOR.findall(text)
        )
        for hop in hops[: -HOPS - 1 : -1]:
            found = _parsed(hop)
            if found is None:
                break
            near = found
            if not self._is_trusted(near):
                break
        return client_of(near)

    def _is_trusted(self, address: IpAddress) -> bool:
        return any(address in network for network in self._trusted)

    def _warn(self, near: IpAddress) -> None:
        """Once: all visitors share the address, and so the rate, of an undeclared proxy."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "requests come through a proxy at %s: list it in FORAGE_TRUSTED_PROXIES, or all "
                "visitors share its rate per address",
                near,
            )


def _parsed(text: str) -> IpAddress | None:
    """Parse `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return address_of(text.partition("%")[0])


def address_of(text: str) -> IpAddress | None:
    """Return the address, as IPv4 where it can be; None for a name."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return found.ipv4_mapped or found
    return found


def client_of(address: IpAddress) -> str:
    """Return the address, or of IPv6 the 64 bits that all addresses of one client share."""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def network_of(text: str) -> IpNetwork:
    """Parse a network. Raises ValueError."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as fault:
        raise ValueError(f"{text.strip()!r} is no network, such as 10.0.0.0/8") from fault
