"""What a version learns anew: a policy's settlements, read from the log."""

from dataclasses import dataclass

from service.bandits.memory import Memory
from service.bandits.order import DecisionOrder


@dataclass
class TrainingSet:
    """A policy's settlements in log order, up to a count of rewards, reached at `watermark`.

    begins     log position from which on none is missing: where the policy was born, later since
               when a change of the world holds
    without    decisions of which nothing is learned
    left_out   settlements of these
    order      in which they are learned; it keeps what waits
    """

    memory: Memory
    order: DecisionOrder | None
    begins: int = 0
    without: frozenset[str] = frozenset()
    rewards: int = 0
    watermark: int = 0
    left_out: int = 0
