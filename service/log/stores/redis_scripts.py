"""How a log lies in Redis: its keys, and the scripts that change them.

Of one experiment, all in one hash slot (`forage:{zooplus}:...`):

    events            stream; the entry id is `0-<position>`, numbered by Redis itself (XADD 0-*)
    digest            string: of the last event
    marks             hash: `buckets`, and the `count` of the marks in them
    marks:<bucket>    hash: identity -> `<position> <keep_until> <value>`; keep_until: whole unix
                      seconds, rounded up; inf: for ever
    mark_ages         sorted set: key of a bucket -> the least keep_until in it, or less
    decisions         stream of decision rows, in their order: payload `p`, id `i`
    decision_at       hash: decision -> its entry id in `decisions`
    decision_counts   hash: series -> decision rows ever kept
    due               sorted set: decision -> unix seconds
    settled           set: decisions settled before their row came
    snapshots         hash: position -> payload, the last two
    origin            hash: position, payload; the newest snapshot that a replay may begin at
    blob:<key>        string
    readers           hash: reader -> `<position> <row>`
    removed           hash: trimmed, erased -> decision rows
    tombstones        hash: position -> payload, in place of an erased entry of `events`
    stones            sorted set of their positions

Of all: `forage:experiments` (set of names), `forage:layout`, `forage:secret`, `forage:processes`
(sorted set: process -> unix seconds, by the clock of Redis, until which it is alive) and
`forage:doing` (hash: process -> its last announcement).
"""

from collections.abc import Sequence

from service.log.stores.store import MOST_SKEW_S

Command = tuple[object, ...]

REDIS_LAYOUT = 2
"""Number of the layout of the keys above. Raise it with every change of them."""
EXPERIMENTS = "forage:experiments"
PUBLISHED = "forage:published"
"""Stamps of publications, by experiment."""
PROCESSES = ("forage:processes", "forage:doing")


def key_of(experiment: str, *parts: str) -> str:
    return ":".join((f"forage:{{{experiment}}}", *parts))


def keys_of(experiment: str, *names: str) -> list[str]:
    return [key_of(experiment, name) for name in names]


def script(text: str, keys: Sequence[str], *arguments: object) -> Command:
    return ("EVAL", text, len(keys), *keys, *arguments)


MARK_TABLE = "marks", "mark_ages"
PER_BUCKET = 32
"""Marks of a bucket, on average. Redis packs a small hash: a mark takes 77 bytes in place of the
284 of a key with an entry of a sorted set. Larger buckets save few bytes, and take longer to
search."""

# The buckets are those of a linear hash table: once there are more than PER_BUCKET marks for each,
# a new one takes a part of the marks of another. So they have one size at any rate of rewards and
# with ids of any form: those of decisions under an Idempotency-Key are random.
MARK_FUNCTIONS = """
local call, byte, format = redis.call, string.byte, string.format

local function in_parts(call_with, arguments)  -- Lua passes no more than some thousands at a time
  for i = 1, #arguments, 1000 do
    call_with(unpack(arguments, i, math.min(i + 999, #arguments)))
  end
end

local function open_marks(marks, ages)
  local own = call('HMGET', marks, 'buckets', 'count')
  local buckets, count = tonumber(own[1] or 1), tonumber(own[2] or 0)
  local stored = count
  local round = 1  -- the largest power of two up to `buckets`
  while 2 * round <= buckets do round = 2 * round end
  local least = {}  -- key of a bucket -> the least keep_until of what was set
  local self = {}

  local function number(identity)  -- one for all marks of a decision, whose id is 22 characters
    local text = #identity < 22 and redis.sha1hex(identity) or identity
    local a, b, c, d, e, f = byte(text, 17, 22)
    local hash = (((((a * 61 + b) * 61 + c) * 61 + d) * 61 + e) * 61 + f) % (2 * round)
    if hash < buckets then return hash end
    return hash - round
  end

  local function key(bucket) return format('%s:%d', marks, bucket) end

  local function grow()
    local new, from, to = buckets, key(buckets - round), key(buckets)
    buckets = buckets + 1
    if buckets == 2 * round then round = buckets end
    local all, moved, gone = call('HGETALL', from), {}, {}
    for i = 1, #all, 2 do
      local identity = all[i]
      if number(identity) == new then
        gone[#gone + 1] = identity
        moved[#moved + 1] = identity
        moved[#moved + 1] = all[i + 1]
      end
    end
    in_parts(function(...) call('HSET', to, ...) end, moved)
    in_parts(function(...) call('HDEL', from, ...) end, gone)
    local age = call('ZSCORE', ages, from)
    if age then call('ZADD', ages, age, to) end
  end

  function self.bucket(identity) return key(number(identity)) end

  function self.set(bucket, identity, start, keep_until, value)
    count = count + call('HSET', bucket, identity, start .. value)
    local known = least[bucket]
    if not known or tonumber(keep_until) < tonumber(known) then least[bucket] = keep_until end
  end

  function self.delete(bucket, identities)
    in_parts(function(...) count = count - call('HDEL', bucket, ...) end, identities)
  end

  function self.close()
    local aged = {}
    for bucket, keep_until in pairs(least) do
      aged[#aged + 1] = keep_until
      aged[#aged + 1] = bucket
    end
    in_parts(function(...) call('ZADD', ages, 'LT', ...) end, aged)
    while count > PER_BUCKET * buckets do grow() end
    if count ~= stored then call('HSET', marks, 'buckets', buckets, 'count', count) end
  end

  return self
end
""".replace("PER_BUCKET", str(PER_BUCKET))


