"""Pages of listed origins may ask, and leave; others are told nothing they could read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from service.http.cors import LOGGED_ORIGINS
from service.security.hosts import origin_of
from service.settings import Settings
from tests.support.keys import Keys
from tests.support.service import Json, Wire, expect_problem, serving

SHOP = "https://shop.example"
PREFLIGHT = {
    "Origin": SHOP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
}
QUESTION = {"context": {"persona": "cat"}}


@pytest.fixture
def listed() -> Iterator[Wire]:
    with serving(cors_origins=f"{SHOP}/, http://localhost:5173") as wire:
        yield wire


def asked(wire: Wire, method: str, path: str, **options: Any) -> httpx.Response:
    """Without the document's check: neither preflights nor beacons are part of it."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(wire.app), base_url="http://forage")
    return wire.run(client.request(method, path, **options))


def beacon(wire: Wire, content: Any, **headers: str) -> httpx.Response:
    text = content if isinstance(content, str) else json.dumps(content)
    headers = {"Content-Type": "text/plain;charset=UTF-8", **headers}
    return asked(wire, "POST", "/beacon", content=text, headers=headers)


@pytest.mark.parametrize("path", ["/select", "/reward", "/decisions/a/activate", "/select/batch"])
def test_a_preflight_is_answered_and_remembered(listed: Wire, path: str) -> None:
    answer = asked(listed, "OPTIONS", path, headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == SHOP
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert {"authorization", "content-type", "idempotency-key"} <= set(allowed.split(", "))
    for name in ("X-Request-ID", "X-API-Key", "If-Match", "X-Envoy-Expected-Rq-Timeout-Ms"):
        asks = {**PREFLIGHT, "Access-Control-Request-Headers": name.lower()}
        assert asked(listed, "OPTIONS", path, headers=asks).status_code == 200
    for method in ("PUT", "PATCH", "DELETE"):
        asks = {**PREFLIGHT, "Access-Control-Request-Method": method}
        assert asked(listed, "OPTIONS", path, headers=asks).status_code == 200
    assert answer.headers["access-control-max-age"] == "7200"
    assert "access-control-allow-credentials" not in answer.headers


def test_answers_and_refusals_can_be_read_by_the_page(listed: Wire) -> None:
    token = listed.select()["decision_id"]
    for path, body, status in (
        ("/select", QUESTION, 200),
        ("/reward", {"decision_id": token, "reward": 1}, 200),
        ("/select", {"context": {}}, 422),
    ):
        answer = listed.post(path, body, headers={"Origin": SHOP})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == SHOP
        assert "Origin" in answer.headers["vary"]
        assert {"Retry-After", "ETag", "X-Request-ID"} == set(
            answer.headers["access-control-expose-headers"].split(", ")
        )


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://shop.example", "https://shop.example.evil", "null"]
)
def test_a_foreign_origin_is_told_nothing(listed: Wire, origin: str) -> None:
    answer = asked(listed, "OPTIONS", "/select", headers={**PREFLIGHT, "Origin": origin})
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers
    plain = listed.post("/select", QUESTION, headers={"Origin": origin})
    assert "access-control-allow-origin" not in plain.headers


LOCAL = "http://localhost:3000"


@pytest.mark.parametrize("listed", ["", "http://127.0.0.1:3000"])
@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_a_refused_origin_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, listed: str, method: str
) -> None:
    def told() -> int:
        lines = [each.message for each in caplog.records if LOCAL in each.message]
        assert all("FORAGE_CORS_ORIGINS" in line for line in lines)
        return len(lines)

    with serving(cors_origins=listed) as wire:
        for _ in range(2):
            asked(wire, method, "/arms", headers={**PREFLIGHT, "Origin": LOCAL})
        assert told() == 1
        wire.clock.skip(61)
        asked(wire, method, "/arms", headers={**PREFLIGHT, "Origin": LOCAL})
        assert told() == 2
        for origin in ("http://forage", listed or "https://forage"):
            asked(wire, method, "/arms", headers={**PREFLIGHT, "Origin": origin})
        asked(wire, "GET", "/sdk/forage.js", headers={"Origin": SHOP})  # which is for all pages
        assert len([each for each in caplog.records if "may not ask" in each.message]) == 2


