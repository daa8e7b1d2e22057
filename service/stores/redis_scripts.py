"""How a log lies in Redis: its keys, the scripts that change them, and their arguments and replies.

Of one experiment, all in one hash slot (`forage:{zooplus}:...`):

    events            stream; the entry id is `0-<position>`, numbered by Redis itself (XADD 0-*)
    mark:<identity>   string `<position> <value>`; Redis forgets it some time after keep_until
    decisions         stream of decision rows, in the order they came
    decision_at       hash: decision -> its entry id in `decisions`
    decision_counts   hash: policy -> decision rows ever kept
    due               sorted set: decision -> unix seconds
    settled           set: decisions settled before their row came
    snapshots         hash: position -> payload, the last two
    blob:<key>        string

Of all: `forage:experiments` (set of names), `forage:layout`, `forage:secret`.
"""

import math
from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from service.stores.base import Append, Appended, DecisionRow, Entry, Kept, Known, Mark, Outcome

Command = tuple[Any, ...]

LAYOUT = 1
"""Of the keys above. Raised when an older Forage could not use them."""
CLOCK_SKEW_S = 300.0  # Redis forgets marks by its own clock, which may be ahead of ours
EXPERIMENTS = "forage:experiments"

APPEND = """
-- KEYS events, due, decision_at, settled, then the marks
-- ARGV payload, decision settled or '', unix ms to keep the marks to or '', then their values
local known, refused = {}, false
for i = 5, #KEYS do
  known[i - 4] = redis.call('GET', KEYS[i])
  refused = refused or known[i - 4]
end
if refused then return known end
-- The event first: if Redis refuses a write (memory), it refuses this one and nothing has changed.
local position = string.sub(redis.call('XADD', KEYS[1], '0-*', 'p', ARGV[1]), 3)
for i = 5, #KEYS do
  local mark = position .. ' ' .. ARGV[i - 1]
  if ARGV[3] == '' then
    redis.call('SET', KEYS[i], mark)
  else
    redis.call('SET', KEYS[i], mark, 'PXAT', ARGV[3])
  end
end
if ARGV[2] ~= '' and redis.call('ZREM', KEYS[2], ARGV[2]) == 0
    and redis.call('HEXISTS', KEYS[3], ARGV[2]) == 0 then
  redis.call('SADD', KEYS[4], ARGV[2])
end
return tonumber(position)
"""

KEEP = """
-- KEYS decisions, decision_at, decision_counts, due, settled
-- ARGV id, payload, policy, due or ''
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return end
local at = redis.call('XADD', KEYS[1], '0-*', 'p', ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], at)
redis.call('HINCRBY', KEYS[3], ARGV[3], 1)
if redis.call('SREM', KEYS[5], ARGV[1]) == 0 and ARGV[4] ~= '' then
  redis.call('ZADD', KEYS[4], ARGV[4], ARGV[1])
end
"""

SAVE_SNAPSHOT = """
-- KEYS snapshots
-- ARGV position, payload
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
local kept = redis.call('HKEYS', KEYS[1])
table.sort(kept, function(a, b) return tonumber(a) > tonumber(b) end)
for i = 3, #kept do redis.call('HDEL', KEYS[1], kept[i]) end
"""

DIGESTS = {text: sha1(text.encode(), usedforsecurity=False).hexdigest() for text in (APPEND, KEEP)}


def key_of(experiment: str, *parts: str) -> str:
    return ":".join((f"forage:{{{experiment}}}", *parts))


def mark(text: bytes) -> Mark:
    position, _, value = text.partition(b" ")
    return Mark(value.decode(), int(position))


def commands(entries: Sequence[Entry]) -> list[Command]:
    """One call for each entry. The first call of a script carries its text: Redis may have
    restarted since the last batch, and a batch that is half unknown could not keep its order."""
    taught: set[str] = set()
    calls: list[Command] = []
    for entry in entries:
        text, keys, values = _append(entry) if isinstance(entry, Append) else _keep(entry)
        call = ("EVALSHA", DIGESTS[text]) if text in taught else ("EVAL", text)
        calls.append((*call, len(keys), *keys, *values))
        taught.add(text)
    return calls


def outcome(entry: Entry, reply: Any) -> Outcome:
    if isinstance(entry, DecisionRow):
        return Kept()
    if isinstance(reply, int):
        return Appended(reply)
    known = zip(entry.marks, reply, strict=True)
    return Known({identity: mark(text) for identity, text in known if text is not None})


def _append(entry: Append) -> tuple[str, list[str], list[Any]]:
    at = entry.experiment
    keys = [
        key_of(at, "events"),
        key_of(at, "due"),
        key_of(at, "decision_at"),
        key_of(at, "settled"),
    ]
    keys += [key_of(at, "mark", identity) for identity in entry.marks]
    return (
        APPEND,
        keys,
        [entry.payload, entry.settles or "", _keep_ms(entry), *entry.marks.values()],
    )


def _keep_ms(entry: Append) -> int | str:
    if entry.keep_until is None:
        return ""
    return max(1, math.ceil(1000 * (entry.keep_until + CLOCK_SKEW_S)))


def _keep(row: DecisionRow) -> tuple[str, list[str], list[Any]]:
    at = row.experiment
    keys = [key_of(at, "decisions"), key_of(at, "decision_at"), key_of(at, "decision_counts")]
    keys += [key_of(at, "due"), key_of(at, "settled")]
    return KEEP, keys, [row.id, row.payload, row.policy, "" if row.due is None else row.due]
