"""The connections of a process: bounded in number, in bytes and in time.

A client that sends half a request, or nothing, or reads no answer, costs a connection for as long
as it likes, and a process has as many as it may open files. So each part of a request has a bound,
and where connections run out, those that wait for their clients are closed first, the oldest before
the others.

This is for any protocol of asyncio. It offers what `Served` names, asks `Connections.admit` for a
`Connection` when it was connected, and tells that what it reads and answers. What is overdue is
found by one look at all connections a second, so that no request starts a timer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Final

from service.clock import SYSTEM
from service.http.connection import REASONS, STATES, Connection, Limits, Reason, Served
from service.observability.telemetry import MetricFamily, Telemetry
from service.security.addresses import IpNetwork, address_of, client_of

LOOK_SECONDS: Final = 1.0
SEARCH_SECONDS: Final = 10e-6
"""Between two searches for connections to close, for each one that is open, where the last found
few: a search takes 0.45 microseconds each, so that a flood of new ones costs a twentieth of the
time."""
FEW: Final = 8
"""One in so many."""


class Connections:
    """All connections of a process."""

    def __init__(
        self,
        limits: Limits,
        trusted: Sequence[IpNetwork],
        telemetry: Telemetry,
        clock: Callable[[], float] = SYSTEM.monotonic,
    ) -> None:
        """trusted: proxies, each of which may have all connections."""
        self.limits = limits
        self._trusted, self._clock = trusted, clock
        self._open: dict[Connection, None] = {}
        self._shares: Counter[str] = Counter()
        self._spare: dict[str | None, list[tuple[int, float, Connection]]] = {}
        self._found: Counter[str | None] = Counter()
        self._searched = -inf
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = {reason: telemetry.closed.labels(reason) for reason in REASONS}
        telemetry.read(self._families)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, served: Served, host: str) -> Connection:
        """A new connection. Its stage is "closing" where there is no room for it, not even in place
        of another: then the protocol says so and closes it."""
        address = self._address_of(host)
        connection = Connection(served, address, self.limits, self._clock)
        full = self._full(address)
        if full is not None:
            self._closed[full].inc()
            connection.refused()
            return connection
        self._open[connection] = None
        self._shares[address] += 1
        if self._timer is None:
            self._looked = self._clock()
            self._look_later()
        return connection

    def _full(self, address: str) -> Reason | None:
        """Why there is no room; None: there is, or was made."""
        if address and self._shares[address] >= self.limits.per_address:
            return None if self._make_room(address) else "address"
        if len(self._open) >= self.limits.connections:
            return None if self._make_room(None) else "bound"
        return None

    def end(self, connection: Connection, reason: Reason) -> None:
        """Have the protocol end it, and count why."""
        self._closed[reason].inc()
        connection.served.end(reason)

    def lost(self, connection: Connection) -> None:
        """It is closed. Twice is as good as once."""
        if connection in self._open:
            del self._open[connection]
            self._shares[connection.address] -= 1
            if not self._shares[connection.address]:
                del self._shares[connection.address]

    def look(self) -> None:
        """End what is overdue."""
        now = self._clock()
        elapsed, self._looked = now - self._looked, now
        self._spare.clear()  # it keeps what is closed
        stalled = max(0.0, elapsed - 2 * LOOK_SECONDS)  # the process itself, not its clients
        for connection in list(self._open):
            transport = connection.served.transport
            connection.look_at_unsent(now)
            held_back = connection.stage in ("head", "body") and connection.served.held_back
            connection.forgive(elapsed if held_back else stalled)
            if connection.stage == "closing":
                if now - connection.since > self.limits.linger_seconds:
                    transport.abort()
                continue
            reason = connection.overdue(now)
            if reason == "unread":
                self._closed[reason].inc()
                transport.abort()
            elif reason is not None and not transport.is_closing():
                self.end(connection, reason)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._open:
            self._look_later()
            self.look()

    # -- room for a new one ----------------------------------------------------------------------

    def _make_room(self, address: str | None) -> bool:
        """Close the connection that can be spared first, of one address or of all (None)."""
        now = self._clock()
        found = self._next_spare(address, now)
        if found is None and self._may_search(address, now):
            self._search(now)
            found = self._next_spare(address, now)
        if found is None:
            return False
        self._closed["room"].inc()
        self.lost(found)  # its file is closed when the loop comes round
        found.served.transport.abort()
        return True

    def _next_spare(self, address: str | None, now: float) -> Connection | None:
        queue = self._spare.get(address, [])
        while queue:
            rank, since, connection = queue.pop()
            unchanged = connection.since == since and connection.rank(now) == rank
            if unchanged and connection in self._open:
                return connection
        return None

    def _may_search(self, address: str | None, now: float) -> bool:
        """Where the last search found few, the next one waits."""
        most = len(self._open) if address is None else self._shares[address]
        many = self._found[address] * FEW >= most
        return many or now >= self._searched + SEARCH_SECONDS * len(self._open)

    def _search(self, now: float) -> None:
        """Put in order what can be spared now: the first to close last."""
        self._searched = now
        ranked = [(connection.rank(now), connection.since, connection) for connection in self._open]
        spare = [(rank, since, each) for rank, since, each in ranked if rank is not None]
        spare.sort(key=itemgetter(0, 1), reverse=True)
        self._spare = {None: spare}
        for one in spare:
            self._spare.setdefault(one[2].address, []).append(one)
        self._found = Counter({address: len(each) for address, each in self._spare.items()})

    def _address_of(self, host: str) -> str:
        """What a share is of; empty for a proxy that is trusted, which has no share."""
        found = address_of(host.partition("%")[0])
        if found is None:
            return host
        return "" if any(found in each for each in self._trusted) else client_of(found)

    def _families(self) -> Iterator[MetricFamily]:
        """Gauges, when they are scraped."""
        states = Counter(connection.state for connection in self._open)
        yield MetricFamily(
            "forage_connections",
            "Connections that are open, by what they are doing.",
            ("state",),
            [((state,), float(states[state])) for state in STATES],
        )
        yield MetricFamily(
            "forage_connections_bound",
            "Connections that this process keeps open at most.",
            (),
            [((), float(self.limits.connections))],
        )
