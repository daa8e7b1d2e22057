"""What is read from the shared store, and written into it as it is."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from service.log.stores.base import Instant, KeptMark, KeptRow, Part, Removed, Snapshot, Taken
from service.log.stores.redis_scripts import (
    CLOCK_SKEW_S,
    EXPERIMENTS,
    Command,
    key_of,
    mark,
    milliseconds,
)
from service.log.stores.store import START, Cursor, Keyed

Do = Callable[..., Awaitable[Any]]
"""One command."""

All = Callable[[Sequence[Command]], Awaitable[list[Any]]]
"""Some in one round trip, in order."""

SCANNED = 1_000  # keys looked at in one call

SAVE_SNAPSHOT = """
-- KEYS snapshots, origin
-- ARGV position, payload, 1 where it is an origin
local position = tonumber(ARGV[1])
if position < tonumber(redis.call('HGET', KEYS[2], 'position') or 0) then return end
if ARGV[3] == '1' then
  redis.call('HSET', KEYS[2], 'position', ARGV[1], 'payload', ARGV[2])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
local kept = redis.call('HKEYS', KEYS[1])
table.sort(kept, function(a, b) return tonumber(a) > tonumber(b) end)
for i = 3, #kept do redis.call('HDEL', KEYS[1], kept[i]) end
"""

LAST = """
-- KEYS streams
-- The number of the last entry each ever had.
local found = {}
for i, key in ipairs(KEYS) do
  found[i] = '0'
  if redis.call('EXISTS', key) == 1 then
    local told = redis.call('XINFO', 'STREAM', key)
    for j = 1, #told, 2 do
      if told[j] == 'last-generated-id' then found[i] = string.sub(told[j + 1], 3) end
    end
  end
end
return found
"""

MOVE_TO = """
-- KEYS stream
-- ARGV the number of the last entry that it ever had, though it may be gone
local id = '0-' .. ARGV[1]
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], id, 'p', '')
  redis.call('XDEL', KEYS[1], id)
