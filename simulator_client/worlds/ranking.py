"""A ranking of retrieved items: embeddings, a softmax over all items, cascade clicks.

1,000 users and 10,000 items have embeddings uniform in (-0.1, 0.1)^32. A round is one user and 500
retrieved items; the best ten are shown in order. An item i at slot k (from 1), if it is looked at,
is clicked with chance q_i / k, where q is the softmax over all items of u.i / 0.001; the first
click ends the round. Clicks are rare: q is about 0.001 to 0.05 for the better items of a round.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import comb
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Outcome, Reference
from simulator_client.worlds.policies import Settings, chosen, is_linear, sees_features

Array = NDArray[np.float64]

USERS: Final = 1_000
ITEMS: Final = 10_000
SIZE: Final = 32
BOUND: Final = 0.1
UNIT_SCALE: Final = 2 * BOUND / 12**0.5  # standard deviation of uniform(-0.1, 0.1)
TEMPERATURE: Final = 0.001
RETRIEVED: Final = 500
SHOWN: Final = 10
SLOTS: Final = np.arange(1, SHOWN + 1)
# Of 1, 1/2, ..., 1/10: (-1)^s times the elementary symmetric polynomials, s = 0, 1, ...
SIGNED: Final[list[float]] = np.poly(1.0 / SLOTS).tolist()

BLOCK_ROUNDS: Final = 256
BLOCKS_KEPT: Final = 16  # a policy's chain plays in one of them; a block is drawn in 10 ms
CHUNK_USERS: Final = 100  # 8 MB of scores at a time

# Where the item in the first slot stands among those retrieved: below which place, and its name.
GROUPS: Final = {
    1: "best item first",
    10: "one of the best 10 first",
    50: "one of the best 50 first",
    RETRIEVED: "another first",
}


class Round(NamedTuple):
    """One user and what was retrieved for them."""

    number: int  # from 0
    user: int
    items: NDArray[np.int64]  # (500,) all different
    uniforms: Array  # (10,) of the slots: a click where it is below the click chance


class RankingStream:
    """The rounds of a seed, drawn in blocks of a fixed size, each from generators of its own.

    A block's two generators, one for the rounds (user, then items) and one for the clicks (ten
    uniforms a round, slot by slot), are seeded by the stream's seed and the block's number, so a
    round is the same wherever a run started, and no earlier block has to be drawn for it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = lru_cache(maxsize=BLOCKS_KEPT)(self._drawn)

    def visit(self, index: int) -> Round:
        block, offset = divmod(index, BLOCK_ROUNDS)
        rounds, uniforms = self._block(block)
        user, items = rounds[offset]
        return Round(index, user, items, uniforms[offset])

    def _drawn(self, block: int) -> tuple[list[tuple[int, NDArray[np.int64]]], Array]:
        children = np.random.SeedSequence(self._seed, spawn_key=(block,)).spawn(2)
        who, chance = (np.random.default_rng(child) for child in children)
        rounds = [
            (int(who.integers(0, USERS)), who.choice(ITEMS, RETRIEVED, replace=False))
            for _ in range(BLOCK_ROUNDS)
        ]
        return rounds, chance.random((BLOCK_ROUNDS, SHOWN))


