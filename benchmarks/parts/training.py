"""A net trained and its version published, by the window of rewards that it is trained on. Imported
last: torch costs seconds."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import torch

from benchmarks.tables import Json, say
from service.app import open_services
from service.definition.experiment import Definition
from service.log.stores import open_store
from service.log.stores.base import Append
from service.settings import Settings
from service.state.events import ExperimentDefined, Rewarded, Settled, encode_event
from service.state.learner import Learner
from service.training.fit import fit
from service.training.settlements import collect
from service.training.trainer import plan, train

EXPERIMENT: Final = "bench"
WINDOWS: Final = (1_000, 4_000, 16_000)
COLUMNS: Final = 8  # of a user, and as many of an arm
ARMS: Final = 50
PAGE: Final = 1_000
LOOK_S: Final = 0.001


def definition_of(window: int) -> Definition:
    """One policy with a net 128-64-32, due once its window is full."""
    vector = {"type": "vector", "size": COLUMNS}
    policy = {"kind": "neural_linear_ts", "window": window, "training": {"first": window}}
    return Definition.model_validate(
        {
            "features": {"context": {"taste": vector}, "arm": {"image": vector}},
            "policies": {"p": policy},
        }
    )


async def written(url: str, window: int) -> None:
    """A log with a window of clicks, likelier where the user's vector and the arm's agree."""
    defined = ExperimentDefined(
        at=0.0, revision=1, schema_version=1,
        definition=definition_of(window).model_dump(mode="json"),
    )  # fmt: skip
    store, rng = open_store(url), np.random.default_rng(1)
    images = rng.standard_normal((ARMS, COLUMNS))
    await store.open()
    await store.secret()  # as a service does before it writes
    await store.commit([Append(EXPERIMENT, encode_event(defined), {"experiment/1": ""})])
    for start in range(0, window, PAGE):
        batch = []
        for number in range(start, min(start + PAGE, window)):
            taste, arm = rng.standard_normal(COLUMNS), int(rng.integers(ARMS))
            clicked = rng.random() < 1 / (1 + np.exp(-taste @ images[arm]))
            settled = [Settled(str(arm), float(clicked), [*taste.tolist(), *images[arm].tolist()])]
            event = Rewarded(
                at=0.0, decision=f"{number:022d}", policy="p", schema_version=1, settled=settled
            )
            batch.append(Append(EXPERIMENT, encode_event(event), {f"{number}": ""}))
        await store.commit(batch)
    await store.close()


async def published(url: str, window: int) -> Json:
    """Fit alone; then train, as the trainer does, and hand the version over, up to the moment that
    it serves."""
    settings = Settings(store=url, trainer="off", experiments=[], retention_days=None)
    async with open_services(settings) as services:
        store, state = services.store, services.journal.states[EXPERIMENT]
        learner = state.learners["p"]
        history = await collect(store, state, learner, window)
        x, rewards = learner.view.rows(history.memory.x), np.array(history.memory.rewards)
        start = perf_counter()
        fitted = fit(x, np.zeros(len(x), np.int64), rewards, plan(learner), seed=1)
        fitted_s = perf_counter() - start
        artifact = await train(store, state, learner)
        trained_s = perf_counter() - start - fitted_s
        assert artifact is not None
        number = await services.admin.stage(state, "p", artifact)
        # A fold tells nobody: it has to be looked at.
        while learner.active.number < number:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        published_s = perf_counter() - start - fitted_s - trained_s
    steps = fitted.passes * steps_a_pass(learner, fitted.unseen)
    return {
        "passes": fitted.passes,
        "steps": steps,
        "artifact_bytes": len(artifact),
        "steps_per_second": steps / fitted_s,
        "fit_s": fitted_s,
        "train_s": trained_s,
        "publish_s": published_s,
    }


def steps_a_pass(learner: Learner, rows: int) -> int:
    """Gradient steps over so many rows, as `fit` takes them."""
    training = plan(learner).training
    batch = max(training.batch, -(-rows // training.steps))
    return -(-rows // batch)


def measured(rounds: int, windows: Sequence[int] = WINDOWS) -> Json:
    """By window; each round opens a service on the same log."""
    torch.set_num_threads(1)  # as the trainer: the other cores are for serving
    found: dict[int, list[Json]] = {window: [] for window in windows}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for window in windows:
            asyncio.run(written(f"sqlite:///{folder / str(window)}.db", window))
        _on_a_copy(folder, windows[0])  # torch's first steps take seconds
        for number in range(rounds):
            for window in windows:
                found[window].append(_on_a_copy(folder, window))
            say(f"training: round {number + 1} of {rounds}")
    return {
        str(window): {name: median(one[name] for one in each) for name in each[0]}
        for window, each in found.items()
    }


def _on_a_copy(folder: Path, window: int) -> Json:
    """`published`, on a log that stays as it is."""
    copy = folder / "copy"
    copy.mkdir()
    shutil.copy(folder / f"{window}.db", copy / "forage.db")
    found = asyncio.run(published(f"sqlite:///{copy / 'forage.db'}", window))
    shutil.rmtree(copy)
    return found
