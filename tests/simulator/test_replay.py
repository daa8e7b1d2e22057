"""A replay counts every visit once, whatever happens to the service on the way."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from simulator_client.client import Client
from simulator_client.course import load
from simulator_client.errors import UsageError
from simulator_client.health import Health
from simulator_client.journal import Run, load_run, records, save_run
from simulator_client.replay import prepare, replay
from simulator_client.report import write_report
from simulator_client.summary import rows as rows_of
from simulator_client.summary import summary

from .fake import FakeService, Fault, busy, lost, no_nap, refused, run_of, transport

BOTH = ("linucb", "random")
TIMES = ("select_p50_ms", "select_p99_ms", "reward_p50_ms", "reward_p99_ms")


def play(
    service: FakeService,
    run: Run,
    folder: Path,
    faults: Iterable[Fault | None] = (),
    *,
    patience_s: float = 5.0,
    looks: int = 0,
) -> Run:
    """What the command does, against the fake."""

    async def go() -> Run:
        client = Client(
            ["http://a"], transport=transport(service, faults), sleep=no_nap,
            rng=np.random.default_rng(0),
        )  # fmt: skip
        await prepare(client, run)
        save_run(folder, run)
        return await replay(client, run, folder, patience_s=patience_s, looks=looks, sleep=no_nap)

    return asyncio.run(go())


def figures(folder: Path) -> dict[str, Any]:
    """The summary's figures without the times."""
    policies = summary(load(folder))["policies"]
    return {
        policy: {name: value for name, value in told.items() if name not in TIMES}
        for policy, told in policies.items()
    }


def test_every_policy_meets_the_same_visits_and_every_click_is_counted(tmp_path: Path) -> None:
    service = FakeService()
    play(service, run_of(policies=BOTH), tmp_path)
    best = [[record.best for record in records(tmp_path, policy)] for policy in BOTH]
    assert best[0] == best[1]
    for policy, told in figures(tmp_path).items():
        assert told["visits"] == len(service.values(policy)) == 120
        assert told["ctr"] == sum(service.values(policy)) / 120
        assert told["retries"] == told["lost_selects"] == 0


def test_faults_of_the_service_change_no_figure_but_the_retries(tmp_path: Path) -> None:
    calm, rough = FakeService(), FakeService()
    play(calm, run_of(policies=BOTH), tmp_path / "calm")
    faults = [None, refused, busy, lost, None, None, lost, lost, busy, lost, refused, lost] * 20
    play(rough, run_of(policies=BOTH), tmp_path / "rough", faults)
    one, other = figures(tmp_path / "calm"), figures(tmp_path / "rough")
    assert sum(told.pop("retries") for told in other.values()) == sum(map(bool, faults))
    orphans = sum(told.pop("lost_selects") for told in other.values())
    assert orphans == len(rough.decisions) - len(rough.rewards) > 0
    for told in one.values():
        del told["retries"], told["lost_selects"]
    assert one == other


