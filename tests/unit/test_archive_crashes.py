"""An archiver that is killed between any two of its durable steps, and begins again."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.log.stores.memory import MemoryStore
from service.maintenance.archive.archiver import Archive, Sizes
from service.maintenance.archive.files import Folder
from service.maintenance.archive.index import Cursor, Index
from service.state.events import Decision
from tests.support.clock import run_virtual
from tests.support.properties import examples
from tests.unit.archived import (
    DAY_S,
    LATER_S,
    MORNING,
    SHOP,
    Shop,
    a_decision,
    export,
    ids_of,
    rows_of,
)


class Killed(BaseException):
    """No `except Exception` of the archiver sees it, as none sees a kill."""


class Fuse:
    """Burns down a step at a time, half a step before it is done or half a step after."""

    def __init__(self) -> None:
        self.left: int | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        self._burn()
        yield
        self._burn()

    def _burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


FUSE = Fuse()


class FusedFolder(Folder):
    """Nothing is synced: these kills are of processes, and a disk takes its time."""

    def sync(self, path: Path) -> None:
        with FUSE.step():
            assert path.exists()

    def place(self, draft: Path, path: Path) -> None:
        with FUSE.step():
            super().place(draft, path)

    def remove(self, path: Path) -> None:
        with FUSE.step():
            super().remove(path)

    def sync_folder(self, path: Path) -> None:
        with FUSE.step():
            assert path.is_dir()


class FusedIndex(Index):
    def _open(self) -> None:
        super()._open()
        self._db.execute("PRAGMA synchronous = OFF")

    @contextmanager
    def _advance(self, cursor: Cursor) -> Iterator[None]:
        with FUSE.step(), super()._advance(cursor):
            yield
            FUSE._burn()  # inside the transaction, which is rolled back


def run(store: MemoryStore, path: Path, left: int | None, sizes: Sizes) -> bool:
    """An export that is killed after so many half steps, if it comes so far; whether it was."""
    FUSE.left = left
    try:
        run_virtual(export(store, path, sizes, folder=FusedFolder, index=FusedIndex))
    except Killed:
        return True
    finally:
        FUSE.left = None
    return False


class Model:
    """The log, and what an archive of all of it must hold."""

    def __init__(self) -> None:
        self.shop = Shop(MemoryStore())
        self.now = MORNING
        self.decisions = list[Decision]()
        self.learned = dict[str, tuple[float, int]]()
        run_virtual(self.shop.define())

    def play(self, what: str, which: int) -> None:
        self.now += 200.0
        run_virtual(getattr(self, what)(which))

    async def decide(self, which: int) -> None:
        self.decisions.append(
            await self.shop.decide(a_decision(len(self.learned) + 1_000 * which, self.now))
        )
        self.learned[self.decisions[-1].id] = (-1.0, -1)

    async def reward(self, which: int) -> None:
        if self.decisions:
            decision = self.decisions[which % len(self.decisions)]
            reward, corrections = self.learned[decision.id]
            if self.now > decision.accept_until:
                return
            after = self.now - decision.at
            if corrections < 0:
                await self.shop.reward(decision, after, a=which / 7)
            else:
                await self.shop.correct(decision, reward, after, a=which / 7)
            self.learned[decision.id] = which / 7, corrections + 1

    async def erase(self, which: int) -> None:
        if self.decisions:
            decision = self.decisions.pop(which % len(self.decisions))
            await self.shop.erase(decision, at=self.now)

    async def rest(self, which: int) -> None:
        self.now += LATER_S / 2 if which % 3 else DAY_S
        await self.shop.pass_until(self.now)

    def expect(self, path: Path) -> None:
        """All there is, once, as it was learned."""
        found = {row["id"]: row["rewards"] for row in rows_of(path)}
        assert Counter(ids_of(path)) == Counter(each.id for each in self.decisions)
        for decision in self.decisions:
            told = [(each["reward"], each["corrections"]) for each in found[decision.id]]
            assert told == [self.learned[decision.id]] * (self.learned[decision.id][1] >= 0)

    def expect_whole(self, path: Path) -> None:
        """After a kill: no row is there twice; what was archived is there."""
        if not (path / f"experiment={SHOP}" / "_archive.db").exists():
            return
        ids = ids_of(path)
        assert len(set(ids)) == len(ids)
        index = Index(path / f"experiment={SHOP}" / "_archive.db")
        cursor = index.cursor
        index.close()
        rows = run_virtual(self.shop.store.decisions(SHOP, 0, 10_000))
        assert {row.id for row in rows if row.number <= cursor.row} <= set(ids)


PLAYED = st.lists(
    st.tuples(
        st.sampled_from(
            ["decide", "decide", "decide", "reward", "reward", "rest", "erase", "export"]
        ),
        st.integers(0, 30),
    ),
    max_size=40,
)


@settings(max_examples=examples(100), deadline=None)
@given(PLAYED, st.lists(st.integers(0, 60), max_size=12), st.integers(1, 5))
def test_no_row_is_lost_or_doubled_wherever_an_archiver_is_killed(
    played: list[tuple[str, int]], kills: list[int], part_rows: int
) -> None:
    with TemporaryDirectory() as folder:
        path, model, sizes = Path(folder) / "archive", Model(), Sizes(part_rows)
        for what, which in played:
            if what != "export":
                model.play(what, which)
            elif run(model.shop.store, path, kills.pop() if kills else None, sizes):
                model.expect_whole(path)
            else:
                model.expect(path)
        for left in kills:
            run(model.shop.store, path, left, sizes)
            model.expect_whole(path)
        run(model.shop.store, path, None, sizes)
        model.expect(path)


every = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
"""Of the half steps; five is odd, so that kills before and after a step are among them."""


def a_month() -> Model:
    """Days of decisions, rewarded, one of them erased after it was archived."""
    model = Model()
    for number in range(6):
        model.play("decide", number)
        model.play("reward", number)
        model.play("rest", 3 * number)
    model.play("decide", 8)
    return model


@every
def test_every_step_of_a_first_run_may_be_the_last(tmp_path: Path, every: int) -> None:
    model, left = a_month(), 0
    while True:
        path = tmp_path / str(left)
        killed = run(model.shop.store, path, left, Sizes(4))
        model.expect_whole(path)
        run(model.shop.store, path, None, Sizes(4))
        model.expect(path)
        if not killed:
            break
        left += every
    assert left > 40


@every
def test_every_step_of_an_erasure_may_be_the_last(tmp_path: Path, every: int) -> None:
    left, killed = 0, True
    while killed:
        path, model = tmp_path / str(left), a_month()
        run(model.shop.store, path, None, Sizes(4))
        gone = [model.decisions[0].id, model.decisions[-1].id]  # one in a part, one in an open file
        for _ in range(2):
            model.play("erase", 0)
            model.decisions.reverse()
        killed = run(model.shop.store, path, left, Sizes(4))
        run(model.shop.store, path, None, Sizes(4))
        model.expect(path)
        assert not set(gone) & set(ids_of(path))
        left += every
    assert left > 20


def test_what_a_crash_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    model = a_month()
    run(model.shop.store, tmp_path, None, Sizes(2))
    [*_, last] = sorted(tmp_path.rglob("part-*.parquet"), key=lambda path: path.name)
    leftover = last.with_name("part-000000999999.parquet")
    leftover.write_bytes(last.read_bytes())
    draft = last.with_name(".part-000001000000.draft")
    draft.write_bytes(b"half a file")
    run(model.shop.store, tmp_path, None, Sizes(2))
    model.expect(tmp_path)
    assert not leftover.exists()
    assert not draft.exists()


def test_an_archive_that_failed_may_go_on_at_once(tmp_path: Path) -> None:
    """As a follower does where its disk was full for a moment."""
    model = a_month()

    async def scenario() -> None:
        path = tmp_path / "archive"
        path.mkdir()
        folder = Folder(path, SHOP)
        archive = Archive(model.shop.store, SHOP, folder, Index(folder.index_path), Sizes(100))
        await archive.advance()
        archive.abandon()
        assert ids_of(path) == []
        await archive.advance()
        archive.flush()
        assert len(ids_of(path)) == 6
        archive.close()

    run_virtual(scenario())
