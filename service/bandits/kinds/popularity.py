"""`popularity`: draws of each arm's chance of a click (Chapelle & Li 2011)."""

from typing import Literal

from service.bandits.encoder import Encoder
from service.bandits.heads import BetaHead
from service.bandits.kinds.base import Exploring, Thompson
from service.bandits.settings import PolicySettings
from service.features.view import View


class Popularity(PolicySettings, Thompson):
    kind: Literal["popularity"]

    keeps_head = Exploring.keeps_head | {"draws", "bank", "scale"}

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> BetaHead:
        return BetaHead()
