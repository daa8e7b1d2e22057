"""`Backend`: the fourteen verbs that a store implements. `Store`: helpers built on them."""

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from service.errors import StoreError, StoreUnavailable, UnknownSchema
from service.log.stores.base import (
    CommitResult,
    Entry,
    Erasure,
    Item,
    KeptMark,
    KeptRow,
    LogEnd,
    LogSummary,
    Mark,
    Marks,
    ReaderPosition,
    ReaderState,
    Record,
    Removal,
    Scrub,
    Secret,
    Snapshot,
    StoreSize,
    Trim,
)

Ordered = Literal["events", "decisions", "marks", "snapshots", "blobs"]
Keyed = Literal["marks", "decisions", "blobs", "secret", "published"]

Cursor = int | str
"""End of a page: a position of events, a number of rows, else a text of the store's."""

START: Cursor = ""

Page = tuple[list[Any], Cursor]
KeyedValues = dict[str, Any]
"""Values of the kind that the table holds."""

SECRET: Literal["secret"] = "secret"  # noqa: S105
TOKEN_SECRET_BYTES = 32

RECONNECT_S = 60.0
"""Seconds after which an idle connection to a server is closed. After a failover the address leads
to another server, while the old one may keep its connections and answer readers for ever."""

MOST_SKEW_S = 60.0
"""Seconds between the clocks of a service and of its store beyond which nothing is written."""


def expect_layout(name: object, layout: int, ours: int) -> None:
    """Raise UnknownSchema where the tables of a store are not ours."""
    if layout != ours:
        raise UnknownSchema(
            f"{name} has layout {layout}, and this Forage reads layout {ours}: start the Forage "
            "that wrote it"
        )


class Backend(Protocol):
    """One ordered log per experiment, with what belongs to it.

    Every backend guarantees:
    - positions of an experiment start at 1 and are dense; a page has them in order;
    - `commit` returns after all its entries are durable, in the order given, each whole or not at
      all; if it raises StoreUnavailable, it may have kept any of them, and the same entries can be
      given again: their marks make that safe;
    - an empty commit probes the store: it raises where nothing can be written;
    - an event is refused where a mark has not the value that it expects, whichever process gave
      it; entries of a batch are decided in their order;
    - payloads are unchanged bytes, and a blob never changes;
    - a snapshot is seen whole or not at all; an older position never replaces a newer one; the last
      two are kept, and the newest origin beside them.

    shared       other processes may append: whoever folds must also follow the log
    durability   one sentence: what an acknowledged write survives
    clock_skew_seconds   seconds ahead of the store's clock, at the last commit; None where the
                         store has no clock of its own. Beyond a bound it refuses commits.
    """

    shared: bool
    durability: str
    clock_skew_seconds: float | None = None

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    async def experiments(self) -> list[str]:
        """Return the names of the experiments that have an event, sorted."""

    @abstractmethod
    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]: ...
    @abstractmethod
    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        """Return once an experiment's log may have moved past its position, or after `seconds`."""

    @abstractmethod
    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        """Return the payloads of decisions due at `now` (unix seconds), oldest first."""

    @abstractmethod
    async def page(self, experiment: str, table: Ordered, after: Cursor, limit: int) -> Page:
        """Return the items after a cursor, and the next cursor: START where no more follow.

        events      `Record`s after a position
        decisions   `KeptRow`s of higher numbers, in their order
        marks       `KeptMark`s from START on, in any order, each at least once
        snapshots   `Snapshot`s, all at once, newest first, the origin among them
        blobs       keys, all at once, sorted
        """

    @abstractmethod
    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        """Return the values of the known keys: the `Mark` of an identity, the payload of a decision
        or a blob, a part of what is published. The secret belongs to no experiment (""), and has
        the key SECRET."""

    @abstractmethod
    async def stamps(self) -> dict[str, str]:
        """Return the stamp of the last publication of each experiment that has one, in one round
        trip. A publication that is read afterwards is no older. Raises ConfigurationError where the
        store takes none."""

    @abstractmethod
    async def describe(self, experiment: str, *, whole: bool = False) -> LogSummary:
        """Return counts and positions. whole: with the due decisions."""

    @abstractmethod
    async def measure(self) -> StoreSize:
        """Return the bytes of the store and of each experiment's log. It takes milliseconds, and no
        longer for a longer log."""

    @abstractmethod
    async def put(self, experiment: str, item: Item) -> None:
        """Write an item whole. Raises StoreError for a secret where there is one."""

    @abstractmethod
    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        """Delete for ever.

        Cut: about `limit` items; how many went, 0 once all have.
        Erasure: if it raises StoreUnavailable, a part may be done, and the same again is safe.
        Scrub (of no experiment): raises StoreUnavailable where it is not possible now. Redis may
        still rewrite its file when it returns.

        Raises StoreError where no origin stands at or above the cut's position or the erasure's
        origin: the state could not be folded any more.
        """

    @abstractmethod
    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        """Announce that this process is alive for some seconds (0: it leaves), and what it is
        doing. Return the last announcement of each live process."""


