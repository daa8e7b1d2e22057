"""Keys: every route against every kind of key. What no key was made for is closed."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Mount

from service.http.access import FREE, needs, row_of
from service.http.openapi import OPERATIONS
from tests.support.keys import PAGE, Keys, body_of, standard
from tests.support.service import Wire, expect_problem, filled, paths, serving

SCOPES = ("select", "reward", "admin", "metrics")
KINDS = {"select", "reward", "admin", "metrics", FREE}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return standard(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture
def wire(keys: Keys) -> Iterator[Wire]:
    with serving(keys=keys.path) as wire:
        yield wire


FILES = ("/console/main.js", "/demo/", "/docs/", "/docs/vendor/swagger-ui.css", "/sdk/forage.js")


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


def test_the_walk_finds_every_route(wire: Wire) -> None:
    described = {
        (method.upper(), path)
        for path, methods in wire.app.openapi()["paths"].items()
        for method in methods
    }
    assert described < routes(wire.app)
    assert ("GET", "/docs") in routes(wire.app)


def test_every_route_belongs_to_exactly_one_scope(wire: Wire) -> None:
    for method, path in sorted(routes(wire.app)):
        row = row_of(method, filled(path, "shop"))
        assert row is not None, f"{method} {path}: say in service.http.access.SCOPES who may"
        assert row.needs in KINDS


def test_no_route_answers_to_the_method_that_is_let_through_unasked(wire: Wire) -> None:
    assert not any(method == "OPTIONS" for method, _ in routes(wire.app))


def test_scopes_are_as_documented(wire: Wire) -> None:
    by_scope: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for method, path in routes(wire.app):
        by_scope[needs(method, filled(path, "shop"))].add(path)
    assert by_scope["select"] == {"/select", "/select/batch"}
    assert by_scope["reward"] == {"/reward", "/reward/batch", "/decisions/{id}/activate"}
    assert by_scope["metrics"] == {"/metrics"}
    pages = {
        path for path in by_scope[FREE] if path.startswith(("/sdk", "/demo", "/docs", "/console"))
    }
    assert by_scope[FREE] - pages <= {
        "/", "/healthz", "/readyz", "/openapi.json", "/beacon",
    }  # fmt: skip


def test_every_route_against_every_key(wire: Wire, keys: Keys) -> None:
    """The whole matrix: none, wrong, expired and revoked are 401; another scope is 403; the scope
    it needs is let in, whatever the route then says of names that there are not."""
    right = keys.text("admin")
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    asked = 0
    for method, path in sorted(routes(wire.app)):
        known = filled(path, "shop")
        needed = needs(method, known)

        def status(headers: dict[str, str], method: str = method, path: str = known) -> int:
            body = body_of(path)
            return wire.request(method, path, json=body, headers=headers).status_code

        refused = {
            "none": status({}),
            "wrong": status({"Authorization": f"Bearer {wrong}"}),
            "expired": status(keys.headers("expired")),
            "revoked": status(keys.headers("revoked")),
        }
        others = {scope: status(keys.headers(scope)) for scope in SCOPES if scope != needed}
        asked += len(refused) + len(others)
        if needed == FREE:
            assert {401, 403}.isdisjoint([*refused.values(), *others.values()]), path
            continue
        assert set(refused.values()) == {401}, (method, path, refused)
        assert set(others.values()) == {403}, (method, path, others)
        if (method, path) != ("DELETE", "/experiments/{experiment}"):  # the others need it
            assert status(keys.headers(needed)) not in (401, 403, 429, 500), (method, path)
    assert asked > 200


NOT_NAMED = {
    ("GET", "/experiments"): 200,  # it lists what the key may know of
    ("GET", "/status"): 200,
    ("GET", "/decisions/{id}"): 404,
    ("POST", "/decisions/{id}/activate"): 404,
}
"""Routes that look through the experiments of the key."""


def test_a_key_of_another_experiment_is_refused_by_every_route(wire: Wire, keys: Keys) -> None:
    asked = wire.post("/select", body_of("/select"), headers=keys.headers("bound"))
    decision = asked.json()
    definition = wire.get("/experiments/shop", headers=keys.headers("admin")).json()["definition"]
    taken = {
        "PUT /experiments/{experiment}": definition,
        "POST /reward": {"decision_id": decision["decision_id"], "reward": 1.0},
        "POST /reward/batch": {
            "requests": [{"decision_id": decision["decision_id"], "reward": 1.0}]
        },
    }
    for method, path in sorted(routes(wire.app)):
        needed = needs(method, filled(path, "shop"))
        if needed in (FREE, "metrics"):
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


def test_one_batch_may_ask_for_both_and_is_answered_item_by_item(wire: Wire, keys: Keys) -> None:
    admin, bound = keys.headers("admin"), keys.headers("bound")
    definition = wire.get("/experiments/shop", headers=admin).json()["definition"]
    assert wire.put("/experiments/other", definition, headers=admin).status_code == 201
    both = [
        {"experiment": name, "context": {"persona": "cat"}, "policy": "linucb"}
        for name in ("shop", "other", "nowhere")
    ]
    answers = wire.post("/select/batch", {"requests": both}, headers=bound).json()["results"]
    assert [item["status"] for item in answers] == [200, 403, 403]
    everywhere = keys.headers("select")
    answers = wire.post("/select/batch", {"requests": both}, headers=everywhere).json()["results"]
    assert [item["status"] for item in answers] == [200, 200, 404]
    rewards = [
        {"decision_id": item["answer"]["decision_id"], "reward": 1.0} for item in answers[:2]
    ]
    answers = wire.post("/reward/batch", {"requests": rewards}, headers=bound).json()["results"]
    assert [item["status"] for item in answers] == [200, 403]
    named = [each["name"] for each in wire.get("/experiments", headers=bound).json()["experiments"]]
    assert named == ["shop"]


@pytest.mark.parametrize("first", ["bound", "elsewhere"])
def test_requests_at_the_same_time_are_each_held_to_their_own_key(
    wire: Wire, keys: Keys, first: str
) -> None:
    """Whatever a service does for several requests together, it does not do by the key of one."""
    names = [first, "bound", "elsewhere", "none", "elsewhere", "bound"] * 8
    expected = {"bound": 200, "elsewhere": 403, "none": 401}
    decision = wire.post("/select", body_of("/select"), headers=keys.headers("bound")).json()
    reward = {"decision_id": decision["decision_id"], "reward": 1.0}

    async def together(path: str, body: Any) -> list[int]:
        headers = {"bound": keys.headers("bound"), "elsewhere": keys.headers("elsewhere")}
        answers = await asyncio.gather(
            *(wire.client.post(path, json=body, headers=headers.get(name)) for name in names)
        )
        return [answer.status_code for answer in answers]

    for path, body in (("/select", body_of("/select")), ("/reward", reward)):
        assert wire.run(together(path, body)) == [expected[name] for name in names]


def test_what_is_asked_of_no_experiment_in_particular_needs_a_key_of_all(
    wire: Wire, keys: Keys
) -> None:
    bound = keys.headers("bound")
    expect_problem(wire.delete("/units/ann", headers=bound), 403)
    assert wire.delete("/units/ann?experiment=shop", headers=bound).status_code == 200
    assert wire.delete("/units/ann", headers=keys.headers("admin")).status_code == 200


# -- pages ---------------------------------------------------------------------------------------


def test_a_page_of_its_origin_decides_and_rewards(wire: Wire, keys: Keys) -> None:
    headers = {**keys.headers("page"), "Origin": PAGE}
    decision = wire.post("/select", body_of("/select"), headers=headers)
    assert decision.status_code == 200
    body = {"decision_id": decision.json()["decision_id"], "reward": 1.0}
    assert wire.post("/reward", body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "null",
        "https://evil.example",
        "http://shop.example",
        "https://shop.example.evil.example",
        "https://shop.example:8443",
        "https://sub.shop.example",
        "https://SHOP.example",
        f"{PAGE}/",
        f"{PAGE}, https://evil.example",
    ],
)
def test_a_pages_key_is_refused_from_another_origin(
    wire: Wire, keys: Keys, origin: str | None
) -> None:
    headers = keys.headers("page") | ({} if origin is None else {"Origin": origin})
    problem = expect_problem(wire.post("/select", body_of("/select"), headers=headers), 403)
    assert "origin" in problem["detail"]
    assert PAGE not in str(problem)


def test_two_origins_are_not_one_that_is_allowed(wire: Wire, keys: Keys) -> None:
    headers = [*keys.headers("page").items(), ("Origin", PAGE), ("Origin", "https://evil.example")]
    assert wire.post("/select", body_of("/select"), headers=headers).status_code == 403


def test_a_pages_key_does_nothing_else(wire: Wire, keys: Keys) -> None:
    headers = {**keys.headers("page"), "Origin": PAGE}
    for path in ("/experiments", "/metrics", "/decisions/a", "/arms"):
        assert wire.get(path, headers=headers).status_code == 403


# -- what is counted, what is said ---------------------------------------------------------------


def test_refusals_are_counted_by_reason(wire: Wire, keys: Keys) -> None:
    def asked() -> None:
        wire.get("/experiments")
        wire.get("/experiments", headers={"X-API-Key": "nonsense"})
        for name in ("expired", "revoked", "select"):
            wire.get("/experiments", headers=keys.headers(name))
        wire.get("/experiments/shop", headers=keys.headers("elsewhere"))
        wire.post("/select", body_of("/select"), headers=keys.headers("page"))

    def counts() -> dict[str, float]:
        text = wire.get("/metrics", headers=keys.headers("metrics")).text
        return {
            found[1]: float(found[2])
            for found in re.finditer(r'forage_refused_total{reason="(\w+)"} (\S+)', text)
        }

    assert set(counts().values()) == {0.0}
    asked()
    once = ("missing", "wrong", "expired", "revoked", "scope", "experiment", "origin")
    never = ("host", "profile", "rate", "rate_address", "rate_unit")
    assert counts() == {**dict.fromkeys(once, 1.0), **dict.fromkeys(never, 0.0)}


def test_the_document_says_which_scope_each_route_needs(wire: Wire) -> None:
    document = wire.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            needed = needs(method.upper(), path)
            scopes = [] if needed == FREE else [{"bearer": [needed]}, {"header": [needed]}]
            assert operation["security"] == scopes
            assert ({"401", "403", "429"} <= operation["responses"].keys()) == (needed != FREE)


def test_without_keys_nothing_is_asked_for() -> None:
    with serving() as wire:
        assert wire.get("/experiments").status_code == 200
        assert wire.get("/experiments", headers={"X-API-Key": "nonsense"}).status_code == 200
        [requirement] = [
            each for each in wire.app.openapi()["paths"]["/experiments"]["get"]["security"]
            if not each
        ]  # fmt: skip
        assert requirement == {}
        wire.select()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_without_keys_a_page_of_another_origin_changes_nothing(site: str) -> None:
    """A form or a `no-cors` fetch of any site that somebody on this host looks at is sent without
    a preflight."""
    evil = {"Sec-Fetch-Site": site, "Origin": "https://evil.example"}
    own = {"Sec-Fetch-Site": "same-origin", "Origin": "http://forage"}
    listed = {"Sec-Fetch-Site": site, "Origin": PAGE}
    with serving(cors_origins=[PAGE]) as wire:
        reset = "/experiments/shop/policies/linucb/reset"
        for headers in (evil, {"Sec-Fetch-Site": site}):
            expect_problem(wire.post(reset, headers=headers), 403)
        assert wire.get("/experiments/shop").json()["revision"] == 1
        assert wire.get("/experiments", headers=evil).status_code == 200  # unreadable to the page
        for headers in (own, listed, {}):
            assert wire.post(reset, headers=headers).status_code == 200


def test_a_fault_in_what_is_asked_for_is_told_to_who_may_ask_alone(wire: Wire, keys: Keys) -> None:
    """Without a key a body is not looked at."""
    assert wire.post("/select", {"nonsense": 1}).status_code == 401
    answer = wire.post("/select", {"nonsense": 1}, headers=keys.headers("select"))
    assert paths(expect_problem(answer, 422)) == ["nonsense"]
