"""What is written into the scope of a request, or read from it, in several places."""

from typing import Final

CALLER: Final = "forage.caller"
"""Under which a route finds who asks, in the scope of its request."""

PROBES: Final = {"/healthz", "/readyz"}
"""What a balancer asks, under any name of the service: answered for any host, without the names of
experiments, and at once."""
