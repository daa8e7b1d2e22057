"""The health of a policy's head over a run: what its rewards have taught it.

    DIR/health-<policy>.jsonl   one line per look, appended

The effective rank says how many directions rewards came from. The smallest eigenvalue of A is of
all directions: while it stays at its first value, the head has learned nothing of one of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulator_client.client import Client
from simulator_client.journal import Lines, file_of, whole_lines

LOOKS: Final = 100  # over a run
# A change of the world makes a training due a few hundred rewards later (256 by the service's
# defaults): a look tells waiting visits in time.
LOOK_AT_LEAST_VISITS: Final = 200


class Health(NamedTuple):
    """A look at a head after `visit` visits."""

    visit: int
    version: int
    smallest_eigenvalue: float
    effective_rank: float
    effective_count: float


class HealthLog:
    """Looks at one policy's head every `every_visits` visits."""

    def __init__(
        self, client: Client, experiment: str, policy: str, folder: Path, every_visits: int
    ) -> None:
        self._client, self._experiment, self._policy = client, experiment, policy
        self._every_visits = every_visits
        self._lines = Lines(file_of(folder, "health", policy))

    async def look(self, visits: int) -> dict[str, Any] | None:
        """Return the policy's status if it is time for a look, and keep the state of its head."""
        if visits % self._every_visits:
            return None
        status = await self._client.policy(self._experiment, self._policy)
        if head := status.get("head"):
            health = Health(
                visits,
                status["version"],
                head["smallest_eigenvalue"],
                head["effective_rank"],
                head["effective_count"],
            )
            self._lines.add(health._asdict())
        return status

    def close(self) -> None:
        self._lines.close()


def looks(folder: Path, policy: str) -> Iterator[Health]:
    yield from whole_lines(file_of(folder, "health", policy), lambda fields: Health(**fields))
