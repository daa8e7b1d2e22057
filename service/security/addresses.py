"""Whose request it is, as far as its address says."""

import ipaddress
import logging
import re
from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Headers = Iterable[tuple[bytes, bytes]]

FORWARDED_FOR = re.compile(r'(?:^|[;,])\s*for="?(\[[^\]]*\]|[^";,\s]*)', re.IGNORECASE)
"""Of the header `Forwarded` (RFC 7239): who asked each proxy."""

NAMES = (b"x-forwarded-for", b"forwarded")
"""Headers by which a proxy says whose request it passes on."""

HOPS = 32
"""Proxies that a request may have come through."""


class Addresses:
    """Tells one visitor from another by the address of the connection, or by what a proxy says that
    is trusted to say it.

    trusted   networks of proxies; empty: nobody said that there are any
    """

    def __init__(self, trusted: Sequence[IpNetwork] = ()) -> None:
        self._trusted = tuple(trusted)
        self._warned = False

    def of(self, peer: str | None, headers: Headers) -> str | None:
        """The client's address, of IPv6 its first 64 bits, which one client has all of. None: it
        cannot be told from others'."""
        near = _parsed(peer or "")
        if near is None:
            return None
        told = [(name, value) for name, value in headers if name in NAMES]
        if self._is_trusted(near):
            return self._told(near, told)
        if told and not self._trusted and not near.is_global:
            self._warn(near)
            return None
        return client_of(near)

    def _told(self, near: IpAddress, told: list[tuple[bytes, bytes]]) -> str | None:
        """Of the hops, nearest first, the first that is not a trusted proxy. Where two headers
        speak, one is the client's own word: then it is nobody's but the proxy's."""
        if not told:
            return None
        if len({name for name, _ in told}) > 1:
            return client_of(near)
        text = b",".join(value for _, value in told).decode("latin-1")
        hops = text.split(",") if told[0][0] == NAMES[0] else FORWARDED_FOR.findall(text)
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
        """Once: a proxy is in front, and all visitors have its address."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "requests come through a proxy at %s: list it in FORAGE_TRUSTED_PROXIES, or no "
                "visitor has a rate of his own",
                near,
            )


def _parsed(text: str) -> IpAddress | None:
    """Of `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return address_of(text.partition("%")[0])


def address_of(text: str) -> IpAddress | None:
    """The address, as IPv4 where it can be; None for a name."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return found.ipv4_mapped or found
    return found


def client_of(address: IpAddress) -> str:
    """What one client has: an address, or of IPv6 the 64 bits that all of its addresses share."""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def network_of(text: str) -> IpNetwork:
    """Raises ValueError."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as fault:
        raise ValueError(f"{text.strip()!r} is no network, such as 10.0.0.0/8") from fault
