"""Copies of the shared store, read while others write, and loaded before anybody reads.

While a store is loaded `forage:restoring` stands in it, and no service opens it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from service.errors import ConfigurationError, StoreError
from service.stores.keeping import Instant, KeptMark, Part, Removed
from service.stores.redis_scripts import (
    CLOCK_SKEW_S,
    EXPERIMENTS,
    Command,
    key_of,
    mark,
    milliseconds,
)

Do = Callable[..., Awaitable[Any]]
"""One command."""

All = Callable[[Sequence[Command]], Awaitable[list[Any]]]
"""Some in one round trip, in order."""

RESTORING = "forage:restoring"
HELD = "forage:restoring:held"
HELD_MS = 15_000
"""A restore that was killed is at work for so long; each part that it loads takes less."""
SCANNED = 1_000  # keys looked at in one call

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

BEGIN = """
-- KEYS forage:restoring, forage:restoring:held, forage:experiments
-- ARGV who, how long it may be silent (ms)
-- An experiment that is there, or who else restores at present, or nothing.
if redis.call('EXISTS', KEYS[1]) == 0 then
  for _, name in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    if redis.call('EXISTS', 'forage:{' .. name .. '}:events') == 1 then
      return {'experiment', name}
    end
  end
end
local other = redis.call('GET', KEYS[2])
if other and other ~= ARGV[1] then return {'other', other} end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {}
"""

LEAVE = """
-- KEYS forage:restoring:held
-- ARGV who
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

END = """
-- KEYS forage:restoring, forage:restoring:held
-- ARGV who
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1], KEYS[2])
"""


# -- read ------------------------------------------------------------------------------------------


def instant_commands(experiment: str) -> list[Command]:
    """To be run as one transaction."""
    streams = key_of(experiment, "events"), key_of(experiment, "decisions")
    return [
        ("EVAL", LAST, 2, *streams),
        ("ZRANGE", key_of(experiment, "due"), 0, -1, "WITHSCORES"),
        ("SMEMBERS", key_of(experiment, "settled")),
        ("HGETALL", key_of(experiment, "decision_counts")),
        ("HGETALL", key_of(experiment, "removed")),
    ]


def instant(replies: Sequence[Any]) -> Instant:
    (position, row), scores, settled, counts, removed = replies
    due: dict[str, float | None] = dict.fromkeys(decision.decode() for decision in settled)
    waiting = zip(scores[::2], scores[1::2], strict=True)
    due |= {decision.decode(): float(score) for decision, score in waiting}
    return Instant(
        int(position),
        int(row),
        due,
        {policy.decode(): int(count) for policy, count in counts.items()},
        Removed(int(removed.get(b"trimmed", 0)), int(removed.get(b"erased", 0))),
    )


async def list_marks(
    do: Do, every: All, experiment: str, cursor: str, limit: int
) -> tuple[list[KeptMark], str]:
    prefix = key_of(experiment, "mark", "")
    following, keys = await do("SCAN", cursor or "0", "MATCH", f"{prefix}*", "COUNT", limit)
    told = await every([(name, key) for key in keys for name in ("GET", "PEXPIRETIME")])
    found = [
        _kept_mark(key.decode().removeprefix(prefix), text.decode(), expires_ms)
        for key, text, expires_ms in zip(keys, told[::2], told[1::2], strict=True)
        if text is not None
    ]
    return found, str(int(following)) if int(following) else ""


def _kept_mark(identity: str, text: str, expires_ms: int) -> KeptMark:
    known = mark(text)
    keep_until = expires_ms / 1000 - CLOCK_SKEW_S if expires_ms > 0 else None
    return KeptMark(identity, known.value, known.position, keep_until)


async def blob_keys(do: Do, experiment: str) -> list[str]:
    prefix = key_of(experiment, "blob", "")
    return sorted(key.removeprefix(prefix) for key in await _keys(do, f"{prefix}*"))


async def _keys(do: Do, pattern: str) -> set[str]:
    found, cursor = set[str](), 0
    while True:
        cursor, keys = await do("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
        found |= {key.decode() for key in keys}
        if int(cursor) == 0:
            return found


# -- write -----------------------------------------------------------------------------------------


async def load(every: All, experiment: str, part: Part) -> None:
    await every(list(_written(experiment, part)))
    if part.rows:  # the id of an entry is Redis's to say
        stream = key_of(experiment, "decisions")
        at = await every([("XADD", stream, "0-*", "p", r.payload, "i", r.id) for r in part.rows])
        pairs = zip((row.id for row in part.rows), at, strict=True)
        await every([("HSET", key_of(experiment, "decision_at"), *chain.from_iterable(pairs))])


def _written(experiment: str, part: Part) -> Iterator[Command]:
    yield "SADD", EXPERIMENTS, experiment
    yield "PEXPIRE", HELD, HELD_MS
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


async def adopt_secret(do: Do, secret: bytes) -> None:
    if not await do("SET", "forage:secret", secret, "NX"):
        raise StoreError("the store has a secret of its own already")


async def check_whole(do: Do, name: str) -> None:
    if await do("EXISTS", RESTORING):
        raise StoreError(
            f"{name}: a restore is under way or was cut off: run `forage restore` again"
        )


async def begin(do: Do, who: str, name: str) -> None:
    """Keep services out and take out what a restore that was cut off has left. Raises
    ConfigurationError where there is an experiment."""
    found = await do("EVAL", BEGIN, 3, RESTORING, HELD, EXPERIMENTS, who, HELD_MS)
    if found and found[0] == b"experiment":
        raise ConfigurationError(
            f"{name} holds experiment {found[1].decode()}, and nothing is written over: name an "
            "empty database"
        )
    if found:
        raise StoreError(
            f"{name}: another restore is at work, or was until {HELD_MS // 1000} s ago"
        )
    left = sorted(await _keys(do, "forage:*") - {RESTORING, HELD, "forage:layout"})
    for start in range(0, len(left), SCANNED):
        await do("UNLINK", *left[start : start + SCANNED])


async def end(do: Do, who: str, name: str) -> None:
    if not await do("EVAL", END, 2, RESTORING, HELD, who):
        raise StoreError(
            f"{name}: another restore has begun meanwhile: this one counts for nothing"
        )


async def leave(do: Do, who: str) -> None:
    await do("EVAL", LEAVE, 1, HELD, who)