class Store(Backend):
    """A backend with the helpers that services, readers and copies share."""

    def expect_clock(self, name: str, server: str, skew: float) -> None:
        """Note the seconds by which the clock of this service is ahead of the server's. Raises
        StoreUnavailable where the clocks differ too much."""
        self.clock_skew_seconds = skew
        if abs(skew) > MOST_SKEW_S:
            side = "ahead of" if skew > 0 else "behind"
            raise StoreUnavailable(
                f"{name}: the clock of this service is {round(abs(skew), -1):.0f} s {side} that of "
                f"{server}, and may be {MOST_SKEW_S:.0f}: nothing is written"
            )

    async def review(self) -> None:
        """Read the store's settings again: `durability`, and whether it may hold a log, without
        which commits are refused. Raises StoreUnavailable."""

    async def find_damage(self) -> list[str]:
        """Check the store's own files; the faults found, at most 100. Empty where the store has no
        such check."""
        return []

    # -- the log -------------------------------------------------------------------------------

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        return (await self.page(experiment, "events", after, limit))[0]

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        return (await self.page(experiment, "decisions", after, limit))[0]

    async def decision(self, experiment: str, decision: str) -> bytes | None:
        return (await self.get(experiment, "decisions", [decision])).get(decision)

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]:
        return await self.get(experiment, "marks", identities) if identities else {}

    # -- beside the log ------------------------------------------------------------------------

    async def snapshots(self, experiment: str) -> list[Snapshot]:
        return (await self.page(experiment, "snapshots", START, 0))[0]

    async def blob(self, experiment: str, key: str) -> bytes | None:
        return (await self.get(experiment, "blobs", [key])).get(key)

    async def secret(self) -> bytes:
        """Return 32 random bytes. The first call makes them."""
        found, fresh = await self.get("", SECRET, [SECRET]), secrets.token_bytes(TOKEN_SECRET_BYTES)
        if not found:
            try:
                await self.adopt_secret(fresh)
            except StoreError:  # another process may have been first
                found = await self.get("", SECRET, [SECRET])
                if not found:
                    raise
        secret: bytes = found.get(SECRET, fresh)
        return secret

    async def secret_is_elsewhere(self) -> bool:
        """Say whether services have run on the store with a secret that only FORAGE_TOKEN_KEYS
        had."""
        return bool(await self.experiments()) and not await self.get("", SECRET, [SECRET])

    async def adopt_secret(self, secret: bytes) -> None:
        """Keep a secret. Raises StoreError where the store has one."""
        await self.put("", Secret(secret))

    # -- housekeeping --------------------------------------------------------------------------

    async def save_reader(self, experiment: str, reader: str, taken: ReaderPosition | None) -> None:
        """Keep the position of a reader. None: the reader is gone."""
        await self.put(experiment, ReaderState(reader, taken))

    async def overwrite_marks(
        self, experiment: str, marks: Mapping[str, str], keep_until: float
    ) -> None:
        """Set identities to these values, at position 0. Earlier values go."""
        kept = [KeptMark(identity, value, 0, keep_until) for identity, value in marks.items()]
        await self.put(experiment, Marks(kept))

    async def trim(self, experiment: str, cut: Trim, limit: int) -> int:
        return await self.remove(experiment, cut, limit)

    async def erase(self, experiment: str, erasure: Erasure) -> None:
        await self.remove(experiment, erasure, 0)

    async def scrub(self) -> None:
        await self.remove("", Scrub(), 0)

    # -- copies --------------------------------------------------------------------------------

    async def end_log(self, experiment: str, position: int, digest: str) -> None:
        """Make the next event follow this position, as in the log that is copied."""
        await self.put(experiment, LogEnd(position, digest))

    async def list_marks(
        self, experiment: str, cursor: Cursor, limit: int
    ) -> tuple[list[KeptMark], Cursor]:
        """Return some marks and the cursor of the next ones, from START to START."""
        return await self.page(experiment, "marks", cursor, limit)

    async def blob_keys(self, experiment: str) -> list[str]:
        return (await self.page(experiment, "blobs", START, 0))[0]
