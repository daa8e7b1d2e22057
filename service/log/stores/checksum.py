"""The running checksum of a log: two logs with the same one hold the same events, in this order.

`<position>:<digest>`: of the events after that position, each hashed with the digest before it. It
begins at 0, or where an older Forage, which knows none, appended last. "" where it is not known.
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


def differ(one: str, other: str) -> bool:
    """Whether two checksums of one position prove that the logs differ: those that began at
    different positions prove nothing."""
    return one != other and since(one) == since(other)


def since(checksum: str) -> str:
    return checksum.partition(":")[0]
