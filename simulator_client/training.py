"""Waiting for a version that is due.

Training falls due at counts of rewards, so a run that waits for each version meets the same
versions at the same visits however fast the client is. A run that does not wait is the figure of a
live service: there, a fast client is further on when a version arrives.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from simulator_client.client import Client

POLL_S: Final = 0.25
# After a wait ran out, and while a version is at its gate: look again, without waiting, every so
# many rewards.
LOOK_AGAIN_REWARDS: Final = 100


class TrainingGate:
    """Holds one policy's visits back while its next version is due."""

    def __init__(
        self,
        client: Client,
        experiment: str,
        policy: str,
        *,
        patience_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client, self._experiment, self._policy = client, experiment, policy
        self._patience_s, self._sleep = patience_s, sleep
        self._rewards = 0
        self._due_at: int | None = 0
        self._gave_up = False
        self.timeouts = 0

    async def start(self) -> None:
        status = await self._client.policy(self._experiment, self._policy)
        self._rewards, self._due_at = status["rewards"], status["training_due_at"]

    def rewarded(self, settled: int) -> None:
        """Count what the service acknowledged: every arm that was settled is a reward."""
        self._rewards += settled

    def learn(self, status: dict[str, Any]) -> None:
        """Take in a later status: where the world changed, a version may be due earlier."""
        due_at = status["training_due_at"]
        if due_at is not None and self._due_at is not None and not self._gave_up:
            self._due_at = min(self._due_at, due_at)

    @property
    def due(self) -> bool:
        return self._due_at is not None and self._rewards >= self._due_at

    async def wait(self) -> None:
        """Return once the version that is due is staged everywhere, or patience ran out."""
        deadline = time.monotonic() + self._patience_s
        while not await self._arrived():
            if self._gave_up or time.monotonic() >= deadline:
                self._go_on()
                return
            await self._sleep(POLL_S)
        self._gave_up = False

    async def _arrived(self) -> bool:
        """Ask every replica.

        One that has not folded the last rewards yet still shows the old `training_due_at` and
        says that nothing is due: only a `training_due_at` above our own count is an answer. So is a
        version at its gate: it needs further rewards, and until it has them none falls due.
        """
        waits = False
        for replica in range(len(self._client.urls)):
            status = await self._client.policy(self._experiment, self._policy, at=replica)
            due_at, waits = status["training_due_at"], status["staged"] is not None
            late = due_at is not None and due_at <= self._rewards
            if status["training_due"] or (late and not waits):
                return False
        self._due_at = self._rewards + LOOK_AGAIN_REWARDS if waits and late else due_at
        return True

    def _go_on(self) -> None:
        if not self._gave_up:
            self.timeouts += 1
            print(
                f"{self._policy}: the version due at {self._due_at} rewards did not come within "
                f"{self._patience_s:.0f} s; going on without (is the trainer running?)",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        self._gave_up = True
        self._due_at = self._rewards + LOOK_AGAIN_REWARDS
