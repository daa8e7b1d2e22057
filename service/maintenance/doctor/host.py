"""The process that would serve here: threads, open files, libraries, secrets."""

import os
import resource
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from service.errors import ConfigurationError
from service.maintenance.doctor.checks import Check
from service.security.keys import loopback, read_keys
from service.settings import Settings

FILES = 4_096
"""Open files at least: each connection of a client is one."""

SOON_DAYS = 14


def examine_host() -> Iterator[Check]:
    # `main` sets what is not set to 1, before numpy reads it.
    variables = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    several = [
        f"{name}={os.environ[name]}" for name in variables if os.environ.get(name, "1") != "1"
    ]
    if several:
        yield Check(
            "threads",
            "warning",
            f"{', '.join(several)}: heads are small, and threads that wait for each other make "
            "them several times as slow",
            "unset it, or set it to 1",
        )
    else:
        yield Check("threads", "ok", "linear algebra has one thread")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        yield Check(
            "files",
            "warning",
            f"at most {soft} open files, and each connection is one",
            f"ulimit -n {FILES}, or LimitNOFILE={FILES} in the unit of systemd (hard limit {hard})",
        )
    else:
        shown = "any number of" if soft < 0 else f"up to {soft:,}"
        yield Check("files", "ok", f"{shown} open files")
    if find_spec("torch") is None:
        yield Check(
            "trainer",
            "warning",
            "torch is not installed: policies with a net stay untrained",
            "pip install torch, or train elsewhere",
        )


def examine_secrets(settings: Settings) -> Iterator[Check]:
    if settings.token_keys:
        count = len(settings.token_keys)
        yield Check("token keys", "ok", f"{count} from FORAGE_TOKEN_KEYS, the first of them seals")
    if settings.keys is not None:
        yield from _keys(settings.keys)
    elif not loopback(settings.host):
        yield Check(
            "keys",
            "warning" if settings.open else "fault",
            f"FORAGE_HOST is {settings.host} and no keys are asked for",
            "give FORAGE_KEYS a file that `forage keys` keeps",
        )
    else:
        yield Check("keys", "ok", "none are asked for; only this host can reach the service")


def _keys(path: Path) -> Iterator[Check]:
    try:
        keys = read_keys(path)
    except ConfigurationError as fault:
        yield Check("keys", "fault", str(fault).replace("\n", " "), "forage keys --help")
        return
    yield from private(path, "keys", secret=False)
    now = datetime.now(UTC)
    live = [key for key in keys if key.state(now) == "live"]
    if not any("admin" in key.scopes for key in live):
        yield Check(
            "keys",
            "warning",
            "no live key has the scope admin: neither trainer nor console can do their work",
            f"forage keys add --keys {path} ...",
        )
    expired = [key.name for key in keys if key.state(now) == "expired"]
    if expired:
        yield Check(
            "keys",
            "warning",
            f"expired: {', '.join(expired)}: whoever sends one gets 401",
            "make new ones, or take them out of the file",
        )
    soon = [
        f"{key.name} in {(key.expires - now).days} days"
        for key in live
        if key.expires is not None and (key.expires - now).days < SOON_DAYS
    ]
    if soon:
        yield Check("keys", "warning", f"about to expire: {', '.join(soon)}", "make new ones")
    yield Check("keys", "ok", f"{path}: {len(live)} live of {len(keys)}")


def private(path: Path, name: str, *, secret: bool = True) -> Iterator[Check]:
    """A file that others may not write, and one that is secret neither read."""
    try:
        found = path.stat()
    except OSError as fault:
        yield Check(name, "fault", f"{path}: {fault.strerror}", "it has to be readable")
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o077 if secret else 0o022):
        may = "read" if secret else "change"
        yield Check(
            name,
            "fault",
            f"{path}: others than its owner may {may} it (mode {mode:04o})",
            f"chmod {'600' if secret else 'go-w'} {path}",
        )
    elif secret:
        yield Check(name, "ok", f"{path}: its owner's alone (mode {mode:04o})")