class Ranking:
    name: str = "ranking"
    groups: tuple[str, ...] = tuple(GROUPS.values())
    reward_range: tuple[float, float] = (0.0, 1.0)
    miss: float | None = 0.0
    longest: int | None = None
    remark: str = ""

    def __init__(self, seed: int = 42) -> None:
        rng = np.random.default_rng(seed)
        self.users = rng.uniform(-BOUND, BOUND, (USERS, SIZE))
        self.items = rng.uniform(-BOUND, BOUND, (ITEMS, SIZE))

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Policies see the elementwise product of the two embeddings."""
        vector = {"type": "vector", "size": SIZE, "scale": UNIT_SCALE}
        return {
            "features": {
                "context": {"user": vector},
                "arm": {"item": vector},
                "crosses": ["user x item"],
            },
            "arms": {str(k): {"item": item} for k, item in enumerate(self.items.tolist())},
            "policies": chosen(policies, own, _fit),
            "reward": {"range": list(self.reward_range)},
        }

    def stream(self, seed: int) -> RankingStream:
        return RankingStream(seed)

    def request(self, visit: Round) -> dict[str, Any]:
        return {
            "context": {"user": self.users[visit.user].tolist()},
            "arms": list(map(str, visit.items.tolist())),
            "top_k": SHOWN,
        }

    def softmax(self, user: int, items: NDArray[np.int64]) -> Array:  # (n,) -> (n,)
        """Return q of some items for a user: the softmax is over all items."""
        scores = self.items[items] @ self.users[user] / TEMPERATURE
        chances: Array = np.exp(scores - self._log_sums[user])
        return chances

    def outcome(self, visit: Round, shown: Sequence[str]) -> Outcome:
        """Click the first slot whose uniform is below its click chance."""
        q = self.softmax(visit.user, visit.items)
        place = {item: k for k, item in enumerate(visit.items.tolist())}
        try:
            at = [place[int(arm)] for arm in shown]
        except (KeyError, ValueError) as error:
            raise UsageError(f"the service showed an arm that was not asked for: {error}") from None
        if len(at) > SHOWN:
            raise UsageError(f"the service showed {len(at)} arms where {SHOWN} were asked for")
        chances = q[at] / SLOTS[: len(at)]
        hits = np.flatnonzero(visit.uniforms[: len(at)] < chances)
        clicked = shown[int(hits[0])] if len(hits) else None
        rank = int((q > q[at[0]]).sum())
        return Outcome(
            feedback={"feedback": "cascade", "clicked": clicked},
            clicks=float(clicked is not None),
            expected=_any_click(chances),
            best=_any_click(np.sort(q)[::-1][:SHOWN] / SLOTS),
            uniform=float(uniform_ranking(q)),
            group=next(name for below, name in GROUPS.items() if rank < below),
        )

    def references(self, visits: int) -> list[Reference]:
        """Exact means over users and retrievals."""
        return [Reference(0, *self._bounds)]

    @cached_property
    def _log_sums(self) -> Array:  # (USERS,)
        sums = []
        for scores in self._scores():
            top = scores.max(axis=1, keepdims=True)
            sums.append(top[:, 0] + np.log(np.exp(scores - top).sum(axis=1)))
        return np.concatenate(sums)

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """Oracle and uniform. Ten random ones of 500 random items are ten random items."""
        oracle, uniform = [], []
        sums = np.split(self._log_sums, USERS // CHUNK_USERS)
        for scores, log_sums in zip(self._scores(), sums, strict=True):
            q = np.exp(scores - log_sums[:, None])
            uniform.append(uniform_ranking(q))
            oracle.append(best_of_retrieved(q, RETRIEVED))
        return float(np.mean(oracle)), float(np.mean(uniform))

    def _scores(self) -> list[Array]:
        return [
            self.users[start : start + CHUNK_USERS] @ self.items.T / TEMPERATURE
            for start in range(0, USERS, CHUNK_USERS)
        ]


def _any_click(chances: Array) -> float:
    """1 - prod(1 - p), exact where every p is tiny."""
    with np.errstate(divide="ignore"):  # p = 1
        return float(-np.expm1(np.log1p(-chances).sum()))


def uniform_ranking(q: Array) -> Array:  # (..., n) -> (...)
    """Exact chance of a click on ten of n items in uniformly random order.

    The mean of prod_k (1 - q_k / k) over ordered choices is
    sum_s (-1)^s e_s(1, 1/2, ..., 1/10) e_s(q) / C(n, s) with e_s the elementary symmetric
    polynomials; those of q follow from its power sums (Newton's identities).
    """
    power, sums = q, []
    for _ in range(SHOWN):
        sums.append(power.sum(axis=-1))
        power = power * q
    symmetric: list[Any] = [1.0]
    for s in range(1, SHOWN + 1):
        terms = ((-1) ** (i - 1) * symmetric[s - i] * sums[i - 1] for i in range(1, s + 1))
        symmetric.append(sum(terms) / s)
    n = q.shape[-1]
    clicks: Array = -sum(SIGNED[s] * symmetric[s] / comb(n, s) for s in range(1, SHOWN + 1))
    return clicks


def best_of_retrieved(q: Array, retrieved: int) -> Array:  # (users, n) -> (users,)
    """Exact mean chance of a click on the best ten, in order, of a random `retrieved` of n items.

    Down the items from the best: the next one is retrieved with chance
    (retrieved - taken so far) / (items left), whatever their order was. After 1,000 items fewer
    than ten were retrieved with a chance below 1e-12, and the items left count for nothing.
    """
    users, n = q.shape
    depth = min(n, 1_000)
    ordered = -np.sort(np.partition(-q, depth - 1, axis=1)[:, :depth], axis=1)
    taken = np.arange(SHOWN)
    unclicked = np.zeros((users, SHOWN + 1))  # no click yet, and so many slots filled
    unclicked[:, 0] = 1.0
    for j in range(depth):
        chance = np.clip((retrieved - taken) / (n - j), 0.0, 1.0)
        into = unclicked[:, :SHOWN] * chance * (1.0 - ordered[:, j, None] / SLOTS)
        unclicked[:, :SHOWN] *= 1.0 - chance
        unclicked[:, 1:] += into
    clicks: Array = 1.0 - unclicked.sum(axis=1)
    return clicks


def _fit(settings: Settings) -> Settings:
    if not sees_features(settings):
        return {}
    seen = "user" if settings.get("disjoint") else "user x item"
    return {"features": ["intercept", seen] if is_linear(settings) else [seen]}
