"""What a private MariaDB and a private MySQL server have in common, and a primary with its replica.

Users of every server: ``app``/``app`` with all privileges, ``reader``/``reader`` who may only SELECT,
``guarded``/``right-password`` to be refused with a wrong one, and root without a password. None of it leaves
the loopback interface.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import pymysql
from pymysql.cursors import Cursor, DictCursor

from integration.servers.process import ServerFailed, ServerProcess, run_directory

Flavor: TypeAlias = Literal["mariadb", "mysql"]
Connection: TypeAlias = "pymysql.Connection[Cursor]"

SCHEMA = "shop"
ANSWER_SECONDS = 5.0
CATCH_UP_SECONDS = 180.0
USERS = """\
CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
CREATE USER app@'%' IDENTIFIED BY 'app';
GRANT ALL ON *.* TO app@'%' WITH GRANT OPTION;
CREATE USER reader@'%' IDENTIFIED BY 'reader';
GRANT SELECT ON *.* TO reader@'%';
CREATE USER guarded@'%' IDENTIFIED BY 'right-password';
GRANT SELECT ON *.* TO guarded@'%';
"""

_template_lock = threading.Lock()


SEMISYNCHRONOUS: Final[dict[Flavor, tuple[str, ...]]] = {
    "mariadb": (
        "--rpl-semi-sync-master-enabled=1",
        "--rpl-semi-sync-slave-enabled=1",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=1000",
    ),
    "mysql": (
        "--plugin-load-add=semisync_source.so",
        "--plugin-load-add=semisync_replica.so",
        "--rpl-semi-sync-source-enabled=1",
        "--rpl-semi-sync-replica-enabled=1",
        "--rpl-semi-sync-source-timeout=1000",
    ),
}
"""A commit is in the log, and shows on the primary only when a replica has it, too, or after a second."""


class DatabaseServer(ServerProcess):
    """One database server. Its data directory is copied from a template that is made once.

    ``options`` are appended to the command line and win over the defaults, for example
    ``("--binlog-format=STATEMENT",)`` or ``("--skip-log-bin",)``.
    """

    flavor: Flavor

    def __init__(self, directory: Path | None = None, *, server_id: int = 1, options: Sequence[str] = ()) -> None:
        super().__init__(directory)
        self.server_id = server_id
        self._options = tuple(options)

    def add_options(self, *options: str) -> None:
        """For the next start."""
        self._options += options

    def set_read_only(self, value: int) -> None:
        """``value``: 1 if it takes writes of replication alone."""
        names = ("read_only",) if self.flavor == "mariadb" else ("super_read_only", "read_only")
        with self.connect(user="root") as connection, connection.cursor() as cursor:
            for name in names:
                cursor.execute(f"SET GLOBAL {name} = {value}")

    # what differs

    @abstractmethod
    def replicate_from(self, primary: Self, *, delay_seconds: int = 0) -> None:
        """Follow ``primary`` by GTID, ``delay_seconds`` behind it. On a replica: change source or delay."""

    @abstractmethod
    def stop_replication(self) -> None:
        """Stop receiving and applying. No error if it is stopped already."""

    @abstractmethod
    def stop_applying(self) -> None:
        """Go on receiving, and apply nothing, until `start_replication`."""

    @abstractmethod
    def start_replication(self) -> None: ...

    @abstractmethod
    def add_source(self, name: str, primary: Self) -> None:
        """Follow one primary more, by GTID and from the start of its log, under a name of its own."""

    @abstractmethod
    def remove_sources(self) -> None:
        """Stop following anybody, for good. Executed transactions stay executed."""

    @abstractmethod
    def executed(self) -> str:
        """What this server has in its binlog and, on MariaDB, may not show yet (never a fill token, F2)."""

    @abstractmethod
    def _wait_executed(self, position: str, timeout_seconds: float) -> bool: ...

    @abstractmethod
    def replication_status(self) -> dict[str, Any]:
        """A row of SHOW REPLICA STATUS, one with an error if there is any; empty if the server is not a replica."""

    @abstractmethod
    def _make_template(self, directory: Path) -> None: ...

    @abstractmethod
    def _template_directory(self) -> Path:
        """The folder of the template, which may not exist yet."""

    # the same on both

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def socket_path(self) -> Path:
        # Beside the data the path could be longer than the 107 bytes that a socket may have.
        return run_directory() / f"{self.port}.sock"

    @property
    def url(self) -> str:
        return f"mysql://app:app@127.0.0.1:{self.port}/{SCHEMA}"

    def prepare(self) -> None:
        with _template_lock:
            template = self._template_directory()
            if not template.exists():
                unfinished = Path(f"{template}.unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir(parents=True)
                self._make_template(unfinished)
                unfinished.rename(template)
        # cp and not shutil.copytree: holes in the files stay holes, 6 times less to write.
        copy = ["cp", "-r", "--sparse=always", "--reflink=auto", str(template), str(self.data_directory)]
        subprocess.run(copy, check=True)

    def is_ready(self) -> bool:
        try:
            [(directory, version)] = self.execute("SELECT @@datadir, VERSION()")
        except pymysql.OperationalError:
            return False
        self.version = str(version).partition("-")[0]
        return Path(str(directory)) == self.data_directory

    def connect(
        self, database: str | None = None, *, user: str = "app", password: str | None = None, **options: Any
    ) -> Connection:
        """A new connection with autocommit. ``password`` is by default the user's right one."""
        if password is None:
            password = {"root": "", "guarded": "right-password"}.get(user, user)
        settings: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": ANSWER_SECONDS,
            # On loopback TLS only costs; pymysql would negotiate it with MySQL 9.
            "ssl_disabled": True,
        }
        settings.update(options)
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=user, password=password, database=database, **settings
        )

    def execute(self, sql: str, *arguments: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own and return its rows."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    @contextmanager
    def setting(self, name: str, value: str | int) -> Iterator[None]:
        """A global variable has a value, in the words of SQL, until the block ends."""
        [(before,)] = self.execute(f"SELECT @@global.{name}")
        self.execute(f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            self.execute(f"SET GLOBAL {name} = %s", before)

    def wait_caught_up(self, primary: Self) -> None:
        """Return when all that ``primary`` has executed by now is applied here.

        Raises `ServerFailed`, with the replication status, after `CATCH_UP_SECONDS`.
        """
        position = primary.executed()
        if position and not self._wait_executed(position, CATCH_UP_SECONDS):
            status = {name: value for name, value in self.replication_status().items() if value not in (None, "")}
            raise ServerFailed(
                f"{self.technology} {self.port} did not reach {position} within {CATCH_UP_SECONDS:.0f} s: {status}",
                hint="look at Last_SQL_Error and the configured delay",
            )

    def _find_status_row(self, statement: str) -> dict[str, Any]:
        with self.connect() as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(statement)
            rows = [dict(row) for row in cursor.fetchall()]
        # One for each source: the one that has stopped says why.
        failed = [row for row in rows if row["Last_SQL_Error"] or row["Last_IO_Error"]]
        return next(iter([*failed, *rows]), {})


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and the replica that follows it."""

    primary: DatabaseServer
    replica: DatabaseServer

    def wait_caught_up(self) -> None:
        self.replica.wait_caught_up(self.primary)


def make_database(flavor: Flavor, *, server_id: int, options: Sequence[str] = ()) -> DatabaseServer:
    """A server of the flavor, not started."""
    # Here and not above: the two modules build on this one.
    from integration.servers.mariadb import MariadbServer
    from integration.servers.mysql import MysqlServer

    kinds: dict[Flavor, type[DatabaseServer]] = {"mariadb": MariadbServer, "mysql": MysqlServer}
    return kinds[flavor](server_id=server_id, options=options)


@contextmanager
def database_pair(
    flavor: Flavor,
    *,
    delay_seconds: int = 0,
    primary_options: Sequence[str] = (),
    replica_options: Sequence[str] = (),
) -> Iterator[Pair]:
    """A primary (server id 1) and its replica (2), with the empty schema ``shop``; stopped at the end."""
    pair = Pair(
        make_database(flavor, server_id=1, options=primary_options),
        make_database(flavor, server_id=2, options=replica_options),
    )
    try:
        pair.primary.launch()
        pair.replica.launch()
        pair.primary.wait_ready()
        pair.replica.wait_ready()
        pair.primary.execute(f"CREATE DATABASE {SCHEMA}")
        pair.replica.replicate_from(pair.primary)
        pair.wait_caught_up()
        if delay_seconds:
            pair.replica.replicate_from(pair.primary, delay_seconds=delay_seconds)
        yield pair
    finally:
        pair.replica.stop()
        pair.primary.stop()