def test_a_warm_experiment_is_refused(tmp_path: Path) -> None:
    service = FakeService()
    play(service, run_of(), tmp_path / "first")
    with pytest.raises(UsageError, match=r"'e' is warm: 'linucb'"):
        play(service, run_of(), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_an_experiment_that_exists_is_used_as_it_is_defined(tmp_path: Path) -> None:
    service = FakeService()
    play(service, run_of(visits=1), tmp_path / "first")
    mine = json.loads(json.dumps(service.experiments["e"]))
    mine["policies"] = {"mine": {"kind": "linucb"}}
    service.experiments["own"] = mine
    play(service, run_of(experiment="own", policies=("mine",)), tmp_path / "own")
    assert service.experiments["own"] == mine
    with pytest.raises(UsageError, match="'own' has no policy 'lints'; it has: mine"):
        play(service, run_of(experiment="own", policies=("lints",)), tmp_path / "no")


def test_waiting_polls_only_while_a_version_is_due(tmp_path: Path) -> None:
    """Due at 40 and 80 of 120 rewards, there at the second look: one start and four looks."""
    service = FakeService(first_training=40, polls_to_train=2)
    run = play(service, run_of(policies=("linucb", "neural_ucb")), tmp_path)
    polls = {policy: count for (_, policy), count in service.polls.items()}
    assert polls["linucb"] == 1, "never trained, never polled again"
    assert polls["neural_ucb"] == 5
    assert run.training_timeouts == 0
    assert summary(load(tmp_path))["waited_for_training"] is True
    service.polls.clear()
    free = run_of(experiment="f", policies=("neural_ucb",), wait_for_training=False)
    play(service, free, tmp_path / "free")
    assert not service.polls
    assert summary(load(tmp_path / "free"))["waited_for_training"] is False


def test_a_version_at_its_gate_is_not_waited_for(tmp_path: Path) -> None:
    """Due at 40 while one is at its gate until the end: a look there, and one at 140."""
    service = FakeService(first_training=40)
    service.staged = 1
    run = play(service, run_of(policies=("neural_ucb",), visits=150), tmp_path, patience_s=0.0)
    assert service.polls["e", "neural_ucb"] == 3
    assert run.training_timeouts == 0


def test_a_version_that_never_comes_is_given_up_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Due at 40: the wait runs out at once; a look without a wait at 140, none at 40 to 139."""
    service = FakeService(first_training=40, polls_to_train=10**9)
    run = run_of(policies=("neural_ucb",), visits=150)
    play(service, run, tmp_path, patience_s=0.0)
    assert service.polls["e", "neural_ucb"] == 3
    warned = capsys.readouterr().err
    assert warned.count("due at 40 rewards did not come within 0 s") == 1
    assert load_run(tmp_path).training_timeouts == 1
    assert summary(load(tmp_path))["waited_for_training"] is False
    assert load(tmp_path).mode == "waited for training; waits that ran out: 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "holds no run"), ("{", "damaged"), ("[]", "damaged"), ('{"schema": 9}', "schema 9"),
     ('{"schema": 1, "policies": []}', "damaged")],
)  # fmt: skip
def test_a_folder_without_a_run_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        load_run(tmp_path)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    play(FakeService(), run_of(), tmp_path)
    path = tmp_path / "visits-linucb.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert figures(tmp_path)["linucb"]["visits"] == 119


@pytest.mark.parametrize("line", ["nonsense\n", "{}\n", "null\n"])
def test_a_damaged_journal_is_said(tmp_path: Path, line: str) -> None:
    (tmp_path / "visits-linucb.jsonl").write_text(line)
    with pytest.raises(UsageError, match="damaged in line 1"):
        list(records(tmp_path, "linucb"))


def test_heads_are_looked_at_over_the_run(tmp_path: Path) -> None:
    """120 visits, 10 looks: after 12, 24, ... visits. The fake has rank n / 8."""
    play(FakeService(), run_of(policies=BOTH), tmp_path, looks=10)
    found = load(tmp_path).courses["linucb"].health
    assert [look.visit for look in found] == list(range(12, 121, 12))
    assert found[0] == Health(12, 0, 2.5, 1.5, 12.0)
    assert load(tmp_path).courses["random"].health == [], "it has no head"


def test_what_a_log_did_not_match_is_neither_sent_nor_counted(tmp_path: Path) -> None:
    """The fake shows the arm of the first category; the log has it in every other row."""
    data = tmp_path / "log.csv"
    rows = [f"{k % 2},{k % 3 == 0:d},0.5,{k % 2}\n" for k in range(12)]
    data.write_text("item_id,click,propensity_score,user_feature_0\n" + "".join(rows))
    service = FakeService(choice=lambda definition: min(definition["arms"]))
    run = run_of(world="logged", data=str(data), seed=0, visits=12, policies=("lints",))
    play(service, run, tmp_path / "run")
    assert len(service.decisions) == 12
    assert list(service.rewards.values()) == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    told = summary(load(tmp_path / "run"))
    figures = told["policies"]["lints"]
    assert (figures["visits"], figures["matched_visits"], figures["ctr"]) == (12, 6, 2 / 6)
    unknown = ("expected_regret", "relative_regret", "share_of_optimal", "best_arm_share")
    assert all(figures[name] is None for name in unknown)
    assert told["oracle_ctr"] is told["uniform_ctr"] is None
    cells = rows_of(told)
    assert cells[0][:3] == ["policy", "visits", "matched"]
    assert dict(zip(cells[0], cells[1], strict=True))["regret"] == "-"


def test_a_log_of_which_nothing_matched_has_no_figures(tmp_path: Path) -> None:
    data = tmp_path / "log.csv"
    data.write_text("item_id,click,propensity_score,user_feature_0\n1,1,0.5,a\n0,1,0.5,b\n")
    service = FakeService(choice=lambda definition: min(definition["arms"]))
    run = run_of(world="logged", data=str(data), seed=0, visits=1, policies=("lints",))
    play(service, run, tmp_path / "run")
    told = summary(load(tmp_path / "run"))["policies"]["lints"]
    assert told["matched_visits"] == 0
    assert told["ctr"] is told["expected_ctr"] is told["reward_p50_ms"] is None
    assert not service.rewards
    page = write_report([tmp_path / "run"], tmp_path / "run")
    assert "matched" in page.read_text()


def test_a_look_tells_of_a_version_that_is_due_earlier(tmp_path: Path) -> None:
    """Due at 40, 80, 160; after 90 visits a change makes one due at 100, which never comes."""
    service = FakeService(first_training=40, polls_to_train=2)

    def changed(request: httpx.Request, answer: Any) -> httpx.Response:
        service.due_at["e", "neural_ucb"], service.polls_to_train = 100, 10**9
        return answer()

    run = run_of(policies=("neural_ucb",))
    run = play(service, run, tmp_path, [None] * 180 + [changed], patience_s=0.0, looks=12)
    assert run.training_timeouts == 1, "it was waited for, in vain"
