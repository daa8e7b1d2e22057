"""Kill -9 under load, with rules that count over windows: their counts are those of the rows."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest

from service.log.stores import open_store
from service.state.decisions import Decision, decode_decision
from service.state.events import Exposed, decode_event
from tests.recovery.serving import Callers, eventually, folded
from tests.support.service_process import service

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

WINDOW = 250
ARMS = ["best", "good", "poor"]
DEFINITION = {
    "features": {"arm": {"name": {"type": "categorical", "values": ARMS}}},
    "arms": {arm: {"name": arm} for arm in ARMS},
    "policies": {"main": {"kind": "linucb"}},
    "rules": {
        "most": {"cap": {"arm": "best", "share": 0.3, "every": WINDOW}},
        "few": {"cap": {"arm": "poor", "count": 60, "every": "1h"}},
    },
}
CALLERS = 8


class Load(Callers):
    """Callers that select and report, whatever happens to the service."""

    def __init__(self, url: str) -> None:
        super().__init__(url, CALLERS, self._visit_once)
        self.answered = 0

    def _visit_once(self, client: httpx.Client, rng: Random) -> None:
        with suppress(httpx.HTTPError):
            answer = client.post("/select", json={"experiment": "shop"}).json()
            if "decision_id" not in answer:
                return
            self.answered += 1
            reward = float(answer["arm"] == "best" and rng.random() < 0.8)
            client.post("/reward", json={"decision_id": answer["decision_id"], "reward": reward})


def logged(url: str) -> tuple[list[Decision], list[tuple[str, float, dict[str, list[str]]]]]:
    """The rows in their order, and what the events count of them."""

    async def read() -> tuple[list[Decision], list[tuple[str, float, dict[str, list[str]]]]]:
        store = open_store(url, readonly=True)
        await store.open()
        try:
            rows = await store.decisions("shop", 0, 1_000_000)
            events = [decode_event(each.payload) for each in await store.read("shop", 0, 1_000_000)]
        finally:
            await store.close()
        counted = [
            each for event in events if isinstance(event, Exposed) for each in event.decisions
        ]
        return [decode_decision(row.payload) for row in rows], counted

    return asyncio.run(read())


def windows(shown: Sequence[str]) -> list[Counter[str]]:
    return [Counter(shown[start : start + WINDOW]) for start in range(0, len(shown), WINDOW)]


@pytest.mark.parametrize(
    "kills", [pytest.param(3, id="short"), pytest.param(20, id="long", marks=pytest.mark.slow)]
)
def test_killed_under_load_counts_are_those_of_the_rows(kills: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/forage.db"
    with service(tmp_path, url, FORAGE_SNAPSHOT_EVERY_EVENTS="100") as serving:
        httpx.put(f"{serving.url}/experiments/shop", json=DEFINITION).raise_for_status()
        with Load(serving.url) as load:
            for _ in range(kills):
                wanted = load.answered + 150
                eventually(lambda wanted=wanted: load.answered >= wanted)  # type: ignore[misc]
                serving.kill()
                serving.start()
        assert serving.stop() == 0
        rows, counted = logged(url)
        assert len(rows) == len(counted) >= load.answered
        assert [row.id for row in rows] == [decision for decision, _, _ in counted]
        shown = Counter(row.shown[0].arm for row in rows)
        assert shown["best"] == sum(len(each["most"]) for _, _, each in counted)
        exposure = folded(url, "shop").exposure
        assert exposure.windows["most"].decisions == (len(rows) - 1) % WINDOW + 1
        assert exposure.windows["most"].shown.get("best", 0) == sum(
            len(each["most"]) for _, _, each in counted[-exposure.windows["most"].decisions :]
        )
        hours = Counter(int(row.at // 3_600) for row in rows if row.shown[0].arm == "poor")
        assert max(hours.values()) <= 60
        assert max(window["best"] for window in windows([row.shown[0].arm for row in rows])) <= 75
