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


def test_headers_in_several_lines_are_one() -> None:
    lines = [(FOR, b"1.1.1.1"), (b"accept", b"*/*"), (FOR, b"198.51.100.7, 10.0.0.2")]
    assert behind("10.0.0.0/8").of(PROXY, lines) == CLIENT


def test_who_sends_a_header_that_the_proxy_does_not_write_is_counted_with_the_proxy() -> None:
    lines = [(FORWARDED, b"for=1.1.1.1"), (FOR, b"198.51.100.7")]
    assert behind("10.0.0.0/8").of(PROXY, lines) == PROXY


def test_visitors_whom_nobody_can_tell_apart_have_no_address() -> None:
    """A proxy that says nothing; one that nobody listed; a socket of the file system."""
    assert behind("10.0.0.0/8").of(PROXY, []) is None
    assert behind().of(PROXY, [(FOR, b"198.51.100.7")]) is None
    assert behind().of(None, []) is None


def test_a_proxy_that_nobody_listed_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    found = behind()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found.of(PROXY, [(FOR, b"198.51.100.7")])
    assert [PROXY in record.getMessage() for record in caplog.records] == [True]


def test_a_visitor_of_the_sixth_version_is_a_network() -> None:
    found = {behind().of(f"2001:db8:1:2::{n:x}", []) for n in range(100)}
    assert found == {"2001:db8:1:2::/64"}


def test_proxies_are_networks_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORAGE_TRUSTED_PROXIES", "10.0.0.0/8, ::1,192.0.2.1")
    assert [str(each) for each in Settings().trusted_proxies] == [
        "10.0.0.0/8", "::1/128", "192.0.2.1/32",
    ]  # fmt: skip
    monkeypatch.setenv("FORAGE_TRUSTED_PROXIES", "everybody")
    with pytest.raises(ValidationError, match="is no network, such as"):
        Settings()
