"""PgBouncer in transaction mode, in front of the PostgreSQL that tests find."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.support.ports import free_port
from tests.support.postgres_server import found

POOL = 2
"""Sessions of the server that all clients share."""


def installed() -> str | None:
    """The path of the program; None where it is missing."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pgbouncer(schema: str) -> Iterator[str]:
    """Run one whose sessions see this schema, and yield its URL."""
    program, server, port = installed(), urlsplit(found() or ""), free_port()
    assert program is not None
    password = f"password={server.password} " if server.password else ""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        file = Path(place, "pgbouncer.ini")
        file.write_text(
            "[databases]\n"
            f"forage = host={server.hostname} port={server.port or 5432} "
            f"dbname={server.path.strip('/')} user={server.username or 'postgres'} "
            f"{password}connect_query='SET search_path = {schema}'\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {POOL}\n"
        )
        command = [program, "--quiet", str(file)]
        if os.getuid() == 0:  # it refuses to run as root
            command[1:1] = ["--user", "nobody"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        url = f"postgresql://{server.username or 'postgres'}@127.0.0.1:{port}/forage"
        try:
            _await(url, process)
            yield url
        finally:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
