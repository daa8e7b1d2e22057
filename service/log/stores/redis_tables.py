"""The tables of the shared store: reads, single writes, trims and erasures."""

from collections.abc import Mapping, Sequence

import msgspec

from service.errors import StoreError
from service.log.stores.base import (
    SAMPLE,
    Blob,
    Erasure,
    Item,
    KeptMark,
    KeptRow,
    LogEnd,
    LogSummary,
    Marks,
    Published,
    ReaderPosition,
    ReaderState,
    Record,
    Removed,
    Secret,
    Snapshot,
    Trim,
)
from service.log.stores.redis_commit import mark, whole_seconds
from service.log.stores.redis_connection import RedisConnection
from service.log.stores.redis_scripts import (
    DELETE_MARKS,
    ERASE,
    EXPERIMENTS,
    FORGET_SCRIPT,
    GET_DUE,
    GET_MARKS,
    GET_ROWS,
    LAST,
    MARK_TABLE,
    MOVE_TO,
    PER_BUCKET,
    PUBLISHED,
    ROW_TABLE,
    SAVE_SNAPSHOT,
    SET_MARKS,
    TRIM,
    Command,
    key_of,
    keys_of,
    script,
)
from service.log.stores.store import START, Cursor, Keyed, KeyedValues, Ordered, Page

ROWS_AT_ONCE = 20
"""Rows that one script reads and trims: rows of 10,000 arms have some 60 kB each."""

ERASED_AT_ONCE = 500
"""Decisions of one script. Redis serves no other command for some milliseconds."""

MARKS_AT_ONCE = 1_000
"""Marks that an erasure reads at a time: a millisecond."""

BUCKETS_AT_ONCE = 50
"""Buckets of marks that one script searches, in a millisecond."""

StoredFields = Mapping[bytes, bytes]


# -- read ------------------------------------------------------------------------------------------


async def page(
    redis: RedisConnection, experiment: str, table: Ordered, after: Cursor, limit: int
) -> Page:
    match table:
        case "events":
            return await _events(redis, experiment, int(after), limit), START
        case "decisions":
            found = await _range(redis, experiment, "decisions", int(after), limit)
            return [
                KeptRow(number, fields[b"i"].decode(), fields[b"p"]) for number, fields in found
            ], START
        case "marks":
            return await _marks(redis, experiment, after, limit)
        case "snapshots":
            return await _snapshots(redis, experiment), START
        case "blobs":
            prefix = key_of(experiment, "blob", "")
            keys = {key async for keys in redis.keys(prefix) for key in keys}
            return sorted(key.removeprefix(prefix) for key in keys), START


async def _range(
    redis: RedisConnection, experiment: str, stream: str, after: int, limit: int
) -> list[tuple[int, StoredFields]]:
    """Return entries of a stream: number and fields."""
    key = key_of(experiment, stream)
    found = await redis.do("XRANGE", key, f"(0-{after}", "+", "COUNT", limit)
    return [(int(entry.partition(b"-")[2]), fields) for entry, fields in found]


async def _events(redis: RedisConnection, experiment: str, after: int, limit: int) -> list[Record]:
    """Return events with the tombstones between them. A tombstone is never last: the `Erased` event
    follows it."""
    found = await _range(redis, experiment, "events", after, limit)
    if found and found[-1][0] != after + len(found):
        key, bounds = key_of(experiment, "stones"), (f"({after}", f"({found[-1][0]}")
        stones = (await redis.do("ZRANGE", key, *bounds, "BYSCORE"))[:limit]
        if stones:
            payloads = await redis.do("HMGET", key_of(experiment, "tombstones"), *stones)
            found += [(int(at), {b"p": own}) for at, own in zip(stones, payloads, strict=True)]
            found = sorted(found, key=lambda entry: entry[0])[:limit]
    return [Record(position, fields[b"p"]) for position, fields in found]


