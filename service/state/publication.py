"""Publications: what a decision reads of a state, for processes that decide and fold nothing.

An image is a snapshot without what only learning needs. Heads are what settlements move of it: all
of their arrays, or of large ones the rows that differ from the last ones that were published
whole. A decider reads every bit back, so an audit derives its decisions as any others.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self

import msgspec
import numpy as np

from service.bandits.heads.base import Meta, Stored
from service.errors import Damaged, UnknownSchema
from service.state.artifacts import SNAPSHOT_SCHEMA
from service.state.fold import State
from service.state.snapshot import Snapshot

LARGE_BYTES = 2**20
"""Bytes of heads up to which they are published whole. To read a megabyte takes a decider as long
as all else that a publication costs it."""

MOST_MOVED = 0.5
"""Share of large heads that moved from which on they are published whole again."""

HeadArrays = Mapping[str, Mapping[str, Stored]]
"""Arrays of heads, by policy."""


class PackedArray(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An array, or some of its rows.

    fortran   its memory has the order of Fortran: products round by that
    rows      numbers of the rows that `data` has, as int64; None: all
    """

    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    data: bytes
    rows: bytes | None = None

    def unpack(self, before: Stored | None) -> Stored:
        """Return the array. before: what it was where `data` has some rows. Raises ValueError."""
        shape = self.shape
        order: Literal["C", "F"] = "F" if self.fortran else "C"
        if self.rows is None:
            whole: Stored = np.frombuffer(self.data, self.dtype).reshape(shape, order=order)
            return whole
        if before is None or before.dtype.str != self.dtype or len(before) > shape[0]:
            raise ValueError("rows of an array that is not there")
        whole = np.empty(shape, self.dtype, order=order)
        whole[: len(before)] = before
        rows = np.frombuffer(self.rows, np.int64)
        whole[rows] = np.frombuffer(self.data, self.dtype).reshape(len(rows), *shape[1:])
        return whole


def _pack(array: Stored) -> PackedArray:
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    data = array.tobytes(order="F" if fortran else "C")
    return PackedArray(array.dtype.str, array.shape, fortran, data)


def _pack_moved(array: Stored, before: Stored | None) -> PackedArray | None:
    """Pack the rows that differ from those before, or all where that is no more; None: none do."""
    if before is None or array.dtype != before.dtype or array.shape[1:] != before.shape[1:]:
        return _pack(array)
    if not array.ndim or len(array) < len(before):
        return _pack(array)
    differ = np.ones(len(array), bool)
    own = array[: len(before)] != before
    differ[: len(before)] = own.any(axis=tuple(range(1, own.ndim)))
    rows = np.flatnonzero(differ)
    if not len(rows):
        return None
    if len(rows) > MOST_MOVED * len(array):
        return _pack(array)
    whole = _pack(array[rows])
    packed = rows.astype(np.int64).tobytes()
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return PackedArray(whole.dtype, array.shape, fortran, array[rows].tobytes(), packed)


