"""The short form of `make attack`: some hundred made-up requests, every check of schemathesis."""

from pathlib import Path

import pytest

from tests.attack.campaign import attack


@pytest.mark.slow
def test_made_up_requests_find_no_5xx_and_nothing_undeclared(tmp_path: Path) -> None:
    found = attack(tmp_path, examples=8, phases="examples,fuzzing", seed=1)
    assert found.clean, f"{found.summary()}\n{found.bugs}\n{found.said}"
    assert found.cases >= 5 * found.operations
