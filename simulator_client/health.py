"""The health of a policy's head over a run: how sure it is of its least known direction.

    DIR/health-<policy>.jsonl   one line per look, appended

The smallest eigenvalue of A has to grow. One that stays where it began says that a direction of
what the head sees is never learned, whatever is shown.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulator_client.client import Client
from simulator_client.journal import cut_torn_line, file_of, whole_lines

LOOKS: Final = 100  # over a run
# A change of the world makes a training due a few hundred rewards later (256 by the service's
# defaults): a look tells those who wait for versions in time.
LOOK_AT_LEAST_VISITS: Final = 200


class Health(NamedTuple):
    """A look at a head after `visit` visits."""

    visit: int
    version: int
    smallest_eigenvalue: float
    effective_count: float


class HealthLog:
    """The looks at one policy's head, open for writing by the only process that runs it."""

    def __init__(
        self, client: Client, experiment: str, policy: str, folder: Path, every_visits: int
    ) -> None:
        self._client, self._experiment, self._policy = client, experiment, policy
        self._every_visits = every_visits
        self._last = max((health.visit for health in looks(folder, policy)), default=0)
        path = _path(folder, policy)
        self._file = path.open("ab")
        cut_torn_line(self._file, path)

    async def look(self, visits: int) -> dict[str, Any] | None:
        """If it is time for a look, the policy's status; what it says of the head, if it has one,
        is kept."""
        if visits % self._every_visits or visits <= self._last:
            return None
        status = await self._client.policy(self._experiment, self._policy)
        self._last = visits
        if head := status.get("head"):
            health = Health(
                visits, status["version"], head["smallest_eigenvalue"], head["effective_count"]
            )
            self._file.write(json.dumps(health._asdict()).encode() + b"\n")
            self._file.flush()
        return status

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def looks(folder: Path, policy: str) -> Iterator[Health]:
    """The looks so far, in order; a torn last line is left out."""

    def health(fields: dict[str, Any]) -> Health:
        return Health(**fields)

    yield from whole_lines(_path(folder, policy), health)


def _path(folder: Path, policy: str) -> Path:
    return file_of(folder, "health", policy, "jsonl")
