"""Rows into a real Vitess, and what its streams bring, for the tests beside this file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from freshness.config.server import ServerAddress
from freshness.database.connection import connect
from freshness.errors import FreshnessError, SourceUnavailable
from freshness.position import Position, parse_position
from freshness.stream.source import RowChange, Transaction
from freshness.stream.tables import MatchedTables
from integration.harness import wait_until
from integration.servers.vitess import Tablet, Vitess, Vtcombo
from invalidator.vstream.source import VStreamSource

ARRIVES_SECONDS = 120.0
RETRY_SECONDS = 0.2
WRITE_SECONDS = 0.05
ROWS_MAX = 100_000


def executed(tablet: Tablet) -> Position:
    return parse_position("mysql", tablet.mysql.executed())


def execute(cluster: Vitess, *statements: str, shard: str = "0") -> Position:
    """Run them on the shard's primary, past vtgate; the position after them."""
    primary = cluster.primary(shard)
    for statement in statements:
        primary.mysql.execute(statement, database=primary.database)
    return executed(primary)


Ended = TypeVar("Ended", bound=FreshnessError)


class Follower:
    """A shard's stream from ``start`` (by default: now), reopened at its end, as the invalidator does.

    ``received``: all that came; ``ends``: the errors after which it was opened again.
    """

    def __init__(
        self,
        cluster: Vitess | Vtcombo,
        tables: Mapping[str, Sequence[str]] | MatchedTables,
        *,
        shard: str = "0",
        start: Position | None = None,
        parts: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.source = VStreamSource(cluster.address(**(parts or {})), shard, tables, **options)
        self.position = self.source.find_current() if start is None else start
        self.received: list[Transaction] = []
        self.ends: list[SourceUnavailable] = []
        self._is_open = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()

    def open(self) -> None:
        self.source.open(self.position)
        self._is_open = True

    def read(self, timeout_seconds: float = 1.0) -> None:
        """What is there. Raises all errors but `SourceUnavailable`."""
        try:
            if not self._is_open:
                self.open()
            for transaction in self.source.poll(timeout_seconds, 1000):
                self.received.append(transaction)
                self.position = self.position.union(transaction.position)
        except SourceUnavailable as error:
            self.ends.append(error)
            self._is_open = False
            time.sleep(RETRY_SECONDS)

    def read_until(self, is_there: Callable[[], bool], what: str) -> Self:
        deadline = time.monotonic() + ARRIVES_SECONDS
        while not is_there():
            assert time.monotonic() < deadline, f"in vain: {what}; {self.received[-2:]} {self.ends[-2:]}"
            self.read()
        return self

    def read_up_to(self, end: Position) -> Self:
        return self.read_until(lambda: self.position.contains(end), f"{end} arrives")

    def read_to(self, kind: type[Ended]) -> Ended:
        """The error of this kind by which the stream ends, after everything before it."""
        deadline = time.monotonic() + 2 * ARRIVES_SECONDS
        while time.monotonic() < deadline:
            try:
                self.read()
            except kind as error:
                return error
        raise AssertionError(f"the stream goes on: {self.received[-3:]} {self.ends[-3:]}")

    @property
    def changes(self) -> list[RowChange]:
        return [change for transaction in self.received for change in transaction.changes]

    @property
    def raised(self) -> set[str]:
        return {table for transaction in self.received for table in transaction.raised_tables}


class Inserts(threading.Thread):
    """Rows through vtgate, each ``{number}`` of the statement once, until it is stopped.

    ``written``: the numbers that were certainly committed; ``refused``: the last error.
    """

    def __init__(self, address: ServerAddress, sql: str) -> None:
        super().__init__(name="inserts", daemon=True)
        self.written: list[int] = []
        self.refused: Exception | None = None
        self.error: BaseException | None = None
        self._address = address
        self._sql = sql
        self._ending = threading.Event()

    def run(self) -> None:
        connection = None
        try:
            for number in range(ROWS_MAX):
                while not self._ending.wait(WRITE_SECONDS):
                    try:
                        if connection is None:
                            connection = connect(self._address)
                        with connection.cursor() as cursor:
                            # A number may come twice if nobody knows whether it was committed.
                            cursor.execute(self._sql.format(number=number))
                        connection.commit()
                        break
                    except Exception as error:  # noqa: BLE001 - the primary is away: the same again
                        self.refused = error
                        connection = None
                else:
                    return
                self.written.append(number)
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error

    def wait_for(self, rows: int) -> None:
        target = len(self.written) + rows
        wait_until(lambda: len(self.written) >= target or self.error is not None, f"{rows} more rows are written")

    def stop(self) -> None:
        self._ending.set()
        self.join(60)
        if self.error is not None:
            raise self.error
