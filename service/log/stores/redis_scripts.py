"""How a log lies in Redis: its keys, the scripts that change them, and their arguments and replies.

Of one experiment, all in one hash slot (`forage:{zooplus}:...`):

    events            stream; the entry id is `0-<position>`, numbered by Redis itself (XADD 0-*)
    mark:<identity>   string `<position> <value>`; Redis forgets it some time after keep_until
    decisions         stream of decision rows, in the order they came: payload `p`, id `i`
    decision_at       hash: decision -> its entry id in `decisions`
    decision_counts   hash: policy -> decision rows ever kept
    due               sorted set: decision -> unix seconds
    settled           set: decisions settled before their row came
    snapshots         hash: position -> payload, the last two
    blob:<key>        string

Of all: `forage:experiments` (set of names), `forage:layout`, `forage:secret`. What housekeeping
adds is told in `redis_keeping`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1
from typing import Any

import msgspec

from service.log.stores.base import (
    Activation,
    Append,
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Kept,
    Known,
    Mark,
)

Command = tuple[Any, ...]

LAYOUT = 2
"""Of the keys above. Raised when an older Forage could not use them."""
CLOCK_SKEW_S = 300.0  # Redis forgets marks by its own clock, which may be ahead of ours
EXPERIMENTS = "forage:experiments"

# One call for a batch, its arguments and reply packed: this takes 15 us of the event loop for each
# entry of a batch of 64. A call for each entry took 55.
COMMIT = """
-- KEYS events, decisions, decision_at, decision_counts, due, settled, then marks in order of use
-- ARGV the entries {'event', decision settled or '', unix ms to keep the marks to or '', values of
--      the marks}, {'row', id, policy, due or ''} and {'activation', decision, unix ms to keep its
--      mark to or '', due or ''}; then their payloads
local events, decisions, decision_at, decision_counts, due, settled = unpack(KEYS, 1, 6)
local marks = 6
local earlier = {''}  -- the replies, packed, then payloads that rows' ids had already

local function settle(decision)
  if decision ~= '' and redis.call('ZREM', due, decision) == 0
      and redis.call('HEXISTS', decision_at, decision) == 0 then
    redis.call('SADD', settled, decision)
  end
end

local function set(key, value, keep_until)
  if keep_until == '' then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PXAT', keep_until)
  end
end

local function append(payload, settles, keep_until, values)
  local first = marks
  marks = marks + #values
  local known, count = {}, 0
  for i = 1, #values do
    known[i] = redis.call('GET', KEYS[first + i])
    if known[i] then count = count + 1 end
  end
  if count == #values then settle(settles) end
  if count > 0 then return known end
  -- If Redis refuses to write (memory), it refuses the first write, and nothing has changed.
  local position = string.sub(redis.call('XADD', events, '0-*', 'p', payload), 3)
  for i = 1, #values do
    set(KEYS[first + i], position .. ' ' .. values[i], keep_until)
  end
  settle(settles)
  return tonumber(position)
end

local function keep(payload, id, policy, due_at)
  local at = redis.call('HGET', decision_at, id)
  if at then
    earlier[#earlier + 1] = redis.call('XRANGE', decisions, at, at)[1][2][2]
    return #earlier - 1
  end
  redis.call('HSET', decision_at, id, redis.call('XADD', decisions, '0-*', 'p', payload, 'i', id))
  redis.call('HINCRBY', decision_counts, policy, 1)
  if redis.call('SREM', settled, id) == 0 and due_at ~= '' then
    redis.call('ZADD', due, due_at, id)
  end
  return 0
end

local function activate(_, decision, keep_until, due_at)
  marks = marks + 1
  local known = redis.call('GET', KEYS[marks])
  if known then return {known} end
  set(KEYS[marks], '0 ', keep_until)
  if due_at ~= '' and redis.call('SISMEMBER', settled, decision) == 0 then
    redis.call('ZADD', due, due_at, decision)
  end
  return 0
end

local apply = {event = append, row = keep, activation = activate}
local replies = {}
for i, entry in ipairs(cmsgpack.unpack(ARGV[1])) do
  replies[i] = apply[entry[1]](ARGV[i + 1], entry[2], entry[3], entry[4])
end
earlier[1] = cmsgpack.pack(replies)
return earlier
"""
COMMIT_DIGEST = sha1(COMMIT.encode(), usedforsecurity=False).hexdigest()


def key_of(experiment: str, *parts: str) -> str:
    return ":".join((f"forage:{{{experiment}}}", *parts))


def mark(text: str) -> Mark:
    position, _, value = text.partition(" ")
    return Mark(value, int(position))


def commits(batch: dict[str, list[Entry]]) -> Iterator[Command]:
    """One call for each experiment. The first carries the script's text, as Redis may have
    restarted since the last batch; the others name it."""
    script = ("EVAL", COMMIT)
    for experiment, entries in batch.items():
        names = ("events", "decisions", "decision_at", "decision_counts", "due", "settled")
        keys = [key_of(experiment, name) for name in names]
        keys += [key_of(experiment, "mark", one) for entry in entries for one in _marks(entry)]
        packed = msgspec.msgpack.encode([_packed(entry) for entry in entries])
        yield (*script, len(keys), *keys, packed, *map(_payload, entries))
        script = ("EVALSHA", COMMIT_DIGEST)


def outcomes(entries: Iterable[Entry], reply: Sequence[bytes]) -> Iterator[CommitResult]:
    for entry, answer in zip(entries, msgspec.msgpack.decode(reply[0]), strict=True):
        if isinstance(entry, DecisionRow):
            yield Kept(reply[answer] if answer else None)
        elif isinstance(answer, int):
            yield Appended(answer) if isinstance(entry, Append) else Kept()
        else:
            known = zip(_marks(entry), answer, strict=True)
            yield Known({identity: mark(text) for identity, text in known if text})


def _marks(entry: Entry) -> Iterable[str]:
    """The identities that an entry takes."""
    if isinstance(entry, DecisionRow):
        return ()
    return entry.marks if isinstance(entry, Append) else (entry.mark,)


def _payload(entry: Entry) -> bytes:
    return b"" if isinstance(entry, Activation) else entry.payload


def _packed(entry: Entry) -> tuple[Any, ...]:
    """Numbers go as text: Lua would write a large one as 4e+12."""
    if isinstance(entry, DecisionRow):
        return "row", entry.id, entry.policy, _time(entry.due)
    keep_ms = ""
    if entry.keep_until is not None:
        keep_ms = str(milliseconds(entry.keep_until))
    if isinstance(entry, Activation):
        return "activation", entry.decision, keep_ms, _time(entry.due)
    return "event", entry.settles or "", keep_ms, list(entry.marks.values())


def milliseconds(keep_until: float) -> int:
    """By the clock of Redis, when it may forget a mark."""
    return max(1, math.ceil(1000 * (keep_until + CLOCK_SKEW_S)))


def _time(seconds: float | None) -> str:
    return "" if seconds is None else repr(seconds)
