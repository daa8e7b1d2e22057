"""Candidates out of a catalogue too large to score: the arms that win for a few posterior draws.

Every column that a policy sees is a product of what is the context's and what is the arm's
(`View`), so a sampled w of a shared linear head scores an arm by an inner product: q . v, where v
holds the arm's products, each once, and q gathers w times the context's. The largest of them are
found by maximum-inner-product search: among few arms exactly, among many in an inverted file
(faiss), which is built aside and never changed. What came since is searched exactly, and what went
is left out of what it finds.

As vectors of one length, (v, sqrt(c^2 - |v|^2)), so that the nearest in the file are those of the
largest product (Bachrach et al. 2014).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from threading import Lock, Thread

import numpy as np
import numpy.typing as npt

from service.features import Array, View
from service.fold import State
from service.policies.candidates import Candidates
from service.policies.learner import Learner

logger = logging.getLogger(__name__)

Single = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

DRAWS = 8
"""Posterior draws, beside the mean, that are searched for: others at each decision."""

SCANNED = 20_000
"""Arms that are searched exactly: a millisecond for nine vectors of 32 columns."""

FRESH = 0.05
"""Share of the arms that may have come or gone before the file is built anew."""

TRAINED, ROUNDS = 40, 5
"""Arms a list that its center is found from; rounds of k-means."""

BLOCK = 64
"""Scores of which the largest is looked at first."""

PROBED = 30
"""Lists that are looked into for each vector, at least. 1,000,000 arms of 2,000 kinds, 4,000 lists:
0.990 of what an exact search finds, in 1.4 ms for nine vectors (20 lists: 0.979, 60: 0.998 in 2.1
ms). Where no arm is near another, 30 lists find 0.41 and 60 find 0.56."""


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


class _File:
    """An inverted file: vectors in lists, those of a list near its center.

    faiss finds the centers and the lists. The search is here: the lists that any of the queries
    looks into are multiplied with all of them at once, an eighth of the time of faiss's own, which
    goes through them for each query, one vector at a time.
    """

    def __init__(self, vectors: Single, numbers: Index) -> None:
        import faiss  # an extra: only where there are that many arms

        faiss.omp_set_num_threads(1)  # of this thread
        lists = int(np.clip(4 * np.sqrt(len(vectors)), 16, 4_096))
        squares = np.einsum("nm,nm->n", vectors, vectors)
        self._length = np.sqrt(squares.max())
        last = np.sqrt(squares.max() - squares, dtype=np.float32)
        lengthened = np.column_stack([vectors, last])
        means = faiss.Kmeans(
            lengthened.shape[1], lists, niter=ROUNDS, seed=1,
            min_points_per_centroid=1, max_points_per_centroid=TRAINED,
        )  # fmt: skip
        means.train(lengthened)
        _, of = means.index.search(lengthened, 1)
        order = of[:, 0].argsort(kind="stable")
        self._stops = np.concatenate([[0], np.bincount(of[:, 0], minlength=lists).cumsum()])
        self._vectors, self.numbers = vectors[order], numbers[order]
        self._centers: Single = np.asarray(means.centroids)
        self._halves = 0.5 * np.einsum("nm,nm->n", self._centers, self._centers)
        fair = SCANNED / (DRAWS + 1) / len(vectors)  # as many as are searched exactly, in all
        self._probed = min(lists, max(PROBED, round(fair * lists)))

    def search(self, queries: Single) -> tuple[Index, Single]:  # (q, width) -> (n,), (q, n)
        """Numbers of what is in the lists nearest to the queries, and its products with them."""
        # On the sphere of the vectors: from near the middle all centers would be as far.
        lengths = np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), np.float32(1e-30))
        near = (queries * (self._length / lengths)) @ self._centers[:, :-1].T - self._halves
        lists = np.unique(np.argpartition(near, -self._probed, axis=1)[:, -self._probed :])
        starts, stops = self._stops[lists], self._stops[lists + 1]
        ends = (stops - starts).cumsum()
        scores = np.empty((len(queries), int(ends[-1])), np.float32)
        numbers = np.empty(scores.shape[1], np.intp)
        spans = zip(starts.tolist(), stops.tolist(), (ends - stops + starts).tolist(), strict=True)
        for start, stop, into in spans:
            part = slice(into, into + stop - start)
            np.matmul(queries, self._vectors[start:stop].T, out=scores[:, part])
            numbers[part] = self.numbers[start:stop]
        return numbers, scores


class Retriever:
    """The arms of one catalogue as one view's vectors. Read and changed on the event loop; `load`
    and the building of the file may run aside.

    An arm has a number from when it came; one whose features change gets another.
    """

    def __init__(self, view: View, *, scanned: int = SCANNED) -> None:
        self._columns = _Columns(view)
        self._scanned = scanned
        self._vectors = np.empty((0, self._columns.width), np.float32)
        self._ids: list[str] = []
        self._alive = np.empty(0, np.bool_)
        self._number_of: dict[str, int] = {}
        self._file: _File | None = None
        self._filed = 0  # numbers below it are in the file
        self._building: Thread | None = None
        self._lock = Lock()
        self._failed = False

    def __len__(self) -> int:
        return len(self._number_of)

    def load(self, rows: Mapping[str, Array]) -> None:
        """Take the whole catalogue in. 1,000,000 arms of 32 columns: some seconds."""
        arms = np.array(list(rows.values())).reshape(len(rows), -1)
        self._vectors = _with_room(self._columns.vectors(arms))
        self._ids = list(rows)
        self._alive = np.zeros(len(self._vectors), np.bool_)
        self._alive[: len(rows)] = True
        self._number_of = {arm: number for number, arm in enumerate(self._ids)}
        self._file, self._filed = None, 0

    def put(self, arm: str, row: Array | None) -> None:
        """An arm came or changed; None: it went."""
        with self._lock:
            before = self._number_of.pop(arm, None)
            if before is not None:
                self._alive[before] = False
            if row is None:
                return
            number = len(self._ids)
            if number == len(self._alive):
                self._vectors = _with_room(self._vectors)
                alive = np.zeros(len(self._vectors), np.bool_)
                alive[:number], self._alive = self._alive, alive
            self._vectors[number] = self._columns.vectors(row[None])[0]
            self._alive[number] = True
            self._ids.append(arm)
            self._number_of[arm] = number

    # -- the file ------------------------------------------------------------------------------

    @property
    def scans(self) -> bool:
        """A search takes long: every arm is looked at."""
        return self._file is None and len(self._ids) > 4 * self._scanned

    @property
    def stale(self) -> bool:
        """The file is to be built, or built anew."""
        alive, known = len(self._number_of), len(self._ids)
        if self._failed or self._building is not None or known <= self._scanned:
            return False
        fresh = known - self._filed + int(self._file is not None) * (known - alive)
        return self._file is None or fresh > max(FRESH * alive, self._scanned // 4)

    def build_aside(self) -> Thread:
        """Build the file in a thread; the old one serves meanwhile."""
        with self._lock:
            known = len(self._ids)
            numbers = self._alive[:known].nonzero()[0]
            vectors = self._vectors[numbers]
        thread = Thread(target=self._build, args=(vectors, numbers, known), daemon=True)
        self._building = thread
        thread.start()
        return thread

    def _build(self, vectors: Single, numbers: Index, known: int) -> None:
        try:
            built = _File(vectors, numbers)
        except ImportError:
            self._failed = True
            logger.error(
                "%d arms are searched one by one: install forage[retrieval] (faiss-cpu)",
                len(numbers),
            )
        except Exception:
            self._failed = True
            logger.exception("no index could be built over %d arms", len(numbers))
        else:
            with self._lock:
                self._file, self._filed = built, known
                self._compact()
        finally:
            self._building = None

    def _compact(self) -> None:
        """Numbers of arms that went are given up where they are most of all: with the next file."""
        known = len(self._ids)
        if known < 2 * len(self._number_of) or self._file is None:
            return
        alive = self._alive[:known].nonzero()[0]
        renumbered = np.full(known, -1, np.intp)
        renumbered[alive] = np.arange(len(alive))
        self._filed = int(np.searchsorted(alive, self._filed))
        self._file.numbers = renumbered[self._file.numbers]
        self._vectors = self._vectors[alive]
        self._ids = [self._ids[number] for number in alive.tolist()]
        self._alive = np.ones(len(alive), np.bool_)
        self._number_of = {arm: number for number, arm in enumerate(self._ids)}

    # -- search --------------------------------------------------------------------------------

    def search(self, weights: Array, count: int, chance: int, seed: int) -> list[str]:
        """Ids, in the order of their numbers. weights: (view.width, q), with the context's part in
        them: the `count` best for each column are found, and `chance` more are drawn uniformly by
        the seed."""
        queries = self._columns.query(weights)
        with self._lock:
            known, file = len(self._ids), self._file
            found = [self._at_random(chance, known, seed)]
            start = 0
            if file is not None:
                start = self._filed
                numbers, scores = file.search(queries)
                scores[:, (numbers < 0) | ~self._alive[numbers]] = -np.inf
                found.append(numbers[_best(scores, count)])
            if start < known:
                scores = queries @ self._vectors[start:known].T
                scores[:, ~self._alive[start:known]] = -np.inf
                found.append(start + _best(scores, count))
            return [self._ids[number] for number in np.unique(np.concatenate(found)).tolist()]

    def _at_random(self, count: int, known: int, seed: int) -> Index:
        chance, found = Random(seed), set[int]()
        count = min(count, len(self._number_of))
        while len(found) < count:
            number = chance.randrange(known)
            if self._alive[number]:
                found.add(number)
        return np.array(sorted(found), np.intp)


def _with_room(vectors: Single) -> Single:
    """For an eighth more: to copy a million takes a tenth of a second."""
    wide = np.empty((len(vectors) + 1_024 + len(vectors) // 8, vectors.shape[1]), np.float32)
    wide[: len(vectors)] = vectors
    return wide


def _best(scores: Single, count: int) -> Index:  # (q, n)
    """Columns with one of the `count` largest of a row, but for those of -inf."""
    whole = scores.shape[1] - scores.shape[1] % BLOCK
    if whole <= 4 * BLOCK * count:
        return _largest(scores, count)
    # So many blocks hold a score that is no smaller: none below it is among the largest.
    most = scores[:, :whole].reshape(len(scores), -1, BLOCK).max(axis=2)
    least = np.partition(most, -count, axis=1)[:, -count, None]
    kept = np.flatnonzero((scores >= least).any(axis=0))
    return np.asarray(kept[_largest(scores[:, kept], count)])


def _largest(scores: Single, count: int) -> Index:
    if count < scores.shape[1]:
        found = np.argpartition(scores, -count, axis=1)[:, -count:]
    else:
        found = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    rows, columns = np.arange(len(scores))[:, None], found
    return np.unique(found[scores[rows, columns] > -np.inf])


class _Held:
    """The retriever of one policy, and how far it has followed its catalogue."""

    def __init__(self, view: View, state: State) -> None:
        self._view, self._rows = view, state.rows
        self.retriever = Retriever(view)
        self.followed = len(state.changed)

    def is_of(self, state: State, learner: Learner) -> bool:
        return self._rows is state.rows and self._view is learner.view


class Retrieval:
    """Candidates of the policies with `retrieve`."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], _Held] = {}
        self._loading: dict[tuple[str, str], asyncio.Lock] = {}

    def applies(self, state: State, learner: Learner) -> bool:
        """Whether a request that names no arms is to be answered from a part of the catalogue."""
        return learner.retrieves is not None and len(state.rows) > learner.retrieves

    def now(self, state: State, learner: Learner, context: Array, seed: int) -> Candidates:
        """The candidates of a decision; none, where it takes long to find them."""
        held = self._held.get((state.name, learner.name))
        if held is None or not held.is_of(state, learner):
            return _nothing(state)
        retriever = _follow(held, state)
        if retriever.scans:
            return _nothing(state)
        return _chosen(_search(retriever, learner, context, seed), state)

    async def candidates(
        self, state: State, learner: Learner, context: Array, seed: int
    ) -> Candidates:
        """The same in another thread, where the catalogue has yet to be taken in, or each of its
        arms to be looked at."""
        retriever = _follow(await self._load(state, learner), state)
        found = await asyncio.to_thread(_search, retriever, learner, context, seed)
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


def _follow(held: _Held, state: State) -> Retriever:
    """Up to the catalogue as it is."""
    retriever = held.retriever
    for arm in state.changed[held.followed :]:
        retriever.put(arm, state.rows.get(arm))
    held.followed = len(state.changed)
    if retriever.stale:
        retriever.build_aside()
    return retriever


def _search(retriever: Retriever, learner: Learner, context: Array, seed: int) -> list[str]:
    count = learner.retrieves
    assert count is not None
    directions = learner.directions(context, DRAWS, seed)
    return retriever.search(directions, count, count // 4 + 1, seed)


def _chosen(ids: Sequence[str], state: State) -> Candidates:
    """Without what is known of the rest of the catalogue: that would take seconds to tell."""
    return Candidates(tuple(ids), np.array([state.rows[arm] for arm in ids]))


def _nothing(state: State) -> Candidates:
    return Candidates((), np.empty((0, state.schema.arm.width)))
