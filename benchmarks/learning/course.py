"""A course: the visits of an agent in a world, and their figures."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from simulator_client.course import recovery_visits
from simulator_client.worlds import Outcome, World

V = TypeVar("V")
Array = npt.NDArray[np.float64]
Figures = dict[str, float | None]

POINTS: Final = 100  # of a course that plots keep


class Chance(NamedTuple):
    """The chance of a visit, the same for every agent.

    decision   id of the decision      seed   of each draw of the decision
    """

    decision: str
    seed: int


def chance(stream: int, visit: int) -> Chance:
    """Derive an id (22 characters) and a seed (63 bits) from the stream's seed and the visit."""
    digest = hashlib.blake2b(b"%d/%d" % (stream, visit), digest_size=24).digest()
    name = urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()
    return Chance(name, int.from_bytes(digest[16:], "big") >> 1)


class Agent(Protocol):
    """A learner that chooses arms."""

    def show(self, request: Mapping[str, Any], chance: Chance) -> list[str]:
        """Choose arms for a request of POST /select, best slot first."""

    def settle(self, feedback: Mapping[str, Any], chance: Chance) -> None:
        """Learn the feedback on the last `show`, as POST /reward gets it."""


@dataclass
class Course:
    """An agent's visits in order; an array has an entry for each.

    expected, best, uniform   true expected reward of the shown arms, of the best possible choice,
                              and of a uniform choice
    seconds                   for the whole course: world, choice, learning and training
    """

    expected: Array
    best: Array
    uniform: Array
    seconds: float = 0.0


def serve(world: World[V], agent: Agent, visit: V, drawn: Chance) -> Outcome:
    """Serve one visit, and have the agent learn what came of it."""
    outcome = world.outcome(visit, agent.show(world.request(visit), drawn))
    if outcome.feedback is not None:
        agent.settle(outcome.feedback, drawn)
    return outcome


def play(world: World[Any], agent: Agent, seed: int, visits: int) -> Course:
    """Play the first `visits` visits of stream `seed`."""
    stream, course = world.stream(seed), Course(*np.zeros((3, visits)))
    start = perf_counter()
    for number in range(visits):
        outcome = serve(world, agent, stream.visit(number), chance(seed, number))
        course.expected[number] = outcome.expected
        course.best[number] = np.nan if outcome.best is None else outcome.best
        course.uniform[number] = np.nan if outcome.uniform is None else outcome.uniform
    course.seconds = perf_counter() - start
    return course


def figures(course: Course, oracle_ctr: float, shock_at: int | None = None) -> Figures:
    """Summarise a course.

    `relative_regret` compares with the best choice at each visit; uniform choice has 100.
    oracle_ctr: of the world after the shock. shock_at: the first visit after it.
    """
    best, expected = float(course.best.sum()), course.expected
    uniform = float((course.best - course.uniform).sum())
    found: Figures = {
        "expected_ctr": float(expected.mean()),
        "relative_regret": 100 * float((course.best - expected).sum()) / uniform,
        "share_of_optimal": float(expected.sum()) / best if best else None,
        "seconds": course.seconds,
    }
    if shock_at is not None and 0 < shock_at < len(expected):
        found |= {
            "expected_ctr_before": float(expected[:shock_at].mean()),
            "expected_ctr_after": float(expected[shock_at:].mean()),
            "recovery_visits": recovery_visits(expected[shock_at:], oracle_ctr),
        }
    return found


def curve(course: Course) -> dict[str, list[float]]:
    """Return sums since the start at up to POINTS visits, for plots."""
    visits = len(course.expected)
    at = np.unique(np.linspace(1, visits, min(visits, POINTS)).round().astype(int))
    sums = {name: np.cumsum(getattr(course, name))[at - 1] for name in ("expected", "best")}
    return {"visit": at.tolist()} | {name: s.round(3).tolist() for name, s in sums.items()}
