"""forage openapi: print the OpenAPI document."""

import json
from functools import partial

from service.cli.running import Command
from service.settings import Settings


@partial(Command, summary="print the OpenAPI document", example="forage openapi > openapi.json")
def command(settings: Settings) -> int:
    from service.app import assemble
    from service.http.application import create_app
    from service.log.stores import open_store

    settings = Settings(store="memory://")
    services = assemble(settings, open_store(settings.store), [bytes(32)])
    print(json.dumps(create_app(services).openapi(), indent=2))
    return 0
