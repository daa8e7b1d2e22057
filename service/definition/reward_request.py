"""A reward, as the caller sends it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from service.definition.select_request import RequestedId, RequestedText


class RewardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of a decision: one of `reward` (one arm shown), `rewards` (by arm) and `feedback`
    with `clicked`. The body of `/reward`."""

    decision_id: Annotated[str, Meta(min_length=1, max_length=1_024)]
    reward: float | None = None
    rewards: Annotated[dict[RequestedId, float], Meta(min_length=1, max_length=100)] | None = None
    feedback: Annotated[
        Literal["cascade"] | None,
        Meta(
            description="The ranking was looked at from the top down to `clicked`: arms below it "
            "are not learned from, and a default that was learned of them is taken back."
        ),
    ] = None
    clicked: RequestedId | None = None
    reward_id: Annotated[
        RequestedText, Meta(description="Tells reports of one decision apart: each has its own.")
    ] = ""

    def __post_init__(self) -> None:
        given = (self.reward is not None) + (self.rewards is not None) + (self.feedback is not None)
        if given != 1:
            raise ValueError("give one of reward, rewards and feedback")
        if self.clicked is not None and self.feedback is None:
            raise ValueError("clicked goes with feedback")

    @property
    def cascade(self) -> bool:
        return self.feedback is not None

    def least_members(self) -> int:
        """Count the members that the JSON of this request has at least."""
        outcomes = 0 if self.rewards is None else len(self.rewards)
        return 2 + outcomes + (self.clicked is not None) + (self.reward_id != "")
