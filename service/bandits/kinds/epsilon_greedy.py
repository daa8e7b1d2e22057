"""`epsilon_greedy`: the arm of the best mean, and with chance epsilon any arm."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Point
from service.bandits.settings import Probability


class EpsilonGreedy(Point, Exploring):
    kind: Literal["epsilon_greedy"]
    epsilon: Probability = 0.1

    keeps_head = Exploring.keeps_head | {"training"}
