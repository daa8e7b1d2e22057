"""The process that would serve here: threads, open files, libraries, secrets."""

import os
import resource
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from service.errors import ConfigurationError
from service.maintenance.doctor.checks import Check, fault, ok, warning
from service.security.keys import loopback, read_keys
from service.settings import Settings
from service.training import can_train

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""`main` sets those that are not set to 1, before numpy reads them."""

FILES = 4_096
"""Open files at least: each connection of a client is one."""

SOON_DAYS = 14


def examine_host() -> Iterator[Check]:
    several = [f"{name}={os.environ[name]}" for name in THREADS if os.environ.get(name, "1") != "1"]
    if several:
        say = "heads are small, and threads that wait for each other make them several times slower"
        yield warning("threads", f"{', '.join(several)}: {say}", "unset it, or set it to 1")
    else:
        yield ok("threads", "linear algebra has one thread")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        say = f"at most {soft} open files, and each connection is one"
        unit = f"LimitNOFILE={FILES} in the unit of systemd"
        yield warning("files", say, f"ulimit -n {FILES}, or {unit} (hard limit {hard})")
    else:
        yield ok("files", f"{'any number of' if soft < 0 else f'up to {soft:,}'} open files")
    if not can_train():
        say = "torch is not installed: policies with a net stay untrained"
        yield warning("trainer", say, "pip install 'forage[train]', or train elsewhere")


def examine_secrets(settings: Settings) -> Iterator[Check]:
    if settings.token_keys:
        count = len(settings.token_keys)
        yield ok("token keys", f"{count} from FORAGE_TOKEN_KEYS, the first of them seals")
    if settings.keys is not None:
        yield from _keys(settings.keys)
    elif loopback(settings.host):
        yield ok("keys", "none are required; only this host can reach the service")
    else:
        say = f"FORAGE_HOST is {settings.host} and no keys are required"
        judge = warning if settings.open else fault
        yield judge("keys", say, "give FORAGE_KEYS a file that `forage keys` keeps")


def _keys(path: Path) -> Iterator[Check]:
    try:
        keys = read_keys(path)
    except ConfigurationError as error:
        yield fault("keys", str(error).replace("\n", " "), "forage keys --help")
        return
    yield from private(path, "keys", secret=False)
    now = datetime.now(UTC)
    live = [key for key in keys if key.state(now) == "live"]
    if not any("admin" in key.scopes for key in live):
        say = "no live key has the scope admin: neither trainer nor console can do their work"
        yield warning("keys", say, f"forage keys add --keys {path} ...")
    if expired := [key.name for key in keys if key.state(now) == "expired"]:
        say = f"expired: {', '.join(expired)}: whoever sends one gets 401"
        yield warning("keys", say, "make new ones, or take them out of the file")
    days = [(key.name, (key.expires - now).days) for key in live if key.expires is not None]
    if soon := [f"{name} in {left} days" for name, left in days if left < SOON_DAYS]:
        yield warning("keys", f"about to expire: {', '.join(soon)}", "make new ones")
    yield ok("keys", f"{path}: {len(live)} live of {len(keys)}")


def private(path: Path, name: str, *, secret: bool = True) -> Iterator[Check]:
    """Nobody else may write the file, nor read it where it is secret."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield fault(name, f"{path}: {error.strerror}", "it has to be readable")
        return
    if mode & (0o077 if secret else 0o022):
        say = f"others than its owner may {'read' if secret else 'change'} it (mode {mode:04o})"
        yield fault(name, f"{path}: {say}", f"chmod {'600' if secret else 'go-w'} {path}")
    elif secret:
        yield ok(name, f"{path}: its owner's alone (mode {mode:04o})")