end
redis.call('XSETID', KEYS[1], id)
"""


# -- read ------------------------------------------------------------------------------------------


def place_of(experiment: str, table: Keyed, key: str) -> str:
    if table == "secret":
        return "forage:secret"
    return key_of(experiment, "mark" if table == "marks" else "blob", key)


def describe_commands(experiment: str, *, whole: bool) -> list[Command]:
    """To be run as one transaction."""
    streams = key_of(experiment, "events"), key_of(experiment, "decisions")
    due: list[Command] = [
        ("ZRANGE", key_of(experiment, "due"), 0, -1, "WITHSCORES"),
        ("SMEMBERS", key_of(experiment, "settled")),
    ]
    return [
        ("EVAL", LAST, 2, *streams),
        ("HGETALL", key_of(experiment, "decision_counts")),
        ("HGETALL", key_of(experiment, "removed")),
        ("HGETALL", key_of(experiment, "readers")),
        *(due if whole else []),
    ]


def described(replies: Sequence[Any]) -> Instant:
    (position, row), counts, removed, readers, *waiting = replies
    scores, settled = waiting or ([], [])
    due: dict[str, float | None] = dict.fromkeys(decision.decode() for decision in settled)
    pairs = zip(scores[::2], scores[1::2], strict=True)
    due |= {decision.decode(): float(score) for decision, score in pairs}
    return Instant(
        int(position),
        int(row),
        due,
        {policy.decode(): int(count) for policy, count in counts.items()},
        Removed(**{name.decode(): int(count) for name, count in removed.items()}),
        {name.decode(): Taken(*map(int, told.split())) for name, told in readers.items()},
    )


def snapshot_commands(experiment: str) -> list[Command]:
    return [
        ("HGETALL", key_of(experiment, "snapshots")),
        ("HMGET", key_of(experiment, "origin"), "position", "payload"),
    ]


def snapshots(kept: dict[bytes, bytes], origin: Sequence[bytes | None]) -> list[Snapshot]:
    found = {int(position): Snapshot(int(position), payload) for position, payload in kept.items()}
    position, payload = origin
    if position is not None and payload is not None:
        found[int(position)] = Snapshot(int(position), payload, origin=True)
    return [found[position] for position in sorted(found, reverse=True)]


def stones_between(experiment: str, after: int, last: int) -> Command:
    bounds = f"({after}", f"({last}"
    return ("ZRANGE", key_of(experiment, "stones"), *bounds, "BYSCORE")


def merge(
    found: list[tuple[int, Any]], stones: Sequence[bytes], payloads: Sequence[bytes], limit: int
) -> list[tuple[int, Any]]:
    """A page of events with the tombstones that stand between them. None follows the last event:
    the event that tells of an erasure does."""
    between = [(int(at), {b"p": payload}) for at, payload in zip(stones, payloads, strict=True)]
    return sorted([*found, *between], key=lambda entry: entry[0])[:limit]


async def list_marks(
    do: Do, every: All, experiment: str, cursor: Cursor, limit: int
) -> tuple[list[KeptMark], Cursor]:
    prefix = key_of(experiment, "mark", "")
    following, keys = await do("SCAN", cursor or "0", "MATCH", f"{prefix}*", "COUNT", limit)
    told = await every([(name, key) for key in keys for name in ("GET", "PEXPIRETIME")])
    found = [
        _kept_mark(key.decode().removeprefix(prefix), text.decode(), expires_ms)
        for key, text, expires_ms in zip(keys, told[::2], told[1::2], strict=True)
        if text is not None
    ]
    return found, str(int(following)) if int(following) else START


def _kept_mark(identity: str, text: str, expires_ms: int) -> KeptMark:
    known = mark(text)
    keep_until = expires_ms / 1000 - CLOCK_SKEW_S if expires_ms > 0 else None
    return KeptMark(identity, known.value, known.position, keep_until)


async def blob_keys(do: Do, experiment: str) -> list[str]:
    prefix = key_of(experiment, "blob", "")
    return sorted(key.removeprefix(prefix) for key in await keys_like(do, f"{prefix}*"))


async def keys_like(do: Do, pattern: str) -> set[str]:
    found, cursor = set[str](), 0
    while True:
        cursor, keys = await do("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
        found |= {key.decode() for key in keys}
        if int(cursor) == 0:
            return found


# -- write -----------------------------------------------------------------------------------------


def _save_snapshot(experiment: str, snapshot: Snapshot) -> Command:
    keys = key_of(experiment, "snapshots"), key_of(experiment, "origin")
    values = snapshot.position, snapshot.payload, int(snapshot.origin)
    return ("EVAL", SAVE_SNAPSHOT, len(keys), *keys, *values)


def added_rows(experiment: str, rows: Sequence[KeptRow]) -> list[Command]:
    stream = key_of(experiment, "decisions")
    return [("XADD", stream, "0-*", "p", row.payload, "i", row.id) for row in rows]


def written(experiment: str, part: Part) -> Iterator[Command]:
    """All but rows."""
    if part.events or part.position is not None:
        yield "SADD", EXPERIMENTS, experiment
    yield from _written_log(experiment, part)
    for snapshot in part.snapshots:
        yield _save_snapshot(experiment, snapshot)
    for key, payload in part.blobs.items():
        yield "SET", key_of(experiment, "blob", key), payload, "NX"
    for reader, taken in part.readers.items():
        if taken is None:
            yield "HDEL", key_of(experiment, "readers"), reader
        else:
            yield "HSET", key_of(experiment, "readers"), reader, f"{taken.position} {taken.row}"


def _written_log(experiment: str, part: Part) -> Iterator[Command]:
    events = key_of(experiment, "events")
    for record in part.events:
        yield "XADD", events, f"0-{record.position}", "p", record.payload
    if part.position is not None:
        yield "EVAL", MOVE_TO, 1, events, part.position
    for kept in part.marks:
        until: Command = ()
        if kept.keep_until is not None:
            until = "PXAT", milliseconds(kept.keep_until)
        key = key_of(experiment, "mark", kept.identity)
        yield "SET", key, f"{kept.position} {kept.value}", *until
    for decision, due in part.due.items():
        if due is None:
            yield "SADD", key_of(experiment, "settled"), decision
        else:
            yield "ZADD", key_of(experiment, "due"), repr(due), decision
    for policy, count in part.counts.items():
        yield "HSET", key_of(experiment, "decision_counts"), policy, count
    if part.removed != Removed():
        told = "trimmed", part.removed.trimmed, "erased", part.removed.erased
        yield "HSET", key_of(experiment, "removed"), *told
