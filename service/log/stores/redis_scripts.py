"""How a log lies in Redis: its keys, and the scripts that change them.

Of one experiment, all in one hash slot (`forage:{zooplus}:...`):

    events            stream; the entry id is `0-<position>`, numbered by Redis itself (XADD 0-*)
    digest            string: of the last event
    mark:<identity>   string `<position> <value>`
    mark_ages         sorted set: identity -> keep_until, of marks that may be forgotten
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

LAYOUT = 1
"""The number of the keys above. Raise it with every change of them."""
EXPERIMENTS = "forage:experiments"
PROCESSES = ("forage:processes", "forage:doing")


def key_of(experiment: str, *parts: str) -> str:
    return ":".join((f"forage:{{{experiment}}}", *parts))


def keys_of(experiment: str, *names: str) -> list[str]:
    return [key_of(experiment, name) for name in names]


def script(text: str, keys: Sequence[str], *arguments: object) -> Command:
    return ("EVAL", text, len(keys), *keys, *arguments)


# One call for a batch, its arguments and reply packed: this takes 15 us of the event loop for each
# entry of a batch of 64. A call for each entry took 55.
COMMIT = """
-- KEYS events, decisions, decision_at, decision_counts, due, settled, digest, mark_ages, then
--      marks in order of use
-- ARGV packed: unix seconds of the caller; the entries {'event', decision settled or '', keep_until
--      of the marks or '', values of the marks, the values expected of them or false, decision
--      opened or '', its due} and {'row', id, series, due or ''}; then their payloads
local events, decisions, decision_at, decision_counts, due, settled, digest, ages =
  unpack(KEYS, 1, 8)
local marks = 8
local identity = #ages - 3  -- where it begins in the key of its mark
local now, entries = unpack(cmsgpack.unpack(ARGV[1]))
local time = redis.call('TIME')
local skew = now - time[1] - time[2] / 1000000
if math.abs(skew) > MOST_SKEW_S then return {cmsgpack.pack({{}, skew})} end
local last  -- digest of the last event
local earlier = {''}  -- the replies, packed, then payloads that rows' ids had already

local function settle(decision)
  if decision ~= '' and redis.call('ZREM', due, decision) == 0
      and redis.call('HEXISTS', decision_at, decision) == 0 then
    redis.call('SADD', settled, decision)
  end
end

local function wait(decision, due_at)
  if due_at ~= '' and redis.call('SISMEMBER', settled, decision) == 0 then
    redis.call('ZADD', due, due_at, decision)
  end
end

local function age(first, last, keep_until)  -- of KEYS
  if keep_until == '' then return end
  local aged = {}
  for i = first, last do
    aged[#aged + 1] = keep_until
    aged[#aged + 1] = string.sub(KEYS[i], identity)
  end
  redis.call('ZADD', ages, unpack(aged))
end

local function append(payload, settles, keep_until, values, expected, opens, due_at)
  local first = marks
  marks = marks + #values
  local known, count, refused = {}, 0, false
  for i = 1, #values do
    known[i] = redis.call('GET', KEYS[first + i])
    if known[i] then count = count + 1 end
    local value = known[i] and string.match(known[i], '^%d+ (.*)$')
    refused = refused or value ~= expected[i]
  end
  if count == #values then settle(settles) end
  if refused then return known end
  -- If Redis refuses to write (memory), it refuses the first write, and nothing has changed.
  local position = string.sub(redis.call('XADD', events, '0-*', 'p', payload), 3)
  for i = 1, #values do
    redis.call('SET', KEYS[first + i], position .. ' ' .. values[i])
  end
  age(first + 1, marks, keep_until)
  settle(settles)
  wait(opens, due_at)
  local before = last or redis.call('GET', digest) or ''
  last = string.sub(redis.sha1hex(payload), 1, 16)
  return position .. ' ' .. before
end

local function keep(payload, id, series, due_at)
  local at = redis.call('HGET', decision_at, id)
  if at then
    earlier[#earlier + 1] = redis.call('XRANGE', decisions, at, at)[1][2][2]
    return {0, #earlier - 1}
  end
  local entry = redis.call('XADD', decisions, '0-*', 'p', payload, 'i', id)
  redis.call('HSET', decision_at, id, entry)
  redis.call('HINCRBY', decision_counts, series, 1)
  if redis.call('SREM', settled, id) == 0 and due_at ~= '' then
    redis.call('ZADD', due, due_at, id)
  end
  return {tonumber(string.sub(entry, 3)), 0}
end

local apply = {event = append, row = keep}
local replies = {}
for i, entry in ipairs(entries) do
  replies[i] = apply[entry[1]](ARGV[i + 1], unpack(entry, 2))
end
if last then redis.call('SET', digest, last) end
earlier[1] = cmsgpack.pack({replies, skew})
return earlier
""".replace("MOST_SKEW_S", str(MOST_SKEW_S))

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

FORGET = """
-- KEYS mark_ages, then marks
-- ARGV unix seconds, then the identities of the marks; those kept longer than that stay
local count = 0
for i = 2, #KEYS do
  local keep_until = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if keep_until and tonumber(keep_until) < tonumber(ARGV[1]) then
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[1], ARGV[i])
    count = count + 1
  end
end
return count
"""

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
