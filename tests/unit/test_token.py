"""Sealed decision ids: what is sealed opens, whatever else is refused."""

import base64
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Invalid
from service.features.row import Row
from service.security.token import TOKEN_CHARACTERS, Ticket, TokenSealer
from service.state.decisions import Shown

SECRET, OTHER = b"a secret of at least 16 bytes", b"another secret, as long as that"
ALPHABET = string.ascii_letters + string.digits + "-_"
HEADER_CHARACTERS = 39

finite = st.floats(allow_nan=False, allow_infinity=False)
arms = st.builds(
    Shown,
    st.text(max_size=12),
    st.floats(0, 1),
    st.builds(Row, st.binary(max_size=72), st.lists(st.integers(0, 65_536)).map(tuple)),
    st.booleans(),
)
tickets = st.builds(
    Ticket,
    *[st.text(max_size=24)] * 4,
    st.integers(0, 9),
    st.lists(arms, max_size=4),
    finite,
    finite,
)


def ticket(floats: int = 9, arm: str = "17", places: int = 0) -> Ticket:
    shown = [Shown(arm, 0.25, Row(np.arange(floats, dtype=float).tobytes(), (20,) * places))]
    return Ticket("a" * 22, "zooplus", "linucb", "linucb/0@17", 1, shown, 1e9, 2e9)


@given(tickets)
def test_what_is_sealed_opens_to_itself(sealed: Ticket) -> None:
    token = TokenSealer([SECRET]).seal(sealed)
    assert TokenSealer([SECRET]).open(token) == sealed
    assert set(token) <= set(ALPHABET)


@pytest.mark.parametrize("length", [22, 23, 24])
def test_every_changed_character_is_refused(length: int) -> None:
    """At every place, to any other of the alphabet; three lengths, so that the last character
    carries 6, 4 and 2 bits: there is no second way to write a token."""
    sealer = TokenSealer([SECRET])
    token = sealer.seal(ticket(floats=1, arm="a" * length))
    for index, character in enumerate(token):
        last = index == len(token) - 1
        for changed in ALPHABET if last else (ALPHABET[ALPHABET.index(character) ^ 1], "+", "/"):
            if changed != character:
                with pytest.raises(Invalid):
                    sealer.open(token[:index] + changed + token[index + 1 :])


def test_every_cut_and_every_addition_is_refused() -> None:
    sealer = TokenSealer([SECRET])
    token = sealer.seal(ticket())
    cuts = [token[:length] for length in range(len(token))] + [token[1:]]
    for changed in [*cuts, token + "A", token + "=", token + "\n", " " + token, token + "é"]:
        with pytest.raises(Invalid) as caught:
            sealer.open(changed)
        assert caught.value.faults[0].path == "decision_id"


@given(st.text(max_size=60) | st.text(ALPHABET, min_size=50, max_size=90))
def test_invented_tokens_are_refused(token: str) -> None:
    with pytest.raises(Invalid):
        TokenSealer([SECRET]).open(token)


def test_a_foreign_secret_is_refused_though_it_knows_the_layout() -> None:
    foreign = TokenSealer([OTHER]).seal(ticket())
    own = TokenSealer([SECRET])
    with pytest.raises(Invalid):
        own.open(foreign)
    raw = bytearray(base64.urlsafe_b64decode(foreign + "=" * (-len(foreign) % 4)))
    raw[1:5] = base64.urlsafe_b64decode(own.seal(ticket())[:8])[1:5]  # our secret's fingerprint
    with pytest.raises(Invalid):
        own.open(base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode())


def test_two_processes_and_two_seals_never_repeat_a_header() -> None:
    first, second = TokenSealer([SECRET]), TokenSealer([SECRET])
    tokens = [sealer.seal(ticket()) for sealer in (first, second) for _ in range(100)]
    assert len({token[:HEADER_CHARACTERS] for token in tokens}) == 200


def test_78_numbers_or_620_categories_fit_and_the_longest_names_without_them() -> None:
    """A number is 8 bytes, 10.67 characters, a category one byte; what no longer fits is left
    to the decision row."""
    sealer = TokenSealer([SECRET])
    lengths = [len(sealer.seal(ticket(floats=n))) for n in range(120)]
    fitting = sum(length <= TOKEN_CHARACTERS for length in lengths)
    assert fitting - 1 == 78
    categories = [len(sealer.seal(ticket(0, places=n))) for n in (620, 630)]
    assert categories[0] <= TOKEN_CHARACTERS < categories[1]
    assert lengths[9] < 320 < TOKEN_CHARACTERS == 1_024  # a shop
    name = "n" * 64
    bare = Ticket("a" * 22, name, name, f"{name}/123456@123456789", 1, [], 1e9, 2e9)
    assert len(sealer.seal(bare)) < 520


def test_a_secret_under_16_bytes_or_none_is_refused() -> None:
    for secrets in ([], [b"short"], [SECRET, b"123456789012345"]):
        with pytest.raises(ValueError, match="at least 16 bytes"):
            TokenSealer(secrets)


def test_a_unit_is_hashed_under_the_first_secret_to_28_characters() -> None:
    sealer = TokenSealer([SECRET, OTHER])
    assert sealer.unit_hash("user-1") == TokenSealer([SECRET]).unit_hash("user-1")
    assert len(sealer.unit_hash("user-1")) == 28
    assert sealer.unit_hash("user-1") != sealer.unit_hash("user-2")
    assert sealer.unit_hash("user-1") != TokenSealer([OTHER]).unit_hash("user-1")
    hashed = TokenSealer([OTHER]).unit_hash("user-1")
    assert hashed in sealer.unit_hashes("user-1")
    assert sealer.knows_secret_of(hashed)
    assert not TokenSealer([SECRET]).knows_secret_of(hashed)


def test_an_experiment_and_a_key_that_spell_another_pair_stand_for_another_decision() -> None:
    sealer = TokenSealer([SECRET, OTHER])
    pairs = [("shop", "s1"), ("shops", "1"), ("sho", "ps1"), ("shop", "\0s1"), ("shop", "")]
    pairs += [("shop", "1b"), ("shop1", "b")]  # with the schema 1 between: shop11b
    ids = [each for name, key in pairs for each in sealer.request_ids(name, 1, key, set())]
    assert len(set(ids)) == 2 * len(pairs)
