"""A restore of the shared store keeps everybody else out.

While a store is loaded `forage:restoring` stands in it, and no service opens it.
"""

from service.errors import ConfigurationError, StoreError
from service.log.stores.redis_scripts import EXPERIMENTS
from service.log.stores.redis_tables import SCANNED, Do, keys_like

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
    left = sorted(await keys_like(do, "forage:*") - {RESTORING, HELD, "forage:layout"})
    for start in range(0, len(left), SCANNED):
        await do("UNLINK", *left[start : start + SCANNED])


async def end(do: Do, who: str, name: str) -> None:
    if not await do("EVAL", END, 2, RESTORING, HELD, who):
        raise StoreError(
            f"{name}: another restore has begun meanwhile: this one counts for nothing"
        )


async def leave(do: Do, who: str) -> None:
    await do("EVAL", LEAVE, 1, HELD, who)
