"""How much one settlement moves a head: its weight, logged with it and folded from there."""

from typing import Any

import numpy as np
import pytest

from service.bandits.influence import LARGEST_ROW, LARGEST_TERM, PRIOR, SURPRISE, Influence
from service.definition.experiment import Definition
from service.definition.features import Schema
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.maintenance.audit import Audit
from service.state.events import Corrected, Expired, Learned, Rewarded, Settled
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.unit.audited import live
from tests.unit.folding import NET, Log, head_of, replay
from tests.unit.test_settlement import events_of, told

FEATURES: dict[str, Any] = {
    "context": {
        "age": {"type": "numeric"},
        "image": {"type": "vector", "size": 4},
        "pet": {"type": "categorical", "values": ["cat", "dog"]},
    },
    "arm": {"price": {"type": "numeric"}},
}
COLUMNS = ["age", "image", "image", "image", "image", "pet", "pet", "price"]


def influence(*features: str, definition: dict[str, Any] = FEATURES) -> Influence:
    policy = {"kind": "linucb", **({"features": list(features)} if features else {})}
    parsed = Definition.model_validate({"features": definition, "policies": {"p": policy}})
    return Influence(Schema(parsed.features), parsed)


def row(age: float = 0.0, image: float = 0.0, price: float = 0.0) -> list[float]:
    """An image of four equal numbers, a cat."""
    return [age, *[image] * 4, 1.0, 0.0, price]


def settled(x: list[float], weight: float = 1.0) -> Settled:
    return Settled("a", 1.0, x, weight=weight)


def test_the_row_below_has_the_columns_of_the_schema() -> None:
    parsed = Definition.model_validate(
        {"features": FEATURES, "policies": {"p": {"kind": "random"}}}
    )
    schema = Schema(parsed.features)
    names = [schema.column_name(column) for column in range(schema.width)]
    assert [name.partition("[")[0].partition("=")[0] for name in names] == COLUMNS


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (row(), 1.0),
        (row(1.0, 0.5, 1.0), 1.0),
        # 2 constants (the intercept, the category), two numbers and four of an image are usual
        (row(age=100.0), LARGEST_TERM / 1e4),
        (row(image=-100.0), LARGEST_ROW * 8 / (2 + 4e4)),  # the square of all of its numbers
        (row(price=1e9), LARGEST_TERM / 1e18),
        (row(1.9, 1.5, 1.9), LARGEST_ROW * 8 / (2 + 2 * 1.9**2 + 4 * 1.5**2)),
    ],
)
def test_a_row_counts_for_less_by_as_much_as_it_is_larger_than_usual(
    x: list[float], weight: float
) -> None:
    assert influence().weight(x) == pytest.approx(weight)


def test_a_number_is_held_to_what_is_usual_of_it_where_a_row_has_many() -> None:
    """One of ten numbers at 3.3 times the usual: the row has twice the usual square."""
    many = {f"n{index}": {"type": "numeric"} for index in range(10)}
    found = influence(definition={"context": many})
    assert found.weight([3.0, *[0.0] * 9]) == 1.0
    assert found.weight([3.5, *[0.0] * 9]) == pytest.approx(LARGEST_TERM / 3.5**2)


def test_a_product_that_a_policy_looks_at_is_held_to_the_usual_product() -> None:
    """Two numbers of 2.4 have 6 times the usual square each; their product has 33 times."""
    many = {f"n{index}": {"type": "numeric"} for index in range(20)}
    names = ["intercept", *many, "n0 x n1"]
    x = [2.4, 2.4, *[0.0] * 18]
    assert influence(*names[:-1], definition={"context": many}).weight(x) == 1.0
    crossed = influence(*names, definition={"context": many})
    assert crossed.weight(x) == pytest.approx(LARGEST_TERM / 2.4**4)


def test_features_that_are_no_numbers_are_never_weighed() -> None:
    only = influence(definition={"context": {"pet": FEATURES["context"]["pet"]}})
    assert only.weight([1.0, 0.0]) == 1.0
    only.learn(settled([1.0, 0.0]))
    assert only.weight([0.0, 0.0]) == 1.0


def test_what_is_usual_is_the_mean_square_of_what_was_learned_and_at_least_one() -> None:
    """PRIOR rows of square 1 and as many of 9: 5."""
    found = influence("age")
    for _ in range(round(PRIOR)):
        found.learn(settled(row(age=3.0)))
    usual_row = 1 + 5 + 2 + 1  # the intercept, the age, an image of 4 and one of 0, the price
    assert found.weight(row(age=10.0)) == pytest.approx(LARGEST_ROW * usual_row / (1 + 100))
    for _ in range(10_000):
        found.learn(settled(row(age=0.01)))
    assert found.weight(row(age=1.0)) == 1.0


