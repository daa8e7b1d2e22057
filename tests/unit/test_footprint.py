"""The memory that an experiment will take: told from its definition, before any of it is made."""

import subprocess
import sys
from typing import Any

import pytest

from service.definition.experiment import Definition
from service.state.footprint import footprint, twins_of
from tests.unit.folding import Log, shop

MIB = 2**20


def definition(context: int = 1, arm: int = 1, **policy: Any) -> Definition:
    """One policy over two vectors."""
    return Definition.model_validate(
        {
            "features": {
                "context": {"c": {"type": "vector", "size": context}},
                "arm": {"v": {"type": "vector", "size": arm}},
            },
            "policies": {"p": policy},
        }
    )


def taken(arms: int = 10, **policy: Any) -> float:
    return sum(footprint(definition(**policy), arms).values()) / MIB


def test_a_shared_head_is_its_columns_squared() -> None:
    """4,049 columns: A alone is 125 MiB, and a decision and a snapshot make it 8 times that."""
    wide = taken(context=2_000, arm=2_048, kind="linucb")
    assert wide == pytest.approx(8 * 125, rel=0.1)
    assert taken(context=1_000, arm=1_024, kind="linucb") == pytest.approx(wide / 4, rel=0.1)


def test_heads_of_their_own_count_by_arm() -> None:
    few, many = (taken(arms, context=199, kind="linucb", disjoint=True) for arms in (100, 1_000))
    assert many == pytest.approx(10 * few, rel=0.05)
    assert many == pytest.approx(6 * 1_000 * 200**2 * 8 / MIB, rel=0.1)


def test_heads_of_removed_arms_count_as_well() -> None:
    found = definition(context=199, kind="linucb", disjoint=True)
    assert footprint(found, 10, heads=1_000)["policies.p"] > 50 * footprint(found, 10)["policies.p"]


def test_a_head_that_imports_taught_counts_twice() -> None:
    found = definition(context=199, kind="auto")
    log = Log()
    log.define(shop(p={"kind": "auto"}))
    assert twins_of(log.state) == []
    log.settle("p", {"toy1": 1.0}, imported=True)
    assert twins_of(log.state) == ["p"]
    once, twice = (footprint(found, 100, twins=each)["policies.p"] for each in ((), ("p",)))
    assert twice == pytest.approx(2 * once, rel=0.05)


def test_a_policy_with_a_net_counts_as_two_versions() -> None:
    """Two heads of 1,003 columns and more, and two memories: while one waits at its gate, both
    learn."""
    net: dict[str, Any] = {"kind": "neural_linucb", "hidden": [1], "embedding": 500}
    heads = taken(**net)
    assert heads == pytest.approx(2 * 8 * 1_003**2 * 8 / MIB, rel=0.05)
    full = taken(kind="neural_ucb", form="full")
    assert full == pytest.approx(8 * 2_048**2 * 8 / MIB, rel=0.01)  # who waits needs no widths
    one = taken(kind="linucb", window=10_000) - taken(kind="linucb")
    assert taken(**net, window=10_000) - heads == pytest.approx(2 * one, rel=0.05)


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"kind": "lints", "draws": 16_384}, {"kind": "lints"}),
        ({"kind": "bootstrap_ensemble", "members": 256}, {"kind": "bootstrap_ensemble"}),
        ({"kind": "mc_dropout", "masks": 4_096}, {"kind": "mc_dropout"}),
        ({"kind": "neural_ucb", "form": "full"}, {"kind": "neural_ucb"}),
        ({"kind": "linucb", "window": 1_000_000}, {"kind": "linucb"}),
        ({"kind": "static", "hidden": [4_000, 4_000]}, {"kind": "static"}),
    ],
)
def test_what_a_policy_asks_for_counts(more: dict[str, Any], less: dict[str, Any]) -> None:
    assert taken(context=30, arm=30, **more) > 10 * taken(context=30, arm=30, **less)


def test_a_catalogue_counts_by_its_arms_and_their_features() -> None:
    assert taken(1_000_000, arm=32, kind="random") > 1_000
    assert taken(1_000, arm=32, kind="random") < 10


