"""A log under every kind of rule, as a service wrote it in two days."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from service.definition.reward_request import RewardRequest
from service.definition.select_request import Envelope, InlineArm, SelectRequest
from service.errors import NoEligibleArm
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from tests.support.clock import run_virtual
from tests.unit.audited import CAT, DOG, define, live, state_of
from tests.unit.folding import shop

POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "lints": {"kind": "lints", "draws": 16},
    "squarecb": {"kind": "squarecb"},
    "random": {"kind": "random"},
    "auto": {"kind": "auto"},
}
ARMS: dict[str, dict[str, Any]] = {
    "food1": {"kind": "food", "stock": 3.0, "brand": "Bark"},
    "food2": {"kind": "food", "stock": 1.0, "brand": "Acme"},
    "food3": {"kind": "food", "brand": "Bark"},
    "toy1": {"kind": "toy", "stock": 2.0, "brand": "Acme"},
    "toy2": {"kind": "toy", "stock": 5.0, "brand": "Cosy", "sale": True},
    "bed1": {"kind": "bed", "stock": 0.0, "brand": "Cosy"},
    "bed2": {"kind": "bed", "stock": 4.0, "brand": "Dawn", "sale": False},
}
FIRST: dict[str, dict[str, Any]] = {
    "stocked": {"eligible_if": "stock > 0 or pet == 'dog' and kind == 'bed'"},
    "season": {"arm": "toy2", "until": "2027-01-15T12:00:00Z"},
    "sale": {"of": "sale", "is": True, "eligible_if": "age < 15"},
    "even": {"explore": {"share": 0.1, "slots": "all"}},
    "second": {"pin": {"arm": "food2", "slot": 2, "share": 0.3}},
    "bed": {"floor": {"arm": "bed2", "share": 0.1}},
    "new": {"floor": {"of": "new", "younger_than": "4h", "fewer_than": 5, "share": 0.2}},
    "food": {"cap": {"of": "kind", "is": "food", "share": 0.4, "slots": "all"}},
    "dogs": {"cap": {"of": "arm", "share": 0.5, "if": "pet == 'dog'"}},
    "kinds": {"at_most": {"of": "kind", "per_slate": 1}},
}
SECOND: dict[str, dict[str, Any]] = {
    "stocked": {"eligible_if": "stock >= 2"},
    "first": {"pin": {"arm": "toy1", "share": 0.25}},
    "brands": {"cap": {"of": "brand", "share": 0.3}},
    "young": {"floor": {"of": "new", "younger_than": "2h", "share": 0.9}},
    "most": {"floor": {"arm": "bed1", "share": 0.2, "slots": "all"}},
}
ROPE = InlineArm("rope", {"kind": "toy"}, {"stock": 3.0, "sale": True})
BONE = InlineArm("bone", {"kind": "food"}, {"stock": 0.0})
VISITS = 40
"""Decisions between two changes, of all policies in turn."""


def definition(rules: Mapping[str, Any]) -> dict[str, Any]:
    return {**shop(**POLICIES), "arms": ARMS, "rules": {"if_empty": "food1", **rules}}


def asked(rng: Random, number: int) -> SelectRequest:
    """A request of any kind."""
    arms: list[list[str | InlineArm] | None] = [
        None, None, [*ARMS][:5], [ROPE, "bed2", BONE, "toy1", "food1"]
    ]  # fmt: skip
    wishes: list[dict[str, list[str]]] = [
        {}, {}, {"exclude": ["toy1", "gone"]}, {"only": ["food1", "toy2", "toy1", "bed2"]},
        {"only": ["food1", "toy1", "bed2"], "exclude": ["bed2"]}, {"only": ["food3", "nothing"]},
    ]  # fmt: skip
    return SelectRequest(
        {**rng.choice([CAT, DOG]), "age": rng.choice([3.0, 20.0])},
        "shop",
        [*POLICIES, None][number % 6],
        arms=rng.choice(arms),
        top_k=rng.choice([1, 1, 3]),
        unit=f"unit {number}",
        **rng.choice(wishes),
    )


async def visits(services: Services, seed: int) -> None:
    rng = Random(seed)
    for number in range(VISITS):
        envelope = Envelope(key=f"{seed}/{number}" if number % 5 == 0 else None)
        try:
            answer = await services.selector.select(asked(rng, number), envelope)
        except NoEligibleArm:  # of arms of which none has a stock, and food1 is not there
            continue
        rewards = {each.arm: float(rng.random() < 0.4) for each in answer.decision.shown}
        if number % 4 == 0:
            await services.expiry.expire(state_of(services), answer.decision)
        else:
            await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))


async def first_day(services: Services) -> None:
    """Attributes change, an arm comes, time passes."""
    await define(services, definition(FIRST))
    await visits(services, 1)
    await asyncio.sleep(6 * 3_600)  # the season is over, and no arm is young
    await visits(services, 2)
    state = state_of(services)
    await services.admin.patch_arm(state, "food3", {}, {"stock": 2.0}, "")
    await services.admin.patch_arm(state, "toy1", {}, {"stock": None}, "")
    late = {"kind": "toy", "stock": 9.0, "brand": "Early"}
    await services.admin.upsert_arms(state, {"late": late}, "")
    await visits(services, 3)
    await asyncio.sleep(26 * 3_600)
    await visits(services, 4)


async def second_day(services: Services) -> None:
    """A restart; other rules; an arm goes and comes again; an arm without a stock is pinned."""
    await visits(services, 5)
    await define(services, definition(SECOND))
    await visits(services, 6)
    state = state_of(services)
    await services.admin.patch_arm(state, "toy1", {}, {"stock": 0.0}, "")
    await services.admin.remove_arm(state, "bed1", "")
    await visits(services, 7)
    again = {"kind": "bed", "stock": 9.0, "brand": "Cosy"}
    await services.admin.upsert_arms(state, {"bed1": again}, "")
    await visits(services, 8)


def ruled_log() -> MemoryStore:
    store = MemoryStore()
    for day in (first_day, second_day):
        run_virtual(live(store, day, rng=Random(1)))
    return store