def test_a_row_raises_what_is_usual_as_if_it_were_no_larger_than_a_surprise() -> None:
    """PRIOR rows of 1, and one of 1e18 that counts for SURPRISE."""
    found = influence("age")
    found.learn(settled(row(age=1e9)))
    usual = (PRIOR + SURPRISE) / (PRIOR + 1)
    assert found.weight(row(age=1e9)) == pytest.approx(
        min(LARGEST_TERM * usual, LARGEST_ROW * (3 + usual)) / 1e18
    )


@pytest.mark.parametrize("size", [1e2, 1e3, 1e4])
def test_a_number_without_a_scale_is_learned_from_as_it_is_after_some_rows(size: float) -> None:
    """As nobody said how large it is, it is found out: 10,000 within 20 rows."""
    rng, found, weights = np.random.default_rng(1), influence("intercept", "age"), []
    for age in (size * rng.standard_normal(100)).tolist():
        weights.append(found.weight(row(age=age)))
        found.learn(settled(row(age=age), weights[-1]))
    assert min(weights[:2]) < 1e-2
    assert np.mean(weights[20:]) > 0.8


def test_honest_rows_count_nearly_whole() -> None:
    rng, found = np.random.default_rng(2), influence()
    weights = []
    for x in rng.standard_normal((2_000, 8)).tolist():
        x[5:7] = [1.0, 0.0]
        weights.append(found.weight(x))
        found.learn(settled(x, weights[-1]))
    assert np.mean(weights) > 0.8


def test_ten_hostile_rows_leave_what_is_usual_about_as_it_was() -> None:
    """Among 3,000 honest ones: each adds at most SURPRISE usual squares to their sum."""
    found = influence("intercept", "age")
    for _ in range(3_000):
        found.learn(settled(row(age=1.0)))
    before = found.weight(row(age=20.0))
    for _ in range(10):
        found.learn(settled(row(age=1e9), found.weight(row(age=1e9))))
    assert found.weight(row(age=20.0)) == pytest.approx(before, rel=0.1)


# -- heads -----------------------------------------------------------------------------------------


HEADS: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "disjoint": {"kind": "lints", "disjoint": True, "draws": 16},
    "ensemble": {"kind": "bootstrap_ensemble", "members": 3, **NET},
    "full": {"kind": "neural_ts", "form": "full", "draws": 16, **NET},
    "sketch": {"kind": "neural_ucb", "form": "low_rank", "rank": 2, **NET},
    "diagonal": {"kind": "neural_ucb", "form": "diagonal", **NET},
    "logistic": {"kind": "neural_glm_ts", "batch": 2, "draws": 16, **NET},
}
SHOP: dict[str, Any] = {
    "features": FEATURES,
    "arms": {"a": {"price": 1.0}, "b": {"price": -0.5}},
    "reward": {"range": [0, 1]},
}


def log_of(*policies: str, more: dict[str, Any] | None = None) -> Log:
    log = Log()
    chosen = {name: {**HEADS[name], **(more or {})} for name in policies or HEADS}
    log.define({**SHOP, "policies": chosen})
    return log


def learn(
    log: Log,
    decision: str,
    reward: float,
    x: list[float],
    weight: float,
    was: tuple[float, int] | None = None,
    policy: str = "",
) -> int:
    """Settle an arm of a decision of a policy (of the first, unless told)."""
    body: dict[str, Any] = {
        "at": 0.0,
        "decision": decision,
        "policy": policy or next(iter(log.state.learners)),
        "schema_version": 1,
        "settled": [Settled("a", reward, x, weight=weight)],
    }
    event: Learned = Rewarded(**body)
    if was is not None:
        event = Corrected(**body, was=[was[0]], since=[was[1]])
    return log.write(event)


def head(log: Log, policy: str) -> Any:
    return log.state.learners[policy].active.head


def test_a_row_of_a_quarter_of_the_weight() -> None:
    """ridge 1, phi [1, 4], reward 1, weight 1/4: A [[1.25, 1], [1, 5]], b [0.25, 1]."""
    log = log_of("linucb", more={"features": ["intercept", "age"]})
    learn(log, "d", 1.0, row(age=4.0), 0.25)
    found = head(log, "linucb")
    assert found.A.tolist() == [[1.25, 1.0], [1.0, 5.0]]
    assert found.b.tolist() == [0.25, 1.0]
    assert (found.rr, found.n) == (0.25, 1.0)


