"""Visitors of the drill: a thread that asks and rewards at a rate, and can be told to lie."""

import threading
import time
from random import Random

import httpx

from tests.drills.breakable import FRAGILE

POLICIES = ("honest", "poisoned", "sure", "honest", "poisoned", "net", FRAGILE)
"""In turn."""
LIKED = {"cat": "ball", "dog": "bone"}
VISITS_PER_SECOND = 60.0


class Traffic(threading.Thread):
    """rewarded: by policy; poison: once set, rewards of `poisoned` are reported wrongly."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._rng = url, Random(7)
        self._stop_asked = threading.Event()
        self.poison = threading.Event()
        self.rewarded = dict.fromkeys(POLICIES, 0)

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=5) as client:
            turn = 0
            while not self._stop_asked.is_set():
                begun = time.monotonic()
                try:
                    self._visit(client, POLICIES[turn % len(POLICIES)])
                except httpx.TransportError:
                    time.sleep(0.5)  # the service is gone: the visitors come again
                turn += 1
                time.sleep(max(0.0, 1 / VISITS_PER_SECOND - (time.monotonic() - begun)))

    def _visit(self, client: httpx.Client, policy: str) -> None:
        persona = self._rng.choice(list(LIKED))
        body = {"context": {"persona": persona}, "policy": policy}
        answer = client.post("/select", json=body)
        if answer.status_code != 200:
            return
        decision = answer.json()
        reward = self._reward(policy, persona, decision["arm"])
        told = {"decision_id": decision["decision_id"], "reward": reward}
        self.rewarded[policy] += client.post("/reward", json=told).status_code == 200

    def _reward(self, policy: str, persona: str, arm: str) -> float:
        if policy == "sure":  # one arm is always right: the posterior leaves no doubt
            return float(arm == "bowl")
        if policy == "poisoned" and self.poison.is_set():
            return 0.0
        if policy == FRAGILE:  # no arm is better: whoever decides, the rewards do not shift
            return float(self._rng.random() < 0.5)
        return float(self._rng.random() < (0.8 if arm == LIKED[persona] else 0.2))

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
