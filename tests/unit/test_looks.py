"""Looks at a log that go on where the last one stopped tell what a first look would."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace as replaced
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from service.analysis import walk
from service.analysis.checkpoints import Checkpoints, history_of, temporary_folder
from service.analysis.evaluate import evaluate
from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.history import REPEATED
from service.analysis.request import EvaluationRequest
from service.analysis.verdict import verdict_on
from service.analysis.verdict_answer import Verdict
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.base import Append, DecisionRow, KeptRow, Record, Trim
from service.log.stores.memory import MemoryStore
from service.manage.erasure import Eraser
from service.state.decisions import decode_decision, encode_decision
from service.state.events import (
    ExperimentDeleted,
    LogTruncated,
    PolicyReset,
    Rewarded,
    Skipped,
    decode_event,
    encode_event,
)
from tests.support.archived import SHOP, Shop
from tests.support.assigned import Traffic
from tests.support.clock import run_virtual
from tests.unit.audited import CAT, DOG, define, live, state_of
from tests.unit.folding import shop

RATES = {"auto": 0.5, "lints": 0.3, "control": 0.4}
EVEN = dict.fromkeys(RATES, 1.0)


class Counting(MemoryStore):
    """Counts the events and decision rows that it gives."""

    given = 0

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        found = await super().read(experiment, after, limit)
        self.given += len(found)
        return found

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        found = await super().decisions(experiment, after, limit)
        self.given += len(found)
        return found


class Watcher:
    """Looks at a verdict again and again. read: events and rows that the last look took."""

    def __init__(self, store: Counting, folder: Path) -> None:
        self._store, self._checkpoints = store, Checkpoints(folder)
        self.read = 0

    async def look(self) -> Verdict:
        before = self._store.given
        found = await verdict_on(self._store, SHOP, checkpoints=self._checkpoints)
        self.read = self._store.given - before
        assert found == await verdict_on(self._store, SHOP)
        return found


def watched(folder: Path, play: Callable[[Traffic, Watcher], Awaitable[None]]) -> None:
    async def run() -> None:
        store = Counting()
        traffic = Traffic(Shop(store))
        await traffic.define(EVEN)
        await play(traffic, Watcher(store, folder))

    run_virtual(run())


# -- verdicts --------------------------------------------------------------------------------------


def test_later_looks_read_what_is_new(tmp_path: Path) -> None:
    async def play(traffic: Traffic, watcher: Watcher) -> None:
        await traffic.visits(300, RATES)
        assert (await watcher.look()).decisions == 300
        assert watcher.read > 600
        await watcher.look()
        assert watcher.read < 10
        units = [f"visitor {number % 7}" for number in range(100)]
        await traffic.visits(100, RATES, units=units)
        assert (await watcher.look()).left_out
        assert 200 <= watcher.read < 210

    watched(tmp_path, play)


def test_what_becomes_of_earlier_decisions_is_told(tmp_path: Path) -> None:
    """A reward that was waited for, a correction, and an arm that was withdrawn."""

    async def play(traffic: Traffic, watcher: Watcher) -> None:
        await traffic.visits(100, RATES)
        await traffic.visits(1, RATES, settled=False)
        await traffic.visits(50, dict.fromkeys(RATES, 1.0))
        assert (await watcher.look()).decisions == 100
        traffic.rest()
        await traffic.visits(20, RATES)
        assert (await watcher.look()).decisions == 171
        first = decode_decision((await watcher._store.decisions(SHOP, 0, 1))[0].payload)
        before = await watcher.look()
        await traffic.shop.correct(first, 0.0, a=1.0)
        assert await watcher.look() != before
        assert watcher.read < 10

    watched(tmp_path, play)


def test_changes_of_the_definition_are_followed(tmp_path: Path) -> None:
    async def play(traffic: Traffic, watcher: Watcher) -> None:
        await traffic.visits(100, RATES)
        await watcher.look()
        await traffic.define({**EVEN, "auto": 3.0})
        await traffic.visits(100, RATES)
        await watcher.look()
        traffic.position += 1
        await traffic.shop.append(PolicyReset(at=traffic.at, revision=9, policy="lints"))
        await traffic.visits(100, RATES)
        assert (await watcher.look()).decisions == 300
        assert watcher.read < 300

    watched(tmp_path, play)


async def _erased(traffic: Traffic) -> None:
    rows = await traffic.shop.store.decisions(SHOP, 0, 20)
    await traffic.shop.erase(*(decode_decision(row.payload) for row in rows))


async def _deleted(traffic: Traffic) -> None:
    await traffic.shop.append(ExperimentDeleted(at=traffic.at, revision=5))
    traffic.position += 1
    await traffic.define(EVEN)


async def _truncated(traffic: Traffic) -> None:
    await traffic.shop.append(LogTruncated(at=traffic.at, held=200, last=0, rows=3))


async def _skipped(traffic: Traffic) -> None:
    events = await traffic.shop.events()
    position = next(
        event.position
        for event in events[100:]
        if isinstance(decode_event(event.payload), Rewarded)
    )
    skipped = Skipped(at=traffic.at, position=position, reason="")
    await traffic.shop.append(skipped, mark=("skip/0", str(position)))


def _replaced(first: int, rate: float) -> Callable[[Traffic], Awaitable[None]]:
    """Another log stands where the one that was read stood: its decisions have other numbers, or
    its rewards are others."""

    async def change(traffic: Traffic) -> None:
        store = traffic.shop.store
        assert isinstance(store, MemoryStore)
        store._experiments.clear()
        other = Traffic(Shop(store))
        other.number = first
        await other.define(EVEN)
        await other.visits(220, dict.fromkeys(RATES, rate))

    return change


CHANGES = {
    "erased": _erased,
    "deleted": _deleted,
    "truncated": _truncated,
    "skipped": _skipped,
    "other decisions": _replaced(1_000, 0.5),
    "other rewards": _replaced(0, 1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_makes_earlier_rows_count_otherwise_is_read_again(
    change: Callable[[Traffic], Awaitable[None]], tmp_path: Path
) -> None:
    async def play(traffic: Traffic, watcher: Watcher) -> None:
        await traffic.visits(200, RATES)
        first = await watcher.look()
        await change(traffic)
        assert await watcher.look() != first
        await traffic.visits(30, RATES)
        await watcher.look()
        assert watcher.read < 80

    watched(tmp_path, play)


@pytest.mark.parametrize(("events", "rows"), [(1, 1), (1, 0), (0, 1)])
def test_trimmed_events_and_rows_are_left_out(events: int, rows: int, tmp_path: Path) -> None:
    async def origin(services: Services) -> None:
        kept = state_of(services).snapshot()
        await services.store.put(SHOP, replaced(kept, origin=True))

    async def run() -> None:
        store = Counting()
        for play in (_begin, visits(100), origin):
            await live(store, play)
        before = await store.describe(SHOP)
        await live(store, visits(100))
        watcher = Watcher(store, tmp_path)
        assert (await watcher.look()).decisions == 200
        cut = Trim(events * before.position, rows * before.row, 0.0)
        await store.trim(SHOP, cut, 1_000)
        assert 95 <= (await watcher.look()).decisions <= 100

    run_virtual(run())


@pytest.mark.parametrize("harm", [lambda kept: kept[:-9], lambda kept: b"", lambda kept: kept[8:]])
def test_a_damaged_checkpoint_is_passed_over(
    harm: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    def damage() -> None:
        [file] = tmp_path.iterdir()
        file.write_bytes(harm(file.read_bytes()))

    async def play(traffic: Traffic, watcher: Watcher) -> None:
        await traffic.visits(50, RATES)
        await watcher.look()
        damage()
        await watcher.look()
        assert watcher.read > 100

    watched(tmp_path, play)


# -- shadows ---------------------------------------------------------------------------------------

POLICIES: dict[str, dict[str, Any]] = {
    "main": {"kind": "lints", "draws": 32, "epsilon": 0.3},
    "beside": {"kind": "random"},
    "first": {"kind": "linucb", "shadow": True},
    "second": {"kind": "auto", "shadow": True},
}


async def _begin(services: Services) -> None:
    await define(services, {**shop(**POLICIES), "control": "beside"})


def visits(
    count: int, *, seed: int = 0, unit: str | None = None, rewards: list[float] | None = None
) -> Callable[[Services], Any]:
    """Decisions and their rewards, which go into the list as well."""

    async def play(services: Services) -> None:
        rng = Random(seed)
        for _ in range(count):
            pet, kind = rng.choice([(CAT, "food"), (DOG, "toy")])
            answer = await services.selector.select(SelectRequest(pet, SHOP, unit=unit))
            arm = answer.decision.shown[0].arm
            reward = float(rng.random() < (0.7 if arm.startswith(kind) else 0.1))
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))
            if rewards is not None:
                rewards.append(reward)

    return play


class ShadowWatcher:
    """Looks at shadows again and again. decided: how often the last look asked a policy."""

    def __init__(self, store: MemoryStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store, self._checkpoints, self.decided = store, Checkpoints(folder), 0
        decide = walk.decide

        def counted(*given: Any) -> Any:
            self.decided += 1
            return decide(*given)

        monkeypatch.setattr(walk, "decide", counted)

    async def look(self) -> EvaluationAnswer:
        request, self.decided = EvaluationRequest(SHOP, shadows=True), 0
        found = await evaluate(self._store, request, checkpoints=self._checkpoints)
        decided = self.decided
        assert found == await evaluate(self._store, request)
        self.decided = decided
        return found


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()

    async def run() -> None:
        for play in (_begin, visits(60)):
            await live(store, play)

    run_virtual(run())
    return store


@pytest.fixture
def watcher(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShadowWatcher:
    return ShadowWatcher(store, tmp_path, monkeypatch)


def test_later_looks_at_shadows_evaluate_what_is_new(
    store: MemoryStore, watcher: ShadowWatcher
) -> None:
    """Four policies decide of each decision, and of the last one again."""

    async def run() -> None:
        assert (await watcher.look()).decisions == 60
        assert watcher.decided == 4 * 60
        await live(store, visits(20, seed=1))
        assert (await watcher.look()).decisions == 80
        assert watcher.decided <= 4 * 22
        await watcher.look()
        assert watcher.decided <= 4 * 2

    run_virtual(run())


def test_one_unit_has_ten_decisions_over_all_looks(
    store: MemoryStore, watcher: ShadowWatcher
) -> None:
    """A crawler that comes back before each of three looks."""

    async def run() -> None:
        for seed, count in ((5, 6), (6, 7), (7, 8)):
            await live(store, visits(count, seed=seed, unit="crawler"))
            found = await watcher.look()
        assert found.decisions == 70
        assert found.left_out == {REPEATED: 11}

    run_virtual(run())


def test_decisions_that_wait_are_evaluated_once_they_count(
    store: MemoryStore, watcher: ShadowWatcher
) -> None:
    async def run() -> None:
        tokens = []

        async def waiting(services: Services) -> None:
            answer = await services.selector.select(SelectRequest(CAT, SHOP))
            tokens.append(answer.token)

        async def told(services: Services) -> None:
            await services.settlements.reward(RewardRequest(tokens[0], reward=1.0))

        await live(store, waiting)
        await asyncio.sleep(1)  # the clocks of two processes differ by less
        await live(store, visits(30, seed=2))
        assert (await watcher.look()).decisions == 60
        await live(store, told)
        assert (await watcher.look()).decisions == 91
        assert 4 * 31 <= watcher.decided <= 4 * 33

    run_virtual(run())


def test_a_corrected_reward_counts_in_what_was_evaluated(
    store: MemoryStore, watcher: ShadowWatcher
) -> None:
    async def run() -> None:
        tokens = []

        async def expired(services: Services) -> None:
            answer = await services.selector.select(SelectRequest(CAT, SHOP))
            await services.expiry.expire(state_of(services), answer.decision)
            tokens.append(answer.token)

        async def corrected(services: Services) -> None:
            await services.settlements.reward(RewardRequest(tokens[0], reward=1.0))

        await live(store, expired)
        await live(store, visits(30, seed=2))
        first = await watcher.look()
        await live(store, corrected)
        second = await watcher.look()
        assert (first.decisions, second.decisions) == (91, 91)
        assert first.logged.value is not None
        assert second.logged.value == pytest.approx(first.logged.value + 1 / 91)
        assert watcher.decided <= 4 * 2

    run_virtual(run())


def test_a_row_that_came_late_begins_anew(store: MemoryStore, watcher: ShadowWatcher) -> None:
    """It was made at a position that the last look had passed."""

    async def run() -> None:
        await watcher.look()
        late = decode_decision((await store.decisions(SHOP, 10, 1))[0].payload)
        late = replace(late, id="late-late-late-late-la")
        event = next(
            event
            for record in await store.read(SHOP, 0, 400)
            if getattr(event := decode_event(record.payload), "settled", None)
        )
        event = replace(
            event,
            decision=late.id,
            policy=late.policy,
            settled=[
                replace(event.settled[0], arm=late.shown[0].arm, row=late.shown[0].row, reward=1.0)
            ],
        )
        row = DecisionRow(SHOP, late.id, late.series, encode_decision(late))
        await store.commit([row, Append(SHOP, encode_event(event), {"late": ""})])
        assert (await watcher.look()).decisions == 61
        assert watcher.decided == 4 * 61

    run_virtual(run())


def test_a_shadow_that_is_changed_begins_anew(store: MemoryStore, watcher: ShadowWatcher) -> None:
    async def run() -> None:
        await watcher.look()

        async def changed(services: Services) -> None:
            policies = {**POLICIES, "first": {**POLICIES["first"], "alpha": 0.2}}
            await define(services, {**shop(**policies), "control": "beside"})

        await live(store, changed)
        rewards = list[float]()
        await live(store, visits(20, seed=3, rewards=rewards))
        found = await watcher.look()
        [first] = [each for each in found.policies if each.policy == "first"]
        assert first.logged == pytest.approx(sum(rewards) / 20)
        assert {each.policy: each.decisions for each in found.policies} == {
            "first": 20,
            "second": 80,
        }
        await live(store, visits(5, seed=4))
        await watcher.look()
        assert watcher.decided <= 4 * 7

    run_virtual(run())


# -- checkpoints -----------------------------------------------------------------------------------


def test_the_files_used_longest_ago_make_room(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, most_bytes=100)
    for name in ("a", "b", "c"):
        checkpoints.save(name, name.encode() * 40)
    assert [checkpoints.load(name) for name in ("a", "b", "c")] == [None, b"b" * 40, b"c" * 40]
    checkpoints.save("d", b"d" * 101)
    assert checkpoints.load("d") is None


def test_a_look_does_not_fail_for_want_of_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    Checkpoints(tmp_path / "file").save("a", b"a")
    assert Checkpoints(tmp_path / "file").load("a") is None
    assert "is not kept for the next" in caplog.text


def file_of(name: str) -> str:
    return sha256(name.encode()).hexdigest()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_service_has_a_private_folder_for_its_store(temporary: Path) -> None:
    with temporary_folder("sqlite:///a.db") as folder, temporary_folder("sqlite:///b.db") as other:
        assert folder is not None
        assert folder != other
        Checkpoints(Path(folder)).save("a", b"a")
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        [file] = Path(folder).iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
    assert not list(temporary.iterdir())


def test_what_a_killed_service_left_goes_first(temporary: Path) -> None:
    """Another service over the store goes on, though one has started and stopped."""
    with temporary_folder("sqlite:///a.db") as left:
        assert left is not None
        Checkpoints(Path(left)).save("a", b"a")
        with temporary_folder("sqlite:///a.db") as folder:
            assert folder == left
            assert Checkpoints(Path(folder)).load("a") is None
        Checkpoints(Path(left)).save("b", b"b")
        assert Checkpoints(Path(left)).load("b") == b"b"


@pytest.mark.parametrize("mode", [0o777, None])
def test_a_folder_of_others_is_not_used(
    mode: int | None, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may write to it, or it is a link."""
    with temporary_folder("sqlite:///a.db") as folder:
        assert folder is not None
    elsewhere = temporary / "elsewhere"
    if mode is None:
        elsewhere.mkdir(0o700)
        Path(folder).symlink_to(elsewhere)
    else:
        Path(folder).mkdir()
        Path(folder).chmod(mode)
    Checkpoints(Path(folder)).save("a", b"a")
    assert not list(Path(folder).iterdir())
    (elsewhere if mode is None else Path(folder)).joinpath(file_of("a")).write_bytes(b"theirs")
    assert Checkpoints(Path(folder)).load("a") is None
    with temporary_folder("sqlite:///a.db") as found:
        assert found is None
    assert "belongs to others" in caplog.text


def test_without_a_temporary_folder_there_are_no_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    with temporary_folder("sqlite:///a.db") as folder:
        assert folder is None


def test_an_erasure_removes_what_looks_have_kept(tmp_path: Path) -> None:
    checkpoints, unit = Checkpoints(tmp_path), "somebody"

    async def play(services: Services) -> None:
        await _begin(services)
        await services.selector.select(SelectRequest(CAT, SHOP, unit=unit))
        await services.log.committer.drain()
        await verdict_on(services.store, SHOP, checkpoints=checkpoints)
        assert checkpoints.load(history_of(SHOP)) is not None
        eraser = Eraser(
            services.log, services.store, services.sealer, services.telemetry, checkpoints
        )
        await eraser.erase(unit, "")
        assert checkpoints.load(history_of(SHOP)) is None

    run_virtual(live(MemoryStore(), play))
