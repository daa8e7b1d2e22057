"""Well-formed requests for what there is not, or too much of."""

import gzip
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from service.http.problems import problem
from tests.support.keys import Keys
from tests.support.service import Json, Wire, expect_problem, filled, paths, served_paths, serving

CAT = {"persona": "cat"}
JSON = {"Content-Type": "application/json"}
NO_PATHS = ("/nothing", "/select/x", "/experiments/a/b", "/policies/a/b")


@pytest.mark.parametrize(
    ("question", "status", "where"),
    [
        ({"experiment": "nowhere"}, 404, ["experiment"]),
        ({"policy": "best"}, 404, ["policy"]),
        ({"arms": ["a"]}, 422, ["arms.0"]),
        ({"arms": ["kibble", "a", "mouse", "b"]}, 422, ["arms.1", "arms.3"]),
        ({"arms": ["kibble", "kibble"]}, 422, ["arms"]),
        ({"arms": ["a", {"id": "a", "features": {"category": "toy"}}]}, 422, ["arms", "arms.0"]),
        ({"arms": [{"id": "kibble", "features": {"category": "toy"}}]}, 422, ["arms.0"]),
        ({"arms": [{"id": "a"}]}, 422, ["arms.0.features.category"]),
        (
            {"arms": ["ball", {"id": "a", "features": {"category": "SECRETVALUE"}}]},
            422,
            ["arms.1.features.category"],
        ),
        ({"context": {}}, 422, ["context.persona"]),
        ({"context": {"persona": "SECRETVALUE"}}, 422, ["context.persona"]),
        ({"context": {"persona": 7}}, 422, ["context.persona"]),
        ({"context": {"persona": "cat", "age": "SECRETVALUE"}}, 422, ["context.age"]),
        ({"context": {"persona": "cat", "age": True}}, 422, ["context.age"]),
        ({"context": {"persona": "cat", "age": [1.0]}}, 422, ["context.age"]),
        ({"context": {"persona": "cat", "member": "yes"}}, 422, ["context.member"]),
        ({"context": {"persona": "cat", "member": 1}}, 422, ["context.member"]),
        ({"context": {"persona": "cat", "category": "toy"}}, 422, ["context.category"]),
        (
            {"context": {"hat": 1, "age": "x"}},
            422,
            ["context.age", "context.hat", "context.persona"],
        ),
        ({"top_k": 4}, 422, ["top_k"]),
        ({"top_k": 10**300}, 422, ["top_k"]),
    ],
)
def test_a_question_about_what_there_is_not(
    wire: Wire, question: Json, status: int, where: list[str]
) -> None:
    answer = wire.post("/select", {"context": CAT, **question})
    assert paths(expect_problem(answer, status)) == where
    assert "SECRETVALUE" not in answer.text


def test_a_refused_question_leaves_no_decision_and_no_count(wire: Wire) -> None:
    """Arms are counted before anything else is done with them."""
    wire.post("/select", {"context": {"persona": "fish"}, "policy": "linucb"})
    assert wire.policy("linucb")["decisions"] == 0
    assert 'forage_decisions_total{experiment="shop",policy="linucb"}' not in wire.metrics()
    with serving(max_arms=2) as few:
        assert len(few.select(arms=["kibble", "ball"], top_k=2)["ranking"]) == 2
        answer = few.post("/select", {"context": CAT, "arms": ["kibble", "ball", "x"]})
        assert paths(expect_problem(answer, 422)) == ["arms"]


def test_a_reward_lies_within_its_range(wire: Wire) -> None:
    decision = wire.select()
    for reward in (-0.01, 1.01, -1, 2, 1e308, -1e308, 10**300):
        assert paths(wire.refuse(422, decision, reward)) == ["reward"]
        problem = wire.refuse(422, decision, None, rewards={decision["arm"]: reward})
        assert paths(problem) == [f"rewards.{decision['arm']}"]
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward={"range": [-2, 3]})
    for reward in (-2, 0, 3):
        assert wire.reward(wire.select(), reward) == "accepted"


# -- decision ids ----------------------------------------------------------------------------------


def changed(token: str) -> dict[str, str]:
    """Tokens that nobody sealed."""
    middle = len(token) // 2
    other = "A" if token[middle] != "A" else "B"
    return {
        "flipped": token[:middle] + other + token[middle + 1 :],
        "truncated": token[:-4],
        "a stump": token[:20],
        "one character": token[:1],
        "longer": token + "AAAA",
        "twice": (token + token)[:1_024],
        "another format": "B" + token[1:],
        "another process": token[:8] + token[8:24][::-1] + token[24:],
        "not base64": "!" * len(token),
        "not ASCII": "é" * 100,
        "white space": " ",
        "random": "x" * 300,
    }


