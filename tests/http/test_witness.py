"""A store that comes back with less than it had while no process was running."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.errors import StoreError
from service.log.live import End
from service.log.losses import Losses
from service.log.witness import LINE, OFF, Witness, witness_of
from service.maintenance.audit import audit_store
from tests.http.test_log_that_lost_events import LOSSES
from tests.support.service import Wire, serving


@contextmanager
def shop(folder: Path, witness: Path | None = None) -> Iterator[Wire]:
    with serving(
        None, store=f"sqlite:///{folder}/shop.db", witness=witness or folder / "witness"
    ) as wire:
        yield wire


def losses(wire: Wire) -> float:
    return wire.metrics()[LOSSES]


def until_said(wire: Wire, epoch: int = 1) -> None:
    wire.until(lambda: wire.services.journal.follower.live["shop"].state.epoch == epoch)


@contextmanager
def back_in_time(folder: Path) -> Iterator[None]:
    """After the block the files of the store are what they were before it."""
    shutil.copy(folder / "shop.db", folder / "before")
    yield
    (folder / "before").replace(folder / "shop.db")


def lose(folder: Path, rewards: int, witness: Path | None = None) -> None:
    """Serve so many rewards that the store then does not have."""
    with back_in_time(folder), shop(folder, witness) as wire:
        wire.teach(rewards)


def test_a_store_that_ends_before_what_its_host_has_seen_is_said_to_have_lost_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is served, and the log tells of the loss, once; the audit knows what it means."""
    with shop(tmp_path) as wire:
        wire.teach(3)
    lose(tmp_path, 4)
    with pytest.MonkeyPatch.context() as patch:  # a process dies before the log tells of it
        patch.setattr(Losses, "lost", lambda *_: None)
        with shop(tmp_path) as wire:
            assert losses(wire) == 1
    with shop(tmp_path) as wire, caplog.at_level(logging.ERROR):
        assert "the log has lost events after position 4, up to 8" in caplog.text
        until_said(wire)
        assert losses(wire) == 1
        assert wire.rewards() == 3
        wire.teach(2)
    with shop(tmp_path) as wire:
        assert losses(wire) == 0
        assert wire.rewards() == 5
        [report] = wire.run(audit_store(wire.services.settings.store))
        assert (report.clean, report.losses, report.orphaned) == (True, 1, 0)


def test_a_store_with_fewer_decisions_than_its_host_has_seen_has_lost_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with shop(tmp_path) as wire:
        wire.teach()
    with back_in_time(tmp_path), shop(tmp_path) as wire:
        for _ in range(3):
            wire.select(policy="linucb")
    with shop(tmp_path) as wire:
        assert "up to 2 or beyond, and 3 decision rows or more" in caplog.text
        until_said(wire)
    with shop(tmp_path) as wire:
        assert losses(wire) == 0


def test_a_log_with_other_events_than_its_host_has_seen_has_lost_those(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another host has served it meanwhile: it is as long as before."""
    with shop(tmp_path) as wire:
        wire.teach(3)
    lose(tmp_path, 2)
    with shop(tmp_path, tmp_path / "elsewhere") as wire:
        wire.teach(4)
    with shop(tmp_path) as wire:
        assert "the log has lost events" in caplog.text
        until_said(wire)


def test_an_empty_store_is_refused_where_its_host_has_seen_events(tmp_path: Path) -> None:
    with shop(tmp_path) as wire:
        wire.teach(2)
    for file in tmp_path.glob("shop.db*"):
        file.unlink()
    seen_before = pytest.raises(StoreError, match="has seen it hold shop: restore a backup")
    with seen_before, shop(tmp_path):
        pass
    [witness] = (tmp_path / "witness").iterdir()
    for file in (witness, *tmp_path.glob("shop.db*")):
        file.unlink()
    with shop(tmp_path) as wire:
        assert wire.rewards() == 0


@pytest.mark.parametrize("epochs", [0, 1])
def test_the_token_of_a_decision_beyond_the_end_of_the_log_proves_a_loss(
    tmp_path: Path, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after an earlier loss. Its reward is learned; nothing is said twice."""
    for _ in range(epochs):
        with shop(tmp_path) as wire:
            wire.teach()
        lose(tmp_path, 1)
        with shop(tmp_path) as wire:
            until_said(wire)
    with shop(tmp_path, OFF) as wire:
        wire.teach()
    with back_in_time(tmp_path), shop(tmp_path, OFF) as wire:
        wire.teach(3)
        open_decisions = [wire.select(policy="linucb") for _ in range(3)]
    with shop(tmp_path, OFF) as wire:
        before = wire.rewards()
        assert losses(wire) == 0
        for number, decision in enumerate(open_decisions, 1):
            wire.reward(decision, 1.0)
            assert losses(wire) == 1
            assert wire.rewards() == before + number
        assert caplog.text.count("the log has lost events") == epochs + 1
        until_said(wire, epochs + 1)
        wire.teach()


# -- the file --------------------------------------------------------------------------------------


def seen(path: Path) -> dict[str, End]:
    witness = Witness(path)
    try:
        return witness.open()
    finally:
        witness.close()


def test_two_processes_of_a_host_share_the_file_and_a_torn_line_is_passed_over(
    tmp_path: Path,
) -> None:
    with shop(tmp_path) as wire:
        wire.teach()
        [path] = (tmp_path / "witness").iterdir()
        assert seen(path)["shop"].position == 2
        other = Witness(path)
        other.open()
        other._add("books")
        other.close()
        wire.teach()
        assert seen(path)["shop"].position == 3
        assert seen(path)["books"].position == 0
    with path.open("r+b") as file:
        file.seek(LINE - 100)
        file.write(b"x" * 50)
        file.seek(5)
        file.write(b"9")
    assert set(seen(path)) == {"books"}


def test_a_witness_that_cannot_be_written_keeps_nobody_from_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "witness").touch()  # a file, where the folder is to be
    with shop(tmp_path) as wire:
        wire.teach()
        assert "there is no witness of the log outside of the store" in caplog.text


def test_where_the_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a database; for a store elsewhere by its address, whatever the password."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert witness_of("memory://", None) is None
    assert witness_of("sqlite:///a.db", OFF) is None
    assert witness_of("sqlite:////data/a.db", None) == Path("/data/a.db.witness")
    place = witness_of("redis://me:secret@redis:6379/0", None)
    assert place is not None
    assert place == witness_of("redis://redis:6379/0?socket_timeout=1", None)
    assert place != witness_of("redis://redis:6379/1", None)
    assert place.parent == tmp_path / "forage"
    assert witness_of("redis://redis:6379/0", tmp_path) == tmp_path / place.name
