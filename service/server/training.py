"""The trainer of a service, as its child process."""

import asyncio
import logging
import os
import sys

from service.security.keys import mint
from service.settings import Settings
from service.training import TORCH, can_train

logger = logging.getLogger("forage")


def trains(settings: Settings) -> bool:
    """Say whether a service starts a trainer; where it cannot, warn."""
    embedded = settings.store.startswith("sqlite")
    if settings.trainer == "off" or settings.role == "decider":
        return False
    if settings.trainer == "auto" and not embedded:
        return False
    if not can_train():
        logger.warning("no trainer runs, so policies with a net stay untrained: %s", TORCH)
        return False
    return True


def trainer_key(settings: Settings) -> str:
    """Mint the key of a trainer; empty where requests need none."""
    return "" if settings.keys is None else mint()[1]


async def keep_training(settings: Settings, port: int, key: str) -> None:
    """Run a trainer with this key as a child process, and start another where it dies."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    command = [sys.executable, "-m", "service", "train", "--follow", "--parent", str(os.getpid())]
    command += ["--url", f"http://{host}:{port}", "--log-level", settings.log_level]
    # Secrets are in the environment, which only this user can read; not in `ps`.
    environment = {**os.environ, "FORAGE_STORE": settings.store}
    environment.pop("FORAGE_STORE_FILE", None)
    if key:
        environment["FORAGE_KEY"] = key
        environment.pop("FORAGE_KEY_FILE", None)
    while True:
        # A session of its own: an interrupt at the terminal is for this process, which ends both.
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True
        )
        try:
            status = await child.wait()
        except asyncio.CancelledError:
            child.terminate()
            await child.wait()
            raise
        logger.warning("the trainer ended with status %d: starting another", status)
        await asyncio.sleep(1.0)
