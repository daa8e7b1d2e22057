"""What an admin bound to one tenant defines and hands over: wide, many, inflated, untrue."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.attack.hostile.artifacts import NETS, hostile_artifacts, poisoned
from tests.attack.hostile.shots import TENANT, Arsenal, Attack

NEW: Final = "attacker-new"


def wide_definitions(arms: Arsenal, rng: Random) -> Attack:
    """Definitions as wide as they are accepted, and wider; a decision of each, then its end."""
    random = {"random": {"kind": "random"}}
    number = {"type": "numeric"}

    def vector(size: int) -> dict[str, Any]:
        return {"features": {"context": {"v": {"type": "vector", "size": size}}}}

    def net(**more: Any) -> dict[str, Any]:
        features = {"context": {"v": number}, "arm": {"a": number}}
        policy = {"kind": "neural_linear_ts", "hidden": [8], "embedding": 4, **more}
        return {"features": features, "policies": {"net": policy}}

    crossed = {f"f{n}": number for n in range(18)}
    outer = {f"h{n}": {"type": "hashed", "buckets": 65_536} for n in range(3)}
    categories = {"type": "categorical", "values": [f"{n}" for n in range(10_000)]}
    many = {f"p{n}": {"kind": "lints", "draws": 16_384} for n in range(64)}
    kinds: list[dict[str, Any]] = [
        {**vector(4_049), "policies": {"p": {"kind": "lints", "draws": 16}}},
        {**vector(4_095), "policies": {"p": {"kind": "linucb"}}, "max_vector": 8_192},
        {**vector(1_000), "policies": {"p": {"kind": "linucb", "disjoint": True}},
         "arms": {f"{n}": {} for n in range(500)}},
        {**vector(500), "policies": many},
        {"features": {"context": outer, "crosses": ["h0 x h1 x h2"]},
         "policies": {"p": {"kind": "linucb"}}, "max_vector": 8_192},
        {"features": {"context": crossed, "crosses": [" x ".join(crossed)]},
         "policies": {"p": {"kind": "linucb"}}},
        {"features": {"context": {"c": categories}}, "policies": {"p": {"kind": "linucb"}},
         "max_vector": 8_192},
        net(hidden=[10**9]), net(hidden=[4_096] * 8, embedding=4_096), net(embedding=10**18),
        net(kind="bootstrap_ensemble", members=256, embedding=1_024),
        net(kind="mc_dropout", masks=4_096, hidden=[4_096] * 8),
        net(kind="neural_ts", form="full", hidden=[64, 64], draws=16_384),
        net(kind="neural_ts", form="full", hidden=[4_096] * 4),
        net(window=1_000_000, training={"first": 1, "batch": 10**12, "epochs": 10**12}),
        net(ridge=5e-324, noise=1.7e308), net(ridge=1e308, noise=5e-324),
        {"policies": random, "reward": {"range": [-1e12, 1e12], "default": None}},
        {"policies": random, "reward": {"range": [0, 1e308]}},
        {"policies": random, "reward": {"wait_seconds": 5e-324, "accept_seconds": 5e-324}},
        {"policies": random, "reward": {"wait_seconds": 315_360_000.0}},
        {"policies": random, "arms": {f"{n:0128}": {} for n in range(5_000)}},
        {"policies": {"p": {"kind": "linucb", "alpha": 1e308, "gamma": 5e-324}},
         "features": {"context": {"n": {"type": "numeric", "scale": 5e-324, "center": 1e308}}}},
        {"policies": {"p": {"kind": "lints", "scale": 1e308, "share": 1e308, "window": 1}},
         "features": {"context": {"n": number}}},
    ]  # fmt: skip
    while True:
        name, definition = f"{NEW}-{rng.randrange(4)}", dict(rng.choice(kinds))
        definition.setdefault("arms", {f"arm-{n}": {"a": 1.0} if "net" in definition["policies"]
                                       else {} for n in range(3)})  # fmt: skip
        revision = [] if rng.random() < 0.8 else [f'If-Match: "{rng.choice([0, 10**17, 10**18])}"']
        answer = yield arms.ask(
            "PUT", f"/experiments/{name}", definition, key=TENANT, headers=revision
        )
        if answer.status not in (200, 201):
            continue
        context = {
            feature: _value(spec)
            for feature, spec in definition.get("features", {}).get("context", {}).items()
        }
        asked = {"experiment": name, "context": context}
        for _ in range(2):
            answer = yield arms.ask("POST", "/select", asked, key=TENANT)
            if answer.status == 200:
                told = {"decision_id": answer.json()["decision_id"], "reward": 1.0}
                yield arms.ask("POST", "/reward", told, key=TENANT)
        if rng.random() < 0.5:
            yield arms.ask("DELETE", f"/experiments/{name}", key=TENANT)


def _value(feature: dict[str, Any]) -> Any:
    match feature["type"]:
        case "vector":
            return [1.0] * feature["size"]
        case "numeric":
            return 1.0
        case _:
            return "1"


def artifacts(arms: Arsenal, rng: Random) -> Attack:
    """Versions that inflate, that do not fit, and whose numbers are no weights."""
    while True:
        policy = rng.choice(NETS)
        path = f"/experiments/attacker-nets/policies/{policy}/versions"
        if rng.random() < 0.1:  # it fits, so that it may be taken; what it predicts is no number
            yield arms.ask("POST", path, poisoned(policy), key=TENANT)
        else:
            content, must_fail = rng.choice(hostile_artifacts()), "it is no version of this net"
            yield arms.ask("POST", path, content, key=TENANT, must_fail=must_fail)
        asked = {"experiment": "attacker-nets", "policy": policy, "context": {"age": 1.0}}
        answer = yield arms.ask("POST", "/select", asked, key=TENANT)
        if answer.status == 200:
            told = {"decision_id": answer.json()["decision_id"], "reward": 1.0}
            yield arms.ask("POST", "/reward", told, key=TENANT)


def catalogues(arms: Arsenal, rng: Random) -> Attack:
    """Catalogues and imports that grow without end, and shrink again."""
    own = "/experiments/attacker-sum"
    while True:
        many: dict[str, Any] = {
            f"{rng.getrandbits(32)}": {} for _ in range(rng.choice([1, 100, 1_000]))
        }
        yield arms.ask("POST", f"{own}/arms", {"arms": many}, key=TENANT)
        for arm in list(many)[:5]:
            yield arms.ask("DELETE", f"{own}/arms/{arm}", key=TENANT)
        visits = [
            {"id": f"{rng.getrandbits(32)}", "at": "2026-01-01T00:00:00Z", "arm": "one",
             "propensity": rng.choice([1.0, 1e-300]), "reward": rng.choice([1e12, -1e12]),
             "context": {"vector": [rng.choice([1e9, -1e9, 1.0])] * 16}}
            for _ in range(rng.choice([1, 100, 1_001]))
        ]  # fmt: skip
        body = {"policy": "linucb", "visits": visits, "skip_refused": rng.random() < 0.5}
        yield arms.ask("POST", f"{own}/import", body, key=TENANT)
        yield arms.ask("GET", f"{own}/arms", key=TENANT)
        yield arms.ask("POST", f"{own}/policies/linucb/reset", key=TENANT)


def evaluations(arms: Arsenal, rng: Random) -> Attack:
    """All evaluations at once, of all that was logged, by policies that are slow to evaluate."""
    slow = {"kind": "lints", "draws": 16_384}
    wide = {"kind": "neural_linear_ts", "hidden": [2_048] * 8, "embedding": 2_048}
    ideas = [{}, {"slow": slow}, {f"n{n}": slow for n in range(16)}, {"wide": wide}]
    while True:
        body = {
            "decisions": rng.choice([1, 1_000, 1_000_000]),
            "definition": rng.choice(ideas),
            "confidence": rng.choice([0.95, 5e-324, 1 - 1e-16]),
            "since": rng.choice([None, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]),
            "frozen": rng.random() < 0.3,
        }
        experiment = rng.choice(["attacker", "attacker-sum", "attacker-nets"])
        yield arms.ask("POST", f"/experiments/{experiment}/evaluations", body, key=TENANT)


DEFINITIONS: Final[dict[str, Callable[[Arsenal, Random], Attack]]] = {
    "wide definitions": wide_definitions,
    "inflated artifacts": artifacts,
    "catalogues": catalogues,
    "evaluations": evaluations,
}
