"""forage openapi: print the OpenAPI document."""

import json


def openapi() -> int:
    """Print the OpenAPI document.

    forage openapi > openapi.json
    """
    from service.app import assemble
    from service.http.application import create_app
    from service.log.stores import open_store
    from service.settings import Settings

    settings = Settings(store="memory://")
    services = assemble(settings, open_store(settings.store), [bytes(32)])
    print(json.dumps(create_app(services).openapi(), indent=2))
    return 0
