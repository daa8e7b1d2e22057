"""Client of Forage, an online recommendation service: decisions with a time budget and a fallback,
and rewards that count once."""

from forage_client.client import AsyncForage, Forage
from forage_client.decision import Decision, Ranked
from forage_client.errors import ClientError, Problem, Unreachable, Unsendable

__all__ = [
    "AsyncForage",
    "ClientError",
    "Decision",
    "Forage",
    "Problem",
    "Ranked",
    "Unreachable",
    "Unsendable",
]
