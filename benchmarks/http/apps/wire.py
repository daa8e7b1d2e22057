"""A hand-made wrapper of a learner: validated bodies, decisions in a dictionary.

It logs, counts and seals nothing, and forgets decisions without a reward: each wrapper does less
than the service, and is measured with that advantage.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

EXPERIMENT: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[1] / "experiment.toml").read_text()
)
ARMS = list(EXPERIMENT["arms"])
NUMBERS = {
    name: (feature["center"], feature["scale"])
    for name, feature in EXPERIMENT["features"]["context"].items()
    if feature["type"] == "numeric"
}
MOST_OPEN = 100_000
Array = np.ndarray[Any, np.dtype[np.float64]]


class Asked(BaseModel):
    """The body of /select."""

    experiment: str | None = None
    policy: str | None = None
    context: dict[str, float | bool]
    arms: list[str] | None = None


class Answer(BaseModel):
    """The answer of /select."""

    decision_id: str
    arm: str
    propensity: float | None
    logged: bool = True


class Told(BaseModel):
    """The body of /reward."""

    decision_id: str
    reward: float


def arm_rows() -> Array:  # (50, 5)
    """Return the arms' features, standardised as in the service."""
    price = EXPERIMENT["features"]["arm"]["price"]
    return np.array(
        [
            [(arm["price"] - price["center"]) / price["scale"], *arm["taste"]]
            for arm in EXPERIMENT["arms"].values()
        ]
    )


def context_row(context: dict[str, float | bool]) -> Array:  # (4,)
    """Return a context's columns."""
    values = [(context[name] - center) / scale for name, (center, scale) in NUMBERS.items()]
    return np.array([*values, float(context["on_phone"])])


def served(
    choose: Callable[[Array], tuple[int, float | None]],
    learn: Callable[[Array, int, float, float | None], None],
) -> FastAPI:
    """Make the application. choose: context to arm and probability. learn: context, arm, reward,
    probability."""
    app = FastAPI()
    waiting: dict[str, tuple[Array, int, float | None]] = {}

    @app.post("/select")
    async def select(asked: Asked) -> Answer:
        context = context_row(asked.context)
        arm, probability = choose(context)
        decision = uuid4().hex
        waiting[decision] = context, arm, probability
        if len(waiting) > MOST_OPEN:
            del waiting[next(iter(waiting))]
        return Answer(decision_id=decision, arm=ARMS[arm], propensity=probability)

    @app.post("/reward")
    async def reward(told: Told) -> dict[str, str]:
        found = waiting.pop(told.decision_id, None)
        if found is None:
            raise HTTPException(404, "no such decision")
        context, arm, probability = found
        learn(context, arm, told.reward, probability)
        return {"status": "accepted"}

    return app
