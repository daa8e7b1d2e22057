"""What routes depend on: the services, the caller's grant, the experiment of the path."""

import re
from typing import Annotated

from fastapi import Depends, Header, Path, Request
from pydantic import WithJsonSchema
from starlette.convertors import StringConvertor, register_url_convertor

from service.errors import Invalid
from service.features.declaration import Name
from service.http.request_head import CALLER
from service.http.services import Services
from service.security.access import Caller, Grant, expect_granted
from service.state.fold import State


class IdConvertor(StringConvertor):
    """Any id, at the end of a path: the path is decoded, so it may hold slashes and line ends."""

    regex = "(?s:.+)"


register_url_convertor("id", IdConvertor())

REVISION = re.compile(r'"?[0-9]{1,18}"?')

IfMatch = Annotated[
    str | None,
    Header(description='Revision that is to be changed, quoted, as ETag gives it: "3".'),
    WithJsonSchema({"type": "string", "pattern": rf"^({REVISION.pattern}|\*)$"}),
]


# FastAPI runs a plain function in a thread of its own, so these are coroutines.


async def get_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def get_grant(request: Request) -> Grant | None:
    """Return the grant of the caller's key; None: keys are off."""
    caller: Caller | None = request.scope.get(CALLER)
    return None if caller is None else caller.grant


async def get_author(grant: Annotated[Grant | None, Depends(get_grant)]) -> str:
    """Return the author of a change: the name of the caller's key, as events have it."""
    return "" if grant is None else grant.name


ServicesDep = Annotated[Services, Depends(get_services)]
GrantDep = Annotated[Grant | None, Depends(get_grant)]
AuthorDep = Annotated[str, Depends(get_author)]


async def get_granted_name(experiment: Annotated[Name, Path()], grant: GrantDep) -> str:
    """Return the name of an experiment that may be quarantined, or does not exist yet."""
    expect_granted(grant, experiment)
    return experiment


GrantedName = Annotated[str, Depends(get_granted_name)]


async def get_state(experiment: GrantedName, services: ServicesDep) -> State:
    """Return the state of the experiment that the path names."""
    return await services.experiments.current(experiment)


async def get_past_state(experiment: GrantedName, services: ServicesDep) -> State:
    """Return the state of the experiment that the path names, which may be deleted."""
    return await services.experiments.find_past(experiment)


async def get_only_state(services: ServicesDep, grant: GrantDep) -> State:
    """Return the state of the experiment that is served, where it is the only one."""
    expect_granted(grant, services.experiments.resolve(None))
    return await services.experiments.current(None)


StateDep = Annotated[State, Depends(get_state)]
PastStateDep = Annotated[State, Depends(get_past_state)]


def revision_of(if_match: str | None) -> int | None:
    if if_match is None or if_match == "*":
        return None
    if not REVISION.fullmatch(if_match):
        raise Invalid('give a revision in quotes, as ETag does: "3"', path="If-Match")
    return int(if_match.strip('"'))
