"""Estimates of time and memory before a decision: a long one runs apart from the others, one that
needs too much memory is refused.

They follow from the numbers of arms, draws, columns and weights, for one core of a small server.
Over 14 kinds of policies, 50 to 10,000 arms, 9 to 1,000 columns and 1 to 100 slots, decisions of
more than 5 ms took a quarter to four times of the estimate, less with alike arms or warm caches,
and up to six times where 16,384 draws leave the cache.
"""

from typing import NamedTuple

from service.bandits.policies.encoder import Encoder
from service.bandits.policies.version import Version
from service.bandits.posterior import DisjointRidgeHead, EnsembleHead, GradientHead

PRODUCT, FACTOR = 0.12, 0.05
"""Nanoseconds of a multiplication in a product of matrices, and in a factorisation."""

CELL = 1.0
"""Of one number that is written, or read from memory, by itself."""

OWN_DRAW = 30.0
"""Of one draw of an arm that has draws of its own, where all of them are made."""

RANKED = 20.0
"""Of one score of one draw that is ranked: 7 where none tie, 130 at worst where all do."""

SLOT, TIED = 50_000.0, 200.0
"""Of one slot, and of one draw for it, where some tie."""

ARM = 250.0
"""Of an arm, whatever is made of it, with its part of a row of the log."""

DISJOINT = 600.0
"""Of an arm with a head of its own."""


class Prices(NamedTuple):
    """Costs of a decision under a version, in nanoseconds and in numbers of 8 bytes.

    once           of every decision
    arm, slate     of each arm, for one slot and for several
    slot           of each slot, where there are several
    pair, triple   of each two arms, and of each three
    factor         of each stale matrix
    cells, wide    numbers held of each arm, for one slot and for several
    """

    once: float
    arm: float
    slate: float
    slot: float
    pair: float
    triple: float
    factor: float
    cells: float
    wide: float

    def ms(self, arms: int, slots: int, stale: int) -> float:
        """stale: matrices to factorise first."""
        each = self.arm if slots == 1 else self.slate
        several = arms * (self.pair + arms * self.triple)
        slate = slots * self.slot if slots > 1 else 0.0
        return 1e-6 * (self.once + arms * (each + several) + slate + stale * self.factor)

    def bytes(self, arms: int, slots: int) -> float:
        pairs = arms * arms if self.pair else 0
        return 8.0 * (arms * (self.cells if slots == 1 else self.wide) + pairs)


def prices(version: Version, draws: int) -> Prices:
    """draws: that its rule ranks arms by; 1 where nothing is drawn, 0 where the mean says all."""
    head, encoder, width = version.head, version.encoder, version.view.width
    m, net, rows = encoder.features(width), _weights(encoder), max(draws, 1)
    masks = version.bank.draws if encoder.masks else 0
    arm = ARM + PRODUCT * net * (1 + masks / 4) + CELL / 2 * (2 * width + m)
    slate = arm + CELL / 2 * (2 * width + m) + (RANKED + CELL) * rows
    once = pair = triple = factor = 0.0
    cells = float(2 * width + m + masks)
    wide = cells + 4 * rows
    match head:
        case GradientHead():
            parameters = encoder.layout.parameters
            factor = FACTOR * m**3
            row = 4 * CELL * parameters + PRODUCT * m * m
            arm, slate, cells, wide = arm + row, slate + row, cells + parameters, wide + parameters
            if draws > 1:
                pair = PRODUCT * (draws + parameters)
                triple = PRODUCT / 3
        case EnsembleHead():
            factor = FACTOR * m**3
            row = PRODUCT * m * head.count
            arm, slate = arm + row, slate + row
        case DisjointRidgeHead():
            factor = 2e4 + FACTOR * m**3
            row = DISJOINT + 4 * CELL * m * m
            arm, slate, cells, wide = arm + row, slate + row, cells + 2 * m * m, wide + 2 * m * m
        case None:
            pass
        case _ if m:
            own = m * (m if draws == 1 else rows)
            once = 2 * CELL * m * m if draws else 0.0
            factor = FACTOR * m**3 + (PRODUCT / 2 * m * own if draws > 1 else 0.0)
            arm += PRODUCT / 2 * own + CELL / 4 * rows
            slate += PRODUCT * own
    if draws > 1 and (not m or isinstance(head, DisjointRidgeHead)):
        arm, slate = arm + OWN_DRAW / 32 * draws, slate + OWN_DRAW * draws
    return Prices(once, arm, slate, SLOT + TIED * rows, pair, triple, factor, cells, wide)


def _weights(encoder: Encoder) -> int:
    """Of the nets that a row goes through."""
    nets = [net for net in (encoder.trained, encoder.cold) if net is not None]
    return sum(weight.size for net in nets for weight, _ in net.layers)