def test_a_catalogue_counts_by_its_attributes() -> None:
    bare = definition(kind="random")
    for declared, each in ((["number"] * 8, 8 * 32), (["text"] * 4 + ["boolean"], 4 * 120 + 32)):
        names = {f"a{number}": kind for number, kind in enumerate(declared)}
        more = bare.model_copy(update={"attributes": names})
        found = footprint(more, 1_000)["arms"] - footprint(bare, 1_000)["arms"]
        assert found == 1_000 * each


def test_where_few_rows_can_differ_a_whole_z_is_small() -> None:
    found = Definition.model_validate(
        {
            "features": {
                "context": {"c": {"type": "categorical", "values": ["a", "b"]}},
                "arm": {"v": {"type": "categorical", "values": ["x", "y"]}},
            },
            "policies": {"p": {"kind": "neural_ucb", "form": "full"}},
        }
    )
    assert sum(footprint(found, 10).values()) < 20 * MIB


MEASURED = """
import sys
from pathlib import Path
import numpy as np
from service.bandits.networks import Network, cold_network
from service.decide.scoring import decide
from service.state.decider import Decider
from service.state.events import ArmUpserted, ExperimentDefined, Rewarded, Outcome, TrainingReport
from service.definition.experiment import Definition
from service.state.fold import State
from service.state.footprint import footprint_of

def peak():  # of this process alone: what getrusage says begins with its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

context, arm, arms, rewards, policy = eval(sys.argv[1])
definition = {
    "features": {"context": {"c": {"type": "vector", "size": context}},
                 "arm": {"v": {"type": "vector", "size": arm}}},
    "policies": {"p": policy},
}
chance, state = np.random.default_rng(0), State("x")
before = peak()
state.apply(1, ExperimentDefined(at=0, revision=1, schema_version=1, definition=definition))
for index in range(arms):
    features = {"v": chance.normal(size=arm).tolist()}
    state.apply(state.position + 1, ArmUpserted(at=0, arm=str(index), features=features))
learner = state.learners["p"]
for number in (1, 2) if learner.policy.net else ():  # one serves, one is at its gate
    if learner.challenger:
        learner.activate(state.position, 0.0)
    net = learner.policy.net
    sizes = [learner.view.width, *net.hidden, *([] if net.rectified else [net.embedding])]
    network = Network(cold_network(sizes, str(number)).layers, rectified=net.rectified)
    output = (np.ones((sizes[-1], 1)), np.zeros(1))
    version = learner.version(number, learner.trained(network, output))
    learner.stage(version, TrainingReport(1, 0.0, 1.0, 1.0, 9.0))
for index in range(rewards):
    row = state.schema.row(chance.normal(size=context), state.candidates.x[index % arms])
    settled = [Outcome(str(index % arms), 1.0, row)]
    event = Rewarded(at=0, decision=str(index), policy="p", schema_version=1, settled=settled)
    state.apply(state.position + 1, event)
decide(Decider.serving(learner), chance.normal(size=context), state.candidates, 1, 1)
state.snapshot()
print((peak() - before) / sum(footprint_of(state).values()))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param((600, 600, 10, 3, {"kind": "lints"}), marks=pytest.mark.slow),
        (600, 600, 10, 3, {"kind": "linucb"}),
        pytest.param(
            (150, 2, 150, 150, {"kind": "linucb", "disjoint": True}), marks=pytest.mark.slow
        ),
        pytest.param((30, 100, 5_000, 3, {"kind": "lints"}), marks=pytest.mark.slow),
        (60, 60, 30, 50, {"kind": "neural_linear_ts", "disjoint": True}),
        pytest.param(
            (100, 100, 50, 5_000, {"kind": "neural_linear_ts", "window": 4_000}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_estimated_is_what_a_process_takes(spec: Any) -> None:
    """Within a factor of two of the peak of one that learns, decides and takes a snapshot, of nets
    with a version at its gate. Resident memory hardly differs from run to run where it is a hundred
    megabytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, repr(spec)], capture_output=True, text=True, check=True
    )
    assert 0.5 <= float(done.stdout) <= 2.0
