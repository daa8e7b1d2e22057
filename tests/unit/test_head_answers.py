"""Heads answer what rules and others ask of them, and none is asked for its type."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.bandits.heads import (
    Array,
    Bank,
    BetaHead,
    DisjointRidgeHead,
    EnsembleHead,
    Head,
    LogisticHead,
    Observation,
    RidgeHead,
)
from service.bandits.kinds.auto import AUTO_OPTIMISM, AverageBound

ROOT = Path(__file__).parents[2]
SIZE, ARMS = 3, ("a", "b", "c")


def taught(head: Head) -> Head:
    rng = np.random.default_rng(1)
    for number in range(30):
        phi, reward = rng.standard_normal(SIZE), float(rng.random() < 0.4)
        head.observe(Observation(ARMS[number % 3], phi, reward, str(number)))
    return head


HEADS = [
    RidgeHead(SIZE, 1.0, None),
    DisjointRidgeHead(SIZE, 1.0, None),
    EnsembleHead(SIZE, 1.0, None, 4, "key"),
    LogisticHead(SIZE, 1.0, 8),
    BetaHead(),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_the_spread_of_two_contexts_is_that_of_each(head: Head) -> None:
    taught(head)
    phi = np.random.default_rng(2).standard_normal((6, SIZE))
    both = head.spread(phi, ARMS)
    for context in range(2):
        own = phi[3 * context : 3 * context + 3]
        mean, width, grown = (part[context] for part in both)
        assert mean == pytest.approx(head.mean(own, ARMS), rel=1e-12)
        assert width == pytest.approx(head.width(own, ARMS), rel=1e-12)
        held, noise = head.evidence(ARMS)
        assert grown == pytest.approx(held * (width / noise) ** 2, rel=1e-12)


def test_the_bound_of_auto_holds_for_any_head() -> None:
    """One settlement of an arm of its own: A 2, b 1, mean .5 and v 1/2, so that n v is 1/2."""
    head = DisjointRidgeHead(1, 1.0, 1.0)
    head.observe(Observation("a", np.ones(1), 1.0))
    view: Any = SimpleNamespace(sides=(np.arange(0), np.arange(0), np.zeros(2)))
    version: Any = SimpleNamespace(head=head, view=view, ends=(0.0, 1.0))
    [[a, new]] = AverageBound().scores(version, np.ones((2, 1)), np.ones((2, 1)), ["a", "new"])
    assert a == pytest.approx(1.0 + 0.5**0.5 * (AUTO_OPTIMISM + 2 * np.log1p(0.5)) ** 0.5)
    assert new == pytest.approx(1.0 + AUTO_OPTIMISM**0.5)  # the level is 1, and nothing is held


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_fast_ways_say_what_the_slow_ones_do(head: Head) -> None:
    taught(head)
    phi, bank = np.random.default_rng(3).standard_normal((3, SIZE)), Bank(256, "key")
    like = np.ones(3, np.intp)
    shares = head.win_shares(phi, ARMS, like, bank, 1.0)
    if shares is not None:
        table: Array = head.draw(phi, ARMS, bank)
        wins = np.bincount(table.argmax(axis=1), minlength=3) / len(table)
        assert shares[0] == pytest.approx(wins, abs=2 / 256)
    if head.coefficients is not None:
        moved = head.mean(phi, ARMS) - phi @ head.coefficients
        assert moved == pytest.approx([moved[0]] * 3)
    if head.posterior is not None:
        spread = head.posterior.spread(phi)[1]
        assert head.posterior.noise * np.sqrt(spread) == pytest.approx(head.width(phi, ARMS))


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_a_head_that_awaits_no_member_is_not_on_trial(head: Head) -> None:
    assert not head.awaits_late
    head.end_trial()
    assert head.trial is None
    with pytest.raises(AssertionError, match="no member is awaited"):
        head.begin_trial(np.zeros((1, SIZE)))


def kinds_of(head: type[Head]) -> set[str]:
    return {head.__name__}.union(*map(kinds_of, head.__subclasses__()))


def test_no_module_outside_the_heads_asks_a_head_for_its_type() -> None:
    heads = kinds_of(Head)
    assert {"Head", "RidgeHead", "GaussianHead", "InformedHead", "GradientHead"} <= heads
    asked = []
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.MatchClass):
                types = ast.unparse(node.cls)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                types = ast.unparse(node.args[1])
            else:
                continue
            if "heads" not in path.parts and heads & set(re.findall(r"\w+", types)):
                asked.append(f"{path.relative_to(ROOT)}, line {node.lineno}")
    assert asked == []