@pytest.mark.parametrize("policy", HEADS)
def test_a_settlement_of_weight_one_is_what_it_was_without_a_weight(policy: str) -> None:
    """To the last bit: the log leaves out a weight of 1."""
    log, plain = log_of(policy), log_of(policy)
    for number, x in enumerate(np.random.default_rng(3).standard_normal((5, 8)).tolist()):
        learn(log, f"d{number}", 1.0, x, 1.0)
        plain.write(
            Rewarded(
                at=0.0,
                decision=f"d{number}",
                policy=policy,
                schema_version=1,
                settled=[Settled("a", 1.0, x)],
            )
        )
    assert head_of(log.state, policy) == head_of(plain.state, policy)


@pytest.mark.parametrize("policy", ["linucb", "disjoint", "full", "sketch", "diagonal", "ensemble"])
def test_two_halves_of_a_settlement_say_as_much_as_it(policy: str) -> None:
    """Of the same key, since an ensemble draws by it how often a member sees a settlement. What is
    not the same is how many settlements the noise was learned from."""
    fixed = {"noise": 0.5}
    whole, halves = log_of(policy, more=fixed), log_of(policy, more=fixed)
    x = row(1.0, 2.0, -1.0)
    learn(whole, "d", 0.75, x, 1.0)
    for _ in range(2):
        learn(halves, "d", 0.75, x, 0.5)
    phi = whole.state.learners[policy].active.phi(np.array([x, row(0.5, 1.0, 1.0)]))
    for say in ("mean", "width"):
        told = [getattr(head(log, policy), say)(phi, ["a", "b"]) for log in (whole, halves)]
        assert told[0] == pytest.approx(told[1], rel=1e-9), say


def test_two_halves_of_a_logistic_minibatch_say_as_much_as_the_whole() -> None:
    whole, halves = log_of("logistic"), log_of("logistic", more={"batch": 4})
    for number, reward in enumerate((1.0, 0.0)):
        learn(whole, f"d{number}", reward, row(1.0, 2.0, number), 1.0)
        for _ in range(2):
            learn(halves, f"d{number}", reward, row(1.0, 2.0, number), 0.5)
    one, two = head(whole, "logistic").arrays(), head(halves, "logistic").arrays()
    for name in ("A", "F", "beta", "g"):
        assert one[name] == pytest.approx(two[name], rel=1e-9), name


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        (policy, more)
        for policy in HEADS
        for more in ({}, {"window": 8}, {"gamma": 0.5, "decay_every": 2})
        if policy != "logistic" and not (policy == "full" and "gamma" in more)
    ],
)
def test_a_correction_leaves_the_head_as_if_the_reward_had_been_right(
    policy: str, more: dict[str, Any]
) -> None:
    wrong, right = log_of(policy, more=more), log_of(policy, more=more)
    for log, first in ((wrong, 0.0), (right, 1.0)):
        since = learn(log, "d0", first, row(9.0, 1.0), 0.125)
        learn(log, "d1", 0.5, row(1.0, 1.0), 1.0)
        learn(log, "d0", 1.0, row(9.0, 1.0), 0.125, was=(first, since))
    x = np.array([row(1.0, -1.0, 1.0)])
    phi = right.state.learners[policy].active.phi(x)
    told = [head(log, policy).mean(phi, ["a"])[0] for log in (wrong, right)]
    assert told[0] == pytest.approx(told[1], rel=1e-9)


def test_clicks_by_arm_are_counted_whole_whatever_the_row() -> None:
    log = Log()
    log.define({**SHOP, "policies": {"p": {"kind": "popularity", "draws": 16}}})
    since = learn(log, "d", 1.0, row(1e6), 1e-6)
    assert head(log, "p").arrays()["counts"].tolist() == [[2.0, 1.0]]
    learn(log, "d", 0.0, row(1e6), 1e-6, was=(1.0, since))
    assert head(log, "p").arrays()["counts"].tolist() == [[1.0, 2.0]]


