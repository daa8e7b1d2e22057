"""The largest numbers that are accepted: every decision is made, every head stays finite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.bandits.heads.gradient_rows import cholesky
from service.bandits.heads.logistic import implicit_step
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import Invalid
from service.features.schema import LARGEST
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from tests.support.clock import run_virtual
from tests.unit.audited import live
from tests.unit.test_policy_settings import KINDS

NET: dict[str, Any] = {"hidden": [8, 8], "embedding": 4}
FORMS = ("diagonal", "full")
POLICIES: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind} for kind in KINDS},
    "linucb_disjoint": {"kind": "linucb", "disjoint": True},
    "lints_disjoint": {"kind": "lints", "disjoint": True, "draws": 64},
    "greedy_neural": {"kind": "greedy", "regressor": "neural", **NET},
    **{f"neural_ucb_{form}": {"kind": "neural_ucb", "form": form, **NET} for form in FORMS},
    **{f"neural_ts_{form}": {"kind": "neural_ts", "form": form, **NET} for form in FORMS},
    "forgetful": {"kind": "linucb", "gamma": 0.9},
    "windowed": {"kind": "lints", "window": 10, "draws": 64},
    "watchful": {"kind": "linucb", "change": True},
}
NUMBERS = [f"n{index}" for index in range(18)]
PRICES = [0.0, 1.0, -1e9, 1e9, 3.5, 1e5]


def definition(policy: dict[str, Any], numbers: int, *crosses: str) -> Definition:
    return Definition.model_validate(
        {
            "features": {
                "context": {
                    **{name: {"type": "numeric"} for name in NUMBERS[:numbers]},
                    "image": {"type": "vector", "size": 4},
                },
                "arm": {"price": {"type": "numeric"}},
                "crosses": list(crosses),
            },
            "arms": {f"arm{index}": {"price": price} for index, price in enumerate(PRICES)},
            "policies": {"p": policy},
        }
    )


async def play(services: Services, numbers: int, size: Callable[[Any], float], times: int) -> None:
    rng = np.random.default_rng(1)

    def number() -> float:
        return float(np.clip(rng.choice([-1, 1]) * size(rng), -LARGEST, LARGEST))

    for turn in range(times):
        context = {name: number() for name in NUMBERS[:numbers]}
        image = [number() for _ in range(4)]
        question = SelectRequest(context | {"image": image}, top_k=1 if turn % 5 else 3)
        answer = await services.selector.select(question)
        if turn % 3 < 2:
            rewards = {arm.arm: float(rng.integers(2)) for arm in answer.decision.shown}
            await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))
        expect_finite(services)


def expect_finite(services: Services) -> None:
    head = services.log.replicas.states["e"].learners["p"].active.head
    if head is None:
        return
    for name, array in head.arrays().items():
        assert array.dtype.kind != "f" or np.isfinite(array).all(), name
    health = head.health()
    assert np.isfinite([health.smallest_eigenvalue, health.condition_number, health.noise]).all()


SIZES: dict[str, Callable[[Any], float]] = {
    "all of the largest": lambda rng: LARGEST,
    "a tenth of the largest": lambda rng: LARGEST if rng.random() < 0.1 else rng.exponential(),
    "of every size": lambda rng: 10 ** rng.uniform(-3, 9),
}


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, id=name, marks=[pytest.mark.slow] if "tenth" in name else [])
        for name, size in SIZES.items()
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_is_accepted_is_decided_and_learned(
    policy: str, size: Callable[[Any], float]
) -> None:
    async def scenario(services: Services) -> None:
        settings = POLICIES[policy]
        await services.admin.define("e", definition(settings, 3, "n0 x n1", "n2 x price"), "")
        await play(services, 3, size, 120 if "form" in settings else 30)  # beyond a block of rows

    run_virtual(live(MemoryStore(), scenario))


CROSS = " x ".join(NUMBERS)


def test_a_product_beyond_all_bounds_is_refused_when_it_is_defined() -> None:
    async def scenario(services: Services) -> None:
        whole = definition({"kind": "linucb"}, 18, CROSS).model_dump(mode="json")
        for name in NUMBERS:
            wide = {"type": "numeric", "scale": 1.0, "min": -1e9, "max": 1e9}
            whole["features"]["context"][name] = wide
        with pytest.raises(Invalid) as caught:
            await services.admin.define("e", Definition.model_validate(whole), "")
        [fault] = caught.value.faults
        assert fault.path == "policies.p.features"
        assert "give its features a clip, or min and max closer" in fault.message

    run_virtual(live(MemoryStore(), scenario))


@pytest.mark.parametrize("bounds", [{}, {"scale": 2.0}, {"clip": 5.0}, {"min": -9.0, "max": 9.0}])
def test_the_same_product_of_bounded_numbers_is_taken(bounds: dict[str, float]) -> None:
    whole = definition({"kind": "linucb"}, 18, CROSS).model_dump(mode="json")
    for name in NUMBERS:
        whole["features"]["context"][name] = {"type": "numeric", **bounds}

    async def scenario(services: Services) -> None:
        await services.admin.define("e", Definition.model_validate(whole), "")
        size = min(9.0, bounds.get("max", 9.0))
        await play(services, 18, lambda rng: size, 10)

    run_virtual(live(MemoryStore(), scenario))


def test_a_difference_that_rounding_left_nothing_of_is_factored_by_what_it_is_of() -> None:
    """Variances of 1 that are differences of 1e18: rounding has made one of them -200."""
    matrix = np.array([[-200.0, 60.0, 0.0], [60.0, 130.0, 0.0], [0.0, 0.0, 1.0]])
    factor = cholesky(matrix, np.array([1e18, 1e18, 1.0]))
    assert factor[0, 0] == pytest.approx((1e-12 * 1e18 - 200) ** 0.5)
    assert factor[2, 2] == pytest.approx(1.0)


def test_a_minibatch_of_huge_rows_that_are_alike_has_a_finite_step() -> None:
    dual, logits = implicit_step(np.full((4, 4), 1e18), np.zeros(4), np.array([1.0, 0, 0, 1]))
    assert np.isfinite(dual).all()
    assert np.isfinite(logits).all()
