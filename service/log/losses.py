"""Losses: find that a log lost its last events or decision rows, record the loss, and re-append
the recent entries of this process."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from service.errors import StoreUnavailable
from service.log.background import Background
from service.log.buffer import Pending
from service.log.clock import LogClock
from service.log.follower import Follower
from service.log.live import End, Live, Loss
from service.log.replay import PAGE, checksum_at, epoch_mark
from service.log.stores import Store
from service.log.stores.base import Append, Appended, Entry
from service.log.writer import RETRY_SECONDS, Writer
from service.state.checksum import since
from service.state.events import Activated, AnyEvent, EpochOpened, Erased, Learned, encode_event

logger = logging.getLogger(__name__)

RECENT, RECENT_SECONDS = 16_384, 60.0
"""Entries of a shared log that are remembered, and how long: Redis with `everysec` may lose two
seconds. A much older entry may have lost its mark to retention, and would count twice."""


class Losses:
    """Finds losses beside those that a fold meets, and repairs all of them."""

    def __init__(
        self,
        store: Store,
        follower: Follower,
        writer: Writer,
        background: Background,
        clock: LogClock,
    ) -> None:
        self._store, self._follower, self._writer = store, follower, writer
        self._background, self._clock = background, clock
        self._recent: deque[tuple[float, Entry, AnyEvent | None]] = deque(maxlen=RECENT)

    # -- find ----------------------------------------------------------------------------------

    async def compare(self, live: Live, end: End) -> None:
        """Compare the log with the end that it had once."""
        live.rows = max(live.rows, end.rows)
        await self.expect(live, end.epoch, end.position)
        own = live.checksum_at(end.position)
        if not own and end.position <= live.state.position:
            own = await checksum_at(self._store, live.state.name, end.position)
        if own and since(own) == since(end.checksum) and own != end.checksum:
            self._follower.report_loss(live, Loss(end.epoch, 0, end.position))
        await self.expect_rows(live)

    async def expect(self, live: Live, epoch: int, position: int) -> None:
        """Report a loss if the log, which once had this position, ends before it."""
        async with live.lock:
            if (epoch, position) > (live.state.epoch, live.state.position):
                await self._follower.fold_to_end(live)  # another process may be ahead
            state = live.state
            known = -1 if live.unreported_loss is None else live.unreported_loss.epoch
            if epoch > known and (epoch, position) > (state.epoch, state.position):
                self._follower.report_loss(live, Loss(epoch, state.position, position))

    async def expect_rows(self, live: Live) -> None:
        """Report a loss if the log counts fewer decision rows than it was given."""
        given = live.rows
        known = sum((await self._store.describe(live.state.name)).counts.values())
        live.rows = max(live.rows, known) if known >= given else known
        if known < given and live.unreported_loss is None:
            state = live.state
            loss = Loss(state.epoch, state.position, state.position, given - known)
            self._follower.report_loss(live, loss)

    # -- repair --------------------------------------------------------------------------------

    def remember(self, batch: Sequence[Pending]) -> None:
        """Keep the entries of a shared store, which may lose them."""
        if not self._store.shared:
            return
        now = asyncio.get_running_loop().time()
        self._recent.extend((now, pending.entry, pending.event) for pending in batch)

    def folded(self, live: Live, event: AnyEvent) -> None:
        if isinstance(event, Erased):  # by any replica: what was erased must not come back
            kept = (each for each in self._recent if each[1].experiment != live.state.name)
            self._recent = deque(kept, maxlen=RECENT)

    def lost(self, live: Live, loss: Loss) -> None:
        self._background.spawn(self._mend(live, loss))

    async def _mend(self, live: Live, loss: Loss) -> None:
        name, epoch = live.state.name, loss.epoch + 1
        event = EpochOpened(
            at=self._clock.now(live.state),
            epoch=epoch,
            kept=loss.kept,
            last=loss.last,
            rows=loss.rows,
        )
        entry = Append(name, encode_event(event), {epoch_mark(epoch): ""})
        while True:
            try:
                await self._writer.append(entry, event)
                found = await self._append_again(name)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            logger.error("experiment %s: %d lost rewards were appended again", name, found)
            return

    async def _append_again(self, experiment: str) -> int:
        """Append the recent decisions and rewards of an experiment that its log has lost; how many
        rewards. Identities tell which those are. Raises StoreUnavailable.

        Versions, definitions and the like are not appended again: they depend on the lost events.
        """
        after = asyncio.get_running_loop().time() - RECENT_SECONDS
        entries = [
            (entry, event)
            for at, entry, event in self._recent
            if at >= after
            and entry.experiment == experiment
            and (event is None or isinstance(event, Learned | Activated))
        ]
        lost = 0
        for start in range(0, len(entries), PAGE):
            results = await self._writer.append_all(entries[start : start + PAGE])
            lost += sum(isinstance(result, Appended) for result in results)
        return lost
