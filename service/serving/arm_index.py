"""An index of a catalogue's arms for maximum-inner-product search: an exact scan of few arms, an
inverted file (faiss) over many."""

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from random import Random
from threading import Thread

import numpy as np

from service.bandits.linalg import Index, Single
from service.definition.features import Array
from service.definition.view import View

logger = logging.getLogger(__name__)

SCANNED = 20_000
"""A catalogue of so many arms is scanned: a millisecond for nine vectors of 32 columns."""

CHUNK = 8_192
"""Arms that one step of a load, a scan or a build covers, between which other threads can run."""

CAUGHT_UP = 64
"""Arms that one search brings up to date in a new index, in 1.6 ms of 1,000,000."""

REPLACED = 0.25
"""Share of the arms that may change before the index is rebuilt around new centers."""

OVERLONG = 0.05
"""Share of the arms that may be longer than all those that the index was built from."""

TRAINED, ROUNDS = 40, 5
"""Arms per list from which k-means finds the centers, and its rounds."""

PROBED = 30
"""Lists that a search probes for each vector, at least. Of 1,000,000 arms of 2,000 kinds in 4,000
lists it finds 0.984 of what an exact search finds, in 0.8 ms for nine vectors; of 100,000 arms that
lie nowhere near another, 0.54."""

HASHTABLE = 2
"""`faiss.DirectMap.Hashtable`, which faiss's stubs leave out: vectors are removed by number."""

BLOCKS = 16
"""Blocks of scores per wanted one, whose maxima bound the search for the largest."""


class _Products:
    """The arm's part of a view's columns: every distinct product of arm features once. Columns of
    the context alone are left out, since they are the same for all arms."""

    def __init__(self, view: View) -> None:
        factors = view.arm_factors  # (f, width), 0 is the column of ones
        distinct, of = np.unique(np.sort(factors, axis=0), axis=1, return_inverse=True)
        self._of: Index = of.reshape(-1)
        self._kept = np.asarray(distinct.any(axis=0))
        self._factors = distinct[:, self._kept]
        self.width = int(self._kept.sum())

    def vectors(self, arms: Array) -> Single:  # (n, arm.width) -> (width, n)
        ones = np.hstack([np.ones((len(arms), 1)), arms])
        products = np.ones((len(arms), self.width))
        for factor in self._factors:
            products *= ones.take(factor, axis=1)
        return products.T.astype(np.float32)

    def queries(self, weights: Array) -> Single:  # (view.width, q) -> (q, width)
        gathered = np.zeros((len(self._kept), weights.shape[1]))
        np.add.at(gathered, self._of, weights)
        return gathered[self._kept].T.astype(np.float32)


class _InvertedFile:
    """Numbered vectors in faiss lists around k-means centers.

    A vector v lies in the list of the center nearest to (v, sqrt(c^2 - |v|^2)): among vectors of
    one length the nearest have the largest inner product (Bachrach et al. 2014). For an overlong
    vector, longer than c, no list is the right one: a search has to look at each of these.
    """

    def __init__(self, vectors: Single) -> None:  # (width, n)
        import faiss  # an extra, which only large catalogues need

        self._faiss = faiss
        faiss.omp_set_num_threads(1)  # of this thread
        width, count = vectors.shape
        self._square = float(_squares(vectors).max())
        lists = int(np.clip(4 * np.sqrt(count), 16, 4_096))
        center_index = faiss.IndexFlatL2(width + 1)
        self._file = faiss.IndexIVFFlat(center_index, width + 1, lists, faiss.METRIC_INNER_PRODUCT)
        self._file.set_direct_map_type(HASHTABLE)
        training = self._file.cp
        training.niter, training.seed, training.spherical = ROUNDS, 1, False
        training.min_points_per_centroid, training.max_points_per_centroid = 1, TRAINED
        sample = np.random.default_rng(1).permutation(count)[: TRAINED * lists]
        self._file.train(self._lengthened(vectors[:, sample]))
        self._file.nprobe = max(PROBED, round(SCANNED / 9 / count * lists))
        self.overlong: set[int] = set()
        self.replaced = 0
        for start in range(0, count, CHUNK):
            stop = min(start + CHUNK, count)
            self._add(np.arange(start, stop), vectors[:, start:stop])

    def _lengthened(self, vectors: Single) -> Single:  # (width, n) -> (n, width + 1)
        left = self._square - _squares(vectors)
        return np.vstack([vectors, np.sqrt(np.maximum(left, 0.0))]).T.copy()

    def _add(self, numbers: Index, vectors: Single) -> None:
        self.overlong.update(numbers[_squares(vectors) > self._square].tolist())
        self._file.add_with_ids(self._lengthened(vectors), numbers)

    def replace(self, removed: Iterable[int], numbers: Index, vectors: Single) -> None:
        """Remove numbers, those unknown too, and add others."""
        self.overlong.difference_update(removed)
        old = np.array([*removed], np.int64)
        self._file.remove_ids(self._faiss.IDSelectorArray(len(old), self._faiss.swig_ptr(old)))
        self._add(numbers, vectors)
        self.replaced += len(numbers)

    def search(self, queries: Single, count: int) -> Index:  # (q, width) -> (n,)
        """Numbers among the `count` best for a query in the lists probed for it."""
        self._faiss.omp_set_num_threads(1)
        # On the sphere of the vectors: from near its middle all centers would be as far.
        lengths = np.sqrt(np.vecdot(queries, queries))
        scale = np.sqrt(self._square) / np.maximum(lengths, 1e-30)
        scaled = np.zeros((len(queries), queries.shape[1] + 1), np.float32)
        scaled[:, :-1] = queries * scale[:, None]
        _, found = self._file.search(scaled, count)
        numbers = np.unique(found).astype(np.intp)
        return numbers[numbers >= 0]  # -1 stands where the lists hold fewer


