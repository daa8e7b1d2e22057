"""A version that is staged when its log goes away serves once the log is back."""

from service.errors import StoreUnavailable
from service.log.stores.base import Record
from service.log.stores.memory import MemoryStore
from service.log.writer import RETRY_SECONDS
from tests.http.test_versions import NET, activated, artifact, hand_over, teach
from tests.support.service import serving


class Patchy(MemoryStore):
    """failures: so many reads fail that follow the arrival of an artifact."""

    failures = after_an_artifact = 0

    async def put_blob(self, experiment: str, key: str, payload: bytes) -> None:
        await super().put_blob(experiment, key, payload)
        self.failures = self.after_an_artifact

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("connection reset")
        return await super().read(experiment, after, limit)


def test_a_version_that_could_not_catch_up_is_brought_up_again() -> None:
    store = Patchy()
    with serving(store) as wire:
        wire.redefine(policies={"net": NET})
        teach(wire)
        trained = artifact(wire)
        teach(wire, 1)
        store.after_an_artifact = 2
        assert hand_over(wire, trained).status_code == 202
        wire.sleep(3 * RETRY_SECONDS)
        activated(wire)
        assert wire.policy("net")["version"] == 1
