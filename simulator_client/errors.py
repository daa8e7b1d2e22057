"""Errors of the simulator; each is one line for the terminal, without a traceback.

ClientError (forage_client)
 +-- Unreachable, Problem   as the client says
 +-- UsageError             an option, a world or a run folder that does not fit
 +-- Unsettled              rewards that the service had not learned in time
"""

from forage_client import ClientError


class UsageError(ClientError):
    """What was asked for does not exist or does not fit together."""


class Unsettled(ClientError):
    """Rewards of a run that the service had not learned when patience ran out."""
