"""Which arm ends first in slates of which users look at the k-th slot with chance 1 / k.

`python -m tests.statistics.test_positions` prints the figures of docs/policies.md.
"""

import pytest

from tests.statistics.positions import KINDS, Page, falling

RUNS, VISITS = 100, 5_000
CLICKS = falling(10, 0.30, 0.03)
"""Of the arms, once they are seen: .30, .27 ... .03."""
LOOKS = [1 / slot for slot in range(1, 6)]
RULES: dict[str, object] = {"position": "position", "given": LOOKS, "whole": None}
MOST = {"position": 6, "given": 3}
"""Wrong first arms in RUNS. Measured: 1 to 3 and 0 or 1."""


def wrong(kind: str, rule: str, runs: int) -> int:
    """Runs after which another arm than the best is first most often."""
    pages = (Page(kind, CLICKS, LOOKS, RULES[rule], seed) for seed in range(runs))
    return sum(page.run(VISITS).first != 0 for page in pages)


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["position", "given"])
def test_the_best_arm_ends_first(kind: str, rule: str) -> None:
    assert wrong(kind, rule, RUNS) <= MOST[rule]


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", KINDS)
def test_where_misses_count_whole_another_arm_often_ends_first(kind: str) -> None:
    assert wrong(kind, "whole", 20) >= 4


if __name__ == "__main__":
    for rule in RULES:
        for kind in KINDS:
            print(rule, kind, wrong(kind, rule, RUNS), "of", RUNS, flush=True)  # noqa: T201
