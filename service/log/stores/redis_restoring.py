"""A restore of the shared store: `forage:restoring` keeps services out while it is loaded."""

from service.errors import ConfigurationError, StoreError
from service.log.stores.redis_connection import RedisConnection
from service.log.stores.redis_scripts import EXPERIMENTS, script

RESTORING = "forage:restoring"
HELD = "forage:restoring:held"
HELD_MS = 15_000
"""A restore that was killed is at work for so long; each part that it loads takes less."""

HOLD = "PEXPIRE", HELD, HELD_MS
"""Sent with each part."""

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


async def check_whole(redis: RedisConnection) -> None:
    if await redis.do("EXISTS", RESTORING):
        raise StoreError(
            f"{redis.name}: a restore is under way or was cut off: run `forage restore` again"
        )


async def begin(redis: RedisConnection, who: str) -> None:
    """Keep services out, and delete what a restore that was cut off has left. Raises
    ConfigurationError where there is an experiment."""
    found = await redis.do(*script(BEGIN, (RESTORING, HELD, EXPERIMENTS), who, HELD_MS))
    if found and found[0] == b"experiment":
        raise ConfigurationError(
            f"{redis.name} holds experiment {found[1].decode()}, and nothing is written over: name "
            "an empty database"
        )
    if found:
        raise StoreError(
            f"{redis.name}: another restore is at work, or was until {HELD_MS // 1000} s ago"
        )
    ours = {RESTORING, HELD, "forage:layout"}
    async for keys in redis.keys("forage:"):
        if left := [key for key in keys if key not in ours]:
            await redis.do("UNLINK", *left)


async def end(redis: RedisConnection, who: str) -> None:
    if not await redis.do(*script(END, (RESTORING, HELD), who)):
        raise StoreError(
            f"{redis.name}: another restore has begun meanwhile: this one counts for nothing"
        )


async def leave(redis: RedisConnection, who: str) -> None:
    await redis.do(*script(LEAVE, [HELD], who))
