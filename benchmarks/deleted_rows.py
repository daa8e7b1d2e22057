"""What deleting old decisions costs PostgreSQL: python -m benchmarks.deleted_rows [URL] [--rows N].

steady   as many rows come as are deleted, 500 at a time, until all were replaced three times; the
         table is vacuumed once so large a share of its rows is dead. The largest size of the table,
         of that when it was full first.
days     30 days of rows, of which the older half goes: out of one table, or with the partitions of
         their days, each with indexes of its own. A partitioned table cannot have one index of all
         ids, so each commit and each lookup probes the index of every day.

Commits do not wait for the disk. Timed ids begin with their time; those under an Idempotency-Key
are random. Everything happens in a schema of its own, which is dropped.
"""

import base64
import random
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final, LiteralString

import psycopg

from benchmarks.tables import conclude, parser_of, say

USUAL: Final = "postgresql://postgres@127.0.0.1:5432/postgres"
PAYLOAD: Final = 450  # bytes of a row of fifty arms
TOGETHER: Final = 50  # rows of a commit
TRIMMED: Final = 500  # rows of a deletion
DAYS: Final = 30
COLUMNS: Final = "experiment bytea, number bigint, id bytea NOT NULL, payload bytea NOT NULL"
KNOWN: Final = (
    "SELECT d.id, d.payload FROM unnest(%b::bytea[]) AS k (id) JOIN d "
    "ON d.experiment = 'shop' AND d.id = k.id"
)
Database = psycopg.Connection[tuple[Any, ...]]
Ids = Callable[[int], bytes]


def ids(kind: str, rng: random.Random) -> Ids:
    """Return a function that makes the id of a row at some milliseconds."""

    def make(at: int) -> bytes:
        own = (at << 80 | rng.getrandbits(80)) if kind == "timed" else rng.getrandbits(128)
        return base64.urlsafe_b64encode(own.to_bytes(16, "big"))[:22]

    return make


def size(db: Database) -> int:
    """Return the bytes of all tables with their indexes."""
    query: LiteralString = (
        "SELECT sum(pg_total_relation_size(c.oid))::int8 FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE nspname = 'forage_bench' AND relkind = 'r'"
    )
    [(found,)] = db.execute(query).fetchall()
    return int(found)


def milliseconds(took: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(took)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100}
    return {name: round(1e3 * ordered[place], 2) for name, place in places.items()}


def timed(db: Database, query: LiteralString, *values: object) -> float:
    """Return the seconds of a statement."""
    start = perf_counter()
    db.execute(query, values)
    return perf_counter() - start


def fresh(db: Database, *, days: int) -> None:
    """Make the table anew. days: its partitions; 0: none."""
    db.execute("DROP TABLE IF EXISTS d")
    if not days:
        db.execute(f"CREATE TABLE d ({COLUMNS}, PRIMARY KEY (experiment, number)) "
                   "WITH (autovacuum_enabled = off)")  # fmt: skip
        db.execute("CREATE UNIQUE INDEX ON d (experiment, id)")
        return
    db.execute(f"CREATE TABLE d (day int NOT NULL, {COLUMNS}) PARTITION BY RANGE (day)")
    for day in range(days):
        db.execute(f"CREATE TABLE d{day} PARTITION OF d FOR VALUES FROM ({day}) TO ({day + 1})")
        for column in ("number", "id"):
            db.execute(f"CREATE UNIQUE INDEX ON d{day} (experiment, {column})")


def insert(db: Database, first: int, made: Sequence[bytes], day: int | None) -> float:
    """Write rows as a commit does, which looks for their ids first. Return its seconds."""
    rng = random.Random(first)
    columns: list[list[object]] = [
        [b"shop"] * len(made),
        [first + place for place in range(len(made))],
        [*made],
        [rng.randbytes(PAYLOAD) for _ in made],
    ]
    start = perf_counter()
    with db.transaction():
        db.execute(KNOWN, [[*made]])
        if day is None:
            query: LiteralString = (
                "INSERT INTO d SELECT * FROM unnest(%b::bytea[], %s::int8[], %b::bytea[], "
                "%b::bytea[])"
            )
            db.execute(query, columns)
        else:
            query = (
                "INSERT INTO d SELECT %s, * FROM unnest(%b::bytea[], %s::int8[], %b::bytea[], "
                "%b::bytea[])"
            )
            db.execute(query, [day, *columns])
    return perf_counter() - start


