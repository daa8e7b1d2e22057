"""`greedy`: the arm of the best mean."""

from typing import Literal

from service.bandits.kinds.base import Kind, Point


class Greedy(Point):
    kind: Literal["greedy"]

    keeps_head = Kind.keeps_head | {"training"}
