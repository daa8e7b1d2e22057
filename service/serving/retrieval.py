"""Candidates out of a catalogue too large to score: the arms that win for a few posterior draws.

Every column that a policy sees is a product of what is the context's and what is the arm's
(`View`), so a sampled w of a shared linear head scores an arm by an inner product: q . v, where v
holds the arm's products, each once, and q gathers w times the context's. The largest of them are
found by maximum-inner-product search: among few arms exactly, among many in an inverted file, whose
lists are those of centers that k-means (faiss) finds aside. What comes is searched exactly until it
is brought to the list of its center, a few at each search; what goes leaves its list at once.

As vectors of one length, (v, sqrt(c^2 - |v|^2)), so that the nearest in the file are those of the
largest product (Bachrach et al. 2014).

The search is here: the lists that any of the queries looks into are multiplied with all of them at
once, and arms come and go in place. Nine queries over 1,000,000 arms around 2,000 kinds take 1.0 ms
(recall 0.997), with faiss's IndexIVFFlat 1.2 ms (1.000), with an exact scan 61 ms.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from random import Random
from threading import Lock, Thread
from time import sleep

import numpy as np

from service.bandits.policies.candidates import Candidates
from service.bandits.posterior.rows import Index, Single
from service.definition.features import Array, View
from service.state.events import Shortlist
from service.state.fold import State
from service.state.learner import Learner

logger = logging.getLogger(__name__)

DRAWS = 8
"""Posterior draws, beside the mean, that are searched for: others at each decision."""

SCANNED = 20_000
"""Arms that are searched exactly: a millisecond for nine vectors of 32 columns."""

FRESH = 0.05
"""Share of the arms that may be searched exactly, however they came, before the index is built
anew: so many came at once."""

MOVED = 0.25
"""Share of the arms that may have come since the centers were found."""

TRAINED, ROUNDS = 40, 5
"""Arms a list that its center is found from; rounds of k-means."""

BLOCKS = 16
"""Of scores, of which the largest is looked at first, for each that is wanted."""

TOGETHER, MOST = 8_192, 32_768
"""Arms of a list without a center; scores that are made before others have their turn."""

MARGIN = 32
"""Arms that a list has room for, beyond a share of those that it holds."""

RESTING, SETTLED = 1_024, 64
"""Arms that are searched exactly in any case; of those beyond, so many are brought to their lists
before a search, in 0.9 ms."""

SLICE = 256
"""Changes that are followed at one go, in 2 ms."""

BREATH_SECONDS = 0.0005
"""Between two slices of work in a thread: requests go first."""

NONE = np.empty(0, np.intp)

PROBED = 30
"""Lists that are looked into for each vector, at least. 1,000,000 arms of 2,000 kinds, 4,000 lists:
0.985 of what an exact search finds, in 0.9 ms for nine vectors (20 lists: 0.970 in 0.7 ms). Where
no arm is near another, 30 lists find 0.39 and 20 find 0.32."""


class _Columns:
    """What of a view's columns is the arm's: each product once, those of the context alone left
    out, since they are the same for all arms."""

    def __init__(self, view: View) -> None:
        factors = view.arm_factors  # (f, width), 0 is the column of ones
        distinct, of = np.unique(np.sort(factors, axis=0), axis=1, return_inverse=True)
        self._of: Index = of.reshape(-1)
        self._kept = np.asarray(distinct.any(axis=0))
        self._factors = distinct[:, self._kept]
        self.width = int(self._kept.sum())

    def vectors(self, arms: Array) -> Single:  # (n, arm.width) -> (n, width)
        ones = np.hstack([np.ones((len(arms), 1)), arms])
        found = np.ones((len(arms), self.width))
        for factor in self._factors:
            found *= ones.take(factor, axis=1)
        return found.astype(np.float32)

    def query(self, weights: Array) -> Single:  # (view.width, q) -> (q, width)
        gathered = np.zeros((len(self._kept), weights.shape[1]))
        np.add.at(gathered, self._of, weights)
        return gathered[self._kept].T.astype(np.float32)


class _List:
    """Vectors that lie together, a column each: products take a third of the time that they take
    of rows."""

    __slots__ = ("numbers", "size", "vectors")

    def __init__(self, vectors: Single) -> None:  # (width, room)
        self.vectors = vectors
        self.numbers = np.empty(vectors.shape[1], np.intp)
        self.size = 0

    def _have_room(self, stop: int) -> None:
        start = self.size
        if stop > len(self.numbers):
            room = max(stop, MARGIN + start + start // 4)
            wide = _List(np.empty((len(self.vectors), room), np.float32))
            wide.vectors[:, :start] = self.vectors[:, :start]
            wide.numbers[:start] = self.numbers[:start]
            self.vectors, self.numbers = wide.vectors, wide.numbers

    def add_one(self, number: int, vector: Single) -> int:  # (width,)
        """Its place."""
        place = self.size
        self._have_room(place + 1)
        self.vectors[:, place] = vector
        self.numbers[place] = number
        self.size = place + 1
        return place

    def add(self, numbers: Index, vectors: Single) -> None:  # (n,), (n, width)
        start, stop = self.size, self.size + len(numbers)
        self._have_room(stop)
        self.vectors[:, start:stop] = vectors.T
        self.numbers[start:stop] = numbers
        self.size = stop

    def drop(self, place: int) -> int:
        """The number that takes its place: the last one's."""
        self.size = last = self.size - 1
        number = int(self.numbers[last])
        if place < last:
            self.vectors[:, place] = self.vectors[:, last]
            self.numbers[place] = number
        return number


