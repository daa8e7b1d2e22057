"""A commit of the shared store: one script for each experiment, its arguments and its reply."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any

import msgspec

from service.log.stores.base import (
    Append,
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Kept,
    Known,
    Mark,
)
from service.log.stores.redis_scripts import COMMIT, Command, key_of, keys_of

COMMIT_DIGEST = sha1(COMMIT.encode(), usedforsecurity=False).hexdigest()
KEYS = (
    "events",
    "decisions",
    "decision_at",
    "decision_counts",
    "due",
    "settled",
    "digest",
    "mark_ages",
)


def mark(text: str) -> Mark:
    position, _, value = text.partition(" ")
    return Mark(value, int(position))


def commands(batch: Mapping[str, Sequence[Entry]], now: float) -> Iterator[Command]:
    """One call for each experiment. The first carries the script's text, as Redis may have
    restarted since the last batch; the others name it."""
    call = ("EVAL", COMMIT)
    for experiment, entries in batch.items():
        keys = keys_of(experiment, *KEYS)
        keys += [key_of(experiment, "mark", one) for entry in entries for one in _marks(entry)]
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
            yield Kept(number, reply[earlier] if earlier else None)
        elif isinstance(answer, str):
            position, before = answer.split(" ")
            yield Appended(int(position), before)
        else:
            known = zip(_marks(entry), answer, strict=True)
            yield Known({identity: mark(text) for identity, text in known if text})


def _marks(entry: Entry) -> Iterable[str]:
    """The identities that an entry takes."""
    return entry.marks if isinstance(entry, Append) else ()


def _packed(entry: Entry) -> tuple[object, ...]:
    """Times go as text: Lua would write 14 digits of them."""
    if isinstance(entry, DecisionRow):
        return "row", entry.id, entry.series, _time(entry.due)
    opens, due = entry.opens or ("", None)
    expected = [entry.replaces.get(identity, False) for identity in entry.marks]
    return (
        *("event", entry.settles or "", _time(entry.keep_until)),
        *(list(entry.marks.values()), expected, opens, _time(due)),
    )


def _time(seconds: float | None) -> str:
    return "" if seconds is None else repr(seconds)
