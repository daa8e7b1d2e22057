"""Simulated rollouts under guardrails: how often a healthy challenger is stopped, and how soon a
broken one is.

GUARDRAIL_ROLLOUTS is the number of rollouts.
"""

import os
from collections import Counter, deque

import numpy as np
import pytest

from service.analysis.rollout_evidence import STOP_ALPHA, RolloutEvidence, RolloutRows
from service.analysis.rollout_guardrails import SAMPLE_RATIO_ALPHA
from service.bandits.boundary import radius
from service.definition.rollout import Guardrails
from service.state.guardrails import SAMPLED_DECISIONS, DecisionSample, findings_here

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(1_200)]

ROLLOUTS = int(os.environ.get("GUARDRAIL_ROLLOUTS", "1000"))
DECISIONS = 20_000
STAGES = 0.05, 0.2, 0.5
"""Shares of the challenger, of a third of the decisions each."""
LOOKS_EVERY = 200
"""Decisions of both policies between two looks."""
SEGMENTS = 2
GUARDRAILS = Guardrails.model_validate({"entropy": {"least": 0.2}})


def shares() -> np.ndarray:
    return np.repeat(STAGES, -(-DECISIONS // len(STAGES)))[:DECISIONS]


def stopped(
    seed: int, fallbacks: float, slower: float = 1.0, busy: float = 8.0
) -> tuple[Counter[str], int]:
    """Roll a challenger out; the guardrails that were ever breached, and the challenger's decisions
    until the first was.

    fallbacks   share of the challenger's decisions that the fallback makes
    slower      how many times as long as the baseline the challenger takes
    busy        decisions that are scored with one, if it had the whole traffic

    The policy with more traffic has larger batches. A batch takes a millisecond, and a fifth of one
    for each decision, times a lognormal factor whose 99th percentile is five times its median.
    """
    rng = np.random.default_rng(seed)
    own = rng.random(DECISIONS) < shares()
    together = 1 + rng.poisson(busy * np.where(own, shares(), 1 - shares()))
    seconds = (0.001 + 0.0002 * together) * rng.lognormal(0, 0.7, DECISIONS)
    seconds *= np.where(own, slower, 1.0)
    fell_back = own & (rng.random(DECISIONS) < fallbacks)
    entropy = rng.beta(2, 4, DECISIONS)
    windows = [deque[DecisionSample](maxlen=SAMPLED_DECISIONS) for _ in range(2)]
    columns = (column.tolist() for column in (seconds, together, fell_back, entropy, ~own))
    found, count = Counter[str](), 0
    for number, (*sample, which) in enumerate(zip(*columns, strict=True), 1):
        windows[which].append(DecisionSample(*sample))
        if number % LOOKS_EVERY:
            continue
        findings = findings_here(GUARDRAILS, "new", "old", *windows)
        found.update({each.guardrail for each in findings if each.state == "breached"})
        if found:
            return found, int(own[:number].sum())
    return found, count


@pytest.mark.parametrize("fallbacks", [0.001, 0.01])
def test_a_healthy_challenger_is_not_stopped_by_its_decisions(fallbacks: float) -> None:
    found = Counter[str]()
    for seed in range(ROLLOUTS):
        found.update(stopped(seed, fallbacks)[0])
    print(f"fallbacks {fallbacks}: of {ROLLOUTS} rollouts {dict(found)} were breached")  # noqa: T201
    assert sum(found.values()) <= ROLLOUTS * 0.002


@pytest.mark.parametrize(
    ("fallbacks", "slower", "busy", "guardrail", "most"),
    [
        (1.0, 1.0, 8.0, "fallbacks", 40),
        (0.1, 1.0, 8.0, "fallbacks", 120),
        (0.05, 1.0, 8.0, "fallbacks", 400),
        (0.0, 10.0, 0.1, "latency", 60),
        (0.0, 10.0, 8.0, "latency", 150),
        (0.0, 4.0, 0.1, "latency", 400),
        (0.0, 4.0, 8.0, "latency", 2_000),
    ],
)
def test_a_broken_challenger_is_stopped_soon(
    fallbacks: float, slower: float, busy: float, guardrail: str, most: int
) -> None:
    """A slow one that is scored alone, beside a baseline in batches, has to have a larger share."""
    ends = [stopped(seed, fallbacks, slower, busy) for seed in range(ROLLOUTS // 10)]
    assert all(found.keys() == {guardrail} for found, _ in ends)
    middle, late = np.quantile([count for _, count in ends], [0.5, 0.9])
    cause = f"fallbacks {fallbacks}, {slower} times as slow, busy {busy}"
    print(f"{cause}: after {middle:.0f} decisions, {late:.0f} in 90 percent")  # noqa: T201
    assert middle <= most


def test_visitors_that_were_drawn_seldom_seem_to_be_missing() -> None:
    """At any of 20,000 visitors."""
    chance = shares()
    bound = radius(np.cumsum(chance * (1 - chance)), 1.0, SAMPLE_RATIO_ALPHA)
    wrong = 0
    for seed in range(ROLLOUTS):
        own = np.random.default_rng(seed).random(DECISIONS) < chance
        wrong += bool((np.abs(np.cumsum(own - chance)) > bound).any())
    print(f"of {ROLLOUTS} rollouts {wrong} had visitors that seemed to be missing")  # noqa: T201
    assert wrong <= max(3 * SAMPLE_RATIO_ALPHA * ROLLOUTS, 1)


@pytest.mark.parametrize(("rate", "level"), [(0.2, 0.005), (0.18, STOP_ALPHA)])
def test_a_segment_of_a_healthy_challenger_seldom_seems_to_lose(rate: float, level: float) -> None:
    """As good as its baseline of 0.2, or just within the margin of 10 percent."""
    chance, wrong = shares(), 0
    marks = np.arange(0, DECISIONS + 1, LOOKS_EVERY)
    for seed in range(ROLLOUTS):
        rng = np.random.default_rng(seed)
        own = rng.random(DECISIONS) < chance
        click = (rng.random(DECISIONS) < np.where(own, rate, 0.2)).astype(float)
        rows = RolloutRows(own, ~own, chance, 1 - chance, click, np.arange(DECISIONS))
        segment, fails = rng.integers(SEGMENTS, size=DECISIONS), False
        for number in range(SEGMENTS):
            inside = segment == number
            evidence = RolloutEvidence(
                0.1, min(STAGES), (0.0, 1.0), stop_alpha=STOP_ALPHA / SEGMENTS
            )
            kept = np.concatenate([[0], np.cumsum(inside)])[marks]
            figures = evidence.add(RolloutRows(*(each[inside] for each in rows)), kept)
            fails |= bool(figures.fails.any())
        wrong += fails
    print(f"rate {rate}: of {ROLLOUTS} rollouts {wrong} had a segment that failed")  # noqa: T201
    assert wrong <= max(level * ROLLOUTS, 1)
