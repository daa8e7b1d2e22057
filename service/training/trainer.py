"""Follow the log; where a training is due, fit the net, rebuild the head, hand the version over.

The trainer only reads the log. It folds the events that came while it trained into the version, so
that a service which takes it (`Admin.stage`) has few left to fold. A killed trainer loses nothing:
training is still due.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from math import ceil, isfinite
from time import perf_counter

import httpx
import numpy as np
import torch
from msgspec.structs import asdict

from service.bandits.version import Version
from service.errors import ConfigurationError, LogGap, StoreUnavailable
from service.log.catching_up import catch_up
from service.log.reading import reading
from service.log.replicas import Replicas
from service.log.stores import Store
from service.state.artifacts import pack_artifact
from service.state.events import TrainingReport
from service.state.fold import State
from service.state.learner import Learner
from service.training.fit import NetPlan, fit
from service.training.settlements import collect

logger = logging.getLogger(__name__)

TRAINER_POLL_SECONDS = 0.1
TRAINER_RETRY_SECONDS = 1.0
STAGING_SECONDS = 30.0


async def run(
    store_url: str,
    service_url: str,
    *,
    follow: bool,
    parent: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> int:
    """Train what is due, once or for ever; how many versions were handed over.

    parent    the process to end with: the service that started this one
    headers   of requests to the service: its key
    """
    torch.set_num_threads(1)  # the other cores are for serving
    handed = 0

    def waiting() -> bool:  # for the log: it is the service that makes it
        return follow and not _orphaned(parent)

    async with (
        httpx.AsyncClient(base_url=service_url, timeout=60, headers=headers) as client,
        reading(store_url, wait=waiting) as store,
    ):
        replicas = Replicas(store)
        while True:
            try:
                await replicas.follow(TRAINER_POLL_SECONDS if follow else 0.0)
                trained = await _round(store, replicas, client)
            except (StoreUnavailable, httpx.TransportError) as fault:
                logger.warning("trying again: %s", fault)
                trained = 0
                await asyncio.sleep(TRAINER_RETRY_SECONDS)
            handed += trained
            if not follow and not trained:
                return handed
            if _orphaned(parent):
                logger.info("the service is gone: the trainer ends")
                return handed


def _orphaned(parent: int | None) -> bool:
    return parent is not None and os.getppid() != parent


async def _round(store: Store, replicas: Replicas, client: httpx.AsyncClient) -> int:
    """Train every policy that is due; how many versions were handed over."""
    handed = 0
    for state in replicas.states.values():
        for learner in state.folded.values():
            if learner.training_due:
                made = await _make(store, state, learner)
                if made is not None:
                    handed += await _bring(client, store, replicas, state, learner, *made)
    return handed


def due_count(learner: Learner) -> int:
    """Return the latest count of rewards that a training was due at: what is trained on does not
    depend on when the trainer got to it."""
    net, count = learner.policy.net, learner.training_due_at
    assert net is not None
    assert count is not None
    if net.alone:
        return count
    while (following := ceil(count * net.training.growth)) <= learner.rewards:
        count = following
    return count


def plan(learner: Learner) -> NetPlan:
    """Plan the net of a policy."""
    net = learner.policy.net
    assert net is not None
    features = [] if net.rectified else [net.embedding]
    return NetPlan(
        [learner.view.width, *net.hidden, *features],
        net.training,
        rectified=net.rectified,
        dropout=net.dropout,
        log_loss=net.log_loss,
        groups=learner.view.groups if net.alone else (),
        embedding=net.embedding if net.alone else 0,
    )


async def train(store: Store, state: State, learner: Learner) -> bytes | None:
    """Train the next version and return its artifact: a fitted net, and the head rebuilt in its
    features. None: all that it would learn from was erased."""
    made = await _make(store, state, learner)
    return None if made is None else _packed(learner, *made)


def _packed(learner: Learner, version: Version, report: TrainingReport) -> bytes:
    meta, arrays = learner.describe(version)
    return pack_artifact({**meta, "training": asdict(report)}, arrays)


async def _make(
    store: Store, state: State, learner: Learner
) -> tuple[Version, TrainingReport] | None:
    """Train as `train` does; the version is not packed yet."""
    began = perf_counter()
    history = await collect(store, state, learner, due_count(learner))
    memory, number = history.memory, learner.next_version[1]
    if not len(memory):
        return None
    base = memory.rows[:]
    view = learner.view.measured(base)
    x, rewards = view.rows(base), learner.active.rewarded(np.array(memory.rewards))
    arms = sorted(set(memory.arms)) if learner.policy.disjoint else []
    column = np.array([arms.index(arm) if arms else 0 for arm in memory.arms], dtype=np.int64)
    weights = np.array(memory.weights)
    fitted = fit(x, column, rewards, plan(learner), seed=number, weight=weights)
    encoder = learner.trained(fitted.network, fitted.output)
    if encoder.gradient is not None:
        encoder = encoder.scaled(x)
    rows = len(memory)
    version = learner.rebuilt(encoder, history, view, fitted.unseen)
    loss = fitted.validation_loss if isfinite(fitted.validation_loss) else None
    seconds = round(perf_counter() - began, 3)
    report = TrainingReport(rows, seconds, loss, fitted.ridge_loss, fitted.explained)
    logger.info(
        "experiment %s: %s/%d trained on %d rewards in %d passes, validation loss %.4f (a ridge "
        "regression: %.4f)",
        state.name,
        learner.name,
        number,
        rows,
        fitted.passes,
        fitted.validation_loss,
        fitted.ridge_loss,
    )
    return version, report


async def _bring(
    client: httpx.AsyncClient,
    store: Store,
    replicas: Replicas,
    state: State,
    learner: Learner,
    version: Version,
    report: TrainingReport,
) -> bool:
    """Fold what was logged during the training into a version, and hand it over; whether a service
    took it. It is left where it has become another policy's, or another's version came first."""
    await replicas.follow(0.0)
    known = replicas.states.get(state.name)
    if known is not state or state.folded.get(learner.name) is not learner:
        return False
    if learner.challenger is not None or version.number != learner.next_version[1]:
        return False
    try:
        await catch_up(store, state, learner, version)
    except LogGap as fault:
        raise StoreUnavailable(f"what {learner.name} learns from was erased: {fault}") from fault
    version.trained_to = state.position
    return await _hand_over(client, replicas, state, learner, _packed(learner, version, report))


async def _hand_over(
    client: httpx.AsyncClient, replicas: Replicas, state: State, learner: Learner, artifact: bytes
) -> bool:
    """Give a version to a service and wait until the log says that it is staged."""
    path = f"/experiments/{state.name}/policies/{learner.name}/versions"
    answer = await client.post(path, content=artifact)
    if answer.status_code in (401, 403):  # to train it again would be refused again
        raise ConfigurationError(
            f"{client.base_url} answers {answer.status_code}: set FORAGE_KEY to a key with the "
            "scope admin"
        )
    if answer.status_code != 202:
        logger.warning("%s: %d %s", path, answer.status_code, answer.text)
        await asyncio.sleep(TRAINER_RETRY_SECONDS)
        return False
    number = answer.json()["version"]
    for _ in range(round(STAGING_SECONDS / TRAINER_POLL_SECONDS)):
        if learner.numbered >= number:
            return True
        await replicas.follow(TRAINER_POLL_SECONDS)
    logger.warning("%s/%d is not staged yet", learner.name, number)
    return True
