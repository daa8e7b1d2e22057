"""A service answers for its own hosts alone, and pages of other sites change nothing in it."""

import pytest
from pydantic import ValidationError

from service.http.request_head import PROBES
from service.security.hosts import Hosts
from service.settings import Settings
from tests.support.keys import PAGE, Keys, body_of
from tests.support.plug import Plug
from tests.support.service import Wire, expect_problem, filled, serving

RESET = "/experiments/shop/policies/linucb/reset"
REBOUND = {
    "Host": "evil.example",
    "Origin": "http://evil.example",
    "Sec-Fetch-Site": "same-origin",
}
"""Of a page whose own name resolves to this host by now."""
EVIL = "https://evil.example"
OWN = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"}


def test_a_rebound_page_changes_and_reads_nothing(wire: Wire) -> None:
    answer = wire.put("/arms/evil", {"features": {}}, headers=REBOUND)
    assert expect_problem(answer, 421)["type"].endswith("/misdirected")
    assert "evil" not in wire.services.log.replicas.states["shop"].arms
    expect_problem(wire.post(RESET, headers=REBOUND), 421)
    expect_problem(wire.post("/beacon", {"rewards": []}, headers=REBOUND), 421)
    assert wire.metrics()['forage_refused_total{reason="host"}'] >= 2
    paths = [path for path, methods in wire.app.openapi()["paths"].items() if "get" in methods]
    for path in {*paths, "/", "/docs", "/openapi.json", "/nothing"} - PROBES:
        expect_problem(wire.get(filled(path, "shop"), headers=REBOUND), 421)


def test_probes_are_answered_under_any_name_and_tell_no_names(wire: Wire) -> None:
    for host in ("service:8000", "evil.example"):
        assert wire.get("/healthz", headers={"Host": host}).json()["status"] == "ok"
        ready = wire.get("/readyz", headers={"Host": host}).json()
        assert (ready["ready"], ready["positions"]) == (True, {})
    assert wire.get("/readyz").json()["positions"] == {"shop": 1}


def test_the_host_is_held_against_the_list(wire: Wire) -> None:
    plug, body = Plug(wire), b'{"context": {"persona": "cat"}}'

    def status(host: str) -> int:
        headers = {"Host": host, "Content-Type": "application/json"}
        return plug.post("/select", body, headers).status_code

    for host in ("forage", "FORAGE:8000", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert status(host) == 200
    for host in ("evil.example", "forage.evil.example", "10.0.0.7", "", "forage, evil.example"):
        assert status(host) == 421
    assert status("forage\r\nHost: evil.example") == 400


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": origin} for origin in (EVIL, "null", "", "http://127.0.0.1:8001")),
        {"Origin": "http://localhost:8000"},
        {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
        {"Origin": "null", "Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_origin_changes_nothing(wire: Wire, headers: dict[str, str]) -> None:
    headers = {"Host": "127.0.0.1:8000", **headers}
    before = wire.services.log.replicas.states["shop"].position
    for method, path in (("POST", RESET), ("PUT", "/arms/evil"), ("DELETE", "/units/ann")):
        problem = expect_problem(wire.request(method, path, headers=headers), 403)
        assert problem["type"].endswith("/foreign-origin")
    expect_problem(wire.post("/select", body_of("/select"), headers=headers), 403)
    assert wire.services.log.replicas.states["shop"].position == before
    assert wire.get("/experiments", headers=headers).status_code == 200  # unreadable to the page


@pytest.mark.parametrize(
    "headers",
    [
        {},
        OWN,
        {**OWN, "Sec-Fetch-Site": "same-origin"},
        {"Host": "forage", "Origin": "https://forage"},  # a proxy ends TLS
        {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_programs_own_pages_and_listed_ones_change_what_they_will(headers: dict[str, str]) -> None:
    with serving(cors_origins=[PAGE]) as wire:
        assert wire.post(RESET, headers=headers).status_code == 200


def test_keys_need_no_list_of_hosts_but_hold_to_one(keys: Keys) -> None:
    asked = {**keys.headers("select"), "Host": "forage.example"}
    with serving(keys=keys.path, allowed_hosts=[]) as wire:
        assert wire.post("/select", body_of("/select"), headers=asked).status_code == 200
    with serving(keys=keys.path, allowed_hosts="forage, *.shop.example") as wire:
        expect_problem(wire.post("/select", body_of("/select"), headers=asked), 421)
        asked["Host"] = "api.shop.example"
        assert wire.post("/select", body_of("/select"), headers=asked).status_code == 200


def test_a_key_in_a_page_is_for_the_origins_that_it_or_the_service_lists(keys: Keys) -> None:
    with serving(keys=keys.path, cors_origins=["https://listed.example"]) as wire:

        def status(key: str, origin: str) -> int:
            headers = {**keys.headers(key), "Origin": origin}
            return wire.post("/select", body_of("/select"), headers=headers).status_code

        assert status("page", PAGE) == 200
        assert status("select", "https://listed.example") == 200
        assert status("select", "http://forage") == 200
        assert status("select", "https://evil.example") == 403
        assert status("select", "null") == 403


SERVED = {
    "127.0.0.1": (
        *(b"127.0.0.1", b"127.1.2.3:80", b"LOCALHOST:1", b"[::1]:8000", b"[::ffff:127.0.0.1]"),
        b"a.b.shop.example",
    ),
    "192.168.1.5": (b"192.168.1.5:8000",),
    "box.lan": (b"box.lan:8000",),
    "0.0.0.0": (b"10.9.8.7:8000",),  # noqa: S104
    "::": (b"[fd00::1]:8000",),
}
MISDIRECTED = {
    "127.0.0.1": (
        *(b"localhost.evil.example", b"127.0.0.1.evil.example", b"192.168.1.5", b"localhost:port"),
        *(b"evil@localhost", b"localhost\xc3\xa9", b"shop.example", b"notshop.example"),
        b"*.shop.example",
    ),
    "192.168.1.5": (b"192.168.1.6:8000",),
    "0.0.0.0": (b"evil.example",),  # noqa: S104
}


@pytest.mark.parametrize(("hosts", "serves"), [(SERVED, True), (MISDIRECTED, False)])
def test_a_host_is_one_of_loopback_of_the_address_and_of_the_list(
    hosts: dict[str, tuple[bytes, ...]], serves: bool
) -> None:
    for listen, asked in hosts.items():
        for host in asked:
            assert Hosts(listen, ["*.shop.example"]).serves([host]) is serves, (listen, host)


@pytest.mark.parametrize("text", ["*", "https://a.example", "a.example:80", "a b", "*.*.a", "a/b"])
def test_what_is_no_host_stops_the_start(text: str) -> None:
    with pytest.raises(ValidationError, match="allowed_hosts"):
        Settings(allowed_hosts=text)
    found = Settings(allowed_hosts="Service, *.a.example,,[FD00::1],10.0.0.7").allowed_hosts
    assert found == ["service", "*.a.example", "fd00::1", "10.0.0.7"]
