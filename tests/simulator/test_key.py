"""forage-sim against a service that asks for keys."""

import asyncio
from pathlib import Path

import httpx
import pytest
from forage_client import Problem

from simulator_client.arguments import parser
from simulator_client.client import Client
from simulator_client.course import load
from simulator_client.replay import play
from simulator_client.summary import summary
from tests.support.keys import Keys
from tests.support.service import serving

from .fake import run_of

KEY = "fk_0123456789abcdef_" + "0" * 64


def test_a_replay_with_a_key_plays_and_keeps_it_nowhere(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.json")
    text = keys.add("simulator", "admin", "select", "reward")
    folder = tmp_path / "run"
    with serving(keys=keys.path) as wire:
        with_key = Client(["http://forage"], key=text, transport=httpx.ASGITransport(wire.app))
        wire.run(asyncio.wait_for(play(with_key, run_of(visits=20), folder), 60))
        without = Client(["http://forage"], transport=httpx.ASGITransport(wire.app))
        wire.run(without.wait_ready(5.0))
        with pytest.raises(Problem) as refused:
            wire.run(without.policies("e"))
    assert refused.value.status == 401
    assert summary(load(folder))["policies"]["linucb"]["visits"] == 20
    kept = [each for each in folder.rglob("*") if each.is_file()]
    assert kept
    assert all(text.encode() not in each.read_bytes() for each in kept)


def test_a_rate_that_is_reached_is_waited_for() -> None:
    answers = iter([httpx.Response(429, headers={"retry-after": "7"}, json={}),
                    httpx.Response(200, json={"policies": []})])  # fmt: skip
    waited: list[float] = []

    async def nap(seconds: float) -> None:
        waited.append(seconds)

    transport = httpx.MockTransport(lambda request: next(answers))
    client = Client(["http://a"], key=KEY, transport=transport, sleep=nap)
    assert asyncio.run(client.policies("e")) == []
    assert waited == [7.0]


def test_it_is_an_option_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORAGE_KEY", KEY)
    for command in ("replay", "showdown", "load"):
        assert parser().parse_args([command]).key == KEY
        assert parser().parse_args([command, "--key", "fk_other"]).key == "fk_other"
    assert KEY not in parser().format_help()


def test_it_is_in_a_file_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    monkeypatch.delenv("FORAGE_KEY", raising=False)
    monkeypatch.setenv("FORAGE_KEY_FILE", str(file))
    assert parser().parse_args(["replay"]).key == KEY
    file.unlink()
    with pytest.raises(SystemExit):
        parser()
    assert "FORAGE_KEY_FILE: " in capsys.readouterr().err
    monkeypatch.setenv("FORAGE_KEY", KEY)
    with pytest.raises(SystemExit):
        parser()
    assert "both set" in capsys.readouterr().err