async def _marks(
    redis: RedisConnection, experiment: str, cursor: Cursor, limit: int
) -> tuple[list[KeptMark], Cursor]:
    """Return the marks of some buckets. Their number and what they hold are read at one moment: a
    mark that moves meanwhile goes to a later bucket."""
    first = int(cursor or 0)
    following = first + max(1, limit // PER_BUCKET)
    table = key_of(experiment, "marks")
    count, *buckets = await redis.all(
        [
            ("HGET", table, "buckets"),
            *(("HGETALL", f"{table}:{bucket}") for bucket in range(first, following)),
        ],
        transaction=True,
    )
    found = [_kept(*item) for bucket in buckets for item in bucket.items()]
    return found, str(following) if following < int(count or 1) else START


def _kept(identity: bytes, text: bytes) -> KeptMark:
    position, keep_until, value = text.decode().split(" ", 2)
    kept = None if keep_until == "inf" else float(keep_until)
    return KeptMark(identity.decode(), value, int(position), kept)


async def _snapshots(redis: RedisConnection, experiment: str) -> list[Snapshot]:
    kept, (at, payload) = await redis.all(
        [
            ("HGETALL", key_of(experiment, "snapshots")),
            ("HMGET", key_of(experiment, "origin"), "position", "payload"),
        ]
    )
    found = {int(position): Snapshot(int(position), own) for position, own in kept.items()}
    if at is not None:
        found[int(at)] = Snapshot(int(at), payload, origin=True)
    return [found[position] for position in sorted(found, reverse=True)]


async def get(
    redis: RedisConnection, experiment: str, table: Keyed, keys: Sequence[str]
) -> KeyedValues:
    if not keys:
        return {}
    if table == "decisions":
        rows = await redis.do(*script(GET_ROWS, keys_of(experiment, *ROW_TABLE), *keys))
        return {key: row for key, row in zip(keys, rows, strict=True) if row is not None}
    if table == "marks":
        texts = await redis.do(*script(GET_MARKS, keys_of(experiment, *MARK_TABLE), *keys))
        return {
            identity: mark(text.decode())
            for identity, text in zip(keys, texts, strict=True)
            if text is not None
        }
    kind = "blob" if table == "blobs" else "published"
    places = [
        "forage:secret" if table == "secret" else key_of(experiment, kind, key) for key in keys
    ]
    found = await redis.do("MGET", *places)
    return {key: value for key, value in zip(keys, found, strict=True) if value is not None}


async def due(redis: RedisConnection, experiment: str, now: float, limit: int) -> list[bytes]:
    keys = keys_of(experiment, *ROW_TABLE, "due")
    rows = await redis.do(*script(GET_DUE, keys, repr(now), limit))
    return [row for row in rows if row is not None]


async def describe(redis: RedisConnection, experiment: str, *, whole: bool) -> LogSummary:
    commands: list[Command] = [
        script(LAST, keys_of(experiment, "events", "decisions")),
        ("GET", key_of(experiment, "digest")),
    ]
    commands += [
        ("HGETALL", key) for key in keys_of(experiment, "decision_counts", "removed", "readers")
    ]
    if whole:
        commands += [
            ("ZRANGE", key_of(experiment, "due"), 0, -1, "WITHSCORES"),
            ("SMEMBERS", key_of(experiment, "settled")),
        ]
    replies = await redis.all(commands, transaction=True)
    (position, row), digest, counts, removed, readers, *waiting = replies
    scores, settled = waiting or ([], [])
    waits: dict[str, float | None] = dict.fromkeys(decision.decode() for decision in settled)
    pairs = zip(scores[::2], scores[1::2], strict=True)
    waits |= {decision.decode(): float(score) for decision, score in pairs}
    return LogSummary(
        int(position),
        int(row),
        waits,
        {series.decode(): int(count) for series, count in counts.items()},
        Removed(**{name.decode(): int(count) for name, count in removed.items()}),
        {
            name.decode(): ReaderPosition(*map(int, taken.split()))
            for name, taken in readers.items()
        },
        (digest or b"").decode(),
    )


LOG = ("events", "decisions", "decision_at", "mark_ages", "due", "settled", "tombstones", "stones")
SAMPLED_BUCKETS = 20


async def measure(redis: RedisConnection, experiment: str) -> int:
    """Return the bytes of the keys in LOG, and of the marks, by a sample of their buckets."""
    table = key_of(experiment, "marks")
    usages = [("MEMORY", "USAGE", key, "SAMPLES", SAMPLE) for key in keys_of(experiment, *LOG)]
    *sizes, count = await redis.all([*usages, ("HGET", table, "buckets")])
    buckets = int(count or 0)
    sampled = range(0, buckets, 1 + buckets // SAMPLED_BUCKETS)
    marks = await redis.all([("MEMORY", "USAGE", f"{table}:{bucket}") for bucket in sampled])
    of_marks = buckets * sum(size or 0 for size in marks) / max(len(marks), 1)
    return int(sum(size or 0 for size in sizes) + of_marks)


# -- write -----------------------------------------------------------------------------------------


async def put(redis: RedisConnection, experiment: str, item: Item) -> None:
    match item:
        case Snapshot(position, payload, origin):
            keys = keys_of(experiment, "snapshots", "origin")
            await redis.do(*script(SAVE_SNAPSHOT, keys, position, payload, int(origin)))
        case Blob(key, payload):
            await redis.do("SET", key_of(experiment, "blob", key), payload, "NX")
        case ReaderState(name, taken):
            readers = key_of(experiment, "readers")
            if taken is None:
                await redis.do("HDEL", readers, name)
            else:
                await redis.do("HSET", readers, name, f"{taken.position} {taken.row}")
        case Marks(marks):
            packed = msgspec.msgpack.encode([_packed(kept) for kept in marks])
            table = keys_of(experiment, *MARK_TABLE)
            await redis.keep([script(SET_MARKS, table, packed)])
        case LogEnd(position, digest):
            end = script(MOVE_TO, [key_of(experiment, "events")], position)
            own = "SET", key_of(experiment, "digest"), digest
            await redis.keep([("SADD", EXPERIMENTS, experiment), end, own])
        case Published(stamp, parts):
            commands: list[Command] = [
                ("SET", key_of(experiment, "published", name), part) for name, part in parts.items()
            ]
            await redis.all([*commands, ("HSET", PUBLISHED, experiment, stamp)])
        case Secret(content):
            if not await redis.do("SET", "forage:secret", content, "NX"):
                raise StoreError("the store has a secret of its own already")


def _packed(kept: KeptMark) -> tuple[object, ...]:
    return kept.identity, kept.position, whole_seconds(kept.keep_until), kept.value


# -- trim and erase --------------------------------------------------------------------------------


async def trim(redis: RedisConnection, experiment: str, cut: Trim, limit: int) -> int:
    names = ("events", "tombstones", "stones", "decisions", "decision_at", "due", "removed")
    keys = keys_of(experiment, "origin", *names)
    limits = limit, min(limit, ROWS_AT_ONCE)
    trimmed = script(TRIM, keys, cut.position, cut.row, *limits, int(cut.settles))
    table, before = keys_of(experiment, *MARK_TABLE), repr(cut.marks_before)
    forgotten = script(FORGET_SCRIPT, table, before, min(limit, BUCKETS_AT_ONCE))
    total: int = sum(await redis.all([trimmed, forgotten]))
    return total


async def erase(redis: RedisConnection, name: str, erasure: Erasure) -> None:
    """Erase in parts, each of which can be repeated."""
    ids, events = list(erasure.decisions), list(erasure.events.items())
    names = ("events", "tombstones", "stones", "decisions", "decision_at", "due", "settled")
    keys = keys_of(name, "origin", *names, "snapshots", "removed")
    commands: list[Command] = []
    for start in range(0, max(len(ids), len(events), 1), ERASED_AT_ONCE):
        part = slice(start, start + ERASED_AT_ONCE)
        positions = [str(position) for position, _ in events[part]]
        packed = msgspec.msgpack.encode([erasure.origin, ids[part], positions])
        commands.append(script(ERASE, keys, packed, *(payload for _, payload in events[part])))
    if erasure.blobs:
        commands.append(("UNLINK", *(key_of(name, "blob", key) for key in erasure.blobs)))
    await redis.keep(commands)
    if not erasure.forget:
        return
    prefixes = set(erasure.forget)
    lengths = {len(prefix) for prefix in prefixes}  # many prefixes have a few lengths
    cursor: Cursor = START
    while True:
        marks, cursor = await _marks(redis, name, cursor, MARKS_AT_ONCE)
        gone = [
            kept.identity
            for kept in marks
            if any(kept.identity[:length] in prefixes for length in lengths)
        ]
        if gone:
            await redis.keep([script(DELETE_MARKS, keys_of(name, *MARK_TABLE), *gone)])
        if cursor == START:
            return
