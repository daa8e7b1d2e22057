"""The HTTP application over the parts of a process. The only composition of routes."""

from functools import cache

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service import __version__
from service.http import (
    beacon,
    changes,
    console,
    evaluations,
    experiments,
    imports,
    maintenance,
    openapi,
    problems,
    rollouts,
    routes,
    web,
)
from service.http.asgi import GatedApplication
from service.http.dependencies import get_only_state, get_state
from service.http.edge import Edge
from service.http.services import Services
from service.http.strict import StrictRoute

DESCRIPTION = """Ask `POST /select` which arm to show, tell `POST /reward` what came of it.

Every answer of /select says with which probability its arm was chosen, and by which version of
which policy. Errors are `application/problem+json` in one shape.

`/arms`, `/policies`, `/import` and what is below them are short forms of the same under
`/experiments/{experiment}`, for the default experiment or the only one."""


class Application(FastAPI):
    """FastAPI behind the gate, beside the edge."""

    edge: Edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        return GatedApplication(super().build_middleware_stack(), self.edge)


@cache
def api_routes() -> tuple[BaseRoute, ...]:
    """Make the routes once: FastAPI analyses each at its first match, for all applications."""
    api = APIRouter(route_class=StrictRoute, generate_unique_id_function=lambda route: route.name)
    for router in (
        beacon.router,
        routes.router,
        experiments.router,
        changes.router,
        rollouts.router,
        maintenance.router,
        console.router,
        evaluations.router,
    ):
        api.include_router(router)
    for resources in (
        experiments.arm_resources,
        experiments.policy_resources,
        imports.resources,
    ):
        api.include_router(resources(get_state), prefix="/experiments/{experiment}")
        api.include_router(resources(get_only_state), include_in_schema=False)
    return tuple(api.routes)


def create_app(services: Services) -> Application:
    app = Application(
        title="Forage API",  # a generated client is forage_api_client: forage_client is ours
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
        openapi_url=None,  # FastAPI encodes the document for each request
        routes=[*api_routes()],
    )
    app.state.services = services
    app.edge = Edge(services)
    problems.install(app)
    app.openapi = lambda: openapi.document(app, services.access.required)  # type: ignore[method-assign]
    app.router.routes += [web.openapi_route(app), *web.static_routes()]
    web.redirect_slashes(app.router)
    return app
