"""A commit of the shared store: one script for each experiment, its arguments and its reply."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any

import msgspec

from service.log.stores.base import (
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Mark,
    MarkConflict,
    RowStored,
)
from service.log.stores.redis_scripts import COMMIT_SCRIPT, MARK_TABLE, Command, keys_of

COMMIT_DIGEST = sha1(COMMIT_SCRIPT.encode(), usedforsecurity=False).hexdigest()
KEYS = (
    "events",
    "decisions",
    "decision_at",
    "decision_counts",
    "due",
    "settled",
    "digest",
    *MARK_TABLE,
)


def mark(text: str) -> Mark:
    position, _, value = text.split(" ", 2)
    return Mark(value, int(position))


def whole_seconds(keep_until: float | None) -> str:
    """Return the text of a mark's `keep_until`: a mark is kept no shorter than that."""
    return "inf" if keep_until is None else str(math.ceil(keep_until))


def commands(batch: Mapping[str, Sequence[Entry]], now: float) -> Iterator[Command]:
    """Yield one call for each experiment. The first carries the script's text, as Redis may have
    restarted since the last batch; the others name it."""
    call = ("EVAL", COMMIT_SCRIPT)
    for experiment, entries in batch.items():
        keys = keys_of(experiment, *KEYS)
        packed = msgspec.msgpack.encode((now, [_packed(entry) for entry in entries]))
        yield (*call, len(keys), *keys, packed, *(entry.payload for entry in entries))
        call = ("EVALSHA", COMMIT_DIGEST)


def results(
    entries: Iterable[Entry], reply: Sequence[bytes]
) -> tuple[Iterator[CommitResult], float]:
    """And the seconds by which the caller's clock is ahead of that of Redis."""
    answers, skew = msgspec.msgpack.decode(reply[0])
    return _results(entries, answers, reply), skew


def _results(
    entries: Iterable[Entry], answers: Sequence[Any], reply: Sequence[bytes]
) -> Iterator[CommitResult]:
    for entry, answer in zip(entries, answers, strict=True):
        if isinstance(entry, DecisionRow):
            number, earlier = answer
            yield RowStored(number, reply[earlier] if earlier else None)
        elif isinstance(answer, str):
            position, before = answer.split(" ")
            yield Appended(int(position), before)
        else:
            known = zip(entry.marks, answer, strict=True)
            yield MarkConflict({identity: mark(text) for identity, text in known if text})


def _packed(entry: Entry) -> tuple[object, ...]:
    """Pack an entry for the script. Times go as text: Lua would write 14 digits of them."""
    if isinstance(entry, DecisionRow):
        return "row", entry.id, entry.series, _time(entry.due)
    opens, due = entry.opens or ("", None)
    marks: list[object] = []
    for identity, value in entry.marks.items():
        marks += identity, value, entry.replaces.get(identity, False)
    return (
        *("event", entry.settles, opens, _time(due)),
        *(whole_seconds(entry.keep_until), *marks),
    )


def _time(seconds: float | None) -> str:
    return "" if seconds is None else repr(seconds)
