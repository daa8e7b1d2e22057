"""At a rate: visits begin on time, misses are learned late, by default, or never, and all of them
before a run ends."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from simulator_client import paced
from simulator_client.client import Client
from simulator_client.course import load
from simulator_client.errors import Unsettled, UsageError
from simulator_client.journal import Run, records
from simulator_client.replay import play as played
from simulator_client.report import write_report
from simulator_client.reporting import check
from simulator_client.summary import rows, summary

from .fake import FakeService, busy, lost, no_nap, refused, transport
from .fake import run_of as any_run

WAIT_S = 0.05
VISITS = 60
run_of = partial(
    any_run, visits=VISITS, wait_for_training=False, reporting="clicks-only", wait_seconds=WAIT_S,
    rate=3000.0,
)  # fmt: skip
at_once = partial(run_of, reporting="all", wait_seconds=None)


def play(answers: httpx.MockTransport, run: Run, folder: Path, patience_s: float = 60.0) -> None:
    async def go() -> None:
        client = Client(["http://a"], transport=answers, sleep=no_nap, rng=np.random.default_rng(0))
        await played(client, run, folder, expiry_patience_s=patience_s)

    asyncio.run(go())


def clicks(folder: Path) -> int:
    return sum(record.clicks > 0 for record in records(folder, "linucb"))


def test_late_misses_are_told_after_the_wait_and_clicks_at_once(tmp_path: Path) -> None:
    service = FakeService()
    play(transport(service), run_of(reporting="misses-late", wait_seconds=0.5), tmp_path)
    assert service.experiments["e"]["reward"]["default"] is None, "it is not in the way"
    late = [after_s for _, reward, after_s in service.told if not reward]
    assert len(late) == VISITS - clicks(tmp_path) > 0
    assert min(late) >= 0.5
    rewards = [reward for _, reward, _ in service.told]
    assert rewards == sorted(rewards, reverse=True), "all clicks, then all misses"
    assert len(service.values("linucb")) == VISITS


def slow(seen: list[int], *, first: int = 0, seconds: float = 0.0) -> httpx.MockTransport:
    """Answer decisions after some seconds, and none before so many wait at the same time; note in
    `seen` how many do."""
    service, enough, waiting = FakeService(), asyncio.Event(), 0

    async def respond(request: httpx.Request) -> httpx.Response:
        nonlocal waiting
        if request.url.path == "/select":
            waiting += 1
            seen.append(waiting)
            if waiting >= first:
                enough.set()
            await asyncio.wait_for(enough.wait(), 60.0)
            await asyncio.sleep(seconds)
            waiting -= 1
        return service.handle(request)

    return httpx.MockTransport(respond)


def test_visits_begin_on_time_though_answers_are_slow(tmp_path: Path) -> None:
    """40 visits at 400 a second, none answered before the tenth has begun."""
    play(slow([], first=10), at_once(visits=40, rate=400.0), tmp_path)
    begun = [record.begun_s for record in records(tmp_path, "linucb")]
    assert len(begun) == 40
    assert all(at is not None and at >= k / 400.0 - 1e-3 for k, at in enumerate(begun))
    assert summary(load(tmp_path))["policies"]["linucb"]["rate_reached"] > 0


def test_a_rate_that_is_not_reached_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time, 20 ms each: about 100 a second, whatever is asked for."""
    monkeypatch.setattr(paced, "MOST_IN_FLIGHT", 2)
    seen: list[int] = []
    play(slow(seen, seconds=0.02), at_once(visits=30), tmp_path)
    assert max(seen) == 2
    told = summary(load(tmp_path))
    assert told["rate_asked"] == 3000.0
    assert told["policies"]["linucb"]["rate_reached"] < 110.0
    cells = rows(told)
    assert float(dict(zip(cells[0], cells[1], strict=True))["visits/s"]) < 110.0
    page = write_report([tmp_path], tmp_path).read_text()
    assert "Each policy had 3,000 visits a second" in page
    assert "Every visit reported at once, 3000 visits/s" in page


def test_default_rewards_that_do_not_come_end_the_run_with_a_word(tmp_path: Path) -> None:
    service = FakeService(expired_a_look=0)
    with pytest.raises(Unsettled, match=r"linucb: \d+ of 60 rewards are learned 0 s after the"):
        play(transport(service), run_of(), tmp_path, patience_s=0.0)
    assert load(tmp_path).courses["linucb"].clicks.size == VISITS, "its visits can be looked at"


def test_a_decision_whose_answer_was_lost_is_waited_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expires first; counted for a visit's reward, it would end the run one too early."""
    monkeypatch.setattr(paced, "POLL_S", 0.0)
    service = FakeService(expired_a_look=1)
    play(transport(service, [lost, None, busy, refused, lost]), run_of(), tmp_path)
    assert len(service.decisions) > VISITS
    assert len(service.rewards) == len(service.decisions)


@pytest.mark.parametrize(
    ("reporting", "said"),
    [("clicks-only", r"has reward.wait_seconds 600.0, and --clicks-only needs 0.05"),
     ("misses-late", r"has reward.default 0.0, and --misses-late needs None")],
)  # fmt: skip
def test_an_experiment_with_other_reward_rules_is_refused(
    tmp_path: Path, reporting: str, said: str
) -> None:
    service = FakeService()
    there = {"policies": {"linucb": {}}, "reward": {"default": 0.0, "wait_seconds": 600.0}}
    service.experiments["e"] = there
    with pytest.raises(UsageError, match=said):
        play(transport(service), run_of(reporting=reporting), tmp_path)


def test_worlds_whose_misses_have_no_reward_of_their_own_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{k % 5},{('edible', 'poisonous')[k % 2]}\n" for k in range(20))
    for name in ("mushroom.csv", "rows.csv"):
        (tmp_path / name).write_text("x,label\n" + rows)
    (tmp_path / "log.csv").write_text(
        "item_id,click,propensity_score,user_feature_0\n1,1,0.5,a\n0,1,0.5,b\n"
    )

    def of(world: str, data: str) -> Run:
        return run_of(world=world, data=str(tmp_path / data))

    with pytest.raises(UsageError, match="--clicks-only is not for this world: rewards differ"):
        check(of("classification", "mushroom.csv"))
    with pytest.raises(UsageError, match="the log does not match is no miss"):
        check(of("logged", "log.csv"))
    check(of("classification", "rows.csv"))  # a wrong class is a miss, and worth 0
    check(replace(of("classification", "mushroom.csv"), reporting="all"))
