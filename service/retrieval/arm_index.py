"""An index of a catalogue's arms for maximum-inner-product search: an exact scan of few arms, an
inverted file (faiss) over many, with an exact scan of the arms that changed since it was built."""

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from random import Random
from threading import Thread

import numpy as np

from service.bandits.linalg import Index, Mask, Single
from service.features.schema import Array
from service.features.view import View

logger = logging.getLogger(__name__)

SCANNED_ARMS = 20_000
"""Most arms of a catalogue that is scanned: a millisecond for nine vectors of 32 columns."""

CHANGED = 5_000
"""Changed arms after which the file is built again; a search scans them."""

ARMS_PER_STEP = 8_192
"""Arms that one step of a load, a scan or a build covers, between which other threads can run."""

TRAINED, ROUNDS = 40, 5
"""Arms per list from which k-means finds the centers, and its rounds."""

PROBED = 30
"""Least lists that a search probes for each vector. Of 1,000,000 arms of 2,000 kinds in 4,000 lists
it finds 0.984 of what an exact search finds, in 0.8 ms for nine vectors; of 100,000 arms that lie
nowhere near another, 0.54."""

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

    A vector v lies in the list of the center nearest to (v, sqrt(c^2 - |v|^2)), c the length of the
    longest: among vectors of one length the nearest have the largest inner product (Bachrach et al.
    2014).
    """

    def __init__(self, vectors: Single) -> None:  # (width, n)
        import faiss  # an extra, which only large catalogues need

        faiss.omp_set_num_threads(1)  # of this thread
        self._faiss = faiss
        width, count = vectors.shape
        squares = np.vecdot(vectors.T, vectors.T)
        self._length = float(np.sqrt(squares.max()))
        rest = np.sqrt(np.maximum(squares.max() - squares, 0.0))
        lists = int(np.clip(4 * np.sqrt(count), 16, 4_096))
        center_index = faiss.IndexFlatL2(width + 1)
        self._file = faiss.IndexIVFFlat(center_index, width + 1, lists, faiss.METRIC_INNER_PRODUCT)
        training = self._file.cp
        training.niter, training.seed, training.spherical = ROUNDS, 1, False
        training.min_points_per_centroid, training.max_points_per_centroid = 1, TRAINED
        sample = np.random.default_rng(1).permutation(count)[: TRAINED * lists]
        self._file.train(np.vstack([vectors[:, sample], rest[sample]]).T.copy())
        self._file.nprobe = max(PROBED, round(SCANNED_ARMS / 9 / count * lists))
        for start in range(0, count, ARMS_PER_STEP):
            some = slice(start, start + ARMS_PER_STEP)
            self._file.add(np.vstack([vectors[:, some], rest[some]]).T.copy())

    def search(
        self, queries: Single, count: int, eligible: Mask | None
    ) -> Index:  # (q, width) -> (n,)
        """Return numbers among the `count` best for a query in the lists probed for it. eligible:
        (N,) by number; None: all are."""
        self._faiss.omp_set_num_threads(1)
        # On the sphere of the vectors: from near its middle all centers would be as far.
        lengths = np.sqrt(np.vecdot(queries, queries))
        scaled = np.zeros((len(queries), queries.shape[1] + 1), np.float32)
        scaled[:, :-1] = queries * (self._length / np.maximum(lengths, 1e-30))[:, None]
        chosen = None
        if eligible is not None:
            bits = np.packbits(eligible[: self._file.ntotal], bitorder="little")
            chosen = self._faiss.SearchParametersIVF()
            chosen.sel = self._faiss.IDSelectorBitmap(len(bits), self._faiss.swig_ptr(bits))
            chosen.nprobe = self._file.nprobe
        _, found = self._file.search(scaled, count, params=chosen)
        numbers = np.unique(found).astype(np.intp)
        return numbers[numbers >= 0]  # -1 where the lists hold fewer


class ArmIndex:
    """The arms of one catalogue as one view's vectors, numbered without a gap: when an arm goes,
    the last takes its number. One thread changes it; `scan` and the build may run in others.

    A thread may see an arm that changes at that moment as neither old nor new: a scan may return
    such an arm, or miss it.
    """

    def __init__(self, view: View, *, scanned: int = SCANNED_ARMS) -> None:
        self._products = _Products(view)
        self._scanned = scanned
        self._ids: list[str] = []
        self._number_of: dict[str, int] = {}
        self._vectors: Single = np.empty((self._products.width, 0), np.float32)
        self._file: _InvertedFile | None = None
        self._changed: set[int] = set()  # numbers that changed since `_file` was begun
        self._beside: tuple[Index, Single] | None = None  # these numbers and their vectors
        self._eligible: tuple[Sequence[str], Mask] | None = None  # some ids, by number
        self._build: Thread | None = None
        self._built: _InvertedFile | None = None
        self._changed_since: set[int] = set()  # numbers that changed since `_build` began
        self._failed = False

    def __len__(self) -> int:
        return len(self._ids)

    # -- changes -------------------------------------------------------------------------------

    def load(self, rows: Mapping[str, Array]) -> None:
        """Add a whole catalogue. 1,000,000 arms of 32 columns: some seconds."""
        entries = iter(rows.items())
        while some := dict(islice(entries, ARMS_PER_STEP)):
            self.change(some)

    def change(self, rows: Mapping[str, Array | None]) -> None:
        """Add or change arms; remove those without a row."""
        self._eligible = None
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
            self._changed |= changed
            self._beside = None
        if self._build is not None:
            self._changed_since |= changed

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
        """Remove an arm. Return the numbers that change."""
        number, last = self._number_of.pop(arm, None), len(self._ids) - 1
        if number is None:
            return set()
        moved = self._ids.pop()
        if number < last:
            self._ids[number], self._number_of[moved] = moved, number
            self._vectors[:, number] = self._vectors[:, last]
        return {number, last}

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
        """The file should be built, or built again."""
        if self._failed or self._build is not None or len(self._ids) <= self._scanned:
            return False
        return self._file is None or len(self._changed) > CHANGED

    def build_aside(self) -> Thread:
        """Build a file in a thread; `settle` starts to serve from it."""
        self._changed_since = set()
        vectors = self._vectors[:, : len(self._ids)]
        self._build = thread = Thread(target=self._build_file, args=(vectors,), daemon=True)
        thread.start()
        return thread

    def _build_file(self, vectors: Single) -> None:
        try:
            self._built = _InvertedFile(vectors)
        except Exception as fault:
            self._failed, self._build = True, None
            if isinstance(fault, ImportError):
                advice = "install forage-bandits[retrieval] (faiss-cpu)"
                logger.error("%d arms are searched one by one: %s", len(self), advice)
            else:
                logger.exception("no index could be built over %d arms", len(self))

    def settle(self) -> None:
        """Serve from a new file once it is built."""
        if self._built is not None:
            self._file, self._changed = self._built, self._changed_since
            self._built = self._build = self._beside = None

    # -- search --------------------------------------------------------------------------------

    def mask(self, ids: Sequence[str]) -> Mask:
        """Return which numbers are those of these ids; the last answer is kept."""
        if self._eligible is None or self._eligible[0] is not ids:
            found = np.zeros(len(self._ids), bool)
            found[[self._number_of[arm] for arm in ids if arm in self._number_of]] = True
            self._eligible = ids, found
        return self._eligible[1]

    def search(
        self, weights: Array, count: int, uniform: int, seed: int, eligible: Mask | None = None
    ) -> list[str]:
        """Return ids, in the order of their numbers: the `count` best for each column of the
        weights, (view.width, q), with the context's part in them, and `uniform` drawn by the
        seed. eligible: (n,) arms among which it searches, by number; None: all."""
        return self.ids(self.nearest(weights, count, eligible), uniform, seed, eligible)

    def nearest(self, weights: Array, count: int, eligible: Mask | None = None) -> Index:
        """Return the numbers of the `count` best for each column."""
        few = eligible is not None and np.count_nonzero(eligible) <= self._scanned
        if self._file is None or few:
            return self.scan(weights, count, eligible)
        queries = self._products.queries(weights)
        if not self._changed:
            return self._file.search(queries, count, eligible)
        if self._beside is None:
            changed = sorted(number for number in self._changed if number < len(self._ids))
            self._beside = np.array(changed, np.intp), self._vectors[:, changed]
        beside, vectors = self._beside
        if eligible is not None:
            kept = eligible[beside]
            beside, vectors = beside[kept], vectors[:, kept]
        best = beside[_best(queries @ vectors, count)]
        # Twice as many of the file, since some of its best may have changed.
        found = self._file.search(queries, 2 * count, eligible).tolist()
        same = np.array([number for number in found if number not in self._changed], np.intp)
        numbers = np.union1d(best, same)
        return np.asarray(numbers[_best(queries @ self._vectors[:, numbers], count)])

    def scan(self, weights: Array, count: int, eligible: Mask | None = None) -> Index:
        """Compare every eligible arm, in any thread."""
        queries, vectors = self._products.queries(weights), self._vectors[:, : len(self._ids)]
        if eligible is not None:
            numbers = np.flatnonzero(eligible)
            return numbers[_scanned(queries, vectors[:, numbers], count)]
        return _scanned(queries, vectors, count)

    def ids(
        self, numbers: Index, uniform: int, seed: int, eligible: Mask | None = None
    ) -> list[str]:
        """Return the ids of numbers that are still taken, and of other eligible ones drawn by the
        seed, in order."""
        random, count = Random(seed), len(self._ids)
        among = range(count) if eligible is None else np.flatnonzero(eligible[:count]).tolist()
        drawn = set[int]()
        while len(drawn) < min(uniform, len(among)):
            drawn.add(among[random.randrange(len(among))])
        drawn.update(number for number in numbers.tolist() if number < count)
        return [self._ids[number] for number in sorted(drawn)]


def _scanned(queries: Single, vectors: Single, count: int) -> Index:  # (q, width), (width, n)
    """Return the columns with one of the `count` largest products of a query, rising."""
    starts = range(0, vectors.shape[1], ARMS_PER_STEP)
    chunks = [vectors[:, start : start + ARMS_PER_STEP] for start in starts]
    bests = [_best(queries @ chunk, count) for chunk in chunks]
    numbers = np.concatenate([start + best for start, best in zip(starts, bests, strict=True)])
    return numbers[_best(queries @ vectors[:, numbers], count)] if len(bests) > 1 else numbers


def _best(scores: Single, count: int) -> Index:  # (q, n)
    """Return the columns with one of the `count` largest of a row, rising."""
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
