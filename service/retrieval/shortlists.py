"""Candidates out of a catalogue too large to score: the arms that are best under the mean and a few
posterior draws.

Every column of a policy's view is a product of a context's part and an arm's (`View`), so that a
sampled w of a shared linear head scores an arm by an inner product q . v: v holds the arm's
products, each once, and q gathers w times the context's. `ArmIndex` finds the largest of these.
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from service.bandits.candidates import Candidates
from service.bandits.policy import Policy
from service.errors import NotPositiveDefinite
from service.features.schema import Array
from service.features.view import View
from service.retrieval.arm_index import ArmIndex
from service.state.decider import Decider
from service.state.decisions import Shortlist
from service.state.fold import State

DRAWS = 8
"""Posterior draws, beside the mean, that a decision searches for."""

CHANGES_PER_SEARCH = 128
"""Changes of the catalogue that one search follows: 1 ms of 100,000 arms, 3 ms of 1,000,000."""


class _Catalogue:
    """The index of one policy's arms, and how far it has followed the state."""

    def __init__(self, view: View, state: State) -> None:
        self._view, self._rows = view, state.rows
        self._followed = state.changes
        self.index = ArmIndex(view)

    def can_follow(self, state: State, decider: Decider) -> bool:
        """Say whether the state still has every change that the index lacks."""
        same = self._rows is state.rows and self._view is decider.view
        return same and self._followed >= state.changes - len(state.changed)

    def follow(self, state: State) -> bool:
        """Apply some changes. Return whether the index holds the present catalogue."""
        if behind := state.changes - self._followed:
            start = len(state.changed) - behind
            arms = state.changed[start : start + CHANGES_PER_SEARCH]
            self.index.change({arm: state.rows.get(arm) for arm in arms})
            self._followed += len(arms)
        self.index.settle()
        if self.index.stale:
            self.index.build_aside()
        return self._followed == state.changes


class Retrieval:
    """Candidates of the policies with `retrieve`."""

    def __init__(self) -> None:
        self._catalogues: dict[tuple[str, str], _Catalogue] = {}
        self._loading: dict[tuple[str, str], asyncio.Lock] = {}

    def fast_candidates(
        self,
        state: State,
        decider: Decider,
        context: Array,
        seed: int,
        eligible: Sequence[str] | None = None,
    ) -> Candidates:
        """Find the candidates of a decision; none, where a search takes long. eligible: arms among
        which it searches; None: all."""
        catalogue = self._catalogues.get((state.name, decider.name))
        if (
            catalogue is None
            or not catalogue.can_follow(state, decider)
            or not catalogue.follow(state)
            or catalogue.index.slow
        ):
            return _candidates(state, [])
        index = catalogue.index
        mask = None if eligible is None else index.mask(eligible)
        ids = index.search(*_query(decider, context, seed), _uniform(decider), seed, mask)
        return _candidates(state, ids)

    def shortlist(self, state: State, decider: Decider) -> Shortlist:
        """Say how the last search found its candidates."""
        index = self._catalogues[state.name, decider.name].index
        return Shortlist(
            policy=decider.name,
            method="index" if index.indexed else "scan",
            catalogue=len(state.rows),
            best=_best(decider),
            directions=DRAWS + 1,
            uniform=_uniform(decider),
        )

    async def candidates(
        self,
        state: State,
        decider: Decider,
        context: Array,
        seed: int,
        eligible: Sequence[str] | None = None,
    ) -> Candidates:
        """Find the candidates of a decision, once the index has the catalogue and all its changes.
        A search that compares many arms runs in a thread. eligible: as for `fast_candidates`."""
        catalogue = await self._load(state, decider)
        while not catalogue.follow(state):
            await asyncio.sleep(0)
            catalogue = await self._load(state, decider)
        index, query = catalogue.index, _query(decider, context, seed)
        mask = None if eligible is None else index.mask(eligible)
        if index.slow:
            numbers = await asyncio.to_thread(index.scan, *query, mask)
        else:
            numbers = index.nearest(*query, mask)
        ids = index.ids(numbers, _uniform(decider), seed, mask)
        return _candidates(state, [arm for arm in ids if arm in state.rows])

    async def _load(self, state: State, decider: Decider) -> _Catalogue:
        key = state.name, decider.name
        async with self._loading.setdefault(key, asyncio.Lock()):
            catalogue = self._catalogues.get(key)
            while catalogue is None or not catalogue.can_follow(state, decider):
                catalogue = _Catalogue(decider.view, state)
                await asyncio.to_thread(catalogue.index.load, dict(state.rows))
                self._catalogues[key] = catalogue
            return catalogue


def applies(state: State, policy: Policy, eligible: Candidates | None = None) -> bool:
    """Say whether a request that names no arms chooses from a part of the catalogue. eligible: arms
    that may be shown; None: all."""
    retrieve = policy.retrieve
    count = len(state.rows) if eligible is None else len(eligible.ids)
    return retrieve is not None and count > retrieve


def _best(decider: Decider) -> int:
    """Arms that a search finds for each direction."""
    assert decider.policy.retrieve is not None
    return decider.policy.retrieve


def _uniform(decider: Decider) -> int:
    """Arms that a search draws uniformly beside these."""
    return _best(decider) // 4 + 1


def _query(decider: Decider, context: Array, seed: int) -> tuple[Array, int]:
    """Directions, and how many arms to find for each. Directions that are no numbers find none: the
    uniform arms alone are candidates then."""
    try:
        found = decider.directions(context, DRAWS, seed)
    except (NotPositiveDefinite, FloatingPointError):
        found = np.empty((decider.view.width, 0))
    return found[:, np.isfinite(found).all(axis=0)], _best(decider)


def _candidates(state: State, ids: list[str]) -> Candidates:
    """Select arms without deriving anything of the whole catalogue, which would take seconds: those
    that were found, if any, and those that rules give a share of their own."""
    if ids:
        ids += sorted(state.rulebook.arms & state.rows.keys() - {*ids})
    rows = [state.rows[arm] for arm in ids]
    return Candidates(tuple(ids), np.array(rows).reshape(len(rows), state.schema.arm.width))