def test_many_refused_origins_do_not_flood_the_log(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(LOGGED_ORIGINS + 10):
        wire.get("/healthz", headers={"Origin": f"https://{number}.example"})
    assert len([each for each in caplog.records if "may not ask" in each.message]) == LOGGED_ORIGINS


def test_without_a_list_only_the_services_own_pages_can_ask(wire: Wire) -> None:
    answer = wire.post("/select", QUESTION, headers={"Origin": SHOP})
    assert "access-control-allow-origin" not in answer.headers
    assert asked(wire, "OPTIONS", "/select", headers=PREFLIGHT).status_code == 405


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "null",
        "shop.example",
        "https://*.shop.example/x",
        "https://a.b/c",
        "ftp://a",
        "https://",
    ],
)
def test_what_is_no_origin_stops_the_start(text: str) -> None:
    with pytest.raises(ValidationError, match="cors_origins"):
        Settings(cors_origins=text)


def test_origins_are_written_as_browsers_send_them() -> None:
    assert origin_of(" https://Shop.example:443/ ") == SHOP
    assert origin_of("http://[::1]:8080") == "http://[::1]:8080"
    found = Settings(cors_origins=f"{SHOP},,http://localhost:5173").cors_origins
    assert found == [SHOP, "http://localhost:5173"]


# -- beacons ---------------------------------------------------------------------------------------


def test_a_beacon_activates_and_rewards_in_that_order_and_once(listed: Wire) -> None:
    decision = listed.select(deferred=True)
    content = {
        "rewards": [{"decision_id": decision["decision_id"], "reward": 1}],
        "activate": [{"id": decision["id"], "experiment": "shop"}],
    }
    for _ in range(2):
        answer = beacon(listed, content, Origin=SHOP)
        assert (answer.status_code, answer.json()) == (200, {"statuses": [200, 200]})
    assert listed.reward(decision, 1.0) == "duplicate"
    assert listed.get(f"/decisions/{decision['id']}").json()["activated"]


def test_each_part_of_a_beacon_is_refused_for_itself(listed: Wire) -> None:
    decision = listed.select()
    rewards = [
        {"decision_id": decision["decision_id"], "reward": 9},
        {"decision_id": "forged", "reward": 1},
        {"decision_id": decision["decision_id"], "reward": 1},
    ]
    answer = beacon(listed, {"rewards": rewards}, Origin=SHOP)
    assert answer.json() == {"statuses": [422, 422, 200]}


def test_each_item_of_a_beacon_passes_the_key_inside_it(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.json")
    keys.add("page", "select", "reward", experiments=["shop"], origins=[SHOP], rate="4/hour")
    keys.add("select", "select", "admin")
    keys.add("elsewhere", "reward", experiments=["elsewhere"])
    with serving(keys=keys.path, cors_origins=f"{SHOP}, https://other.example") as wire:
        ask = keys.headers("select")
        decision = wire.post("/select", {**QUESTION, "deferred": True}, headers=ask).json()
        content: Json = {
            "activate": [{"id": decision["id"]}],
            "rewards": [{"decision_id": decision["decision_id"], "reward": 1}],
        }

        def statuses(name: str, origin: str = SHOP, **headers: str) -> list[int]:
            inside = {"key": keys.text(name)} if name else {}
            answer = beacon(wire, {**inside, **content}, Origin=origin, **headers)
            found: list[int] = answer.json()["statuses"]
            return found

        assert statuses("") == [401, 401]
        assert statuses("select") == [403, 403]
        assert statuses("elsewhere") == [404, 403]
        assert statuses("page", "https://other.example") == [403, 403]
        assert statuses("page", **keys.headers("select")) == [200, 200]
        assert statuses("page") == [200, 200]
        assert statuses("page") == [429, 429]
        told = wire.get(f"/decisions/{decision['id']}", headers=ask).json()
        assert [each["reward"] for each in told["learned"]] == [1]


def test_a_beacon_comes_from_an_own_or_a_listed_page(listed: Wire) -> None:
    decision = listed.select()
    rewards = [{"decision_id": decision["decision_id"], "reward": 1}]
    for origin in ("https://evil.example", "null"):
        expect_problem(beacon(listed, {"rewards": rewards}, Origin=origin), 403)
    answer = beacon(listed, {"rewards": rewards}, Origin="http://forage")
    assert answer.json() == {"statuses": [200]}
    assert listed.reward(decision, 1.0) == "duplicate"
    expect_problem(beacon(listed, " " * 65_537), 413)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{", '{"rewards": 1}', '{"other": 1}'),
        '{"activate": [{"id": "../../experiments"}]}',
        '{"activate": [{"id": "a", "experiment": "a&b=c"}]}',
        json.dumps({"rewards": [{}] * 201}),
    ],
)
def test_what_is_no_beacon_is_refused_whole(wire: Wire, content: str) -> None:
    answer = beacon(wire, content)
    expect_problem(answer, 400 if content == "{" else 422)
