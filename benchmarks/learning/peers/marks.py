"""Marks: what there is to learn in a world, between one fixed arm and full information.

A mark knows what no policy knows, and so it is no competitor.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from random import Random
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.learning.course import Chance
from benchmarks.learning.peers.base import LeftOut, standardised
from service.features.schema import Array, Schema
from simulator_client.worlds import World
from simulator_client.worlds.classification import Classification

Labels = npt.NDArray[np.intp]
ITERATIONS: Final = 1_000  # of the logistic regression at most


class FixedArm:
    """The arm with the most expected reward over the visits of the stream, at each of them."""

    def __init__(self, world: World[Any], seed: int, visits: int) -> None:
        stream, arms = world.stream(seed), list(world.definition(["random"])["arms"])
        if "arms" in world.request(stream.visit(0)):
            raise LeftOut("each request names arms of its own: no arm can be shown at every visit")
        expected = np.zeros(len(arms))
        for number in range(visits):
            visit = stream.visit(number)
            expected += [world.outcome(visit, [arm]).expected for arm in arms]
        self._shown = [arms[int(expected.argmax())]]

    def show(self, request: Mapping[str, Any], chance: Chance) -> list[str]:
        return self._shown

    def settle(self, feedback: Mapping[str, Any], chance: Chance) -> None:
        pass


class Classifier(Protocol):
    """A classifier of scikit-learn. classes_: the labels that it was fitted to, in order."""

    classes_: Labels

    def fit(self, x: Array, labels: Labels) -> object:
        """Learn rows (n, columns) and their labels, two different ones at least."""

    def predict_proba(self, x: Array) -> Array:  # (n, columns) -> (n, classes)
        """Return the chance of each class."""


Models = Callable[[int], list[Classifier]]


def both(seed: int) -> list[Classifier]:
    """Return a random forest and a logistic regression, at the defaults of scikit-learn."""
    # Only the extra `bench` installs it.
    ensemble, linear = (import_module(f"sklearn.{name}") for name in ("ensemble", "linear_model"))
    return [
        ensemble.RandomForestClassifier(random_state=seed),
        linear.LogisticRegression(max_iter=ITERATIONS),
    ]


class Skyline:
    """Full information: classifiers that learn the label of every row, whatever arm was shown.

    They are fitted after 1, 2, 4, ... visits to the rows of these, and choose at the next ones the
    arm of the highest expected reward under their chances of the labels. The classifier whose
    choices earned the most so far is the one that is asked, from one fit to the next. So no choice
    knows a label that comes with it or later.
    """

    def __init__(self, world: World[Any], seed: int, visits: int, models: Models = both) -> None:
        if not isinstance(world, Classification):
            raise LeftOut("there are no labels to learn: the best choice is known, and is the 0")
        stream, schema = world.stream(seed), Schema(standardised(world).features)
        rows = [stream.visit(number).row for number in range(visits)]
        self._x = np.array([schema.encode_context(world.columns.row(row)) for row in rows])
        self._arms, known = world.arms, sorted(set(world.labels))
        self._labels = np.array([known.index(world.labels[row]) for row in rows])
        # (labels, arms): the expected reward
        self._rewards = np.array(
            [[sum(world.rewards(label, arm)) / 2 for arm in self._arms] for label in known]
        )
        self._seed, self._models = seed, models
        self._earned = np.zeros(len(models(seed)))
        self._number, self._choices = 0, list[int]()

    def show(self, request: Mapping[str, Any], chance: Chance) -> list[str]:
        if self._number == 0:
            self._choices = [Random(chance.seed).randrange(len(self._arms))]
        elif self._number == len(self._choices):
            self._choices += self._next()
        self._number += 1
        return [self._arms[self._choices[self._number - 1]]]

    def settle(self, feedback: Mapping[str, Any], chance: Chance) -> None:
        pass

    def _next(self) -> list[int]:
        """Return the choices at as many visits as there were so far, of the best classifier."""
        seen = self._number
        x, labels = self._x[seen : 2 * seen], self._labels[seen : 2 * seen]
        choices = [self._chosen(model, seen, x) for model in self._models(self._seed)]
        best = int(self._earned.argmax())
        self._earned += [self._rewards[labels, each].sum() for each in choices]
        found: list[int] = choices[best].tolist()
        return found

    def _chosen(self, model: Classifier, seen: int, x: Array) -> Labels:
        """Return the arm of each row of x under a fit to the visits that were seen."""
        labels = self._labels[:seen]
        if len(known := np.unique(labels)) == 1:
            return np.full(len(x), self._rewards[known[0]].argmax())
        model.fit(self._x[:seen], labels)
        expected = model.predict_proba(x) @ self._rewards[model.classes_]
        chosen: Labels = expected.argmax(axis=1)
        return chosen
