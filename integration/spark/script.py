"""Random statements of all kinds on the shards of a keyspace, and a look at what they have made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import pymysql.cursors

from freshness.config.keyspace import Keyspace
from freshness.database.connection import executed_position
from freshness.keys.keyrange import KeyRange
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from integration.harness import wait_until
from integration.servers import DatabaseServer
from integration.servers.database import SCHEMA
from integration.shards import Shard, ShardedTable
from integration.spark.seats import REPLACE_SEAT, SEATS_TABLE, in_database
from invalidator.archive.writer import find_resume
from spark.copy.job import find_floor
from spark.stream.archive_folder import ArchiveFolder

CUSTOMERS: Final = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50), home BIGINT, v INT)"
THINGS: Final = "CREATE TABLE things (id INT PRIMARY KEY, home BIGINT, v INT)"
KEY: Final[Mapping[str, tuple[str, ...]]] = {"customers": ("id",), "seats": ("hall", "seat"), "things": ("id",)}
"""By table, the columns of its primary key. The sharding column is none of them, so rows move between shards."""

HOME: Final = "home"
"""The sharding column."""

TABLES: Final = tuple(
    ShardedTable(name, create, HOME)
    for name, create in (("customers", CUSTOMERS), ("seats", SEATS_TABLE), ("things", THINGS))
)
KEYS: Final = 40
HOMES: Final = 64


class _Session:
    """A session on the primary of a shard."""

    def __init__(self, shard: Shard) -> None:
        self.homes = [home for home in range(HOMES) if shard.contains(home)]
        self.connection = shard.primary.connect(SCHEMA, cursorclass=pymysql.cursors.DictCursor)
        self._cursor: Any = self.connection.cursor()

    def execute(self, sql: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        self._cursor.execute(sql, values or None)
        found: Sequence[Mapping[str, Any]] = self._cursor.fetchall()
        return found


class Script:
    """Statements on all shards, one after the other. Each changed row gets a ``v`` that no row had before; columns of
    ``things`` come and go. ``tables``: the tables that have rows of their own."""

    def __init__(self, shards: Sequence[Shard], seed: int, tables: Sequence[str] = tuple(KEY)) -> None:
        self._chance = Random(seed)
        self._tables = tables
        self._sessions: list[_Session] = []
        self._columns = self._versions = 0
        self.counts: Counter[str] = Counter()
        self.switch(shards)

    def switch(self, shards: Sequence[Shard]) -> None:
        """From now on these serve."""
        self.close()
        self._sessions = [_Session(shard) for shard in shards]

    def close(self) -> None:
        for session in self._sessions:
            session.connection.close()

    def run(self, statements: int) -> None:
        for _ in range(statements):
            kind = self._chance.random()
            session = self._chance.choice(self._sessions)
            if kind < 0.65:
                self.change(session)
            elif kind < 0.75:
                self._move()
            elif kind < 0.87:
                self._transact(session)
            elif kind < 0.97:
                self._prepare(session)
            else:
                self._define()

    def change(self, session: _Session | None = None) -> None:
        """One statement on one shard."""
        chance, session = self._chance, session or self._chance.choice(self._sessions)
        key, other = chance.sample(range(KEYS), 2)
        home, v = chance.choice(session.homes), self._next_version()
        seat = bytes((key, 0, 0))
        price, note = Decimal(chance.randrange(100)) / 4, None if key % 2 else "ü 'quoted'"
        statements: dict[str, list[tuple[Any, ...]]] = {
            "customers": [
                ("REPLACE INTO customers VALUES (%s, %s, %s, %s)", key, f"näme {chance.random()}", home, v),
                (
                    "INSERT INTO customers VALUES (%s, 'n', %s, %s) ON DUPLICATE KEY UPDATE home = %s, v = %s",
                    *(key, home, v, home, v),
                ),
                ("UPDATE customers SET v = %s WHERE id BETWEEN %s AND %s", v, key, key + 5),
                ("UPDATE IGNORE customers SET id = %s, v = %s WHERE id = %s", other, v, key),
                ("DELETE FROM customers WHERE id = %s", key),
            ],
            "seats": [
                (
                    REPLACE_SEAT,
                    *(f"A{key % 3}", bytes((key, other % 2, 0)), price, 2**63 + key, note, b"\0\xff", home, v),
                ),
                (
                    "UPDATE seats SET price = price + 0.25, mood = 'good', v = %s WHERE hall = %s LIMIT 3",
                    *(v, f"A{key % 3}"),
                ),
                ("UPDATE IGNORE seats SET hall = 'B', note = NULL, v = %s WHERE seat = %s", v, seat),
                ("DELETE FROM seats WHERE seat >= %s LIMIT 2", seat),
            ],
            "things": [
                ("REPLACE INTO things (id, home, v) VALUES (%s, %s, %s)", key, home, v),
                ("UPDATE things SET v = %s WHERE id < %s", v, key),
                ("DELETE FROM things WHERE id = %s", key),
            ],
        }
        sql, *values = chance.choice([each for table in self._tables for each in statements[table]])
        session.execute(sql, *values)

    def _next_version(self) -> int:
        self._versions += 1
        return self._versions

    def _move(self) -> None:
        """A row goes to another shard under the same primary key; for a moment it is on both, or on none."""
        source, target = self._chance.sample(self._sessions, 2)
        table = self._chance.choice(self._tables)
        rows = source.execute(f"SELECT * FROM {table} ORDER BY {', '.join(KEY[table])}")
        if not rows:
            return
        row = self._chance.choice(rows)
        moved = {**row, HOME: self._chance.choice(target.homes), "v": self._next_version()}
        names, marks = ", ".join(moved), ", ".join(["%s"] * len(moved))
        condition = " AND ".join(f"{name} = %s" for name in KEY[table])
        steps: list[Callable[[], object]] = [
            lambda: source.execute(f"DELETE FROM {table} WHERE {condition}", *(row[name] for name in KEY[table])),
            lambda: target.execute(f"REPLACE INTO {table} ({names}) VALUES ({marks})", *moved.values()),
        ]
        self._chance.shuffle(steps)
        for step in steps:
            step()
        self.counts["moved"] += 1

    def _transact(self, session: _Session) -> None:
        session.execute("BEGIN")
        for _ in range(self._chance.randrange(1, 4)):
            self.change(session)
        if self._chance.random() < 0.5:
            session.execute("SAVEPOINT here")
            self.change(session)
            session.execute("ROLLBACK TO here")
        is_kept = self._chance.random() < 0.6
        self.counts["rolled back"] += not is_kept
        session.execute("COMMIT" if is_kept else "ROLLBACK")

    def _prepare(self, session: _Session) -> None:
        self.counts["xa"] += 1
        name = f"'x{self.counts['xa']}'"
        session.execute(f"XA START {name}")
        for _ in range(self._chance.randrange(1, 4)):
            self.change(session)
        session.execute(f"XA END {name}")
        session.execute(f"XA PREPARE {name}")
        session.execute(f"XA {'COMMIT' if self._chance.random() < 0.5 else 'ROLLBACK'} {name}")

    def _define(self) -> None:
        """The same on all shards."""
        self.counts["ddl"] += 1
        self._columns += 1
        column = f"c{self._columns}"
        statements = self._chance.choice(
            (
                (f"ALTER TABLE things ADD COLUMN {column} INT DEFAULT {self._columns}",),
                (f"ALTER TABLE things ADD COLUMN {column} INT", f"ALTER TABLE things DROP COLUMN {column}"),
                ("ALTER TABLE things MODIFY v BIGINT",),
                ("TRUNCATE TABLE things",),
                ("DROP TABLE things", THINGS),
                ("RENAME TABLE things TO others", "RENAME TABLE others TO things"),
                ("CREATE TABLE others LIKE things", "INSERT INTO others SELECT * FROM things", "DROP TABLE others"),
            )
        )
        for session in self._sessions:
            for sql in statements:
                session.execute(sql)


# -- what was there, and what the archive has of it ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What SELECT gave when the primaries had executed this, by lineage, and nothing else was written."""

    positions: Mapping[str, Position]
    time: str
    rows: Mapping[str, list[str]]

    def vector(self, archive: Path) -> ResumeVector:
        """The place, with the epochs that the archive has."""
        archived = find_resume(archive, "shop")
        tokens = {
            lineage: EventToken(lineage, archived[lineage].shard, archived[lineage].epoch, 0, position)
            for lineage, position in self.positions.items()
        }
        return ResumeVector("shop", KeyRange(), tokens)


