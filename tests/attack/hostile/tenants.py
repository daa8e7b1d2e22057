"""The two tenants of the service that is attacked: experiments, keys, and the service itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.attack.hostile.shots import ORIGIN, PAGE, TENANT, Arsenal
from tests.cli.forage import Serving, serving
from tests.support.keys import Keys

VICTIM: Final = "victim"
HERE: Final = Path(__file__).parent
ATTACKED: Final = ("attacker", "attacker-sum", "attacker-nets")
"""Experiments of the attacking tenant, beside those that it defines itself."""
NEW: Final = tuple(f"attacker-new-{number}" for number in range(4))
PAGE_RATE: Final = 200
TENANT_RATE: Final = 100
"""Requests a second, of the attacker's keys."""
RATES: Final = {PAGE: PAGE_RATE, TENANT: TENANT_RATE}
FILES: Final = 1_024
"""Open files of the service: what many systems give a process."""
EVALUATION_S: Final = "20"
LEAKED: Final = 20


@dataclass(frozen=True)
class Ground:
    """A running service with both tenants."""

    folder: Path
    running: Serving
    keys: Keys

    @property
    def store(self) -> str:
        return store_in(self.folder)

    def arsenal(self) -> Arsenal:
        """What the attackers have: their keys, and decisions of the victim that leaked."""
        made = [self.ask_as_victim("/select", QUESTION) for _ in range(LEAKED)]
        return Arsenal(
            host=self.running.url.removeprefix("http://"),
            keys={name: self.keys.text(name) for name in (PAGE, TENANT)},
            tokens=[each["decision_id"] for each in made],
            ids=[each["id"] for each in made],
        )

    def ask_as_victim(self, path: str, body: Any) -> Any:
        sent = self.running.client.post(path, json=body, headers=self.keys.headers(VICTIM))
        return sent.raise_for_status().json()


QUESTION: Final = {"experiment": VICTIM, "context": {"persona": "cat", "age": 3.0}}


@contextmanager
def tenants(folder: Path) -> Iterator[Ground]:
    keys = made_keys(folder)
    with started(folder, "first") as running:
        yield Ground(folder, running, keys)


def started(folder: Path, name: str) -> AbstractContextManager[Serving]:
    """Start the service with both tenants on the store of the folder; its log is in `name`."""
    (folder / name).mkdir()
    experiments = sorted((HERE / "experiments").glob("*.toml"))
    options = [word for path in experiments for word in ("--experiment", str(path))]
    return serving(
        folder / name,
        *("--store", store_in(folder), "--log-format", "json", *options),
        files=FILES,
        FORAGE_KEYS=str(folder / "keys.json"),
        FORAGE_ALLOWED_HOSTS="forage.example",
        FORAGE_EVALUATION_SECONDS=EVALUATION_S,
    )


def made_keys(folder: Path) -> Keys:
    """Of both tenants. The victim's has no rate: it is a backend's."""
    keys, own = Keys(folder / "keys.json"), [*ATTACKED, *NEW]
    everything = ("select", "reward", "admin")
    keys.add(VICTIM, *everything, experiments=[VICTIM])
    keys.add("metrics", "metrics")
    keys.add(TENANT, *everything, experiments=own, rate=f"{TENANT_RATE}/second")
    keys.add(
        PAGE, "select", "reward", experiments=own, origins=[ORIGIN], rate=f"{PAGE_RATE}/second"
    )
    return keys


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder}/forage.db"
