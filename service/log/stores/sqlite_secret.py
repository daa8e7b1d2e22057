"""The secret of the embedded store and its seal: a fingerprint that the database keeps of it.

Without its secret a database can be read, but none of its tokens can be opened and none of its
units be found. So one is made for a new store alone, and another store's is refused.
"""

import hashlib
import sqlite3
from pathlib import Path

from service.errors import ConfigurationError
from service.log.stores import sqlite_file
from service.log.stores.sqlite_file import key_of, transaction

LOST = (
    "{key} is missing, and {path} has been used with a secret: its decisions cannot be rewarded "
    "nor its units erased without it. Restore the file from the backup or the host that has it; "
    "if you served with FORAGE_TOKEN_KEYS, set it again. To go on without the secret on purpose, "
    "set FORAGE_TOKEN_KEYS to new ones."
)
FOREIGN = (
    "{key} is not the secret that {path} was used with: database and key belong to different "
    "stores. Restore the key that belongs to the database, or the database that belongs to the key."
)
EMPTY = (
    "{path} is empty, and {key} is the secret of a store that was used: the database is missing. "
    "Move the empty file away and restore the database (forage restore). To start anew on purpose, "
    "move {key} away."
)


def find(db: sqlite3.Connection, path: Path, *, readonly: bool) -> bytes | None:
    """None: a new one is to be made. Raises ConfigurationError where database and secret do not
    belong together, StoreUnavailable, Damaged."""
    key = key_of(path)
    used = db.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None
    if not key.exists():
        if used and (_sealed(db) is not None or not readonly):
            raise ConfigurationError(LOST.format(key=key, path=path))
        if not readonly:
            return None
    secret = sqlite_file.secret(path, tighten=not readonly)
    expect_fitting(db, path, secret)
    if not readonly and _sealed(db) is None:
        raise ConfigurationError(EMPTY.format(key=key, path=path))
    return secret


def adopt(db: sqlite3.Connection, path: Path, secret: bytes) -> None:
    """Seal the database first: a key without it would be taken for that of a lost database."""
    if not key_of(path).exists():
        seal(db, secret)
    sqlite_file.adopt_secret(path, secret)


def seal(db: sqlite3.Connection, secret: bytes) -> None:
    with transaction(db):
        db.execute("DELETE FROM secret_seal")
        db.execute("INSERT INTO secret_seal VALUES (?)", (_fingerprint(secret),))


def expect_fitting(db: sqlite3.Connection, path: Path, secret: bytes) -> None:
    """Raises ConfigurationError where the database was sealed with another secret."""
    if _sealed(db) not in (None, _fingerprint(secret)):
        raise ConfigurationError(FOREIGN.format(key=key_of(path), path=path))


def _sealed(db: sqlite3.Connection) -> str | None:
    (found,) = db.execute("SELECT fingerprint FROM secret_seal").fetchone() or (None,)
    return found


def _fingerprint(secret: bytes) -> str:
    return hashlib.sha256(b"forage store" + secret).hexdigest()[:16]
