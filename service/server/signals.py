"""Signals to a service: SIGTERM and SIGINT stop it, SIGHUP makes it read settings again."""

import asyncio
import logging
import os
import signal
import sys
from functools import partial

from service.errors import ConfigurationError
from service.http.services import Services
from service.server.server import Server
from service.settings import Settings
from service.telemetry.logs import log_as

logger = logging.getLogger("forage")

CHANGEABLE = frozenset({"log_level", "log_format", "token_keys"})
"""Settings that a SIGHUP can change; the others need a restart."""


class Signals:
    """Handlers of the signals to a running service."""

    def __init__(self, server: Server, services: Services, settings: Settings) -> None:
        self._server, self._services, self._settings = server, services, settings

    def listen(self) -> None:
        """Install the handlers. On a terminal SIGHUP stops the service: closing it sends one."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, partial(self.stop, number))
        if sys.stderr.isatty():
            loop.add_signal_handler(signal.SIGHUP, partial(self.stop, signal.SIGHUP))
        else:
            loop.add_signal_handler(signal.SIGHUP, self.reload)

    def stop(self, number: int) -> None:
        """Stop in order; exit at once at a second signal, with the status of a program that a
        signal ended. The log holds whatever was acknowledged."""
        drain = self._settings.drain_seconds
        if not self._server.should_exit:
            logger.info(
                "stopping: pending requests have 10 s%s; another signal ends it at once",
                f" after {drain:g} s of draining (FORAGE_DRAIN_SECONDS)" if drain else "",
            )
            self._server.stop()
            return
        logger.error(
            "stopped again: it ends at once, without its last snapshot; requests under way are cut "
            "off, and %d decisions are not in the log",
            self._services.log.committer.buffered,
        )
        os._exit(128 + number)

    def reload(self) -> None:
        """Read keys and changeable settings again; keep the old ones where the new are wrong."""
        self._services.access.look()
        if (new := read_again(self._settings)) is None:
            return
        if new.token_keys:
            self._services.sealer.use(new.token_keys)
        self._settings = new


def read_again(old: Settings) -> Settings | None:
    """Read settings again, and log by them. Return the old ones with what has changed and can; None
    where the new are wrong."""
    try:
        new = old.read_again()
        if bool(new.token_keys) != bool(old.token_keys):
            raise ConfigurationError("FORAGE_TOKEN_KEYS: set or left out, it needs a restart")
    except ConfigurationError as fault:
        logger.error("SIGHUP: keeping the old settings: %s", fault)
        return None
    changed = {name for name in Settings.model_fields if getattr(new, name) != getattr(old, name)}
    log_as(new.log_level, new.log_format, {*old.token_keys, *new.token_keys})
    logger.info("SIGHUP: settings read again, changed: %s", _names(changed & CHANGEABLE))
    if changed - CHANGEABLE:
        logger.warning("SIGHUP: these need a restart: %s", _names(changed - CHANGEABLE))
    return new.model_copy(update={name: getattr(old, name) for name in changed - CHANGEABLE})


def _names(settings: set[str]) -> str:
    return ", ".join(f"FORAGE_{name.upper()}" for name in sorted(settings)) or "none"