def steady(db: Database, kind: str, rows: int, share: float) -> dict[str, Any]:
    """Replace all rows three times."""
    make, dead, full, most = ids(kind, random.Random(1)), 0, 0, 0
    deleted, vacuumed = list[float](), list[float]()
    fresh(db, days=0)
    for first in range(0, 4 * rows, TRIMMED):
        for start in range(first, first + TRIMMED, TOGETHER):
            insert(db, start, [make(start + place) for place in range(TOGETHER)], None)
        if first < rows:
            full = size(db)
            continue
        query: LiteralString = "DELETE FROM d WHERE experiment = 'shop' AND number < %s"
        deleted.append(timed(db, query, first + TRIMMED - rows))
        dead += TRIMMED
        if dead > share * rows:
            vacuumed.append(timed(db, "VACUUM (TRUNCATE off) d"))
            dead = 0
        most = max(most, size(db))
    return {
        "most_of_full": round(most / full, 3),
        "deletion_ms": milliseconds(deleted),
        "vacuum_ms": milliseconds(vacuumed),
    }


def days(db: Database, kind: str, rows: int, *, partitions: bool) -> dict[str, Any]:
    """Write 30 days, look ids up, and delete half of the days."""
    rng = random.Random(1)
    make, took, some = ids(kind, rng), list[float](), list[bytes]()
    fresh(db, days=DAYS if partitions else 0)
    for first in range(0, rows, TOGETHER):
        made = [make(first + place) for place in range(TOGETHER)]
        took.append(insert(db, first, made, first * DAYS // rows if partitions else None))
        some += made[:1]
    db.execute("ANALYZE d")
    looked = [timed(db, KNOWN, [one]) for one in rng.sample(some, min(300, len(some)))]
    before, gone = size(db), list[float]()
    if partitions:
        for day in range(DAYS // 2):
            gone.append(timed(db, f"DROP TABLE d{day}"))
    else:
        for last in range(TRIMMED, rows // 2 + 1, TRIMMED):
            query: LiteralString = "DELETE FROM d WHERE experiment = 'shop' AND number < %s"
            gone.append(timed(db, query, last))
    return {
        "commit_ms": milliseconds(took[-len(took) // 10 :]),
        "lookup_ms": milliseconds(looked),
        "deletion_ms": milliseconds(gone),
        "deletion_s": round(sum(gone), 2),
        "left_of_before": round(size(db) / before, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = parser_of("deleted_rows", __doc__)
    parser.add_argument("url", nargs="?", default=USUAL, help=f"default: {USUAL}")
    parser.add_argument("--rows", type=int, default=1_000_000, help="default: 1,000,000")
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    with psycopg.connect(asked.url, autocommit=True) as db:
        db.execute("CREATE SCHEMA forage_bench")
        try:
            db.execute("SET search_path = forage_bench")
            db.execute("SET enable_seqscan = off")
            db.execute("SET synchronous_commit = off")
            for kind in ("timed", "keyed"):
                for share in (0.2, 0.01):
                    told = f"steady, {kind}, {share}"
                    found[told] = steady(db, kind, asked.rows, share)
                    say(f"{told}: {found[told]}")
                for partitions in (False, True):
                    told = f"days, {kind}, {'partitions' if partitions else 'one table'}"
                    found[told] = days(db, kind, asked.rows, partitions=partitions)
                    say(f"{told}: {found[told]}")
        finally:
            db.execute("DROP SCHEMA forage_bench CASCADE")
    cells = [["", "figures"], *([name, str(own)] for name, own in found.items())]
    conclude("deleted_rows", found, {"deleted_rows": cells}, publish=False)


if __name__ == "__main__":
    main()
