"""The running checksum of a log: two logs with the same one hold the same events, in this order.

`<position>:<digest>`: of the events after that position, each hashed with the digest before it. ""
where it is not known.
"""

from hashlib import sha1

DIGITS = 16
"""Of the digest. SHA-1, since Redis scripts have no other; it guards against accidents alone."""


def begin(position: int) -> str:
    """Before the first event after a position."""
    return f"{position}:"


def extend(checksum: str, payload: bytes) -> str:
    """After one more event."""
    since, _, digest = checksum.partition(":")
    if not since:
        return ""
    found = sha1(digest.encode() + payload, usedforsecurity=False).hexdigest()
    return f"{since}:{found[:DIGITS]}"


def since(checksum: str) -> str:
    """The position where it begins: checksums that begin at others cannot be compared."""
    return checksum.partition(":")[0]
