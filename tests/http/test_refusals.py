"""Well-formed requests for what there is not, or too much of."""

from collections.abc import AsyncIterator

import pytest

from tests.support.service import Json, Wire, expect_problem, filled, openapi, paths, serving

CAT = {"persona": "cat"}


@pytest.mark.parametrize(
    ("question", "status", "where"),
    [
        ({"experiment": "nowhere"}, 404, ["experiment"]),
        ({"policy": "best"}, 404, ["policy"]),
        ({"arms": ["SECRETVALUE"]}, 422, ["arms.0"]),
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
    wire.post("/select", {"context": {"persona": "fish"}, "policy": "linucb"})
    assert wire.policy("linucb")["decisions"] == 0
    assert 'forage_decisions_total{experiment="shop",policy="linucb"}' not in wire.metrics()


def test_arms_are_counted_before_they_are_looked_at() -> None:
    with serving(max_arms=2) as wire:
        assert len(wire.select(arms=["kibble", "ball"], top_k=2)["ranking"]) == 2
        answer = wire.post("/select", {"context": CAT, "arms": ["kibble", "ball", "x"]})
        assert paths(expect_problem(answer, 422)) == ["arms"]


@pytest.mark.parametrize("reward", [-0.01, 1.01, -1, 2, 1e308, -1e308, 10**300])
def test_a_reward_lies_within_its_range(wire: Wire, reward: float) -> None:
    decision = wire.select()
    body = {"decision_id": decision["decision_id"], "reward": reward}
    assert paths(expect_problem(wire.post("/reward", body), 422)) == ["reward"]
    by_arm = {**body, "reward": None, "rewards": {decision["arm"]: reward}}
    answer = wire.post("/reward", by_arm)
    assert paths(expect_problem(answer, 422)) == [f"rewards.{decision['arm']}"]


@pytest.mark.parametrize("reward", [-2, 0, 3])
def test_both_ends_of_the_range_are_in_it(wire: Wire, reward: float) -> None:
    policies = {"linucb": {"kind": "linucb"}}
    wire.redefine(policies=policies, reward={"range": [-2, 3]})
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


def test_a_token_of_another_service_opens_nothing(wire: Wire) -> None:
    with serving() as other:
        token = other.select()["decision_id"]
    answer = wire.post("/reward", {"decision_id": token, "reward": 1.0})
    assert paths(expect_problem(answer, 422)) == ["decision_id"]


def test_a_token_opens_under_every_key_and_is_sealed_under_the_first() -> None:
    old, new = bytes(range(32)), bytes(range(32, 64))
    with serving(token_keys=[old]) as wire:
        token = wire.select()["decision_id"]
    with serving(token_keys=[new, old]) as wire:
        body = {"decision_id": token, "reward": 1.0}
        assert wire.post("/reward", body).status_code == 200
        later = {**body, "decision_id": wire.select()["decision_id"]}
    with serving(token_keys=[old]) as wire:
        expect_problem(wire.post("/reward", later), 422)


def test_a_decision_of_an_experiment_that_is_not_here_is_over(wire: Wire) -> None:
    """Sealed by a service that shares the secret and not the log."""
    secret = bytes(range(32))
    coins = {"arms": {"heads": {}}, "policies": {"toss": {"kind": "random"}}}
    with serving(token_keys=[secret]) as other:
        other.put("/experiments/coins", coins)
        token = other.select(experiment="coins", context={})["decision_id"]
    with serving(token_keys=[secret]) as wire:
        expect_problem(wire.post("/reward", {"decision_id": token, "reward": 1.0}), 410)


# -- paths, methods, sizes -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/nothing", "/select/x", "/experiments/a/b", "/arms/a/b"])
def test_an_unknown_path_is_not_found(wire: Wire, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        expect_problem(wire.request(method, path), 404)


@pytest.mark.parametrize("path", list(openapi()["paths"]))
def test_a_path_says_which_methods_it_has(wire: Wire, path: str) -> None:
    known = {method.upper() for method in openapi()["paths"][path]}
    for method in sorted({"GET", "POST", "PUT", "DELETE", "PATCH"} - known):
        answer = wire.request(method, filled(path, "e"))
        expect_problem(answer, 405)
        assert set(answer.headers["allow"].split(", ")) <= known


WITH_BODY = [
    (method.upper(), path)
    for path, methods in openapi()["paths"].items()
    for method, operation in methods.items()
    if "requestBody" in operation
]


async def chunks(count: int, size: int = 1_000) -> AsyncIterator[bytes]:
    yield b'{"context": "'
    for _ in range(count):
        yield b"x" * size


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_has_a_bound_declared_or_chunked(method: str, path: str, chunked: bool) -> None:
    headers = {"Content-Type": "application/json"}
    path = filled(path, "shop").replace("/policies/a/", "/policies/linucb/")
    with serving(max_body_bytes=5_000, max_artifact_bytes=5_000) as wire:
        content = chunks(6) if chunked else b"x" * 5_001
        answer = wire.request(method, path, content=content, headers=headers)
        problem = expect_problem(answer, 413)
        assert (problem["title"], problem["detail"]) == (
            "The body is too large",
            "at most 5000 bytes",
        )


def test_a_body_of_just_the_bound_is_read() -> None:
    body = b'{"context": {"persona": "cat"}}'
    with serving(max_body_bytes=len(body)) as wire:
        headers = {"Content-Type": "application/json"}
        assert wire.post("/select", content=body, headers=headers).status_code == 200
        expect_problem(wire.post("/select", content=body + b" ", headers=headers), 413)


def test_only_versions_may_be_as_large_as_an_artifact() -> None:
    """Names do not matter: an experiment or an arm may be called so."""
    with serving(max_body_bytes=5_000) as wire:
        for method, path in (("PUT", "/experiments/versions"), ("PUT", "/arms/versions")):
            answer = wire.request(method, path, content=b"x" * 5_001)
            expect_problem(answer, 413)
