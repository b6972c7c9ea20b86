"""Tokens of reads through vtgate, against a model of what makes them unsafe: tablets that differ and go on.

No vtgate is here: the model has the balancer that picks a tablet per statement, the transaction that pins one, and
snapshots. ``integration/vitess/real`` runs against a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pymysql
import pytest

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.database.connection import Connection, read_rows
from freshness.database.vitess import VitessShard, read_with_token
from freshness.database.walk import reading_above
from freshness.errors import ConfigError, SourceUnavailable
from freshness.position import MysqlGtidSet

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SHARD = VitessShard("shop", "-80", "shop/-80")
CONFIGURED = Shard(
    name="-80",
    primary=ServerAddress("127.0.0.1", 1, "app", "", "shop"),
    lineage="shop/-80",
    vtgate=VtgateAddress("127.0.0.1", "shop"),
)


@dataclass
class Tablet:
    """A server that has executed transactions 1 to ``executed``; the row shows the number of the last."""

    name: str
    executed: int

    @property
    def gtids(self) -> str:
        return f"{UUID}:1-{self.executed}"


@dataclass
class Vtgate:
    """A session. Every statement that it hands on finds all tablets one transaction further."""

    tablets: list[Tablet]
    pins: bool = True
    beats: list[tuple[Any, ...]] = field(default_factory=lambda: [("epoch", 3, "", 0), ("me", 3, "", 5_000_000)])
    error: Exception | None = None
    open: bool = True
    statements: list[str] = field(default_factory=list)
    target: str = ""
    _is_in_transaction: bool = False
    _pinned: Tablet | None = None
    _snapshot: int | None = None
    _turn: int = 0
    _answer: list[tuple[Any, ...]] = field(default_factory=list)

    # as pymysql

    def cursor(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._answer

    def rollback(self) -> None:
        self.statements.append("ROLLBACK")
        self._is_in_transaction, self._pinned, self._snapshot = False, None, None

    def execute(self, sql: str, parameters: Any = None) -> None:
        self.statements.append(sql)
        for tablet in self.tablets:
            tablet.executed += 1
        if sql.startswith("USE "):
            self.target = sql[4:].strip("`")
        elif sql == "BEGIN":
            self._is_in_transaction = True
        else:
            self._answer = list(self._run(sql, self._choose()))

    # as Vitess and MySQL

    def _choose(self) -> Tablet:
        if self._pinned is not None:
            return self._pinned
        tablet = self.tablets[self._turn % len(self.tablets)]
        self._turn += 1
        if self._is_in_transaction and self.pins:
            self._pinned = tablet
        return tablet

    def _run(self, sql: str, tablet: Tablet) -> Iterator[tuple[Any, ...]]:
        if "gtid_executed" in sql:
            yield (tablet.gtids, tablet.name)
        elif "server_uuid" in sql:
            yield (tablet.name,)
        else:
            if self._snapshot is None or not self._is_in_transaction:
                self._snapshot = tablet.executed
            if "freshness_heartbeat" in sql:
                if self.error is not None:
                    raise self.error
                yield from self.beats
            else:
                yield (self._snapshot,)

    @property
    def connection(self) -> Connection:
        return self  # type: ignore[return-value]


def one_row(connection: Connection) -> int:
    [(number,)] = read_rows(connection, "SELECT last FROM customers")
    return int(number)


def test_the_rows_reflect_all_of_the_token() -> None:
    vtgate = Vtgate([Tablet("a", 10), Tablet("b", 50), Tablet("c", 3)])
    for _ in range(6):
        number, token = read_with_token(vtgate.connection, SHARD, one_row)
        assert token is not None
        assert (token.lineage, token.shard, token.epoch, token.timestamp_us) == ("shop/-80", "-80", 3, 5_000_000)
        seen = MysqlGtidSet.parse(f"{UUID}:1-{number}")
        assert seen.contains(token.position)
        assert not token.position.contains(MysqlGtidSet.of(UUID, number + 1))


def test_one_tablet_is_asked_and_the_transaction_ends() -> None:
    vtgate = Vtgate([Tablet("a", 10), Tablet("b", 50)])
    read_with_token(vtgate.connection, SHARD, one_row)
    assert vtgate.statements == [
        "USE `shop:-80@replica`",
        "BEGIN",
        "SELECT @@global.gtid_executed, @@global.server_uuid",
        "SELECT id, epoch, watermark, min_us FROM freshness_heartbeat",
        "SELECT last FROM customers",
        "SELECT @@global.server_uuid",
        "ROLLBACK",
    ]


def test_a_vtgate_that_changes_the_tablet_gives_no_token() -> None:
    """The position of one tablet says nothing about the rows of another."""
    vtgate = Vtgate([Tablet("ahead", 1000), Tablet("x", 9), Tablet("behind", 3), Tablet("y", 9)], pins=False)
    number, token = read_with_token(vtgate.connection, SHARD, one_row)
    assert number < 1000
    assert token is None


@pytest.mark.parametrize("beats", [[], [("me", 3, "", 5)]], ids=["empty", "no epoch"])
def test_a_shard_that_no_invalidator_has_prepared_gives_no_token(beats: list[tuple[Any, ...]]) -> None:
    assert read_with_token(Vtgate([Tablet("a", 10)], beats=beats).connection, SHARD, one_row)[1] is None


def test_a_missing_heartbeat_table_gives_no_token() -> None:
    error = pymysql.err.ProgrammingError(1146, "Table 'vt_shop.freshness_heartbeat' doesn't exist")
    number, token = read_with_token(Vtgate([Tablet("a", 10)], error=error).connection, SHARD, one_row)
    assert (number > 10, token) == (True, None)


@pytest.mark.parametrize(
    "error",
    [
        pymysql.err.ProgrammingError(1146, "Table 'vt_shop.customers' doesn't exist"),
        pymysql.err.OperationalError(2013, "Lost connection"),
        ValueError("the loader's own"),
    ],
)
def test_errors_come_out_and_the_transaction_ends(error: Exception) -> None:
    vtgate = Vtgate([Tablet("a", 10)], error=error)
    with pytest.raises(type(error)) as caught:
        read_with_token(vtgate.connection, SHARD, one_row)
    assert caught.value is error
    assert vtgate.statements[-1] == "ROLLBACK"


def test_all_reads_above_a_position_are_of_one_tablet() -> None:
    vtgate = Vtgate([Tablet("a", 10), Tablet("b", 50), Tablet("c", 3)])
    for _ in range(6):
        with reading_above(vtgate.connection, "mysql", CONFIGURED) as low:
            number = one_row(vtgate.connection)
        assert MysqlGtidSet.parse(f"{UUID}:1-{number}").contains(low.position)


def test_reads_above_a_position_count_for_nothing_where_vtgate_changes_the_tablet() -> None:
    vtgate = Vtgate([Tablet("ahead", 1000), Tablet("x", 9), Tablet("behind", 3), Tablet("y", 9)], pins=False)
    with (
        pytest.raises(SourceUnavailable, match="changed the tablet"),
        reading_above(vtgate.connection, "mysql", CONFIGURED),
    ):
        assert one_row(vtgate.connection) < 1000


def test_nothing_is_read_above_a_position_that_no_heartbeat_tells() -> None:
    vtgate = Vtgate([Tablet("a", 10)], beats=[])
    with pytest.raises(ConfigError, match="no heartbeats"), reading_above(vtgate.connection, "mysql", CONFIGURED):
        pytest.fail("there is no position")


def test_targets() -> None:
    assert SHARD.target == "shop:-80@replica"
    assert VitessShard("shop", "0", "shop/0", "primary").target == "shop:0@primary"
    assert VitessShard("shop", "-", "l", "rdonly", "zone1-101").target == "shop:-@rdonly|zone1-101"


@pytest.mark.parametrize("name", ["", "a b", "a`b", "a:b", "a@b", "a/b", "a|b", "a%b", "a\n"])
def test_names_that_would_be_another_target_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Vitess target"):
        VitessShard(name, "-80", "l")
    with pytest.raises(ConfigError, match="Vitess target"):
        VitessShard("shop", name, "l")
