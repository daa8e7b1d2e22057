"""Profiles of keys: the limits of a request's content, and its cost against the key's rates."""

from itertools import islice
from math import inf

import msgspec
from msgspec import structs

from service.definition.select_request import InlineArm, RequestedArms, SelectRequest
from service.errors import Fault, Forbidden
from service.security.rates import Rate


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key, below those of the service.

    inline       arms outside the catalogue may be named
    named        a policy may be named
    top_k, arms, batch, text   at most: slots, arms named, requests of a batch, characters of a
                 string that the caller chooses
    body_bytes   of a request
    address, unit   rates of one client's address, and of one unit
    """

    inline: bool = True
    named: bool = True
    top_k: float = inf
    arms: float = inf
    batch: float = inf
    text: float = inf
    body_bytes: float = inf
    address: Rate | None = None
    unit: Rate | None = None

    @property
    def described(self) -> str:
        """Description in a few words: its kind, and its differences from that."""
        kind = UNLIMITED if self.inline and self.named else STRICT
        usual = structs.asdict(kind)
        own = [
            f"{name}={value}"
            for name, value in structs.asdict(self).items()
            if value != usual[name]
        ]
        return " ".join(["all" if kind is UNLIMITED else "strict", *own])

    def expect(self, question: SelectRequest) -> None:
        """Raise Forbidden that names each part of the request that exceeds the limits."""
        if self is UNLIMITED:
            return
        faults = []
        if question.policy is not None and not self.named:
            faults.append(Fault("policy", "this key may name no policy"))
        if question.top_k > self.top_k:
            faults.append(Fault("top_k", f"this key ranks at most {self.top_k} arms"))
        if question.arms is not None:
            faults += self._faults_of(question.arms)
        if len(question.unit or "") > self.text:
            faults.append(Fault("unit", self._too_long))
        for name, value in question.context.items():
            if isinstance(value, str) and len(value) > self.text:
                faults.append(Fault(f"context.{name}", self._too_long))
        if faults:
            raise Forbidden("this key does not permit all that is asked", faults=faults)

    @property
    def _too_long(self) -> str:
        return f"this key sends at most {self.text} characters"

    def _faults_of(self, arms: RequestedArms) -> list[Fault]:
        """Return the first arm of each fault alone."""
        if len(arms) > self.arms:
            return [Fault("arms", f"this key names at most {self.arms} arms")]
        found = []
        inline = [isinstance(arm, InlineArm) for arm in arms]
        if not self.inline and any(inline):
            message = "this key names arms of the catalogue alone: give an id"
            found.append(Fault(f"arms.{inline.index(True)}", message))
        ids = (arm.id if isinstance(arm, InlineArm) else arm for arm in arms)
        long = (index for index, arm in enumerate(ids) if len(arm) > self.text)
        found += [Fault(f"arms.{index}", self._too_long) for index in islice(long, 1)]
        return found


UNLIMITED = Profile()
"""Profile of a secret key, unless it says otherwise: only the limits of the service."""

STRICT = Profile(
    inline=False,
    named=False,
    top_k=20,
    arms=100,
    batch=20,
    text=128,
    body_bytes=16_384,
    address=Rate.parse("3000/minute"),
    unit=Rate.parse("300/minute"),
)
"""Profile of a key with origins, which everybody can read in a page. A page with two rankings and
their rewards costs 14: a visitor would have to open 20 a minute to reach the rate of a unit, and
200 visitors who share an address one a minute each."""

ARMS_PER_CHOICE, RANKED_ARMS_PER_CHOICE, SLOTS_PER_CHOICE, INLINE_ARMS_PER_CHOICE = 100, 12, 10, 15
"""Numbers of arms, of arms that are ranked for several slots, of such slots, and of arms outside
the catalogue that cost as much as one choice over 50 arms, which takes 0.2 ms from its bytes to its
answer. Measured, 512 draws: 10,000 arms take 6 ms and 0.3 MB of the log (101), 10,000 ranked for
100 slots 100 to 600 ms (945), 10,000 outside the catalogue 120 ms more (612 more)."""


def cost(arms: int, slots: int, inline: int = 0) -> int:
    """Return the cost of a decision, in choices over 50 arms."""
    ranked = arms / RANKED_ARMS_PER_CHOICE + slots / SLOTS_PER_CHOICE if slots > 1 else 0.0
    return int(1 + arms / ARMS_PER_CHOICE + ranked + inline / INLINE_ARMS_PER_CHOICE)