def test_a_window_is_folded_anew_with_the_weights_that_it_holds() -> None:
    log = log_of("linucb", more={"window": 8})
    for number in range(30):
        learn(log, f"d{number}", 1.0, row(age=4.0), 0.25 if number % 2 else 1.0)
    held = log.state.learners["linucb"].active.memory
    assert held is not None
    phi = log.state.learners["linucb"].view.rows(held.x)
    weighted = np.array(held.weights)[:, None] * phi
    expected = np.eye(phi.shape[1]) + phi.T @ weighted
    assert np.allclose(head(log, "linucb").A, expected)


# -- the log ---------------------------------------------------------------------------------------


def test_a_snapshot_holds_what_is_usual_and_the_weights_of_a_memory() -> None:
    log = log_of("linucb", more={"window": 8})
    for number in range(12):
        x = row(age=30.0 * number)
        learn(log, f"d{number}", 1.0, x, log.state.influence.weight(x))
    again = State.restore(log.state.snapshot())
    assert again.influence.arrays()["squares"].tolist() == log.state.influence.squares
    assert again.influence.weight(row(age=900.0)) == log.state.influence.weight(row(age=900.0))
    assert again.snapshot().payload == log.state.snapshot().payload
    assert replay(log.records).snapshot().payload == log.state.snapshot().payload


def test_what_is_usual_belongs_to_the_features_and_outlives_other_policies() -> None:
    log = log_of("linucb")
    learn(log, "d", 1.0, row(age=3.0), 1.0)
    usual = log.state.influence.arrays()["squares"].tolist()
    log.define({**SHOP, "policies": {"linucb": HEADS["linucb"], "more": HEADS["disjoint"]}})
    assert log.state.influence.arrays()["squares"].tolist() == usual
    other = {**FEATURES, "arm": {}}
    log.define({**SHOP, "features": other, "arms": {"a": {}}, "policies": {"p": HEADS["disjoint"]}})
    assert log.state.influence.arrays()["squares"].tolist() == [0.0, 0.0]


async def define(services: Services) -> None:
    definition = {
        **SHOP,
        "policies": {"p": HEADS["linucb"]},
        "reward": {"aggregation": "last", "default": 0.0},
    }
    await services.admin.define("shop", Definition.model_validate(definition))


def serve(scenario: Any) -> None:
    async def play(services: Services) -> None:
        await define(services)
        await scenario(services)
        found = await Audit(services.store, "shop").run()
        assert found.clean, found.kept

    run_virtual(live(MemoryStore(), play))


def hostile() -> SelectRequest:
    return SelectRequest({"age": 1e6, "image": [0.0, 0.0, 0.0, 0.0], "pet": "cat"})


def weights_of(events: list[Any]) -> list[float]:
    return [one.weight for event in events if isinstance(event, Learned) for one in event.settled]


def test_the_weight_of_the_first_word_is_logged_and_holds_for_every_later_one() -> None:
    async def scenario(services: Services) -> None:
        answer = await services.engine.select(hostile())
        state = services.journal.states["shop"]
        weight = state.influence.weight(answer.decision.shown[0].x)
        assert weight < 1e-11
        for number, reward in enumerate((1.0, 0.5)):
            await told(services, answer.token, reward=reward, reward_id=f"order-{number}")
        first, second = (await events_of(services))[1:]
        assert isinstance(first, Rewarded)
        assert isinstance(second, Corrected)
        assert weights_of([first, second]) == [weight, weight]
        head: Any = state.learners["p"].active.head
        assert head.A.max() <= 1 + LARGEST_TERM
        assert head.rr == pytest.approx(weight * 0.25)

    serve(scenario)


def test_a_default_reward_is_weighed_and_its_correction_counts_for_as_much() -> None:
    async def scenario(services: Services) -> None:
        answer = await services.engine.select(hostile())
        state = services.journal.states["shop"]
        await services.settlements.expire(state, answer.decision)
        await told(services, answer.token, reward=1.0)
        default, corrected = (await events_of(services))[1:]
        assert isinstance(default, Expired)
        assert isinstance(corrected, Corrected)
        one, two = weights_of([default, corrected])
        assert one == two < 1e-11

    serve(scenario)


def test_an_ordinary_settlement_is_logged_without_a_weight() -> None:
    async def scenario(services: Services) -> None:
        context = {"age": 0.5, "image": [0.5, 0.0, 0.0, 0.0], "pet": "dog"}
        answer = await services.engine.select(SelectRequest(context))
        await told(services, answer.token, reward=1.0)
        records = await services.store.read("shop", 1, 10)
        assert b'"weight"' not in records[0].payload
        assert weights_of(await events_of(services)) == [1.0]

    serve(scenario)