def test_a_token_that_was_forged_or_cut_short_opens_nothing(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    for name, token in changed(decision["decision_id"]).items():
        answer = wire.post("/reward", {"decision_id": token, "reward": 1.0})
        assert paths(expect_problem(answer, 422)) == ["decision_id"], name
        assert token.strip() == "" or len(token) < 2 or token not in answer.text
    assert wire.policy("linucb")["rewards"] == 0
    assert wire.reward(decision, 1.0) == "accepted"


def test_a_token_opens_under_every_key_and_is_sealed_under_the_first(wire: Wire) -> None:
    old, new = bytes(range(32)), bytes(range(32, 64))
    coins = {"arms": {"heads": {}}, "policies": {"toss": {"kind": "random"}}}
    with serving(token_keys=[old]) as other:
        first = other.select()
        other.put("/experiments/coins", coins)
        coin = other.select(experiment="coins", context={})
    with serving(token_keys=[new, old]) as both:
        assert both.reward(first, 1.0) == "accepted"
        both.refuse(410, coin)  # of an experiment that is not here
        later = both.select()
    for service, token in ((wire, first), (wire, later)):
        assert paths(service.refuse(422, token)) == ["decision_id"]
    with serving(token_keys=[old]) as former:
        former.refuse(422, later)


# -- paths, methods, sizes -------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*served_paths(), *NO_PATHS])
def test_a_path_says_which_methods_it_has(wire: Wire, path: str) -> None:
    known = {method.upper() for method in served_paths().get(path, {})}
    known |= {"HEAD"} if "GET" in known else set()
    for method in sorted({"GET", "POST", "PUT", "DELETE", "PATCH"} - known):
        answer = wire.request(method, filled(path, "e"))
        expect_problem(answer, 405 if known else 404)
        assert set(answer.headers.get("allow", "").split(", ")) <= known | {""}


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/arms", "/", "/sdk/forage.js"]
)
def test_head_is_answered_where_get_is(wire: Wire, path: str) -> None:
    got = wire.get(path)
    answer = wire.request("HEAD", path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == got.headers["content-type"]


def test_head_is_counted_by_its_route(wire: Wire) -> None:
    wire.request("HEAD", "/healthz")
    counted = 'forage_http_requests_total{method="HEAD",route="/healthz",status="200"}'
    assert wire.metrics()[counted] == 1


def test_a_slash_too_many_is_the_same_decision_or_reward(guarded: Wire, keys: Keys) -> None:
    """Their clients repeat no POST elsewhere, and a key of theirs is good for no other path."""
    headers = keys.headers("select")
    answer = guarded.post("/select/", {"context": {"persona": "cat"}}, headers=headers)
    assert answer.status_code == 200
    assert guarded.post("/reward/", {}, headers=keys.headers("reward")).status_code == 422


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/healthz/", "../healthz"),
        ("/experiments/shop/status/?a=b", "../status?a=b"),
        ("/arms/?next=//evil.example", "../arms?next=//evil.example"),
        ("/demo", "demo/"),
        ("/console", "console/"),
        ("/sdk", "sdk/"),
    ],
)
def test_a_redirect_names_no_scheme_and_no_host(wire: Wire, path: str, target: str) -> None:
    """A proxy that ends TLS asks over http://, and may serve Forage under a path."""
    answer = wire.get(path)
    assert (answer.status_code, answer.headers["location"]) == (308, target)
    reached = answer.url.join(target).path
    assert reached.strip("/") == path.partition("?")[0].strip("/")
    assert reached.endswith("/") == target.endswith("/")


@pytest.mark.parametrize("path", ["/select", "/reward", "/arms", "/import"])
def test_a_compressed_body_is_refused_by_its_encoding(wire: Wire, path: str) -> None:
    content = gzip.compress(b"{}")
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = wire.post(path, content=content, headers=headers)
    problem = expect_problem(answer, 415)
    assert "without Content-Encoding" in problem["detail"]
    assert answer.headers["accept-encoding"] == "identity"
    plain = {"Content-Type": "application/json", "Content-Encoding": "identity"}
    assert wire.post(path, content=b"{}", headers=plain).status_code != 415


WITH_BODY = [
    (method.upper(), path)
    for path, methods in served_paths().items()
    for method, operation in methods.items()
    if "requestBody" in operation
]


async def chunks(count: int, size: int = 1_000) -> AsyncIterator[bytes]:
    yield b'{"context": "'
    for _ in range(count):
        yield b"x" * size