def _bare(text: str) -> str:
    """Return a script without comments and indentation: Redis hashes its text at each call."""
    lines = (line.partition("--")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


# One call for a batch, its arguments and reply packed: this takes 15 us of the event loop for each
# entry of a batch of 64. A call for each entry took 55.
COMMIT_SCRIPT = _bare(
    MARK_FUNCTIONS
    + """
-- KEYS events, decisions, decision_at, decision_counts, due, settled, digest, marks, mark_ages
-- ARGV packed: unix seconds of the caller; the entries {'event', decision settled or '', decision
--      opened or '', its due, keep_until of the marks, then identity, value, and value expected or
--      false of each} and {'row', id, series, due or ''}; then payloads
local events, decisions, decision_at, decision_counts, due, settled, digest = unpack(KEYS, 1, 7)
local marks = open_marks(KEYS[8], KEYS[9])
local now, entries = unpack(cmsgpack.unpack(ARGV[1]))
local time = call('TIME')
local skew = now - time[1] - time[2] / 1000000
if math.abs(skew) > MOST_SKEW_S then return {cmsgpack.pack({{}, skew})} end
local last  -- digest of the last event
local earlier = {''}  -- the replies, packed, then payloads that rows' ids had already

local function settle(decisions)
  for _, decision in ipairs(decisions) do
    if call('ZREM', due, decision) == 0 and call('HEXISTS', decision_at, decision) == 0 then
      call('SADD', settled, decision)
    end
  end
end

local function wait(decision, due_at)
  if due_at ~= '' and call('SISMEMBER', settled, decision) == 0 then
    call('ZADD', due, due_at, decision)
  end
end

local function append(payload, entry)
  local _, settles, opens, due_at, keep_until = unpack(entry, 1, 5)
  local buckets, known, count, refused = {}, {}, 0, false
  for i = 6, #entry, 3 do
    local bucket = marks.bucket(entry[i])
    local text = call('HGET', bucket, entry[i])
    buckets[#buckets + 1] = bucket
    known[#known + 1] = text
    if text then count = count + 1 end
    refused = refused or (text and string.match(text, '^%d+ %S* (.*)$')) ~= entry[i + 2]
  end
  if count == #known then settle(settles) end
  if refused then return known end
  -- If Redis refuses to write (memory), it refuses the first write, and nothing has changed.
  local position = string.sub(call('XADD', events, '0-*', 'p', payload), 3)
  local start = position .. ' ' .. keep_until .. ' '
  for i, bucket in ipairs(buckets) do
    local at = 3 + 3 * i
    marks.set(bucket, entry[at], start, keep_until, entry[at + 1])
  end
  settle(settles)
  wait(opens, due_at)
  local before = last or call('GET', digest) or ''
  last = string.sub(redis.sha1hex(payload), 1, 16)
  return position .. ' ' .. before
end

local function keep(payload, entry)
  local _, id, series, due_at = unpack(entry)
  local at = call('HGET', decision_at, id)
  if at then
    earlier[#earlier + 1] = call('XRANGE', decisions, at, at)[1][2][2]
    return {0, #earlier - 1}
  end
  local entry = call('XADD', decisions, '0-*', 'p', payload, 'i', id)
  call('HSET', decision_at, id, entry)
  call('HINCRBY', decision_counts, series, 1)
  if call('SREM', settled, id) == 0 and due_at ~= '' then
    call('ZADD', due, due_at, id)
  end
  return {tonumber(string.sub(entry, 3)), 0}
end

local apply = {event = append, row = keep}
local replies = {}
for i, entry in ipairs(entries) do
  replies[i] = apply[entry[1]](ARGV[i + 1], entry)
end
if last then call('SET', digest, last) end
marks.close()
earlier[1] = cmsgpack.pack({replies, skew})
return earlier
""".replace("MOST_SKEW_S", str(MOST_SKEW_S))
)

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
  if ARGV[5] == '1' and redis.call('ZSCORE', KEYS[7], id) then break end
  redis.call('XDEL', KEYS[5], row[1])
  redis.call('HDEL', KEYS[6], id)
  redis.call('ZREM', KEYS[7], id)
  rows = rows + 1
end
if rows > 0 then redis.call('HINCRBY', KEYS[8], 'trimmed', rows) end
return count + rows
"""
)

ROW_TABLE = "decision_at", "decisions"

ROW_FUNCTION = """
local function payload_of(decision)  -- false: it has no row
  local at = redis.call('HGET', KEYS[1], decision)
  local entry = at and redis.call('XRANGE', KEYS[2], at, at)[1]
  return entry and entry[2][2] or false
end

local found = {}
"""

GET_ROWS = (
    ROW_FUNCTION
    + """
-- KEYS decision_at, decisions
-- ARGV decisions
for i, decision in ipairs(ARGV) do found[i] = payload_of(decision) end
return found
"""
)

GET_DUE = (
    ROW_FUNCTION
    + """
-- KEYS decision_at, decisions, due
-- ARGV unix seconds, how many at most
local due = redis.call('ZRANGE', KEYS[3], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
for i, decision in ipairs(due) do found[i] = payload_of(decision) end
return found
"""
)

GET_MARKS = (
    MARK_FUNCTIONS
    + """
-- KEYS marks, mark_ages
-- ARGV identities
local marks = open_marks(KEYS[1], KEYS[2])
local found = {}
for i, identity in ipairs(ARGV) do
  found[i] = call('HGET', marks.bucket(identity), identity)
end
return found
"""
)

SET_MARKS = (
    MARK_FUNCTIONS
    + """
-- KEYS marks, mark_ages
-- ARGV packed: {identity, position, keep_until, value} of each mark
local marks = open_marks(KEYS[1], KEYS[2])
for _, mark in ipairs(cmsgpack.unpack(ARGV[1])) do
  local identity, position, keep_until, value = unpack(mark)
  local start = position .. ' ' .. keep_until .. ' '
  marks.set(marks.bucket(identity), identity, start, keep_until, value)
end
marks.close()
"""
)

DELETE_MARKS = (
    MARK_FUNCTIONS
    + """
-- KEYS marks, mark_ages
-- ARGV identities
local marks = open_marks(KEYS[1], KEYS[2])
for _, identity in ipairs(ARGV) do marks.delete(marks.bucket(identity), {identity}) end
marks.close()
"""
)

FORGET_SCRIPT = (
    MARK_FUNCTIONS
    + """
-- KEYS marks, mark_ages
-- ARGV unix seconds, of which marks kept longer stay; the buckets to search at a time
-- Return how many marks went: 0 once all have. None goes of a bucket whose least keep_until was
-- that of a mark since replaced.
local marks, count = open_marks(KEYS[1], KEYS[2]), 0
repeat
  local aged = call('ZRANGE', KEYS[2], '-inf', '(' .. ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
  for _, bucket in ipairs(aged) do
    local all, gone, least = call('HGETALL', bucket), {}, math.huge
    for i = 1, #all, 2 do
      local keep_until = tonumber(string.match(all[i + 1], ' (%S*) '))
      if keep_until < tonumber(ARGV[1]) then
        gone[#gone + 1] = all[i]
      else
        least = math.min(keep_until, least)
      end
    end
    marks.delete(bucket, gone)
    count = count + #gone
    if #gone < #all / 2 then
      call('ZADD', KEYS[2], least, bucket)
    else
      call('ZREM', KEYS[2], bucket)
    end
  end
until count > 0 or #aged == 0
marks.close()
return count
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
