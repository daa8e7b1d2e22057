"""API keys: how one is made and recognised, and the file that describes them.

A key is `fk_<id>_<secret>`: 8 random bytes that name it and 32 that prove it, in hex. The file
holds the SHA-256 of the whole text and never the text. A slow hash (bcrypt, argon2) is for secrets
that people choose, which can be guessed; 256 random bits cannot, however fast a guess is, and a
slow one would be paid with every request.
"""

import fcntl
import ipaddress
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from msgspec import structs
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from service.definition.faults import faults_of
from service.definition.members import parse_json, repeated
from service.errors import ConfigurationError, Fault
from service.features.declaration import Name
from service.security.hosts import origin_of
from service.security.profile import STRICT, UNLIMITED, Profile
from service.security.rates import Rate

KeyScope = Literal["select", "reward", "admin", "metrics"]

KEY_PREFIX = "fk"
ID_BYTES, SECRET_BYTES = 8, 32
API_KEY_CHARACTERS = len(KEY_PREFIX) + 2 + 2 * (ID_BYTES + SECRET_BYTES)
"""Characters of a key."""
ID = slice(len(KEY_PREFIX) + 1, len(KEY_PREFIX) + 1 + 2 * ID_BYTES)
"""Place of the id in a key."""

PUBLIC: frozenset[KeyScope] = frozenset({"select", "reward"})
"""Scopes of a key that everybody can read in a page's source."""

Attached = TypeVar("Attached")


def _checked_rate(text: str) -> str:
    if text != "none":
        Rate.parse(text)
    return text


ProfileRate = Annotated[str, AfterValidator(_checked_rate)]


