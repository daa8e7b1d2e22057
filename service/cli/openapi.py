"""forage openapi: print the OpenAPI document."""

import json
from typing import TYPE_CHECKING

from service.cli.running import Command

if TYPE_CHECKING:
    from service.settings import Settings


def run(settings: "Settings") -> int:
    from service.app import assemble
    from service.http.application import create_app
    from service.log.stores import open_store
    from service.settings import Settings

    settings = Settings(store="memory://")
    services = assemble(settings, open_store(settings.store), [bytes(32)])
    print(json.dumps(create_app(services).openapi(), indent=2))
    return 0


COMMAND = Command(
    "print the OpenAPI document",
    run,
    example="forage openapi > openapi.json",
    group="Operate",
)
