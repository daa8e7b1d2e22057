"""create_app: the HTTP application over the parts of a process. The only composition of routes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service import __version__
from service.http import experiments, imports, problems, routes, upkeep
from service.http.fast import Fast
from service.http.gate import Gate
from service.http.schemas import Problem
from service.services import Services

DESCRIPTION = """Ask `POST /select` which arm to show, tell `POST /reward` what came of it.

Every answer of /select says with which probability its arm was chosen, and by which version of
which policy. Errors are `application/problem+json` in one shape."""


def create_app(services: Services) -> Fast:
    app = Fast(title="Forage", version=__version__, description=DESCRIPTION)
    app.state.services = app.services = services
    settings = services.settings
    app.add_middleware(
        Gate,
        telemetry=services.telemetry,
        body_bytes=settings.max_body_bytes,
        artifact_bytes=settings.max_artifact_bytes,
    )
    problems.install(app)
    app.include_router(routes.router)
    app.include_router(experiments.router)
    app.include_router(upkeep.router)
    for prefix, router in [*experiments.scoped(), *imports.scoped()]:
        app.include_router(router, prefix=prefix)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the one shape of errors in place of FastAPI's own."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document["components"]["schemas"]
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas["Problem"].pop("$defs", None)
        app.openapi_schema = document
    return app.openapi_schema
