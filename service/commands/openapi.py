"""forage openapi: print the OpenAPI document."""

import json
from argparse import ArgumentParser
from typing import Any

from service.commands.running import Command
from service.settings import Settings


def add_options(parser: ArgumentParser) -> None: ...


def run(settings: Settings, options: dict[str, Any]) -> int:
    from service.app import create_app
    from service.journal import Journal
    from service.services import assemble
    from service.stores import open_store
    from service.telemetry import Telemetry

    settings = Settings(store="memory://")
    journal = Journal(open_store(settings.store), settings, Telemetry())
    print(json.dumps(create_app(assemble(settings, journal, [bytes(32)])).openapi(), indent=2))
    return 0


COMMAND = Command(
    "print the OpenAPI document",
    add_options,
    run,
    example="forage openapi > openapi.json",
    group="Operate",
)
