"""Logs of policies that chance assigns to visitors, written by hand."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from service.definition.experiment import Definition
from service.state.events import ExperimentDefined, TrafficChanged
from tests.support.archived import MORNING, WAIT_S, Shop, a_decision

EVERY_S = 10.0
"""Between two decisions."""


def definition(shares: Mapping[str, float], **more: Any) -> dict[str, object]:
    """As the log holds it: policies that only their names tell apart, and a control."""
    policies = {name: {"kind": "random", "share": share} for name, share in shares.items()}
    content = {"policies": policies, "control": "control", **more}
    return Definition.model_validate(content).completed().model_dump(mode="json")


class Traffic:
    """A shop whose log grows by decisions and their outcomes, in the order of time."""

    def __init__(self, shop: Shop, seed: int = 0) -> None:
        self.shop, self.rng = shop, Random(seed)
        self.at, self.number, self.position = MORNING, 0, 0
        self._shares: Mapping[str, float] = {}

    async def share(self, shares: Mapping[str, float]) -> None:
        """Change shares alone, as `Admin.share`."""
        self._shares = {**self._shares, **shares}
        self.position += 1
        event = TrafficChanged(at=self.at, revision=self.position, shares=dict(shares))
        await self.shop.append(event)

    async def define(self, shares: Mapping[str, float], **more: Any) -> None:
        self._shares = shares
        content = definition(shares, **more)
        self.position += 1
        await self.shop.append(
            ExperimentDefined(
                at=self.at, revision=self.position, schema_version=1, definition=content
            )
        )

    async def visits(
        self,
        count: int,
        rates: Mapping[str, float],
        *,
        units: Sequence[str] | None = None,
        settled: bool = True,
        **changes: Any,
    ) -> None:
        """Decide for visitors and settle what came of it: a click of a policy has its rate.

        units   one for each decision; each is assigned by its name (None: new visitors)
        """
        shares = {name: share for name, share in self._shares.items() if share}
        total = sum(shares.values())
        async with self.shop.at_once():
            for place in range(count):
                self.number += 1
                self.at += EVERY_S
                unit = None if units is None else units[place]
                rng = self.rng if unit is None else Random(unit)
                [policy] = rng.choices(list(shares), list(shares.values()))
                fields = {
                    "policy": policy,
                    "assignment": shares[policy] / total,
                    "model_version": f"{policy}/0@{self.position}",
                    "unit": unit,
                    "probabilities": [1.0, 0.0, 0.0],
                    **changes,
                }
                decision = a_decision(self.number, self.at, **fields)
                await self.shop.decide(decision)
                if settled and self.rng.random() < rates[policy]:
                    await self.shop.reward(decision, a=1.0)
                    self.position += 1
                elif settled:
                    await self.shop.expire(decision)
                    self.position += 1

    def rest(self) -> None:
        """Let time pass until no decision waits."""
        self.at += WAIT_S
