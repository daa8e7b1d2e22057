"""The register of versions: what it keeps, whose rewards it counts, and how it is written."""

from service.observe.version_list import version_table, versions_of
from service.state.fold import State
from service.state.version_registry import KEPT_VERSIONS, VersionRegistry
from tests.unit.folding import POLICIES, Log, opened, shop

NEURAL = POLICIES["neural"]


def rewarded(log: Log, count: int) -> None:
    for number in range(count):
        log.settle("p", {"food1": float(number % 2)})


def serving(log: Log) -> None:
    log.stage("p")
    log.activate("p")


def test_a_reward_counts_for_the_version_that_made_the_decision() -> None:
    """A correction follows it, however late; those before the first version are nobody's."""
    log = opened(NEURAL)
    rewarded(log, 6)
    serving(log)
    early = log.settle("p", {"toy1": 0.0})
    rewarded(log, 2)
    serving(log)
    log.settle("p", {"toy1": 1.0})
    log.correct(early, 1.0)
    log.correct(log.settled[0], 1.0)
    log.settle("other", {"toy1": 1.0})
    second, first = versions_of(log.state, "p").versions
    assert (first.settled, first.mean_reward) == (3, 2 / 3)
    assert (second.settled, second.mean_reward) == (1, 1.0)
    assert (first.served_until_position, first.state) == (second.served_from_position, "retired")


def test_the_register_keeps_the_last_versions_of_a_policy() -> None:
    log = opened(NEURAL)
    rewarded(log, 6)
    for _ in range(KEPT_VERSIONS + 1):
        log.stage("p")
        log.reject("p")
    kept = log.state.versions.of("p")
    assert [each.number for each in kept] == list(range(KEPT_VERSIONS + 1, 1, -1))
    restored = State.restore(log.state.snapshot())
    assert restored.versions.by_policy == log.state.versions.by_policy


def test_versions_of_a_head_that_was_started_anew_are_retired_and_those_of_no_policy_go() -> None:
    log = Log()
    log.define(shop(p=NEURAL, other=NEURAL))
    rewarded(log, 6)
    serving(log)
    log.stage("p", gated=True)
    log.reset("p")
    states = [(each.version, each.state) for each in versions_of(log.state, "p").versions]
    assert states == [(2, "retired"), (1, "retired")]
    second, first = log.state.versions.of("p")
    assert (second.until, first.until and first.until.position) == (None, len(log.records))
    log.define(shop(other=NEURAL))
    assert log.state.versions.by_policy == {}
    assert VersionRegistry().of("p") == []


def test_settings_that_keep_the_head_keep_its_version_in_service() -> None:
    log = opened(NEURAL)
    rewarded(log, 6)
    serving(log)
    log.define(shop(p=NEURAL | {"epsilon": 0.1}))
    definition = shop(p=NEURAL | {"epsilon": 0.1, "features": ["pet", "kind"]})
    assert versions_of(log.state, "p").versions[0].state == "serving"
    log.define(definition)
    assert versions_of(log.state, "p").versions[0].state == "retired"


def test_the_table_of_versions() -> None:
    log = opened(NEURAL)
    rewarded(log, 6)
    serving(log)
    rewarded(log, 2)
    log.stage("p", gated=True)
    for age in (4.0, 2.0):
        log.settle("p", {"bed1": 1.0}, {"pet": "dog", "age": age})
    head, second, first = version_table(versions_of(log.state, "p")).splitlines()
    assert head.split() == [
        *("version", "state", "staged", "trained", "on", "loss"),
        *("ridge", "gain", "settled", "reward"),
    ]
    assert first.split() == ["1", "serving", "1970-01-01", "00:00", "6", *"---", "4", "0.75"]
    told = second.split()
    assert told[:7] == ["2", "challenger", "1970-01-01", "00:00", "8", "1", "1"]
    assert told[8:] == ["0", "-"]
    assert float(told[7]) != 0