class ArmIndex:
    """The arms of one catalogue as one view's vectors, numbered without a gap: when an arm goes,
    the last takes its number. One thread changes it; `scan` and the build may run in others.

    A thread may see an arm that changes at that moment as neither old nor new. A build repeats
    what changed meanwhile; a scan may return such an arm, or miss it.
    """

    def __init__(self, view: View, *, scanned: int = SCANNED) -> None:
        self._products = _Products(view)
        self._scanned = scanned
        self._ids: list[str] = []
        self._number_of: dict[str, int] = {}
        self._vectors: Single = np.empty((self._products.width, 0), np.float32)
        self._file: _InvertedFile | None = None
        self._next: _InvertedFile | None = None
        self._build: Thread | None = None
        self._changed: set[int] = set()  # numbers that `_next` does not hold as they are
        self._failed = False

    def __len__(self) -> int:
        return len(self._ids)

    # -- changes -------------------------------------------------------------------------------

    def load(self, rows: Mapping[str, Array]) -> None:
        """Add a whole catalogue. 1,000,000 arms of 32 columns: some seconds."""
        entries = iter(rows.items())
        while some := dict(islice(entries, CHUNK)):
            self.change(some)

    def change(self, rows: Mapping[str, Array | None]) -> None:
        """Add or change arms; remove those without a row."""
        changed, upserted = set[int](), dict[str, Array]()
        for arm, row in rows.items():
            if row is None:
                changed |= self._remove(arm)
            else:
                upserted[arm] = row
        if upserted:
            numbers = [self._number(arm) for arm in upserted]
            arms = np.concatenate(list(upserted.values())).reshape(len(upserted), -1)
            self._reserve(len(self._ids))
            self._vectors[:, numbers] = self._products.vectors(arms)
            changed.update(numbers)
        if self._file is not None:
            self._bring(self._file, changed)
        if self._build is not None:
            self._changed |= changed

    def _number(self, arm: str) -> int:
        number = self._number_of.setdefault(arm, len(self._ids))
        if number == len(self._ids):
            self._ids.append(arm)
        return number

    def _reserve(self, count: int) -> None:
        width, room = self._vectors.shape
        if count > room:
            wide = np.empty((width, max(count, room + room // 2)), np.float32)
            wide[:, :room] = self._vectors
            self._vectors = wide

    def _remove(self, arm: str) -> set[int]:
        """The numbers that change."""
        number, last = self._number_of.pop(arm, None), len(self._ids) - 1
        if number is None:
            return set()
        moved = self._ids.pop()
        if number < last:
            self._ids[number], self._number_of[moved] = moved, number
            self._vectors[:, number] = self._vectors[:, last]
        return {number, last}

    def _bring(self, file: _InvertedFile, changed: set[int]) -> None:
        """Bring a file up to date with these numbers."""
        present = np.array([number for number in changed if number < len(self._ids)], np.int64)
        file.replace(changed, present, self._vectors[:, present])

    # -- the inverted file ---------------------------------------------------------------------

    @property
    def indexed(self) -> bool:
        """A search probes some lists of a file, else it compares every arm."""
        return self._file is not None

    @property
    def slow(self) -> bool:
        """A search takes long: it has to compare many arms."""
        return not self.indexed and len(self._ids) > 4 * self._scanned

    @property
    def stale(self) -> bool:
        """The file should be built, or built anew."""
        count, file = len(self._ids), self._file
        if self._failed or self._build is not None or count <= self._scanned:
            return False
        if file is None or file.replaced > max(REPLACED * count, self._scanned):
            return True
        return len(file.overlong) > max(OVERLONG * count, self._scanned // 4)

    def build_aside(self) -> Thread:
        """Build a file in a thread; `settle` starts to serve from it."""
        self._changed = set()
        vectors = self._vectors[:, : len(self._ids)]
        self._build = thread = Thread(target=self._build_file, args=(vectors,), daemon=True)
        thread.start()
        return thread

    def _build_file(self, vectors: Single) -> None:
        try:
            self._next = _InvertedFile(vectors)
        except Exception as fault:
            self._failed, self._build = True, None
            if isinstance(fault, ImportError):
                advice = "install forage[retrieval] (faiss-cpu)"
                logger.error("%d arms are searched one by one: %s", len(self), advice)
            else:
                logger.exception("no index could be built over %d arms", len(self))

    def settle(self) -> None:
        """Repeat in a new file some of what changed during its build; serve from it after all."""
        if self._next is None:
            return
        some = {self._changed.pop() for _ in range(min(CAUGHT_UP, len(self._changed)))}
        self._bring(self._next, some)
        if not self._changed:
            self._file, self._next, self._build = self._next, None, None
            self._file.replaced = 0

    # -- search --------------------------------------------------------------------------------

    def search(self, weights: Array, count: int, uniform: int, seed: int) -> list[str]:
        """Ids, in the order of their numbers: the `count` best for each column of the weights,
        (view.width, q), with the context's part in them, and `uniform` drawn by the seed."""
        return self.ids(self.nearest(weights, count), uniform, seed)

    def nearest(self, weights: Array, count: int) -> Index:
        """Numbers of the `count` best for each column."""
        if self._file is None:
            return self.scan(weights, count)
        queries = self._products.queries(weights)
        numbers = self._file.search(queries, count)
        if not self._file.overlong:
            return numbers
        numbers = np.union1d(numbers, [*self._file.overlong]).astype(np.intp)
        return numbers[_best(queries @ self._vectors[:, numbers], count)]

    def scan(self, weights: Array, count: int) -> Index:
        """The same by comparing every arm, in any thread."""
        queries, vectors = self._products.queries(weights), self._vectors[:, : len(self._ids)]
        starts = range(0, vectors.shape[1], CHUNK)
        chunks = [vectors[:, start : start + CHUNK] for start in starts]
        bests = [_best(queries @ chunk, count) for chunk in chunks]
        numbers = np.concatenate([start + best for start, best in zip(starts, bests, strict=True)])
        return numbers[_best(queries @ vectors[:, numbers], count)] if len(bests) > 1 else numbers

    def ids(self, numbers: Index, uniform: int, seed: int) -> list[str]:
        """Ids of numbers that are still taken, and of others drawn by the seed, in order."""
        random, count = Random(seed), len(self._ids)
        drawn = set[int]()
        while len(drawn) < min(uniform, count):
            drawn.add(random.randrange(count))
        drawn.update(number for number in numbers.tolist() if number < count)
        return [self._ids[number] for number in sorted(drawn)]


def _best(scores: Single, count: int) -> Index:  # (q, n)
    """Columns with one of the `count` largest of a row, rising."""
    blocks = BLOCKS * count
    apart = scores.shape[1] // blocks
    if apart < 2:
        return _largest(scores, count)
    # The largest of columns so far apart: as many of them as blocks, so that the count-th largest
    # bounds the count-th largest score from below.
    most = scores[:, : apart * blocks].reshape(len(scores), apart, blocks).max(axis=1)
    least = np.partition(most, -count, axis=1)[:, -count, None]
    kept = np.flatnonzero((scores >= least).any(axis=0))
    return np.asarray(kept[_largest(scores[:, kept], count)])


def _largest(scores: Single, count: int) -> Index:
    if count >= scores.shape[1]:
        return np.arange(scores.shape[1])
    largest = np.argpartition(scores, -count, axis=1)[:, -count:]
    return np.unique(largest)


def _squares(vectors: Single) -> Single:  # (width, n)
    return np.asarray(np.vecdot(vectors.T, vectors.T))
