"""create_app: the HTTP application over the parts of a process. The only composition of routes."""

from functools import cache

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service import __version__
from service.http import (
    beacon,
    console,
    cors,
    evaluations,
    experiments,
    imports,
    maintenance,
    openapi,
    problems,
    routes,
    web,
)
from service.http.access import Authentication
from service.http.decisions import DecisionRoutes
from service.http.middleware import RequestMiddleware
from service.http.services import Services

DESCRIPTION = """Ask `POST /select` which arm to show, tell `POST /reward` what came of it.

Every answer of /select says with which probability its arm was chosen, and by which version of
which policy. Errors are `application/problem+json` in one shape."""


class Application(FastAPI):
    """FastAPI within the middleware of this service."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Build the stack, innermost first."""
        services: Services = self.state.services
        app: ASGIApp = DecisionRoutes(super().build_middleware_stack(), services)
        app = RequestMiddleware(
            app,
            services.telemetry,
            Authentication(services.access, services.hosts, services.addresses),
            services.gate,
            services.settings,
        )
        return cors.allowing(services.settings.cors_origins, app)


@cache
def api_routes() -> tuple[BaseRoute, ...]:
    """Make the routes once: FastAPI analyses each at its first match, for all applications."""
    api = APIRouter()
    for router in (
        beacon.router,
        routes.router,
        experiments.router,
        maintenance.router,
        console.router,
        evaluations.router,
    ):
        api.include_router(router)
    for prefix, router in (*experiments.SCOPED, *imports.SCOPED):
        api.include_router(router, prefix=prefix)
    return tuple(api.routes)


def create_app(services: Services) -> FastAPI:
    app = Application(
        title="Forage",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
        openapi_url=None,  # FastAPI encodes the document for each request
        routes=[*api_routes()],
    )
    app.state.services = services
    problems.install(app)
    app.openapi = lambda: openapi.document(app, services.access.required)  # type: ignore[method-assign]
    app.router.routes += [web.openapi_route(app), *web.static_routes()]
    return app
