"""How a key is sent: one, whole, in a header; and the paths and methods that lead past none."""

from typing import Any

import pytest

from tests.support.keys import PAGE, Keys
from tests.support.service import Wire, expect_problem, serving


@pytest.fixture
def wire(guarded: Wire) -> Wire:
    return guarded


def test_a_key_goes_in_either_header_in_any_case(wire: Wire, keys: Keys) -> None:
    text = keys.text("metrics")
    for headers in (
        {"Authorization": f"Bearer {text}"},
        {"authorization": f"bearer  {text}"},
        {"X-API-Key": text},
        {"X-API-Key": text, "Authorization": "Basic dXNlcjpwYXNz"},  # of a proxy in between
    ):
        assert wire.get("/metrics", headers=headers).status_code == 200, headers
    for value in (b"Bearer \xff\xfe", "Bearer fk_ključ".encode(), b"Bearer fk_\x00"):
        assert wire.get("/experiments", headers={b"Authorization": value}).status_code == 401
    for name in ("key", "api_key", "access_token", "Authorization"):
        assert wire.get(f"/experiments?{name}={keys.text('admin')}").status_code == 401


NO_KEYS = (
    *("", "Bearer", "Bearer ", "Basic {key}", "{key}", "Bearer {key}x", "Bearer x{key}"),
    *("Bearer {key} {key}", "Bearer {key},{key}", "Bearer {KEY}", "Bearer fk__"),
    *("Bearer " + "f" * 60_000, "Bearer fk_" + "0" * 16 + "_" + "0" * 64),
)


@pytest.mark.parametrize(
    "credential",
    [
        [],
        *([("Authorization", text)] for text in NO_KEYS),
        [("Authorization", "Bearer {key}"), ("Authorization", "Bearer {key}")],
        [("Authorization", "Bearer {key}"), ("X-API-Key", "{key}")],
        [("X-API-Key", "{key}"), ("X-API-Key", "")],
        [("X-API-Key", "Bearer {key}")],
        [("Cookie", "Authorization={key}; X-API-Key={key}")],
    ],
)
def test_anything_but_one_key_is_no_key(
    wire: Wire, keys: Keys, credential: list[tuple[str, str]]
) -> None:
    text = keys.text("admin")
    headers = [(n, v.replace("{key}", text).replace("{KEY}", text.upper())) for n, v in credential]
    answer = wire.get("/experiments", headers=headers)
    problem = expect_problem(answer, 401)
    assert answer.headers["www-authenticate"] == 'Bearer realm="forage"'
    assert text not in str(problem)


def raw(wire: Wire, method: str, path: str) -> int:
    """The status of a request without a key, whose path no client has tidied up. path: decoded, as
    a server hands it on."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [(b"host", b"forage")], "server": ("forage", 80),
        "client": ("127.0.0.1", 1),
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    wire.run(wire.app(scope, receive, send))
    [status] = statuses
    return status


@pytest.mark.parametrize(
    "asked",
    [
        *("POST /select", "POST /select/", "POST //select", "POST /Select", "POST /select\n"),
        *("POST /select/batch/", "POST /select/batch/x", "POST select", "POST ", "POST /healthz"),
        *("POST /sdk/../experiments", "GET /healthz/", "GET /healthz/../metrics", "GET /HEALTHZ"),
        *("GET /healthz\n", "GET /metrics/", "GET /metrics\0", "GET /metrics;/healthz"),
        *("GET /docs/../experiments", "GET //experiments", "GET /experiments/", "GET /nothing"),
        *("GET /./experiments", "GET /experiments/shop/../../healthz", "GET /select"),
        *("TRACE /healthz", "DELETE /", "BREW /select", "PATCH /experiments/shop"),
        *("get /metrics", "options /metrics", "HEAD /metrics", "HEAD /experiments"),
    ],
)
def test_a_path_or_method_that_is_near_another_opens_nothing(wire: Wire, asked: str) -> None:
    assert raw(wire, *asked.split(" ", 1)) == 401


def test_pages_lead_nowhere_else(wire: Wire) -> None:
    for path in (
        "/sdk/../experiments", "/sdk/../metrics", "/demo/../../keys.py", "/sdk//etc/passwd",
        "/console/..", "/sdk/.", "/demo/\0", "/sdk/..\\..\\keys.json",
    ):  # fmt: skip
        assert raw(wire, "GET", path) == 404, path


def test_a_preflight_needs_no_key_and_a_listed_origin(wire: Wire, keys: Keys) -> None:
    for path in ("/select", "/experiments/shop", "/metrics"):
        answer = wire.request("OPTIONS", path, headers={"Origin": PAGE})
        assert answer.status_code == 405
        assert "shop" not in answer.text
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    with serving(keys=keys.path, cors_origins=[PAGE]) as listed:
        assert listed.request("OPTIONS", "/select", headers=asked).status_code == 200
        answer = listed.post("/select", {}, headers={"Origin": PAGE})
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == PAGE
