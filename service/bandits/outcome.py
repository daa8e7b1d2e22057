"""What came of shown arms, from which heads learn."""

import msgspec

from service.features.row import Row


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shown arm and its reward.

    row         base features, context then arm
    inline      outside the catalogue: it gets no head of its own
    weight      heads count it as so many settlements: the chance that the user saw it
    slot        whose examination the reward teaches, from 1 on; 0: none
    predicted   reward of the arm under the policy, scaled to [0, 1]; with a slot alone
    imported    another system showed it: whether its world is this one remains to be seen
    was         the reward learned before, which this one changes; None: it is the first
    since       the position of the first reward: a head that began later does not hold `was`
    weighed     the weight of `was`
    withdrawn   the user did not see the arm after all, as those below a late click: heads unlearn
                `was` and do not learn the reward
    """

    arm: str
    reward: float
    row: Row
    inline: bool = False
    weight: float = 1.0
    slot: int = 0
    predicted: float = 0.0
    imported: bool = False
    was: float | None = None
    since: int | None = None
    weighed: float = 1.0
    withdrawn: bool = False

    @property
    def learned(self) -> float | None:
        """The reward that holds from here on; None after a withdrawal."""
        return None if self.withdrawn else self.reward
