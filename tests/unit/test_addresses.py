"""Whose request it is: the peer's, or whom trusted proxies name."""

import logging

import pytest
from pydantic import ValidationError

from service.security.addresses import Addresses, network_of
from service.settings import Settings

PROXY, CLIENT = "10.0.0.1", "198.51.100.7"
FOR, FORWARDED = b"x-forwarded-for", b"forwarded"


def behind(*networks: str) -> Addresses:
    return Addresses([network_of(each) for each in networks])


def test_an_address_is_the_peers_whatever_the_headers_say() -> None:
    found = {behind().of(f"2001:db8:1:2::{n:x}", []) for n in range(100)}
    assert found == {"2001:db8:1:2::/64"}  # all addresses of one client
    for headers in ([], [(FOR, b"192.0.2.1")], [(FORWARDED, b"for=192.0.2.1")]):
        assert behind("10.0.0.0/8").of("203.0.113.9", headers) == "203.0.113.9"
        assert behind().of("8.8.8.8", headers) == "8.8.8.8"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"198.51.100.7", CLIENT),
        (b"198.51.100.7:4711", CLIENT),
        (b"1.1.1.1, 198.51.100.7", CLIENT),  # what a client says of itself comes first
        (b"198.51.100.7, 10.9.9.9, 10.0.0.3", CLIENT),  # through three of ours
        (b"1.1.1.1, evil, 10.0.0.3", "10.0.0.3"),
        (b"", PROXY),
        (b"unknown", PROXY),
        (b"::ffff:198.51.100.7", CLIENT),
        (b"[2001:db8:1:2:3::4]:443", "2001:db8:1:2::/64"),
        (b"2001:db8:1:2:9::9", "2001:db8:1:2::/64"),
    ],
)
def test_a_trusted_proxy_says_who_asked_it(said: bytes, found: str) -> None:
    assert behind("10.0.0.0/8").of(PROXY, [(FOR, said)]) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"for=198.51.100.7", CLIENT),
        (b'for="198.51.100.7:4711";proto=https;by=10.0.0.1', CLIENT),
        (b"for=1.1.1.1, For=198.51.100.7;proto=http, for=10.0.0.3", CLIENT),
        (b'for="[2001:db8:1:2:3::4]:443"', "2001:db8:1:2::/64"),
        (b"for=_hidden", PROXY),
        (b"proto=https", PROXY),
    ],
)
def test_the_standard_header_says_the_same(said: bytes, found: str) -> None:
    assert behind("10.0.0.0/8").of(PROXY, [(FORWARDED, said)]) == found


def test_lines_of_one_header_are_joined_and_two_headers_count_as_the_proxys() -> None:
    lines = [(FOR, b"1.1.1.1"), (b"accept", b"*/*"), (FOR, b"198.51.100.7, 10.0.0.2")]
    assert behind("10.0.0.0/8").of(PROXY, lines) == CLIENT
    both = [(FORWARDED, b"for=1.1.1.1"), (FOR, b"198.51.100.7")]
    assert behind("10.0.0.0/8").of(PROXY, both) == PROXY


def test_indistinguishable_clients_have_no_address() -> None:
    """A silent proxy, a socket of the file system."""
    assert behind("10.0.0.0/8").of(PROXY, []) is None
    assert behind().of(None, []) is None


def test_a_peer_that_is_not_listed_counts_whatever_it_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else a header would lift the rate. One warning names what may be a proxy."""
    unlisted = behind()
    with caplog.at_level(logging.WARNING):
        for name in (FOR, FORWARDED):
            assert {unlisted.of(PROXY, [(name, b"198.51.100.7")]) for _ in range(3)} == {PROXY}
    assert [PROXY in record.getMessage() for record in caplog.records] == [True]


def test_proxies_are_networks_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORAGE_TRUSTED_PROXIES", "10.0.0.0/8, ::1,192.0.2.1")
    assert [str(each) for each in Settings().trusted_proxies] == [
        "10.0.0.0/8", "::1/128", "192.0.2.1/32",
    ]  # fmt: skip
    monkeypatch.setenv("FORAGE_TRUSTED_PROXIES", "everybody")
    with pytest.raises(ValidationError, match="is no network, such as"):
        Settings()
