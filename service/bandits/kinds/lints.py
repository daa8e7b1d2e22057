"""`lints`: posterior draws of a ridge head (Agrawal & Goyal 2013)."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Retrieving, Thompson


class LinTs(Retrieving, Thompson):
    kind: Literal["lints"]

    keeps_head = Exploring.keeps_head | {"draws", "bank", "scale", "retrieve"}
