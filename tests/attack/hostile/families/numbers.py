"""Numbers at every bound: features, rewards, contributions and ties."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.attack.hostile.shots import PAGE, TENANT, Arsenal, Attack

EDGES: Final = (
    0.0, -0.0, 1.0, 5e-324, 1e-308, 1e-9, 9.9e8, 1e9, 1.0000000000000002e9, 9.9e9, 1e10,
    1.0000000000000002e10, 1e100, 1e154, 1e155, 1.7976931348623157e308, 2**53 + 1, 10**30, 10**400,
    -1e9, -1e10, -1e308, -(10**18),
)  # fmt: skip
"""Of a feature: numbers are refused above 1e9 scales, and the page's age has a scale of 10."""
REWARDS: Final = (
    0.0, 1.0, -0.0, 5e-324, 1.0000000000000002, -5e-324, 1e12, -1e12, 1.0000000000000002e12, 1e308,
    -1e308, 0.5, 2**63, 10**309,
)  # fmt: skip
NETS: Final = ("full", "diagonal", "last_layer", "neural_linear", "logistic",
               "ensemble", "dropout", "greedy")  # fmt: skip
LINEAR: Final = ("linucb", "lints", "disjoint", "disjoint_ts", "popularity", "random")


def magnitudes(arms: Arsenal, rng: Random) -> Attack:
    """Features at and beyond their bounds, for every head; then a reward, which is learned."""
    while True:
        edge, other = rng.choice(EDGES), rng.choice(EDGES)
        vector = [rng.choice(EDGES) for _ in range(16)]
        kinds: list[tuple[Any, str]] = [
            ({"experiment": "attacker", "context": {"age": edge, "bare": other}}, PAGE),
            ({"experiment": "attacker", "policy": rng.choice(LINEAR), "context": {"age": edge},
              "arms": [{"id": "own", "features": {"price": other}}, "tie-1"]}, TENANT),
            ({"experiment": "attacker-sum", "context": {"age": edge, "vector": vector}}, TENANT),
            ({"experiment": "attacker-sum", "policy": "linucb",
              "context": {"age": 0.0, "vector": [edge] * 16}}, TENANT),
            ({"experiment": "attacker-nets", "policy": rng.choice(NETS),
              "context": {"age": edge, "size": other}}, TENANT),
            ({"experiment": "attacker-nets", "policy": rng.choice(NETS), "context": {"age": edge},
              "arms": [{"id": "own", "features": {"price": edge}}, "one"]}, TENANT),
        ]  # fmt: skip
        question, key = rng.choice(kinds)
        source = rng.randrange(8)
        answer = yield arms.ask("POST", "/select", question, key=key, source=source)
        if answer.status == 200:
            reward = {"decision_id": answer.json()["decision_id"], "reward": rng.choice(REWARDS)}
            yield arms.ask("POST", "/reward", reward, key=key, source=source)


def ties(arms: Arsenal, rng: Random) -> Attack:
    """Rankings of arms that are all alike, as long as they may be."""
    while True:
        count = rng.choice([40, 1_000, 10_000, 10_001])
        top_k = rng.choice([1, 20, 100, 101])
        like = [{"id": f"{number}"} for number in range(count)]
        question: dict[str, Any] = {"experiment": "attacker", "top_k": top_k}
        key = rng.choice([PAGE, TENANT])
        if key == TENANT or rng.random() < 0.1:
            question["arms"] = rng.choice([like, [like[0]] * count, ["tie-1"] * count])
            question["policy"] = rng.choice(LINEAR)
        if key == PAGE and "arms" in question:
            del question["policy"]
        source = rng.randrange(8)
        if rng.random() < 0.1:
            batch = {"requests": [question] * rng.choice([2, 10])}
            yield arms.ask("POST", "/select/batch", batch, key=key, source=source)
            continue
        answer = yield arms.ask("POST", "/select", question, key=key, source=source)
        if answer.status == 200 and rng.random() < 0.3:
            clicked = rng.choice([None, answer.json()["arm"], "no-such-arm"])
            cascade = {"decision_id": answer.json()["decision_id"], "feedback": "cascade"}
            yield arms.ask("POST", "/reward", {**cascade, "clicked": clicked}, key=key)


def contributions(arms: Arsenal, rng: Random) -> Attack:
    """Many rewards of one decision: sums, last words, slates, the same again, and another value."""
    while True:
        experiment = rng.choice(["attacker-sum", "attacker"])
        question: dict[str, Any] = {"experiment": experiment, "top_k": rng.choice([1, 2])}
        if experiment == "attacker-sum":
            question["context"] = {"vector": [0.5] * 16}
        answer = yield arms.ask("POST", "/select", question, key=TENANT)
        if answer.status != 200:
            continue
        made = answer.json()
        token, shown = made["decision_id"], [each["arm"] for each in made["ranking"]]
        for number in range(rng.choice([3, 10, 40])):
            value = rng.choice([1.0, 1e12, -1e12, 0.3333333333333333, 5e11, 1e-12])
            body: dict[str, Any] = {"decision_id": token, "reward_id": f"{number}"}
            body |= (
                {"reward": value} if len(shown) == 1 else {"rewards": dict.fromkeys(shown, value)}
            )
            answer = yield arms.ask("POST", "/reward", body, key=rng.choice([TENANT, TENANT, PAGE]))
            if answer.status == 429:
                break
            if rng.random() < 0.2:
                yield arms.ask("POST", "/reward", {**body, "reward_id": "0"}, key=TENANT)
        batch = [
            {"decision_id": token, "rewards": dict.fromkeys(shown, 1.0), "reward_id": f"b{number}"}
            for number in range(rng.choice([10, 90, 1_000]))
        ]
        yield arms.ask("POST", "/reward/batch", {"requests": batch}, key=TENANT)


NUMBERS: Final[dict[str, Callable[[Arsenal, Random], Attack]]] = {
    "magnitudes": magnitudes,
    "ties": ties,
    "contribution floods": contributions,
}
