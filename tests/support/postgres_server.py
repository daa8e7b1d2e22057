"""A PostgreSQL server that runs already: tests get schemas of their own there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import LiteralString, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

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
