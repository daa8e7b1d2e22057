"""PostgreSQL: a server that runs already, where tests get schemas of their own, or one of their own
that they may kill."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final, LiteralString, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.support.ports import free_port

VARIABLE = "FORAGE_TEST_POSTGRES"
USUAL = "postgresql://postgres@127.0.0.1:5432/postgres"
CONNECT_S = 30

_numbers = count()


@cache
def found() -> str | None:
    """The URL of the server that FORAGE_TEST_POSTGRES names, else of one on the usual port of
    loopback; None where there is none. Raises psycopg.Error where the named one does not answer."""
    named = os.environ.get(VARIABLE)
    try:
        psycopg.connect(named or USUAL, connect_timeout=CONNECT_S).close()
    except psycopg.OperationalError:
        if named:
            raise
        return None
    return named or USUAL


class PostgresSchema:
    """A schema with the tables of a store, once one was opened.

    url   of the store; its commits do not wait for the disk
    """

    def __init__(self, server: str, name: str) -> None:
        self._server, self.name = server, name
        joint = "&" if "?" in server else "?"
        options = quote(f"-csearch_path={name} -csynchronous_commit=off")
        self.url = f"{server}{joint}application_name={name}&options={options}"

    def run(self, query: LiteralString, *values: object) -> list[tuple[object, ...]]:
        """Run a statement in this schema."""
        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> Self:
        """Delete every row but that of the layout."""
        tables = self.run(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema "
            "AND tablename <> 'forage_layout'"
        )
        with psycopg.connect(self.url) as db:
            db.execute("SET synchronous_commit = off")
            for (table,) in tables:
                db.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(str(table))))
        return self

    def end_connections(self) -> None:
        """End those of every store here, as an administrator or a restart does."""
        with psycopg.connect(self._server, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = %s",
                [self.name],
            )


@contextmanager
def postgres_schema() -> Iterator[PostgresSchema]:
    """Make an empty schema, which is dropped at the end."""
    server = found()
    if server is None:
        raise RuntimeError(f"these tests need PostgreSQL: set {VARIABLE} to its URL")
    name = f"forage_test_{os.getpid()}_{next(_numbers)}"
    made = PostgresSchema(server, name)
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
        db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        try:
            yield made
        finally:
            db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


START_S: Final = 60.0
TABLES: Final = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"


def _programs() -> Path:
    """The folder of the server's programs: one of PATH, else of Debian's newest package."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    place = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    if place is None:
        raise RuntimeError("this needs a PostgreSQL server: apt-get install postgresql")
    return place


class PostgresServer:
    """A server that may be killed. A process of root runs it as the user postgres, since the server
    refuses root."""

    def __init__(self, files: Path, log: Path) -> None:
        """Make a server's files in an empty folder. Raises RuntimeError without its programs."""
        programs, self.port = _programs(), free_port()
        self.url, self._log = self.url_at(self.port), log
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            shutil.chown(files, self._user)
        init = [programs / "initdb", "--auth=trust", "--username=postgres", "--pgdata", files]
        subprocess.run(init, check=True, capture_output=True, user=self._user, cwd=files)
        self._command = [str(programs / "postgres"), "-D", str(files), "-p", str(self.port)]
        self._command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def url_at(port: int) -> str:
        """The URL of a server that is reached at this port of loopback."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._files,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL does not answer: {self._log.read_text()}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """Kill the server and the processes of its connections, as a loss of the host does."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            (self._files / "postmaster.pid").unlink(missing_ok=True)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Answer nothing until the end of the block."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def copy(self) -> dict[str, bytes]:
        """The rows of each table, as of one instant."""
        with psycopg.connect(self.url) as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            tables = [str(name) for (name,) in db.execute(TABLES).fetchall()]
            return {name: self._copy_out(db, name) for name in tables}

    def replace(self, copy: Mapping[str, bytes]) -> None:
        """Replace all rows by those of a copy, at one instant."""
        with psycopg.connect(self.url) as db:
            for name, rows in copy.items():
                db.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                query = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(name))
                with db.cursor().copy(query) as into:
                    into.write(rows)

    def _signal(self, number: signal.Signals) -> None:
        """To the server, then to its processes: it starts no further one meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        subprocess.run(["pkill", f"-{number.value}", "--parent", str(self._process.pid)])
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=CONNECT_S).close()
        except psycopg.OperationalError:
            return False
        return True

    @staticmethod
    def _copy_out(db: psycopg.Connection, name: str) -> bytes:
        query = sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(sql.Identifier(name))
        with db.cursor().copy(query) as rows:
            return b"".join(rows)


@contextmanager
def postgres_server(log: Path) -> Iterator[PostgresServer]:
    """A server that does not run yet. Its files are removed at the end. log: a file."""
    with tempfile.TemporaryDirectory(prefix="forage-postgres-") as files:
        server = PostgresServer(Path(files), log)
        try:
            yield server
        finally:
            server.kill()
