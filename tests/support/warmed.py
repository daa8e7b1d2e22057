"""Imported by the process that forks (warm.py) alone: all that a service imports or makes once.

None of it is garbage: a fork that looked through it would copy each page that it touched.
"""

import gc

import uvicorn.protocols.http.httptools_impl  # noqa: F401
import uvloop  # noqa: F401

import service.app
import service.cli.program
import service.http.protocol
import service.log.stores.redis
import service.log.stores.sqlite
import service.server.serving  # noqa: F401
from service.http.application import api_routes

api_routes()
gc.collect()
gc.freeze()
