"""What the machine gives: its name, what was stolen of a core, what the disk takes."""

import os
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.machine import disk, stolen_s, told_ms


def test_what_it_was_measured_on_has_a_name() -> None:
    told = machine.machine()
    assert told["processor"]
    assert told["numpy"]


def test_stolen_time_is_that_of_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(
        "cpu  1 2 3 4 5 6 7 800 0 0\n"
        f"cpu0 1 2 3 4 5 6 7 {3 * ticks} 0 0\n"
        f"cpu1 1 2 3 4 5 6 7 {5 * ticks} 0 0\n"
        "intr 1\n"
    )
    monkeypatch.setattr(machine, "STAT", tmp_path / "stat")
    assert [stolen_s(core) for core in (0, 1, 2)] == [3.0, 5.0, 0.0]
    monkeypatch.setattr(machine, "STAT", tmp_path / "nowhere")
    assert stolen_s(0) == 0.0


def test_the_disk_is_asked_for_so_long_and_nothing_is_left(tmp_path: Path) -> None:
    found = disk(tmp_path, 0.05)
    told = told_ms(found)
    assert 1 <= len(found) <= 0.05 / machine.EVERY_S + 1
    assert 0 < told["p50"] <= told["p99"] <= told["p99_9"] <= told["max"]
    assert not list(tmp_path.iterdir())
