"""The decision id: a sealed token that carries all a reward needs.

AES-GCM (NIST SP 800-38D). Each process seals under its own key, derived by HKDF-SHA256 (RFC 5869)
from a secret and a random 128-bit process id, so that a counter is a nonce that never repeats.

Layout: format 1 byte | secret's fingerprint 4 | process id 16 | counter 8 | ciphertext and tag;
base64url without padding.
"""

import binascii
import hashlib
import hmac
import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from random import Random, SystemRandom

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.errors import Invalid
from service.state.decisions import Shown

FORMAT = b"\x01"
TOKEN_CHARACTERS = 1_024
"""Most characters of a token; what was shown stays in the decision row where it would not fit."""

FINGERPRINT_CHARACTERS = 6
"""Characters at the start of a unit's hash that name the secret."""

_HEADER = 1 + 4 + 16 + 8
_ID = 16
_URLSAFE, _STANDARD = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


class Ticket(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is inside. Times in unix seconds.

    shown      empty where it would be too long: the decision row has it
    deferred   nothing is learned of it before it is activated
    unlogged   answered while the log was gone or slow: its row may never come
    contested  and made under a key: another process may have answered the key too, and the row
               tells which decision counts
    """

    id: str
    experiment: str
    policy: str
    model_version: str
    schema_version: int
    shown: list[Shown]
    reward_by: float
    accept_until: float
    deferred: bool = False
    unlogged: bool = False
    contested: bool = False

    @property
    def position(self) -> int:
        """Position of the log at which the decision was made; 0 where it was made elsewhere."""
        position = self.model_version.rpartition("@")[2]
        return int(position) if position.isdecimal() else 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ticket).decode


class TokenSealer:
    """Seals and opens tickets. The first secret seals, every one opens.

    Not forgeable, not readable, and open to every process that shares a secret.

    rotated   an older secret is still known
    """

    def __init__(self, secrets: Sequence[bytes], rng: Random | None = None) -> None:
        """Use these secrets. rng: of nonces, by default that of the operating system."""
        self._rng = rng or SystemRandom()
        self.use(secrets)

    def use(self, secrets: Sequence[bytes]) -> None:
        """Use these secrets from now on. Raises ValueError."""
        if not secrets or any(len(secret) < 16 for secret in secrets):
            raise ValueError("a token secret has at least 16 bytes")
        self._secrets = {_fingerprint(secret): secret for secret in secrets}
        first = secrets[0]
        self._prefix = FORMAT + _fingerprint(first) + self._rng.randbytes(16)
        self._own = _cipher(first, self._prefix[5:])
        self._counter = itertools.count()
        self._unit_keys = {
            text_of(mark): hashlib.sha256(b"forage unit" + secret).digest()
            for mark, secret in self._secrets.items()
        }
        self._unit_key = next(iter(self._unit_keys.items()))
        self._request_keys = [
            hashlib.sha256(b"forage request" + secret).digest() for secret in secrets
        ]
        self.rotated = len(secrets) > 1

    def is_own(self, token: str) -> bool:
        """Say whether this process has sealed a token, since its secrets last changed."""
        return token.startswith(text_of(self._prefix))

    def seal(self, ticket: Ticket) -> str:
        """Seal a ticket, in at most LIMIT characters where what was shown is short enough or left
        out."""
        header = self._prefix + next(self._counter).to_bytes(8, "big")
        sealed = self._own.encrypt(b"\0\0\0\0" + header[-8:], _encode(ticket), header)
        return text_of(header + sealed)

    def open(self, token: str) -> Ticket:
        """Open a token. Raises Invalid for anything that no process with one of these secrets has
        sealed."""
        try:
            padded = token.encode("ascii").translate(_STANDARD) + b"=" * (-len(token) % 4)
            raw = binascii.a2b_base64(padded)
            if text_of(raw) != token:  # the decoder overlooks foreign characters and loose bits
                raise _refusal()
            if len(raw) == _ID:
                raise Invalid("is the short id: send the decision_id", path="decision_id")
            header, sealed = raw[:_HEADER], raw[_HEADER:]
            secret = self._secrets.get(header[1:5])
            if secret is None or header[:1] != FORMAT or len(header) < _HEADER:
                raise _refusal()
            cipher = _cipher(secret, header[5:21])
            return _decode(cipher.decrypt(b"\0\0\0\0" + header[-8:], sealed, header))
        except (UnicodeEncodeError, binascii.Error, InvalidTag, msgspec.DecodeError) as fault:
            raise _refusal() from fault

    def unit_hash(self, unit: str) -> str:
        """Return a unit as the log may hold it: keyed, so that it cannot be guessed back."""
        mark, key = self._unit_key
        return mark + _keyed(key, unit)

    def unit_hashes(self, unit: str) -> list[str]:
        """Return the hash of a unit under each secret: rows have the one that sealed then."""
        return [mark + _keyed(key, unit) for mark, key in self._unit_keys.items()]

    def knows_secret_of(self, unit_hash: str) -> bool:
        """Say whether one of these secrets made this hash."""
        return unit_hash[:FINGERPRINT_CHARACTERS] in self._unit_keys

    def request_ids(
        self, experiment: str, first_schema: int, key: str, erased: AbstractSet[str]
    ) -> list[str]:
        """Return the id of the decision that a client's idempotency key stands for, on every
        process; then the ids that it had under the other secrets. An experiment that is deleted and
        defined again has another first schema, and other ids.

        erased   ids that no decision may have again: the key then stands for the next ones
        """
        text, erasures = f"{experiment}\0{first_schema}\0{key}", 0
        while True:
            ids = [_keyed(own, text) for own in self._request_keys]
            if erased.isdisjoint(ids):
                return ids
            erasures += 1
            text = f"{experiment}\0{first_schema}\0{key}\0{erasures}"


def _keyed(key: bytes, text: str) -> str:
    return text_of(hmac.digest(key, text.encode(), "sha256")[:16])


def text_of(raw: bytes) -> str:
    """Encode as base64url without padding."""
    return binascii.b2a_base64(raw, newline=False).translate(_URLSAFE).rstrip(b"=").decode()


def _refusal() -> Invalid:
    return Invalid("not a decision of this service, or changed on the way", path="decision_id")


def _fingerprint(secret: bytes) -> bytes:
    return hashlib.sha256(b"forage token" + secret).digest()[:4]


@lru_cache(maxsize=1_024)  # one an open process id; a forged id costs one derivation
def _cipher(secret: bytes, process: bytes) -> AESGCM:
    derive = HKDF(algorithm=SHA256(), length=32, salt=process, info=b"forage decision token")
    return AESGCM(derive.derive(secret))