class _Centers:
    """Of lists, found by k-means (faiss) among the vectors that there were."""

    def __init__(self, vectors: Single) -> None:
        import faiss  # an extra: only where there are that many arms

        faiss.omp_set_num_threads(1)  # of this thread
        count = int(np.clip(4 * np.sqrt(len(vectors)), 16, 4_096))
        squares = np.vecdot(vectors, vectors)
        self.square = squares.max()
        last = np.sqrt(self.square - squares, dtype=np.float32)
        lengthened = np.column_stack([vectors, last])
        means = faiss.Kmeans(
            lengthened.shape[1], count, niter=ROUNDS, seed=1,
            min_points_per_centroid=1, max_points_per_centroid=TRAINED,
        )  # fmt: skip
        means.train(lengthened)
        _, of = means.index.search(lengthened, 1)
        self.of: Index = of[:, 0]
        """The nearest center of each of them."""
        found: Single = np.asarray(means.centroids)
        self._columns = np.ascontiguousarray(found.T)
        self._halves = 0.5 * np.vecdot(found, found)
        fair = SCANNED / (DRAWS + 1) / len(vectors)  # as many as are searched exactly, in all
        self._probed = min(count, max(PROBED, round(fair * count)))

    def __len__(self) -> int:
        return len(self._halves)

    def nearest(self, vectors: Single) -> Index:  # (n, width) -> (n,)
        """-1: it is longer than all were, and where it would lie nothing is looked for."""
        squares = np.vecdot(vectors, vectors)
        last = np.sqrt(np.maximum(self.square - squares, 0.0), dtype=np.float32)
        near = np.column_stack([vectors, last]) @ self._columns - self._halves
        return np.where(squares <= self.square, near.argmax(axis=1), -1)

    def probed(self, queries: Single) -> Index:  # (q, width) -> (n,)
        """Lists that one of the queries is near to."""
        # On the sphere of the vectors: from near the middle all centers would be as far.
        lengths = np.maximum(np.sqrt(np.vecdot(queries, queries)), np.float32(1e-30))
        near = (queries * (np.sqrt(self.square) / lengths)[:, None]) @ self._columns[:-1]
        near -= self._halves
        return _best(near, self._probed)