class PolicyHeads(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What moved of a policy. versions: of the one that serves, and of its challenger; tries: of
    arms whose count is another than in the image."""

    versions: list[Meta]
    tries: dict[str, int]
    arrays: dict[str, PackedArray]


class Heads(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What events have moved of an image of what a decision reads.

    image      position of the image
    base       position of the heads whose arrays these change; 0: they are whole
    settled    by arm, where it is another number than in the image
    exposure   as `Exposure.members` has it
    chances    that a user looks at a slot: the likeliest, and their lower bounds
    """

    schema: int
    image: int
    base: int
    position: int
    log_time: float
    policies: dict[str, PolicyHeads]
    settled: dict[str, int]
    exposure: dict[str, Any]
    chances: tuple[list[float], list[float]] | None

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Read what `pack` has packed. Raises Damaged, or UnknownSchema."""
        try:
            written = msgspec.msgpack.decode(payload, type=_Schema).schema
            if written == SNAPSHOT_SCHEMA:
                return msgspec.msgpack.decode(payload, type=cls)
        except msgspec.MsgspecError as fault:
            raise Damaged(f"heads that were published cannot be read: {fault}") from fault
        raise UnknownSchema(
            f"heads of schema {written} are published, and this Forage reads schema "
            f"{SNAPSHOT_SCHEMA}"
        )

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        packed = (one for own in self.policies.values() for one in own.arrays.values())
        return sum(len(one.data) for one in packed)

    def arrays(self, base: HeadArrays) -> dict[str, dict[str, Stored]]:
        """Return the arrays of all heads. base: those of the heads at that position. Raises Damaged
        where they do not fit."""
        try:
            return {
                policy: {
                    **base.get(policy, {}),
                    **{
                        name: packed.unpack(base.get(policy, {}).get(name))
                        for name, packed in own.arrays.items()
                    },
                }
                for policy, own in self.policies.items()
            }
        except (ValueError, TypeError) as fault:
            raise Damaged(f"heads that were published do not fit: {fault}") from fault


class _Schema(msgspec.Struct, array_like=True):
    schema: int


class _ImageCounts(NamedTuple):
    """The counts of an image that heads tell the differences from. counted: as `Learner` has it, by
    policy."""

    position: int
    counted: Mapping[str, int]
    tries: Mapping[str, Mapping[str, int]]
    settled: Mapping[str, int]

    @classmethod
    def of(cls, state: State) -> Self:
        deciding = state.deciding.items()
        return cls(
            state.position,
            {name: learner.counted for name, learner in deciding},
            {name: dict(learner.tries) for name, learner in deciding},
            dict(state.newness.settled) if state.counts_settled else {},
        )


class Stamp(NamedTuple):
    """What a publication says of itself.

    process, number   who published it, and the how many-th one it is
    image, heads      positions of the parts of these names; heads 0: the image alone
    position          at which a decider stands that has read all parts
    lag               seconds since the log ended there, when it was published
    """

    process: str
    number: int
    image: int
    heads: int
    position: int
    lag: float

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the text of a stamp. Raises Damaged."""
        try:
            process, number, image, heads, position, lag = text.split()
            return cls(process, int(number), int(image), int(heads), int(position), float(lag))
        except ValueError as fault:
            raise Damaged(f"a publication has no stamp of ours: {text!r}") from fault

    def __str__(self) -> str:
        return " ".join(map(str, (*self[:5], f"{self.lag:.3f}")))


Parts = dict[str, bytes]
"""Parts of a publication: an image; heads, whole; what has moved of these since."""


class Publishing:
    """The publications of one experiment by one process.

    image, heads, position   as `Stamp` has them, of the last one; 0: there is none
    """

    def __init__(self) -> None:
        self.image = self.heads = self.position = 0
        self._state: State | None = None
        self._counts: _ImageCounts | None = None
        self._base: HeadArrays = {}

    def begin_anew(self) -> None:
        """Have an image follow."""
        self._state = None

    def next(self, state: State) -> Callable[[], Parts] | None:
        """Return what makes the parts that are new, in any thread while the fold goes on; None:
        nothing has moved since the last call."""
        if self._state is not state or state.reshaped > self.image or self._counts is None:
            make = state.capture(learning=False)
            self._state, self._counts = state, _ImageCounts.of(state)
            self.image = self.position = state.position
            self.heads = 0
            return lambda: {"image": make().payload}
        if state.position == self.position:
            return None
        self.position = state.position
        arrays = {name: learner.moving()[1] for name, learner in state.deciding.items()}
        size = sum(array.nbytes for own in arrays.values() for array in own.values())
        large = size > LARGE_BYTES
        if large and self.heads:
            heads = _heads(state, self._counts, (self.heads, self._base))
            if heads.bytes <= MOST_MOVED * size:
                return lambda: {"moved": heads.pack()}
        heads = _heads(state, self._counts)
        self.heads = state.position
        self._base = _copied(arrays) if large else {}
        return lambda: {"heads": heads.pack()}


class Following:
    """A state that follows publications of its experiment."""

    def __init__(self, name: str) -> None:
        self.state = State(name)
        self._image = self._heads = 0
        self._base: HeadArrays = {}

    def missing(self, stamp: Stamp) -> list[str]:
        """Return the names of the parts that have to be read to stand where a stamp says."""
        found = []
        anew = stamp.image != self._image
        if anew:
            found.append("image")
        if stamp.heads and (anew or stamp.heads != self._heads):
            found.append("heads")
        if stamp.position > max(stamp.image, stamp.heads):
            found.append("moved")
        return found

    def read_image(self, parts: Parts) -> State | None:
        """Read the image among parts, in any thread; None: there is none. Raises Damaged, or
        UnknownSchema."""
        return State.restore(Snapshot(0, parts["image"])) if "image" in parts else None

    def take(self, image: State | None, parts: Parts) -> bool:
        """Take what is newer than the state, and return whether it has moved. image: of the parts,
        as it was read. Raises as `read_image`."""
        before = self.state.position
        if image is not None and _place(image) >= _place(self.state) and image.position:
            self.state, self._image = image, image.position
            self._heads, self._base = 0, {}
        for name in ("heads", "moved"):
            if name in parts:
                self._move(Heads.read(parts[name]))
        return self.state.position != before

    def _move(self, heads: Heads) -> None:
        """Move by heads, where they continue what is held."""
        if heads.image != self._image or heads.base not in (0, self._heads):
            return
        arrays = heads.arrays(self._base if heads.base else {})
        if heads.position > self.state.position:
            move(self.state, heads, arrays)
        if not heads.base:
            self._heads, self._base = heads.position, arrays


def _place(state: State) -> tuple[float, int]:
    """Return what orders the states of one log: one that has lost events goes on at an earlier
    position."""
    return state.lost_at, state.position


def _copied(arrays: HeadArrays) -> HeadArrays:
    return {
        name: {key: array.copy(order="K") for key, array in own.items()}
        for name, own in arrays.items()
    }


def _heads(state: State, image: _ImageCounts, base: tuple[int, HeadArrays] | None = None) -> Heads:
    """Return what has moved since an image. base: the position and the arrays of heads that these
    change; None: they are whole."""
    position, before = base or (0, {})
    policies = {}
    for name, learner in state.deciding.items():
        versions, arrays = learner.moving()
        known = before.get(name, {})
        packed = {
            key: one
            for key, array in arrays.items()
            if (one := _pack(array) if base is None else _pack_moved(array, known.get(key)))
        }
        tries = learner.tries if learner.counted != image.counted[name] else {}
        policies[name] = PolicyHeads(versions, _moved(tries, image.tries[name]), packed)
    settled = state.newness.settled if state.counts_settled else {}
    return Heads(
        SNAPSHOT_SCHEMA,
        image.position,
        position,
        state.position,
        state.log_time,
        policies,
        _moved(settled, image.settled),
        state.exposure.members(),
        None if state.examination is None else state.examination.bounds,
    )


def move(state: State, heads: Heads, arrays: HeadArrays) -> None:
    """Move a state that was restored from an image to the position of its heads. arrays: of the
    heads, as they say. Raises Damaged where they do not fit."""
    try:
        for name, own in heads.policies.items():
            learner = state.deciding[name]
            learner.move(own.versions, arrays[name])
            if own.tries:
                learner.tries |= own.tries
                learner.counted += 1
    except (LookupError, TypeError, ValueError) as fault:
        raise Damaged(f"heads that were published do not fit their image: {fault}") from fault
    if heads.settled:
        state.newness.settled |= heads.settled
        state.newness.moved += 1
    if state.exposure:
        state.exposure.restore(heads.exposure)
        state.exposure.added += 1
    if state.examination is not None and heads.chances is not None:
        state.examination.bounds = heads.chances
    state.position, state.log_time = heads.position, heads.log_time


def _moved(counts: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {arm: count for arm, count in counts.items() if before.get(arm) != count}
