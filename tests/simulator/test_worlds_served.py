"""Every world played against the service itself: its definitions, slates and rewards are taken."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator_client.client import Client
from simulator_client.course import load
from simulator_client.journal import records
from simulator_client.replay import play
from simulator_client.reporting import owed
from simulator_client.summary import summary
from simulator_client.worlds import ranking
from tests.support.service import serving

from .fake import run_of

VISITS = 6
EXAMPLES = Path(__file__).parents[2] / "service/definition/examples"
ROWS = "".join(f"{k % 7},{'abc'[k % 3]},c{k % 4}\n" for k in range(40))
MUSHROOMS = "".join(f"{k % 5},{('edible', 'poisonous')[k % 2]}\n" for k in range(20))
LOG = "".join(f"{k % 3},1,{k % 2},0.3333,{'ab'[k % 2]}\n" for k in range(40))
DATA = {
    "rows.csv": "x,y,label\n" + ROWS,
    "mushroom.csv": "x,label\n" + MUSHROOMS,
    "log.csv": "item_id,position,click,propensity_score,user_feature_0\n" + LOG,
    "shop.toml": (EXAMPLES / "experiment.toml").read_text(),
}


@pytest.mark.parametrize(
    ("world", "data", "policies"),
    [
        ("zooplus", None, ("linucb", "linucb_disjoint", "lints", "popularity", "random")),
        ("ranking", None, ("linucb", "random")),
        ("classification", "rows.csv", ("linucb", "lints", "popularity", "random")),
        ("classification", "mushroom.csv", ("linucb", "lints", "random")),
        ("logged", "log.csv", ("linucb", "lints", "popularity", "random")),
        ("synthetic", "shop.toml", ("linucb", "main", "random")),
    ],
)
def test_the_service_takes_every_world(
    tmp_path: Path, world: str, data: str | None, policies: tuple[str, ...]
) -> None:
    if data:
        (tmp_path / data).write_text(DATA[data])
    file = str(tmp_path / data) if data else None
    run = run_of(world=world, visits=VISITS, policies=policies, data=file)
    folder = tmp_path / "run"
    statuses: dict[str, Any] = {}
    with serving() as wire:
        client = Client(["http://forage"], transport=httpx.ASGITransport(wire.app))

        async def played() -> None:
            await play(client, run, folder)
            statuses.update({s["name"]: s for s in await client.policies("e")})
            await client.delete_experiment("e")
            assert await client.get_experiment("e") is None

        wire.run(asyncio.wait_for(played(), 60))
    told = summary(load(folder))["policies"]
    assert set(told) == set(policies)
    for policy, figures in told.items():
        assert figures["visits"] == VISITS
        assert figures["matched_visits"] == VISITS or world == "logged"
        settled = sum(record.settled for record in records(folder, policy))
        assert statuses[policy]["rewards"] == settled, "as those count who wait for versions"
        assert statuses[policy]["decisions"] == VISITS
    assert load(folder).courses["linucb"].health


@pytest.mark.parametrize(
    ("world", "reporting"),
    [("zooplus", "clicks-only"), ("zooplus", "misses-never"), ("ranking", "clicks-only")],
)
def test_misses_are_learned_by_default_or_never(
    tmp_path: Path, world: str, reporting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.1 s of visits, a window of 0.3 s: the service expires what was not clicked, then only is
    the run over. Expected of each policy: the rewards that were owed, the clicks their sum."""
    monkeypatch.setattr(ranking, "ITEMS", 1_000)  # the whole catalogue is served above
    run = run_of(
        world=world, visits=20, policies=("linucb", "lints"), wait_for_training=False,
        reporting=reporting, wait_seconds=0.3, rate=200.0,
    )  # fmt: skip
    statuses: list[dict[str, Any]] = []
    with serving(expiry_seconds=0.05) as wire:
        client = Client(["http://forage"], transport=httpx.ASGITransport(wire.app))

        async def played() -> None:
            await play(client, run, tmp_path)
            statuses.extend(await client.policies("e"))

        wire.run(asyncio.wait_for(played(), 60))
    for status in statuses:
        visits = list(records(tmp_path, status["name"]))
        clicks = sum(visit.clicks for visit in visits)
        assert [visit.visit for visit in visits] == list(range(20))
        assert status["rewards"] == owed(run, visits)
        assert (status["mean_reward"] or 0.0) * status["rewards"] == pytest.approx(clicks)
        assert sum(visit.reward_ms is not None for visit in visits) == clicks