@pytest.fixture(scope="module")
def bounded() -> Iterator[Wire]:
    with serving(max_body_bytes=5_000, max_artifact_bytes=5_000) as wire:
        yield wire


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_has_a_bound_declared_or_chunked(
    bounded: Wire, method: str, path: str, chunked: bool
) -> None:
    path = filled(path, "shop").replace("/policies/a/", "/policies/linucb/")
    content = chunks(6) if chunked else b"x" * 5_001
    problem = expect_problem(bounded.request(method, path, content=content, headers=JSON), 413)
    assert problem["title"] == "The body is too large"
    assert problem["detail"] == "at most 5000 bytes"


def test_a_body_of_just_the_bound_is_read_and_only_versions_may_be_larger() -> None:
    """Names do not matter: an experiment or an arm may be called so."""
    body = b'{"context": {"persona": "cat"}}'
    with serving(max_body_bytes=len(body)) as wire:
        assert wire.post("/select", content=body, headers=JSON).status_code == 200
        expect_problem(wire.post("/select", content=body + b" ", headers=JSON), 413)
        for path in ("/experiments/versions", "/arms/versions"):
            expect_problem(wire.put(path, content=b"x" * 5_001), 413)


def test_a_refusal_names_what_there_is(wire: Wire) -> None:
    arms = "there is no arm 'kibbel'; did you mean 'kibble'?"
    for method, path, body, say in (
        ("POST", "/select", {"policy": "linUCB"}, "no policy 'linUCB'; did you mean 'linucb'?"),
        ("POST", "/select", {"policy": "x"}, "'x'; there are: 'lints', 'linucb', 'named_only'"),
        ("POST", "/select", {"experiment": "shpo"}, "'shpo'; did you mean 'shop'?"),
        ("POST", "/select", {"arms": ["kibbel"]}, "'kibbel' is not in the catalogue; did you mean"),
        ("POST", "/select", {"arms": ["a\n"]}, "'a\\n' is not in the catalogue; there are: 'kib"),
        ("POST", "/select", {"context": {"Age": 1}}, "no such feature; did you mean 'age'?"),
        ("GET", "/experiments/zoo", None, "no experiment 'zoo'; there are: 'shop'"),
        ("GET", "/arms/kibbel", None, arms),
        ("DELETE", "/arms/kibbel", None, arms),
        ("GET", "/policies/lint", None, "no policy 'lint'; did you mean 'lints'?"),
        ("PUT", "/experiments/shop/policies/lint/share", {"share": 1}, "did you mean 'lints'?"),
        ("POST", "/import", {"policy": "lint", "visits": [{}]}, "did you mean 'lints'?"),
        ("GET", "/decisions/nowhere", None, "no experiment has a decision 'nowhere'"),
        ("POST", "/decisions/nowhere/activate", None, "no experiment has a decision 'nowhere'"),
    ):
        if path == "/select":
            body = {"context": {"persona": "cat"}, **(body or {})}
        answer = wire.request(method, path, json=body)
        problem = expect_problem(answer, answer.status_code)
        assert answer.status_code in (404, 422)
        assert any(say in fault["message"] for fault in problem["errors"]), (path, problem)
    decision = wire.select()
    problem = wire.refuse(422, decision, None, rewards={"kibbel": 1})
    assert problem["detail"].startswith(
        f"was not shown by this decision, which showed '{decision['arm']}'"
    )
    problem = expect_problem(
        wire.post("/reward", {"decision_id": decision["id"], "reward": 1}), 422
    )
    assert problem["errors"][0]["message"] == "is the short id: send the decision_id"


def test_no_refusal_speaks_of_the_insides(wire: Wire) -> None:
    for method, path, content in (
        ("PUT", "/experiments/new", []),
        ("PUT", "/experiments/new", {"policies": {"a": [1]}, "reward": 3}),
        ("POST", "/arms", {"arms": []}),
        ("POST", "/select/batch", []),
        ("POST", "/experiments/shop/import", [1]),
    ):
        answer = wire.request(method, path, json=content)
        expect_problem(answer, 422)
        for leaked in ("instance of", "dictionary", "Input", "Body", "extract fields"):
            assert leaked not in answer.text, (path, answer.text)


def test_a_long_message_ends_between_two_words() -> None:
    names = ", ".join(f"policy-{number}" for number in range(100))
    detail = problem(422, "invalid", "No", f"there are: {names}").detail
    assert len(detail) <= 200
    assert detail.endswith(" ...")
    assert re.search(r"policy-\d+ \.\.\.$", detail)
