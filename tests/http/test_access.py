"""Keys: every route against every kind of key. A route without a declared scope is closed."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Mount

from service.http.access import NO_KEY, needs, row_of
from service.http.openapi import OPERATIONS
from service.state.decisions import decode_decision
from tests.support.keys import PAGE, Keys, body_of
from tests.support.plug import Plug
from tests.support.service import Wire, expect_problem, filled, paths, serving

SCOPES = ("select", "reward", "admin", "metrics")
FILES = ("/console/main.js", "/demo/", "/docs/", "/docs/vendor/swagger-ui.css", "/sdk/forage.js")
QUESTION = {"context": {"persona": "cat"}}


@pytest.fixture
def wire(guarded: Wire) -> Wire:
    return guarded


def routes(app: Any) -> set[tuple[str, str]]:
    """Method and path of each route, described or not, and of a file in each folder."""
    found = {("POST", operation.path) for operation in OPERATIONS} | {("GET", p) for p in FILES}
    for route in app.routes:
        if isinstance(route, Mount):
            continue
        of_router = getattr(route, "effective_candidates", None)
        inner = [route] if of_router is None else _flat(of_router())
        for each in inner:
            path = re.sub(r":\w+}", "}", each.path)
            found |= {(method, path) for method in each.methods}
    return found


def _flat(candidates: Any) -> Iterator[Any]:
    for each in candidates:
        inner = getattr(each, "effective_candidates", None)
        if inner is None:
            yield each
        else:
            yield from _flat(inner())


def test_every_route_has_the_documented_scope(wire: Wire) -> None:
    document = wire.get("/openapi.json").json()
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    found = routes(wire.app)
    assert described < found
    assert not any(method == "OPTIONS" for method, _ in found)  # let through unasked
    by_scope = defaultdict[str, set[str]](set)
    for method, path in sorted(found):
        row = row_of(method, filled(path, "shop"))
        assert row is not None, f"{method} {path}: say in service.http.access.SCOPES who may"
        by_scope[row.needs].add(path)
    assert by_scope.keys() == {*SCOPES, NO_KEY}
    assert by_scope["select"] == {"/select", "/select/batch"}
    assert by_scope["reward"] == {"/reward", "/reward/batch", "/decisions/{id}/activate"}
    assert by_scope["metrics"] == {"/metrics"}
    pages = ("/sdk", "/demo", "/docs", "/console")
    others = {path for path in by_scope[NO_KEY] if not path.startswith(pages)}
    assert others <= {"/", "/healthz", "/readyz", "/openapi.json", "/beacon"}


def test_the_document_names_the_scope_of_each_route(wire: Wire) -> None:
    wire.app.openapi_schema = None  # it makes its own
    document = wire.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            needed = needs(method.upper(), path)
            scopes = [] if needed == NO_KEY else [{"bearer": [needed]}, {"header": [needed]}]
            assert operation["security"] == scopes
            assert ({"401", "403", "429"} <= operation["responses"].keys()) == (needed != NO_KEY)


def test_every_route_against_every_key(wire: Wire, keys: Keys) -> None:
    """None, wrong, expired and revoked are 401; another scope is 403; the needed one is let in,
    whatever the route then says of names that there are not."""
    right = keys.text("admin")
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    bad = {
        "none": {},
        "wrong": {"Authorization": f"Bearer {wrong}"},
        "expired": keys.headers("expired"),
        "revoked": keys.headers("revoked"),
    }
    for method, path in sorted(routes(wire.app)):
        known = filled(path, "shop")
        needed = needs(method, known)

        def status(headers: dict[str, str], method: str = method, path: str = known) -> int:
            return wire.request(method, path, json=body_of(path), headers=headers).status_code

        refused = {name: status(headers) for name, headers in bad.items()}
        others = {scope: status(keys.headers(scope)) for scope in SCOPES if scope != needed}
        if needed == NO_KEY:
            assert {401, 403}.isdisjoint([*refused.values(), *others.values()]), path
            continue
        assert set(refused.values()) == {401}, (method, path, refused)
        assert set(others.values()) == {403}, (method, path, others)
        if (method, path) != ("DELETE", "/experiments/{experiment}"):  # the others need it
            assert status(keys.headers(needed)) not in (401, 403, 429, 500), (method, path)


NOT_NAMED = {
    ("GET", "/experiments"): 200,  # it lists what the key may know of
    ("GET", "/status"): 200,
    ("GET", "/decisions/{id}"): 404,
    ("POST", "/decisions/{id}/activate"): 404,
}
"""Routes that look through the experiments of the key."""


def test_a_key_of_another_experiment_is_refused_by_every_route(wire: Wire, keys: Keys) -> None:
    decision = wire.post("/select", QUESTION, headers=keys.headers("bound")).json()
    definition = wire.get("/experiments/shop", headers=keys.headers("admin")).json()["definition"]
    reward = {"decision_id": decision["decision_id"], "reward": 1.0}
    taken = {
        "PUT /experiments/{experiment}": definition,
        "POST /reward": reward,
        "POST /reward/batch": {"requests": [reward]},
    }
    for method, path in sorted(routes(wire.app)):
        if needs(method, filled(path, "shop")) in (NO_KEY, "metrics"):
            continue
        known = filled(path, "shop").replace("/decisions/a", f"/decisions/{decision['id']}")
        body = taken.get(f"{method} {path}", body_of(path))
        answer = wire.request(method, known, json=body, headers=keys.headers("elsewhere"))
        if path.endswith("/batch"):
            [item] = answer.json()["results"]
            assert item["status"] == 403, (method, path)
        else:
            assert answer.status_code == NOT_NAMED.get((method, path), 403), (method, path)
        assert "kibble" not in answer.text
        assert "shop" not in re.sub(r"forage\.dev\S*", "", answer.text), (method, path)
    assert wire.get("/readyz").json()["positions"] == {}


def test_each_item_of_a_batch_is_held_to_the_key(wire: Wire, keys: Keys) -> None:
    admin, bound, everywhere = (keys.headers(name) for name in ("admin", "bound", "select"))
    definition = wire.get("/experiments/shop", headers=admin).json()["definition"]
    assert wire.put("/experiments/other", definition, headers=admin).status_code == 201
    named = [{**QUESTION, "experiment": name} for name in ("shop", "other", "nowhere")]

    def results(path: str, requests: list[Any], headers: dict[str, str]) -> list[Any]:
        found: list[Any] = wire.post(path, {"requests": requests}, headers=headers).json()[
            "results"
        ]
        return found

    answers = results("/select/batch", named, bound)
    assert [item["status"] for item in answers] == [200, 403, 403]
    answers = results("/select/batch", named, everywhere)
    assert [item["status"] for item in answers] == [200, 200, 404]
    tokens = [item["answer"]["decision_id"] for item in answers[:2]]
    rewards = [{"decision_id": token, "reward": 1.0} for token in tokens]
    assert [item["status"] for item in results("/reward/batch", rewards, bound)] == [200, 403]
    listed = wire.get("/experiments", headers=bound).json()["experiments"]
    assert [each["name"] for each in listed] == ["shop"]


@pytest.mark.parametrize("first", ["bound", "elsewhere"])
def test_simultaneous_requests_are_each_held_to_their_own_key(
    wire: Wire, keys: Keys, first: str
) -> None:
    names = [first, "bound", "elsewhere", "none", "elsewhere", "bound"] * 8
    headers = {"bound": keys.headers("bound"), "elsewhere": keys.headers("elsewhere")}
    decision = wire.post("/select", QUESTION, headers=headers["bound"]).json()
    reward = {"decision_id": decision["decision_id"], "reward": 1.0}

    async def together(path: str, body: Any) -> list[int]:
        asked = (wire.client.post(path, json=body, headers=headers.get(name)) for name in names)
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    expected = [{"bound": 200, "elsewhere": 403, "none": 401}[name] for name in names]
    assert wire.run(together("/select", QUESTION)) == expected
    assert wire.run(together("/reward", reward)) == expected


def test_a_request_to_all_experiments_needs_a_key_of_all(wire: Wire, keys: Keys) -> None:
    bound = keys.headers("bound")
    expect_problem(wire.delete("/units/ann", headers=bound), 403)
    assert wire.delete("/units/ann?experiment=shop", headers=bound).status_code == 200
    assert wire.delete("/units/ann", headers=keys.headers("admin")).status_code == 200


ORIGINS = (
    *(None, "", "null", "https://evil.example", "http://shop.example", f"{PAGE}/"),
    *("https://shop.example.evil.example", "https://shop.example:8443", "https://SHOP.example"),
    *("https://sub.shop.example", f"{PAGE}, https://evil.example"),
)


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_pages_key_is_refused_from_another_origin(
    wire: Wire, keys: Keys, origin: str | None
) -> None:
    sent = [*keys.headers("page").items(), *([] if origin is None else [("Origin", origin)])]
    problem = expect_problem(wire.post("/select", QUESTION, headers=sent), 403)
    assert "origin" in problem["detail"]
    assert PAGE not in str(problem)
    several = [*sent, ("Origin", PAGE), ("Origin", "https://evil.example")]
    assert wire.post("/select", QUESTION, headers=several).status_code == 403


def test_refusals_are_counted_by_reason(wire: Wire, keys: Keys) -> None:
    def counts() -> dict[str, float]:
        text = wire.get("/metrics", headers=keys.headers("metrics")).text
        found = re.findall(r'forage_refused_total{reason="(\w+)"} (\S+)', text)
        return {reason: float(count) for reason, count in found}

    assert set(counts().values()) == {0.0}
    wire.get("/experiments")
    wire.get("/experiments", headers={"X-API-Key": "nonsense"})
    for name in ("expired", "revoked", "select"):
        wire.get("/experiments", headers=keys.headers(name))
    wire.get("/experiments/shop", headers=keys.headers("elsewhere"))
    wire.post("/select", QUESTION, headers=keys.headers("page"))
    once = ("missing", "wrong", "expired", "revoked", "scope", "experiment", "origin")
    never = ("host", "profile", "rate", "rate_address", "rate_unit")
    assert counts() == {**dict.fromkeys(once, 1.0), **dict.fromkeys(never, 0.0)}


def test_without_keys_nothing_is_asked_for() -> None:
    with serving() as wire:
        assert wire.get("/experiments").status_code == 200
        assert wire.get("/experiments", headers={"X-API-Key": "nonsense"}).status_code == 200
        assert {} in wire.app.openapi()["paths"]["/experiments"]["get"]["security"]
        wire.select()
        [row] = wire.run(wire.services.store.decisions("shop", 0, 100))
        assert b'"key"' not in row.payload


def test_a_body_is_judged_after_the_key(wire: Wire, keys: Keys) -> None:
    assert wire.post("/select", {"nonsense": 1}).status_code == 401
    answer = wire.post("/select", {"nonsense": 1}, headers=keys.headers("select"))
    assert paths(expect_problem(answer, 422)) == ["nonsense"]


def test_the_log_holds_the_name_of_the_key_and_not_the_key(wire: Wire, keys: Keys) -> None:
    bound, select = keys.headers("bound"), keys.headers("select")
    wire.post("/select", QUESTION, headers=bound)
    wire.post("/select/batch", {"requests": [QUESTION, QUESTION]}, headers=select)
    sent = json.dumps(QUESTION).encode()
    answer = Plug(wire).post("/select", sent, {"Content-Type": "application/json"} | bound)
    assert answer.status_code == 200
    rows = wire.run(wire.services.store.decisions("shop", 0, 100))
    logged = [decode_decision(row.payload) for row in rows]
    assert [row.key for row in logged] == ["bound", "select", "select", "bound"]
    assert not any(keys.text("bound").encode() in row.payload for row in rows)
    told = wire.get(f"/decisions/{logged[0].id}", headers=keys.headers("admin")).json()
    assert told["key"] == "bound"
