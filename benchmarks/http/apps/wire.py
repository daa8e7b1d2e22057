"""A learner behind FastAPI, as one writes it: validated bodies, decisions kept in a dictionary.

Nothing is logged, counted or sealed, and what is not rewarded is forgotten: each wrapper does less
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
    """Of /select."""

    experiment: str | None = None
    policy: str | None = None
    context: dict[str, float | bool]
    arms: list[str] | None = None


class Answer(BaseModel):
    """To it."""

    decision_id: str
    arm: str
    propensity: float | None
    logged: bool = True


class Told(BaseModel):
    """Of /reward."""

    decision_id: str
    reward: float


def arm_rows() -> Array:  # (50, 5)
    """The arms' features, standardised as the service does it."""
    price = EXPERIMENT["features"]["arm"]["price"]
    return np.array(
        [
            [(arm["price"] - price["center"]) / price["scale"], *arm["taste"]]
            for arm in EXPERIMENT["arms"].values()
        ]
    )


def context_row(context: dict[str, float | bool]) -> Array:  # (4,)
    """A context's columns."""
    values = [(context[name] - center) / scale for name, (center, scale) in NUMBERS.items()]
    return np.array([*values, float(context["on_phone"])])


def served(
    choose: Callable[[Array], tuple[int, float | None]],
    learn: Callable[[Array, int, float, float | None], None],
) -> FastAPI:
    """choose: arm and probability for a context. learn: context, arm, reward, probability."""
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
