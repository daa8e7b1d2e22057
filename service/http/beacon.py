"""POST /beacon: rewards and activations that a page still had to report when it was left.

`navigator.sendBeacon` is the one call that browsers carry out after a page is gone. It can set no
header: no key in `Authorization`, and across origins no `application/json` either without a
preflight, for which nobody waits. So a beacon is plain text that holds JSON, with the key inside (a
browser key is public; in a query it would stand in every access log). Each item passes the key's
scope, origins and rates as if it were a request. Without a preflight any page could send a beacon:
the middleware refuses an origin that is neither the service's own nor listed.
"""

from collections.abc import Awaitable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from msgspec import Meta

from service.definition.select_request import RequestedName
from service.errors import Invalid, TooLarge
from service.http.access import caller_of
from service.http.bodies import decoder, expect_each_once
from service.http.decisions import READ_REWARD
from service.http.dependencies import ServicesDep
from service.http.problems import answer_to
from service.http.strict import StrictRoute
from service.security.access import Grant

BYTES: Final = 65_536
"""Most bytes of a beacon: browsers keep no more under way for a page that is gone."""
ITEMS: Final = 200
KEY_HEADERS: Final = {b"authorization", b"x-api-key"}


class Activation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(pattern=r"^[\w-]{1,64}$")]
    experiment: RequestedName | None = None


class BeaconBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a beacon. activate: decisions that were shown, before the rewards; rewards: as in
    /reward/batch."""

    key: str | None = None
    activate: list[Activation] = []
    rewards: list[msgspec.Raw] = []


READ_BEACON: Final = decoder(BeaconBody)

router = APIRouter(route_class=StrictRoute)


@router.post("/beacon", include_in_schema=False)
async def beacon(request: Request, services: ServicesDep) -> JSONResponse:
    """Answer with the status of each item, in order."""
    content = await request.body()
    if len(content) > BYTES:
        raise TooLarge(f"at most {BYTES} bytes")
    body = READ_BEACON(content)
    expect_each_once(content, apart="rewards")
    rewards = [bytes(item) for item in body.rewards]
    if len(body.activate) + len(rewards) > ITEMS:
        raise Invalid(f"at most {ITEMS} items")
    client, headers = request.scope.get("client"), request.scope["headers"]
    if body.key is not None:
        own = (b"authorization", b"Bearer " + body.key.encode("latin-1", "replace"))
        headers = [*(each for each in headers if each[0] not in KEY_HEADERS), own]

    def grant(length: int) -> Grant | None:
        """Return the grant of the key, for one item of this length in bytes."""
        if not services.access.required:
            return None
        return caller_of(services, client, headers, "reward", length).grant

    async def activate(item: Activation) -> None:
        await services.settlements.activate(item.id, item.experiment, grant(0))

    async def reward(item: bytes) -> None:
        allowed = grant(len(item))
        await services.settlements.reward(READ_REWARD(item), allowed)

    return JSONResponse(
        {
            "statuses": [
                *[await _status(activate(item)) for item in body.activate],
                *[await _status(reward(item)) for item in rewards],
            ]
        }
    )


async def _status(work: Awaitable[Any]) -> int:
    try:
        await work
    except Exception as fault:
        return answer_to(fault).status_code
    return 200