class KeyProfile(BaseModel):
    """A key's `profile.Profile` in the file; its kind gives what is left out. Rates: "none" for
    none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: Literal["catalogue", "any"] | None = None
    policies: Literal["assigned", "named"] | None = None
    top_k: PositiveInt | None = None
    most_arms: PositiveInt | None = None
    batch: PositiveInt | None = None
    text: PositiveInt | None = None
    body_bytes: PositiveInt | None = None
    rate_per_address: ProfileRate | None = None
    rate_per_unit: ProfileRate | None = None

    def over(self, kind: Profile) -> Profile:
        """Return the profile of its kind, changed by the settings that are given here."""
        changes: dict[str, object] = {}
        for name, value in self.model_dump(exclude_none=True).items():
            match name:
                case "arms":
                    changes["inline"] = value == "any"
                case "policies":
                    changes["named"] = value == "named"
                case "most_arms":
                    changes["arms"] = value
                case "rate_per_address" | "rate_per_unit":
                    rate = None if value == "none" else Rate.parse(value)
                    changes[name.removeprefix("rate_per_")] = rate
                case _:
                    changes[name] = value
        return structs.replace(kind, **changes) if changes else kind


class ApiKey(BaseModel):
    """One key, as the file describes it.

    experiments   it is good for these alone; None: for all
    origins       it is a browser's, good in pages of these origins alone; empty: a server's
    rate          "100/second", "5000 per 2 hours"
    profile       limits of the content of its requests
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    scopes: tuple[KeyScope, ...]
    experiments: tuple[Name, ...] | None = None
    origins: tuple[str, ...] = ()
    rate: str | None = None
    profile: KeyProfile | None = None
    created: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None

    @field_validator("origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_origin, origins))

    @field_validator("rate")
    @classmethod
    def _rate(cls, rate: str | None) -> str | None:
        if rate is not None:
            Rate.parse(rate)
        return rate

    @model_validator(mode="after")
    def _fits(self) -> "ApiKey":
        if not self.scopes or self.experiments == ():
            raise ValueError("a key names one scope at least, and one experiment if any")
        if self.origins and not PUBLIC.issuperset(self.scopes):
            raise ValueError("a browser's key (one with origins) may only select and reward")
        if self.origins and self.experiments is None:
            raise ValueError("a browser's key (one with origins) names its experiments")
        if self.experiments is not None and "metrics" in self.scopes:
            raise ValueError(
                "metrics are of all experiments: a key with this scope is bound to none"
            )
        return self

    @property
    def limits(self) -> Profile:
        """One with origins is public, and strict unless it says otherwise."""
        kind = STRICT if self.origins else UNLIMITED
        return kind if self.profile is None else self.profile.over(kind)

    def state(self, now: datetime) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "live"


class KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    keys: list[ApiKey] = []

    @model_validator(mode="after")
    def _ids_differ(self) -> "KeyFile":
        if len({key.id for key in self.keys}) < len(self.keys):
            raise ValueError("two keys have the same id")
        return self


def _origin(text: str) -> str:
    """Return an origin. Raises ValueError for none, or one to which a key would travel
    unencrypted."""
    known = origin_of(text)
    parts = urlsplit(known)
    if parts.scheme == "http" and not loopback(parts.hostname or ""):
        raise ValueError("an origin of a key is https, or http on this very host")
    return known


def mint() -> tuple[str, str]:
    """Mint a new id, and its key."""
    key_id = secrets.token_hex(ID_BYTES)
    return key_id, f"{KEY_PREFIX}_{key_id}_{secrets.token_hex(SECRET_BYTES)}"


def digest_of(text: bytes) -> bytes:
    return sha256(text).digest()


class KeyRing(Generic[Attached]):
    """Finds what belongs to a key by its text."""

    def __init__(self, known: Iterable[tuple[ApiKey, Attached]]) -> None:
        self._known: dict[bytes, tuple[bytes, Attached | None]] = {
            key.id.encode(): (bytes.fromhex(key.digest), each) for key, each in known
        }
        self._nobody: tuple[bytes, Attached | None] = bytes(32), None

    def find(self, text: bytes) -> Attached | None:
        """Find the key that a text is; None for an unknown or wrong one.

        Every text takes the same work: one digest, one look-up of the id, which is no secret, and
        one comparison in constant time. Digests of texts that differ in one byte have nothing in
        common, so not even an uneven comparison would reveal the secret.
        """
        given = digest_of(text[: API_KEY_CHARACTERS + 1])
        digest, known = self._known.get(text[ID], self._nobody)
        return known if compare_digest(given, digest) else None


def loopback(host: str) -> bool:
    """Say whether only this machine can connect to the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_keys(path: Path) -> list[ApiKey]:
    """Read a file of keys. Raises ConfigurationError with the place of each fault, and never the
    content."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as fault:
        raise ConfigurationError(
            f"{path}: there is no such file of keys; `forage keys add --keys {path} ...` makes it"
        ) from fault
    except OSError as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault.strerror}") from fault
    try:
        raw, repeating = parse_json(content)
    except (ValueError, RecursionError) as fault:
        raise ConfigurationError(f"{path}: is not JSON") from fault
    if repeating and (refusal := repeated(raw)):
        raise ConfigurationError(_listed(path, refusal.faults))
    try:
        return KeyFile.model_validate(raw).keys
    except ValidationError as error:
        faults = faults_of(error.errors(include_input=False), raw)
        raise ConfigurationError(_listed(path, faults)) from error


def _listed(path: Path, faults: Sequence[Fault]) -> str:
    return "\n".join([f"{path}:", *(f"  {each.path}: {each.message}" for each in faults)])


@contextmanager
def changing(path: Path) -> Iterator[list[ApiKey]]:
    """Yield the keys of a file, or of a new one, to be changed in place; the file is then replaced
    whole. Concurrent changes wait. Raises ConfigurationError."""
    try:
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as fault:
        raise ConfigurationError(f"{path}: cannot be written: {fault.strerror}") from fault
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read_keys(path) if path.exists() else []
        yield keys
        _replace(path, KeyFile(keys=keys).model_dump_json(indent=2, exclude_none=True) + "\n")
    finally:
        os.close(lock)


def _replace(path: Path, content: str) -> None:
    """Replace a file in one step. The owner and mode of the old file stay; a new one is private."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        before = path.stat() if path.exists() else None
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            fresh.chmod(before.st_mode & 0o777)
            with suppress(PermissionError):
                os.chown(fresh, before.st_uid, before.st_gid)
        fresh.replace(path)
    except OSError as fault:
        fresh.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: cannot be written: {fault.strerror}") from fault


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
