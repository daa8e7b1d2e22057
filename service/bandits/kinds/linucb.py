"""`linucb`: the upper confidence bound of a ridge head (Li et al. 2010; Chu et al. 2011)."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Retrieving, Ucb


class LinUcb(Retrieving, Ucb):
    kind: Literal["linucb"]

    keeps_head = Exploring.keeps_head | {"alpha", "retrieve"}
