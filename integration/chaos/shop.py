"""The tables and objects of a run, how a value says its version, and how a version is written.

A version is the time at which its writer began. One transaction gives the same version to all rows of a unit: a
group has two customers, two documents, and two orders of each customer. So all that is read of a group in one moment
has one version. Each note is a unit, which may be absent: its versions have a value of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pymysql

from integration.chaos.journal import Journal, now_us

GROUPS: Final = 48
NOTES: Final = 48
PAD_BYTES: Final = 3_000
"""Of a document. More than two parts of `CACHE`."""

LOCAL_COPY_SECONDS: Final = 0.2
TABLES: Final = (
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50) UNIQUE, v BIGINT) CHARACTER SET utf8mb4",
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT, v BIGINT, KEY (customer_id))",
    "CREATE TABLE documents (id BIGINT PRIMARY KEY, v BIGINT, pad TEXT) CHARACTER SET utf8mb4",
    "CREATE TABLE notes (id BIGINT PRIMARY KEY, v BIGINT)",
)
COLUMNS: Final = {
    "customers": ("id", "name", "v"),
    "orders": ("id", "customer_id", "v"),
    "documents": ("id", "v", "pad"),
    "notes": ("id", "v"),
}
OBJECTS: Final = f"""[objects.customer]
table = "customers"
[objects.logged]
table = "customers"
fill_from_log = true
[objects.copied]
table = "customers"
local_copy_seconds = {LOCAL_COPY_SECONDS}
[objects.named]
table = "customers"
key = "name"
[objects.orders_of]
table = "orders"
key = "customer_id"
order_by = "id desc"
limit = 5
[objects.profile]
key = "customer_id"
members = {{ customers = "id", orders = "customer_id" }}
[objects.document]
table = "documents"
[objects.note]
table = "notes"
"""
NAMES: Final = ("customer", "logged", "copied", "named", "orders_of", "profile", "document", "note")
CACHE: Final[Mapping[str, Any]] = {
    "part_bytes": 1024,
    "value_bytes_max": 100_000,
    "clock_skew_seconds": 1,
    "on_unknown": "primary",
    "primary_reads_per_second": 10,
}
LOCK_WAIT_SECONDS: Final = 5
ANSWER_SECONDS: Final = 15
PAUSE_SECONDS: Final = 0.1


def ids_of(group: int) -> tuple[int, int]:
    return 2 * group, 2 * group + 1


def find_unit(name: str, key: Any) -> str:
    """The unit of a key of an object."""
    if name == "note":
        return f"note {key}"
    return f"group {int(str(key).removeprefix('n')) // 2}"


def find_keys(name: str, unit: str) -> list[Any]:
    """The keys of an object that are of a unit."""
    kind, number = unit.split()
    if (kind == "note") != (name == "note"):
        return []
    if kind == "note":
        return [int(number)]
    return [f"n{id}" if name == "named" else id for id in ids_of(int(number))]


def find_version(name: str, value: Any) -> int | str | None:
    """The version that a value shows: None if there is nothing, "torn" if its parts have several."""
    match name:
        case "orders_of":
            versions = {row["v"] for row in value}
        case "profile":
            versions = {row["v"] for row in (value["customer"], *value["orders"])}
        case "document":
            versions = {value["v"]} | ({-1} if value["pad"] != pad_of(value["v"]) else set())
        case _:
            versions = {None if value is None else value["v"]}
    return versions.pop() if len(versions) == 1 else f"torn: {sorted(map(str, versions))}"


def pad_of(version: int) -> str:
    return (f"{version} " * (PAD_BYTES // 2))[:PAD_BYTES]


def load_statements() -> list[str]:
    """The rows, all of version 0; no note."""
    ids = [id for group in range(GROUPS) for id in ids_of(group)]
    return [
        "INSERT INTO customers VALUES " + ", ".join(f"({id}, 'n{id}', 0)" for id in ids),
        "INSERT INTO orders VALUES " + ", ".join(f"({2 * id + n}, {id}, 0)" for id in ids for n in (0, 1)),
        "INSERT INTO documents VALUES " + ", ".join(f"({id}, 0, '{pad_of(0)}')" for id in ids),
    ]


def group_statements(group: int, version: int) -> list[str]:
    """A statement that comes late, of a connection that was lost, changes nothing."""
    where = f"IN ({', '.join(map(str, ids_of(group)))}) AND v < {version}"
    return [
        f"UPDATE customers SET v = {version} WHERE id {where}",
        f"UPDATE orders SET v = {version} WHERE customer_id {where}",
        f"UPDATE documents SET v = {version}, pad = '{pad_of(version)}' WHERE id {where}",
    ]


class Writer:
    """Commits to the server whose port is in ``folder / "primary"``, and nowhere while that is empty."""

    def __init__(self, folder: Path, flavor: str, journal: Journal) -> None:
        self._port, self._journal = folder / "primary", journal
        self._gtids = "SELECT @@last_gtid" if flavor == "mariadb" else "SELECT @@global.gtid_executed"
        self._connection: Any = None
        self._connected = ""

    def commit(self, units: Mapping[str, int | None], version: int, statements: Sequence[str]) -> str | None:
        """Write the units with these values; return the server's GTIDs, None if the outcome is unknown or nothing was
        written. Nothing is tried twice."""
        port = self._port.read_text()
        if not port:
            time.sleep(PAUSE_SECONDS)
            return None
        try:
            if self._connection is None or port != self._connected:
                self.close()
                self._connection, self._connected = self._connect(int(port)), port
            self._journal.write("intent", units=units, version=version, begin=now_us())
            with self._connection.cursor() as cursor:
                for statement in ("BEGIN", *statements, "COMMIT") if len(statements) > 1 else statements:
                    cursor.execute(statement)
                end = now_us()
                cursor.execute(self._gtids)
                gtids = str(cursor.fetchone()[0]).replace("\n", "")
        except (pymysql.MySQLError, OSError) as error:
            self._journal.write("refused write", error=type(error).__name__, end=now_us())
            self.close()
            time.sleep(PAUSE_SECONDS)
            return None
        self._journal.write("commit", version=version, end=end, gtids=gtids)
        return gtids

    def close(self) -> None:
        if self._connection is not None:
            with suppress(pymysql.MySQLError, OSError):  # it is broken already
                self._connection.close()
        self._connection = None

    def _connect(self, port: int) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=port,
            user="app",
            password="app",
            database="shop",
            autocommit=True,
            ssl_disabled=True,
            connect_timeout=LOCK_WAIT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            init_command=f"SET innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}",
        )
