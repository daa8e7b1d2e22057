"""Constraints: bounds that rules put on the chances of arms, and the two maps from the preferences
of a policy to chances within them.

    bounds_of   rules -> bounds; a rule yields to those before it, by as little as needed
    clip        chances -> the nearest within the bounds: of policies in closed form
    fill        scores -> the best arms first, within the bounds: of all others

Pins come before caps, caps before floors, floors before exploration; rules of one kind in the order
given. All bounds hold exactly where groups of one kind share no arm or lie within one another.
Where they overlap otherwise, an arm takes the least that its groups leave, and a group that this
makes yield is reported.
"""

from service.bandits.constraints.bounds import Bounds as Bounds
from service.bandits.constraints.bounds import bounds_of as bounds_of
from service.bandits.constraints.clip import clip as clip
from service.bandits.constraints.fill import fill as fill
from service.bandits.constraints.limits import Constrained as Constrained
from service.bandits.constraints.limits import Explore as Explore
from service.bandits.constraints.limits import Group as Group
from service.bandits.constraints.limits import Limit as Limit
from service.bandits.constraints.limits import Pin as Pin
