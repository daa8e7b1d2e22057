"""Ports for servers that keep theirs over restarts."""

import socket
from contextlib import suppress
from random import SystemRandom

PORTS = range(10_000, 32_000)
"""Below those that the system gives to the callers' ends of connections: it would give one of these
away between a server's end and its next start."""


def free_port() -> int:
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
