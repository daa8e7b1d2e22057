"""What is exposed by a service that was used, once for all tests here."""

import pytest

from tests.support.metrics import families, used
from tests.support.promql import Exposed


@pytest.fixture(scope="session")
def exposed() -> Exposed:
    with used() as wire:
        labels: dict[str, set[str]] = {}
        for _, _, family in families(wire).values():
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return Exposed(labels)