def look(primaries: Mapping[str, DatabaseServer], tables: Iterable[str]) -> Seen:
    """``primaries``: by lineage."""
    positions = {}
    for lineage, primary in primaries.items():
        with closing(primary.connect(SCHEMA)) as connection:
            positions[lineage] = executed_position(connection, primary.flavor)
    now = datetime.now(UTC).isoformat()
    return Seen(positions, now, {table: in_database(table, *primaries.values()) for table in tables})


def wait_archived(archive: Path, seen: Seen, describe: Callable[[], str]) -> None:
    """Return when the archive's complete files have all of it."""

    def is_archived() -> bool:
        found = find_resume(archive, "shop")
        return all(
            lineage in found and found[lineage].position.contains(position)
            for lineage, position in seen.positions.items()
        )

    wait_until(is_archived, f"the archive has {seen.positions}", describe)


def wait_archive_shown(archive: Path, keyspace: Keyspace, describe: Callable[[], str]) -> None:
    """Return when the primaries show by heartbeats all from before the archive, which a copy needs."""
    begins = {shard.lineage: shard.begin.position for shard in ArchiveFolder(str(archive)).list_shards("shop")}
    wait_until(
        lambda: all(
            find_floor(keyspace, shard, shard.primary).position.contains(begins[shard.lineage])
            for shard in keyspace.serving_shards
        ),
        "heartbeats show all from before the archive",
        describe,
    )