class _Lists:
    """Vectors by number in lists: those near the same center, and the rest, which come last, are
    always looked into, and hold all where there are no centers."""

    def __init__(self, width: int, centers: _Centers | None = None) -> None:
        self.centers, self._width = centers, width
        self._near = 0 if centers is None else len(centers)
        self._lists: list[_List] = []
        self._list_of = np.empty(0, np.int32)
        self._place_of = np.empty(0, np.int32)
        self.moved = 0
        """Vectors that were put since it was made."""

    @classmethod
    def sorted(cls, centers: _Centers, numbers: Index, vectors: Single) -> "_Lists":
        """Of the vectors that the centers were found among."""
        made = cls(vectors.shape[1], centers)
        made._number(int(numbers.max()) + 1)
        order = centers.of.argsort(kind="stable")
        sizes = np.bincount(centers.of, minlength=len(centers)).tolist()
        rooms = [made._width * (size + size // 8 + MARGIN) for size in sizes]
        place = np.empty(sum(rooms), np.float32)  # at one place: fewer pages to find
        starts = accumulate(rooms, initial=0)
        for size, room, start, first in zip(
            sizes, rooms, starts, accumulate(sizes, initial=0), strict=False
        ):
            which = order[first : first + size]
            made._lists.append(_List(place[start : start + room].reshape(made._width, -1)))
            made._into(len(made._lists) - 1, numbers[which], vectors[which])
        return made

    @property
    def rest(self) -> int:
        """Vectors near no center, or not yet told which."""
        return sum(each.size for each in self._lists[self._near :])

    def _number(self, stop: int) -> None:
        """Have room for numbers up to it: for a quarter more, since a copy takes milliseconds."""
        known = len(self._list_of)
        if stop > known:
            more = np.full(stop + stop // 4 - known, -1, np.int32)
            self._list_of = np.concatenate([self._list_of, more])
            self._place_of = np.concatenate([self._place_of, more])

    def _into(self, which: int, numbers: Index, vectors: Single) -> None:
        own = self._lists[which]
        self._list_of[numbers] = which
        self._place_of[numbers] = np.arange(own.size, own.size + len(numbers))
        own.add(numbers, vectors)

    def put(self, numbers: Index, vectors: Single) -> None:  # (n,), (n, width)
        """Vectors of numbers that are not in; they join the rest."""
        self._number(int(numbers.max(initial=-1)) + 1)
        self.moved += len(numbers)
        start = 0
        while start < len(numbers):
            if len(self._lists) == self._near or self._lists[-1].size == TOGETHER:
                self._lists.append(_List(np.empty((self._width, MARGIN), np.float32)))
            stop = start + TOGETHER - self._lists[-1].size
            self._into(len(self._lists) - 1, numbers[start:stop], vectors[start:stop])
            start = stop

    def drop(self, number: int) -> None:
        """Nothing where it is not in."""
        if number >= len(self._list_of) or (which := int(self._list_of[number])) < 0:
            return
        place = int(self._place_of[number])
        self._place_of[self._lists[which].drop(place)] = place
        self._list_of[number] = -1

    def rename(self, number: int, other: int) -> None:
        """Give a vector another number, which is free."""
        which, place = int(self._list_of[number]), int(self._place_of[number])
        self._lists[which].numbers[place] = other
        self._list_of[other], self._place_of[other] = which, place
        self._list_of[number] = -1

    def vectors(self, numbers: Sequence[int]) -> Single:  # (n, width)
        found = np.empty((len(numbers), self._width), np.float32)
        for row, number in enumerate(numbers):
            own = self._lists[self._list_of[number]]
            found[row] = own.vectors[:, self._place_of[number]]
        return found

    def settle(self) -> Index:
        """Some of the rest into the lists of their centers; their numbers. Those that are too long
        for any stay."""
        last = self._lists[-1] if len(self._lists) > self._near else None
        if self.centers is None or last is None:
            return NONE
        if last.size == 0:
            self._lists.pop()
            return NONE
        start = max(0, last.size - SETTLED)
        numbers = last.numbers[start : last.size].copy()
        vectors = last.vectors[:, start : last.size].T.copy()
        of = self.centers.nearest(vectors)
        known = of >= 0
        if not known.any():
            return NONE
        last.size = start
        of[~known] = len(self._lists) - 1  # where they were
        entries = zip(of.tolist(), numbers.tolist(), vectors, strict=True)
        places = [self._lists[which].add_one(number, one) for which, number, one in entries]
        self._list_of[numbers], self._place_of[numbers] = of, places
        return numbers

    def copied(self, which: int) -> tuple[Index, Single] | None:
        """Numbers and vectors of one list; None: there are no more."""
        if which >= len(self._lists):
            return None
        own = self._lists[which]
        return own.numbers[: own.size].copy(), own.vectors[:, : own.size].T.copy()

    def parts(self, queries: Single) -> Iterator[list[_List]]:
        """The lists to look into, some at a time."""
        near = [] if self.centers is None else self.centers.probed(queries).tolist()
        part, size = list[_List](), 0
        for which in [*near, *range(self._near, len(self._lists))]:
            own = self._lists[which]
            if size + own.size > MOST:
                yield part
                part, size = list[_List](), 0
            part.append(own)
            size += own.size
        yield part


def _found(lists: Sequence[_List], queries: Single, count: int) -> tuple[list[int], Single]:
    """Numbers of the `count` best for each query, (n,), and their products with all, (q, n)."""
    stops = [*accumulate((each.size for each in lists), initial=0)]
    scores = np.empty((len(queries), stops[-1]), np.float32)
    for each, (start, stop) in zip(lists, pairwise(stops), strict=True):
        np.matmul(queries, each.vectors[:, : stop - start], out=scores[:, start:stop])
    best = _best(scores, count)
    which = (np.searchsorted(stops, best, side="right") - 1).tolist()
    places = zip(which, best.tolist(), strict=True)
    numbers = [int(lists[of].numbers[place - stops[of]]) for of, place in places]
    return numbers, scores[:, best]


class Retriever:
    """The arms of one catalogue as one view's vectors. Read and changed on the event loop; `load`,
    the building of the index, and a search that takes long may run aside.

    Arms are numbered without a gap: as one goes, the last takes its number.
    """

    def __init__(self, view: View, *, scanned: int = SCANNED) -> None:
        self._columns = _Columns(view)
        self._scanned = scanned
        self._ids: list[str] = []
        self._number_of: dict[str, int] = {}
        self._lists = _Lists(self._columns.width)
        self._building: Thread | None = None
        self._touched: set[int] = set()  # numbers that are another's, or lie elsewhere, since then
        self._lock = Lock()
        self._failed = False

    def __len__(self) -> int:
        return len(self._ids)

    def load(self, rows: Mapping[str, Array]) -> None:
        """Take the whole catalogue in. 1,000,000 arms of 32 columns: some seconds."""
        entries = iter(rows.items())
        while some := dict(islice(entries, TOGETHER)):
            self.change(some)

    def put(self, arm: str, row: Array | None) -> None:
        """An arm came or changed; None: it went."""
        self.change({arm: row})

    def change(self, rows: Mapping[str, Array | None]) -> None:
        """The same of many. 1,000 arms: 3 ms."""
        known = {arm: row for arm, row in rows.items() if row is not None}
        if known:
            arms = np.concatenate(list(known.values())).reshape(len(known), -1)
            vectors = self._columns.vectors(arms)
        with self._lock:
            for arm in rows.keys() - known.keys():
                self._remove(arm)
            if known:
                numbers = [self._number(arm) for arm in known]
                self._lists.put(np.array(numbers, np.intp), vectors)
                if self._building is not None:
                    self._touched.update(numbers)

    def _number(self, arm: str) -> int:
        """Its own, or a new one; without a vector."""
        number = self._number_of.setdefault(arm, len(self._ids))
        if number == len(self._ids):
            self._ids.append(arm)
        else:
            self._lists.drop(number)
        return number

    def _remove(self, arm: str) -> None:
        number, last = self._number_of.pop(arm, None), len(self._ids) - 1
        if number is None:
            return
        self._lists.drop(number)
        moved = self._ids.pop()
        if number < last:
            self._lists.rename(last, number)
            self._ids[number], self._number_of[moved] = moved, number
        if self._building is not None:
            self._touched |= {number, last}

    # -- the index -----------------------------------------------------------------------------

    @property
    def indexed(self) -> bool:
        """Some lists of a file are looked into; else every arm is looked at."""
        return self._lists.centers is not None

    @property
    def scans(self) -> bool:
        """A search takes long: every arm is looked at."""
        return not self.indexed and len(self._ids) > 4 * self._scanned

    @property
    def stale(self) -> bool:
        """The index is to be built, or built anew."""
        known, lists = len(self._ids), self._lists
        if self._failed or self._building is not None or known <= self._scanned:
            return False
        many = lists.rest > max(FRESH * known, self._scanned // 4)
        return lists.centers is None or many or lists.moved > max(MOVED * known, self._scanned)

    def settle(self) -> None:
        """Bring arms that came to where they are searched for, a few at a time."""
        if self._lists.centers is not None and self._lists.rest > RESTING:
            with self._lock:
                numbers = self._lists.settle()
                if self._building is not None:
                    self._touched.update(numbers.tolist())

    def build_aside(self) -> Thread:
        """Build the index in a thread; the old one serves meanwhile."""
        self._touched = set()
        self._building = thread = Thread(target=self._build, daemon=True)
        thread.start()
        return thread

    def _build(self) -> None:
        try:
            numbers, vectors = self._copied()
            self._replace(_Lists.sorted(_Centers(vectors), numbers, vectors))
        except ImportError:
            self._failed = True
            logger.error(
                "%d arms are searched one by one: install forage[retrieval] (faiss-cpu)", len(self)
            )
        except Exception:
            self._failed = True
            logger.exception("no index could be built over %d arms", len(self))
        finally:
            self._building = None

    def _copied(self) -> tuple[Index, Single]:
        """List by list: others have their turn in between."""
        found, which = list[tuple[Index, Single]](), 0
        while True:
            with self._lock:
                own = self._lists.copied(which)
            if own is None:
                break
            found.append(own)
            which += 1
        numbers = np.concatenate([own for own, _ in found])
        vectors = np.concatenate([own for _, own in found])
        # One that was settled meanwhile may be there twice.
        numbers, first = np.unique(numbers, return_index=True)
        return numbers, vectors[first]

    def _replace(self, lists: _Lists) -> None:
        """Bring a new index up to the catalogue, in slices, and serve from it."""
        while True:
            with self._lock:
                some = [self._touched.pop() for _ in range(min(SETTLED, len(self._touched)))]
                for number in some:
                    lists.drop(number)
                known = [number for number in some if number < len(self._ids)]
                lists.put(np.array(known, np.intp), self._lists.vectors(known))
                if not self._touched:
                    lists.moved, self._lists = 0, lists
                    return
            sleep(BREATH_SECONDS)

    # -- search --------------------------------------------------------------------------------

    def search(self, weights: Array, count: int, chance: int, seed: int) -> list[str]:
        """Ids, in the order of their numbers. weights: (view.width, q), with the context's part in
        them: the `count` best for each column are found, and `chance` more are drawn uniformly by
        the seed."""
        queries, found = self._columns.query(weights), None
        while found is None:
            found = self._search(queries, count)
        with self._lock:
            # Where arms went meanwhile, another may have its number, or none.
            numbers = {number for number in found if number < len(self._ids)}
            numbers |= self._at_random(chance, seed)
            return [self._ids[number] for number in sorted(numbers)]

    def _search(self, queries: Single, count: int) -> list[int] | None:
        """Numbers of the best. None: another index came between."""
        lists, numbers, scores = self._lists, list[int](), list[Single]()
        for part in lists.parts(queries):
            with self._lock:  # not for as long as a scan takes
                if lists is not self._lists:
                    return None
                some, own = _found(part, queries, count)
            numbers += some
            scores.append(own)
        if len(scores) == 1:
            return numbers
        return [numbers[place] for place in _best(np.hstack(scores), count).tolist()]

    def _at_random(self, count: int, seed: int) -> set[int]:
        chance, found, known = Random(seed), set[int](), len(self._ids)
        while len(found) < min(count, known):
            found.add(chance.randrange(known))
        return found


def _best(scores: Single, count: int) -> Index:  # (q, n)
    """Columns with one of the `count` largest of a row, rising."""
    blocks = BLOCKS * count
    apart = scores.shape[1] // blocks
    if apart < 2:
        return _largest(scores, count)
    # Of columns so far apart, the largest: as many as hold a score that is no smaller than the
    # count-th of these. None below it is among the largest.
    most = scores[:, : apart * blocks].reshape(len(scores), apart, blocks).max(axis=1)
    least = np.partition(most, -count, axis=1)[:, -count, None]
    kept = np.flatnonzero((scores >= least).any(axis=0))
    return np.asarray(kept[_largest(scores[:, kept], count)])


def _largest(scores: Single, count: int) -> Index:
    if count >= scores.shape[1]:
        return np.arange(scores.shape[1])
    found = np.zeros(scores.shape[1], np.bool_)
    found[np.argpartition(scores, -count, axis=1)[:, -count:]] = True
    return found.nonzero()[0]


class _Held:
    """The retriever of one policy, and how far it has followed its catalogue."""

    def __init__(self, view: View, state: State) -> None:
        self._view, self._rows = view, state.rows
        self.retriever = Retriever(view)
        self._followed = state.changes

    def is_of(self, state: State, learner: Learner) -> bool:
        """Whether it can follow: it has not fallen too far behind."""
        same = self._rows is state.rows and self._view is learner.view
        return same and self._followed >= state.changes - len(state.changed)

    def follow(self, state: State) -> bool:
        """Some of what changed; whether it is up to the catalogue as it is."""
        if behind := state.changes - self._followed:
            stop = len(state.changed) - behind + SLICE
            arms = state.changed[stop - SLICE : stop]
            self.retriever.change({arm: state.rows.get(arm) for arm in arms})
            self._followed += len(arms)
        self.retriever.settle()
        if self.retriever.stale:
            self.retriever.build_aside()
        return self._followed == state.changes


class Retrieval:
    """Candidates of the policies with `retrieve`."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], _Held] = {}
        self._loading: dict[tuple[str, str], asyncio.Lock] = {}

    def applies(self, state: State, learner: Learner) -> bool:
        """Whether a request that names no arms is to be answered from a part of the catalogue."""
        retrieves = learner.policy.retrieve
        return retrieves is not None and len(state.rows) > retrieves

    def now(self, state: State, learner: Learner, context: Array, seed: int) -> Candidates:
        """The candidates of a decision; none, where it takes long to find them."""
        held = self._held.get((state.name, learner.name))
        if held is None or not held.is_of(state, learner):
            return _nothing(state)
        if not held.follow(state) or held.retriever.scans:
            return _nothing(state)
        return _chosen(_search(held.retriever, learner, context, seed), state)

    def shortlist(self, state: State, learner: Learner) -> Shortlist:
        """How the candidates that were found just now were chosen."""
        best = learner.policy.retrieve
        assert best is not None
        method = "index" if self._held[state.name, learner.name].retriever.indexed else "scan"
        return Shortlist(learner.name, method, len(state.rows), best, DRAWS + 1, _uniform(best))

    async def candidates(
        self, state: State, learner: Learner, context: Array, seed: int
    ) -> Candidates:
        """The same, where the catalogue has yet to be taken in, or many of its changes to be
        followed; in another thread, where each of its arms has to be looked at."""
        held = await self._load(state, learner)
        while not held.follow(state):
            await asyncio.sleep(0)
            held = await self._load(state, learner)
        if not held.retriever.scans:
            return _chosen(_search(held.retriever, learner, context, seed), state)
        found = await asyncio.to_thread(_search, held.retriever, learner, context, seed)
        return _chosen([arm for arm in found if arm in state.rows], state)

    async def _load(self, state: State, learner: Learner) -> _Held:
        key = state.name, learner.name
        async with self._loading.setdefault(key, asyncio.Lock()):
            held = self._held.get(key)
            while held is None or not held.is_of(state, learner):
                held = _Held(learner.view, state)
                await asyncio.to_thread(held.retriever.load, dict(state.rows))
                self._held[key] = held
            return held


def _search(retriever: Retriever, learner: Learner, context: Array, seed: int) -> list[str]:
    count = learner.policy.retrieve
    assert count is not None
    directions = learner.directions(context, DRAWS, seed)
    return retriever.search(directions, count, _uniform(count), seed)


def _uniform(best: int) -> int:
    """Arms that are drawn beside the best ones of each direction."""
    return best // 4 + 1


def _chosen(ids: Sequence[str], state: State) -> Candidates:
    """Without what is known of the rest of the catalogue: that would take seconds to tell."""
    if not ids:
        return _nothing(state)
    x = np.concatenate([state.rows[arm] for arm in ids]).reshape(len(ids), -1)
    return Candidates(tuple(ids), x)


def _nothing(state: State) -> Candidates:
    return Candidates((), np.empty((0, state.schema.arm.width)))
