"""Free ports for servers that keep theirs over restarts."""

import socket
from contextlib import suppress
from random import SystemRandom

PORTS = range(10_000, 32_000)
"""Below the ports that the system gives to clients' ends of connections. It could give one of
those away between the end of a server and its next start."""


def free_port() -> int:
    """Return a random port on which nothing listens."""
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
