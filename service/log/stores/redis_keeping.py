"""Housekeeping of the shared store: who is alive, what is needed, what is trimmed, what is erased.

Of one experiment, beside the keys that `redis_scripts` tells of:

    origin       hash: position, payload; the newest snapshot that a replay may begin at
    readers      hash: reader -> `<position> <row>`
    removed      hash: trimmed, erased -> decision rows
    tombstones   hash: position -> payload, in place of an entry of `events` that was erased
    stones       sorted set of their positions

Of all: `forage:processes` (sorted set: process -> unix seconds, by the clock of Redis, until which
it is alive) and `forage:doing` (hash: process -> what it said last).
"""

from collections.abc import Iterable, Sequence

import msgspec

from service.log.stores.base import Cut, Erasure
from service.log.stores.redis_scripts import Command, key_of

PROCESSES = ("forage:processes", "forage:doing")

ROWS_AT_ONCE = 20
"""Rows trimmed by one script, which reads them: of 10,000 arms they have 400 kB each."""

ERASED_AT_ONCE = 500
"""Decisions of one script, in which Redis serves nobody else: some milliseconds."""

PRESENT = """
-- KEYS processes, doing
-- ARGV process, what it is doing, for how many seconds
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local dead = redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.6f', now), 'BYSCORE')
for _, gone in ipairs(dead) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
end
return redis.call('HGETALL', KEYS[2])
"""

CHECK_ORIGIN = """
local function check_origin(key, position)
  local origin = tonumber(redis.call('HGET', key, 'position') or 0)
  if position > origin then
    return redis.error_reply('the origin of replay is at position ' .. string.format('%d', origin)
      .. ': nothing up to position ' .. string.format('%d', position) .. ' can be taken out')
  end
end
"""

TRIM = (
    CHECK_ORIGIN
    + """
-- KEYS origin, events, tombstones, stones, decisions, decision_at, due, removed
-- ARGV position, row, limit, limit of rows, 1 where rows that are due stay
local refused = check_origin(KEYS[1], tonumber(ARGV[1]))
if refused then return refused end
local count, limit = 0, tonumber(ARGV[3])

local function number(entry) return tonumber(string.sub(entry, 3)) end

local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
if first then
  local upto = math.min(tonumber(ARGV[1]), number(first[1]) + limit - 1)
  count = redis.call('XTRIM', KEYS[2], 'MINID', string.format('0-%d', upto + 1))
  for _, position in ipairs(redis.call('ZRANGE', KEYS[4], '-inf', upto, 'BYSCORE')) do
    redis.call('HDEL', KEYS[3], position)
    redis.call('ZREM', KEYS[4], position)
  end
end

local rows = 0
for _, row in ipairs(redis.call('XRANGE', KEYS[5], '-', '0-' .. ARGV[2], 'COUNT', ARGV[4])) do
  local id = row[2][4]
  if id and ARGV[5] == '1' and redis.call('ZSCORE', KEYS[7], id) then break end
  redis.call('XDEL', KEYS[5], row[1])
  if id then
    redis.call('HDEL', KEYS[6], id)
    redis.call('ZREM', KEYS[7], id)
  end
  rows = rows + 1
end
if rows > 0 then redis.call('HINCRBY', KEYS[8], 'trimmed', rows) end
return count + rows
"""
)

ERASE = (
    CHECK_ORIGIN
    + """
-- KEYS origin, events, tombstones, stones, decisions, decision_at, due, settled, snapshots, removed
-- ARGV packed: position of the origin, decisions, positions as text; then payloads, one a position
local origin, ids, positions = unpack(cmsgpack.unpack(ARGV[1]))
local refused = check_origin(KEYS[1], origin)
if refused then return refused end
for i, position in ipairs(positions) do
  redis.call('HSET', KEYS[3], position, ARGV[i + 1])
  redis.call('ZADD', KEYS[4], position, position)
  redis.call('XDEL', KEYS[2], '0-' .. position)
end
local rows = 0
for _, id in ipairs(ids) do
  local at = redis.call('HGET', KEYS[6], id)
  if at then
    redis.call('XDEL', KEYS[5], at)
    redis.call('HDEL', KEYS[6], id)
    rows = rows + 1
  end
  redis.call('ZREM', KEYS[7], id)
  redis.call('SREM', KEYS[8], id)
end
if rows > 0 then redis.call('HINCRBY', KEYS[10], 'erased', rows) end
for _, position in ipairs(redis.call('HKEYS', KEYS[9])) do
  if tonumber(position) < origin then redis.call('HDEL', KEYS[9], position) end
end
"""
)


def _keys(experiment: str, *names: str) -> list[str]:
    return [key_of(experiment, name) for name in names]


def present(process: str, doing: str, seconds: float) -> Command:
    return ("EVAL", PRESENT, len(PROCESSES), *PROCESSES, process, doing, repr(seconds))


def doing(reply: Sequence[bytes]) -> dict[str, str]:
    texts = [text.decode() for text in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def trim(experiment: str, cut: Cut, limit: int) -> Command:
    names = ("events", "tombstones", "stones", "decisions", "decision_at", "due", "removed")
    keys = _keys(experiment, "origin", *names)
    limits = limit, min(limit, ROWS_AT_ONCE)
    return ("EVAL", TRIM, len(keys), *keys, cut.position, cut.row, *limits, int(cut.settles))


def erasures(erasure: Erasure) -> Iterable[Command]:
    """In parts; each may be done again."""
    name, ids = erasure.experiment, list(erasure.decisions)
    keys = _keys(
        name,
        "origin",
        "events",
        "tombstones",
        "stones",
        "decisions",
        "decision_at",
        "due",
        "settled",
        "snapshots",
        "removed",
    )
    events = list(erasure.events.items())
    for start in range(0, max(len(ids), len(events), 1), ERASED_AT_ONCE):
        part = slice(start, start + ERASED_AT_ONCE)
        positions = [str(position) for position, _ in events[part]]
        payloads = [payload for _, payload in events[part]]
        packed = msgspec.msgpack.encode([erasure.origin, ids[part], positions])
        yield ("EVAL", ERASE, len(keys), *keys, packed, *payloads)
    if erasure.blobs:
        yield ("UNLINK", *(key_of(name, "blob", key) for key in erasure.blobs))


def begins_with(identities: Iterable[str], prefixes: Iterable[str]) -> list[str]:
    """Those that begin with one of many prefixes, of a few lengths."""
    known = set(prefixes)
    lengths = {len(prefix) for prefix in known}
    return [one for one in identities if any(one[:length] in known for length in lengths)]
