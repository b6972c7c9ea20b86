"""A copy in another database, MariaDB and MySQL: exact after kills and repeated micro-batches, never back in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType

from freshness.config.server import ServerAddress
from freshness.errors import ConfigError, HistoryPurged
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_until
from integration.servers import DatabaseServer, Pair
from integration.spark.seats import SEAT, SEATS_TABLE, in_database, shown
from spark.batch import CHANGES
from spark.copy import __main__ as command
from spark.copy.database import STATE_TABLE, DatabaseTarget
from spark.copy.job import Snapshot
from spark.copy.state import CopyState, TableState, decode_state
from spark.copy.table import CopyColumn, CopyTable

GOODS: Final = CopyTable("goods", (CopyColumn("id", LongType()), CopyColumn("v", StringType())), ("id",))
HERE, THERE = "shop/-80", "shop/80-"
TARGET: Final = "kept"
_IN_TRANSACTION: Final = "SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


# -- micro-batches, as Spark may bring them ---------------------------------------------------------------------


@pytest.fixture
def target(pair: Pair) -> DatabaseTarget:
    """An empty database of its own, on a server of each flavor."""
    return DatabaseTarget(make_database(pair.primary))


def make_database(server: DatabaseServer) -> ServerAddress:
    server.execute(f"DROP DATABASE IF EXISTS {TARGET}")
    server.execute(f"CREATE DATABASE {TARGET}")
    return ServerAddress.parse(f"mysql://app:app@127.0.0.1:{server.port}/{TARGET}", {})


def up_to(number: int) -> str:
    return f"{SOURCE}:1-{number}"


class Goods:
    """The copy of one table of two shards: dumped, published, and then fed by hand."""

    def __init__(self, session: SparkSession, target: DatabaseTarget, server: DatabaseServer) -> None:
        self._session, self._server, self._target = session, server, target
        nobody: Any = None
        self._job = Snapshot(session, nobody, target, ["goods"], {})
        with target.opened():
            assert target.open_state(["goods"]) is None
            table = TableState(needs_dump=False, layout=GOODS.to_json(), until={HERE: up_to(9)})
            state = CopyState("shop", "mysql", {}, {HERE: up_to(9), THERE: up_to(9)}, {"goods": table})
            rows = [GOODS.to_row(HERE, {"id": number, "v": "dumped"}) for number in (1, 2)]
            target.dump("goods", table, GOODS, session.createDataFrame(rows, GOODS.schema()))
            target.commit(state, ["goods"])

    def take(self, *pieces: DataFrame) -> None:
        """A run that is given one micro-batch, and ends."""
        batch = pieces[0]
        for each in pieces[1:]:
            batch = batch.unionAll(each)
        with self._target.opened():
            state = self._target.open_state(["goods"])
            assert state is not None
            self._job._apply(state, batch)

    def piece(self, lineage: str, after: int, *changes: tuple[Mapping[str, Any] | None, ...]) -> DataFrame:
        """One shard's transactions from ``after`` on, each a pair of images; an empty one: changed as a whole."""
        numbers = range(after + 1, after + 1 + len(changes))
        rows = [self._row(lineage, after, up_to(after), "begin")]
        for number, images in zip(numbers, changes, strict=True):
            texts = [each and json.dumps(each) for each in images]
            op = "update" if texts else "raise"
            rows.append(self._row(lineage, number, f"{SOURCE}:{number}", op, "goods", *texts))
        end = after + len(changes)
        rows.append(self._row(lineage, end, up_to(end), "empty"))
        return self._session.createDataFrame(rows, CHANGES)

    def _row(self, lineage: str, ordinal: int, gtid: str, op: str, *told: Any) -> tuple[Any, ...]:
        table, before, after = (*told, None, None, None)[:3]
        place = ("shop", lineage.partition("/")[2], lineage, 1, ordinal, 0, 1, gtid, 0, 0)
        return (*place, op, table, [], [], None, before, after, None, None, None)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self._server.execute("SELECT id, v FROM goods", database=TARGET))

    def state(self) -> CopyState:
        [(text,)] = self._server.execute(f"SELECT state FROM {STATE_TABLE}", database=TARGET)
        return decode_state(text, "the test")

    def tables(self) -> set[str]:
        return {name for (name,) in self._server.execute("SHOW TABLES", database=TARGET)}


@pytest.fixture
def goods(session: SparkSession, target: DatabaseTarget, pair: Pair) -> Goods:
    return Goods(session, target, pair.primary)


def row(number: int, v: str) -> dict[str, Any]:
    return {"id": number, "v": v}


def test_a_micro_batch_that_comes_again_changes_nothing_and_a_gap_is_refused(goods: Goods) -> None:
    """Neither the number of a micro-batch nor Spark's checkpoint says what was applied: the position does."""
    first = goods.piece(HERE, 9, (row(1, "dumped"), row(1, "new")), (None, row(3, "new")), (row(2, "dumped"), None))
    goods.take(first)
    assert goods.rows() == [(1, "new"), (3, "new")]
    goods.take(goods.piece(HERE, 12, (row(3, "new"), None), (row(1, "new"), row(7, "other key"))))
    assert goods.rows() == [(7, "other key")]
    goods.take(first)
    assert goods.rows() == [(7, "other key")]
    assert goods.state().position == {HERE: up_to(14), THERE: up_to(9)}
    # One that begins in the past and ends ahead
    goods.take(goods.piece(HERE, 13, (row(1, "new"), row(7, "wrong")), (None, row(8, "ahead"))))
    assert goods.rows() == [(7, "other key"), (8, "ahead")]
    with pytest.raises(HistoryPurged, match="are missing"):
        goods.take(goods.piece(HERE, 17, (None, row(9, "after a gap"))))
    assert goods.rows() == [(7, "other key"), (8, "ahead")]
    assert goods.state().position == {HERE: up_to(15), THERE: up_to(9)}


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_rows_of_two_shards_with_one_key_are_two_rows(goods: Goods) -> None:
    """Also a row that moves: the order of two shards is not known, and neither undoes what the other has."""
    goods.take(goods.piece(THERE, 9, (None, row(1, "there"))), goods.piece(HERE, 9, (None, row(5, "here"))))
    assert goods.rows() == [(1, "dumped"), (1, "there"), (2, "dumped"), (5, "here")]
    goods.take(goods.piece(THERE, 10, (None, row(5, "moved"))))
    goods.take(goods.piece(HERE, 10, (row(5, "here"), None), (row(1, "dumped"), None)))
    assert goods.rows() == [(1, "there"), (2, "dumped"), (5, "moved")]


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_a_run_that_dies_before_its_commit_leaves_rows_and_position_as_they_were(
    goods: Goods, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = goods.piece(HERE, 9, (row(1, "dumped"), row(1, "new")))

    def die(*_: object) -> None:
        assert goods.rows() == [(1, "dumped"), (2, "dumped")], "readers see half of a micro-batch"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseTarget, "_save", die)
        with pytest.raises(KeyboardInterrupt):
            goods.take(batch)
    assert goods.rows() == [(1, "dumped"), (2, "dumped")]
    assert goods.state().position[HERE] == up_to(9)
    goods.take(batch)
    assert goods.rows() == [(1, "new"), (2, "dumped")]


def test_a_table_that_was_changed_as_a_whole_stays_until_its_next_dump_is_exact(
    goods: Goods, target: DatabaseTarget, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the run ends between the renaming and the commit."""
    goods.take(goods.piece(HERE, 9, (), (None, row(4, "inserted after"))))
    assert goods.state().tables["goods"].needs_dump
    assert goods.rows() == [(1, "dumped"), (2, "dumped")]
    with target.opened():
        state = target.open_state(["goods"])
        assert state is not None
        table = state.tables["goods"]
        dumped = session.createDataFrame([GOODS.to_row(HERE, row(4, "again"))], GOODS.schema())
        target.dump("goods", table, GOODS, dumped)
        table.needs_dump, table.until = False, {HERE: up_to(12)}
        target.commit(state, ())
    assert goods.rows() == [(1, "dumped"), (2, "dumped")]

    save, saved = DatabaseTarget._save, list[None]()

    def save_once(self: DatabaseTarget, state: CopyState) -> None:
        if saved:
            raise KeyboardInterrupt
        saved.append(None)
        save(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseTarget, "_save", save_once)
        with pytest.raises(KeyboardInterrupt):
            goods.take(goods.piece(HERE, 11, (None, row(5, "while it was dumped"))))
    assert goods.rows() == [(4, "again"), (5, "while it was dumped")]
    goods.take(goods.piece(HERE, 12, (row(5, "while it was dumped"), None)))
    assert goods.rows() == [(4, "again")]
    assert goods.tables() == {"goods", STATE_TABLE}
    assert goods.state().tables["goods"].published == goods.state().tables["goods"].folder


@pytest.mark.parametrize("flavor", ["mysql"])
def test_a_run_that_ends_now_is_waited_for(target: DatabaseTarget, pair: Pair) -> None:
    """Its connection is closed, and its server still holds the lock."""
    second, opened = DatabaseTarget(target.address), threading.Event()

    def follow() -> None:
        with second.opened():
            opened.set()

    following = threading.Thread(target=follow, daemon=True)
    with target.opened():
        following.start()
        wait_until(lambda: "GET_LOCK" in str(pair.primary.execute("SHOW PROCESSLIST")), "the second run waits")
    following.join()
    assert opened.is_set()


@pytest.mark.parametrize("flavor", ["mysql"])
def test_what_is_not_of_the_copy_is_never_touched(goods: Goods, target: DatabaseTarget, pair: Pair) -> None:
    pair.primary.execute("CREATE TABLE mine (id INT PRIMARY KEY)", database=TARGET)
    with target.opened():
        second = DatabaseTarget(target.address)
        with pytest.raises(ConfigError, match="is being written by another run"), second.opened():
            pass
    pair.primary.execute("DROP TABLE goods", database=TARGET)
    pair.primary.execute("CREATE TABLE goods (id INT PRIMARY KEY)", database=TARGET)
    with target.opened(), pytest.raises(ConfigError, match="table goods that is not of this copy"):
        target.open_state(["goods"])
    pair.primary.execute("DROP TABLE goods", database=TARGET)
    with target.opened():
        state = target.open_state(["goods"])
        assert state is not None
        assert state.tables["goods"].needs_dump, "it was dropped"
        with pytest.raises(ConfigError, match="name is too long"):
            target.open_state(["x" * 60])
    pair.primary.execute(f"DELETE FROM {STATE_TABLE}", database=TARGET)
    with target.opened(), pytest.raises(ConfigError, match="table mine that is not of this copy"):
        target.open_state(["mine"])
    assert goods.tables() == {"mine", STATE_TABLE}


# -- the whole way ----------------------------------------------------------------------------------------------


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    tables = (CUSTOMERS_TABLE, SEATS_TABLE)
    extra = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + SEAT, extra=extra) as started:
        for key in range(1, 101):
            started.execute("INSERT INTO customers VALUES (%s, %s, 0)", key, f"näme {key} 'quoted' %% \\")
        started.execute(
            "INSERT INTO seats (hall, seat, price, at, day, big, note, raw, changed, share, mood) VALUES "
            "('A1', 'x', 1.25, '2026-01-31 10:00:00.125', '2026-02-01', %s, 'ü', %s, "
            "'2026-03-01 00:00:00', 0.1, 'bad'), ('a1 ', 'x', NULL, NULL, NULL, 1, '', '', NULL, NULL, NULL)",
            2**63,
            b"\0\xff'",
        )
        yield started


@pytest.fixture
def other(flavor: str, request: pytest.FixtureRequest) -> DatabaseServer:
    """A server of the other flavor, for the copy."""
    name = {"mariadb": "mysql_pair", "mysql": "mariadb_pair"}[flavor]
    server: DatabaseServer = request.getfixturevalue(name).primary
    return server


def in_target(server: DatabaseServer, table: str) -> list[str]:
    columns = "*" if table == "seats" else "_key, id, name, v"
    rows = server.execute(f"SELECT {columns} FROM {table}", database=TARGET)
    return sorted(str(tuple(map(shown, row[1:]))) for row in rows)


def options(system: System, address: ServerAddress, port: int) -> list[str]:
    url = f"mysql://{address.user}:${{COPY_PASSWORD}}@{address.host}:{address.port}/{address.database}"
    return [
        *("--config", str(system.config_path), "--url", f"http://127.0.0.1:{port}"),
        *("--database", url, "--rows-per-range", "30"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_a_copy_in_a_database_of_the_other_kind_follows_all_changes(
    system: System,
    other: DatabaseServer,
    session: SparkSession,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = make_database(other)
    monkeypatch.setenv("COPY_PASSWORD", str(address.password))
    arguments = options(system, address, port)

    def run_and_compare() -> None:
        assert command.main(arguments, session) == 0, capsys.readouterr().err
        for table in ("customers", "seats"):
            assert in_target(other, table) == in_database(table, system.pair.primary)

    run_and_compare()
    system.execute("UPDATE customers SET v = 7, name = NULL WHERE id = 1")
    system.execute("UPDATE customers SET id = 1001 WHERE id = 2")
    system.execute("DELETE FROM customers WHERE id = 3")
    system.execute("INSERT INTO customers VALUES (3, 'again', 1), (1002, 'new', 1)")
    system.execute("UPDATE seats SET hall = 'a2', price = 2 WHERE price IS NULL")
    run_and_compare()
    # A table that is changed as a whole is dumped again
    system.execute("ALTER TABLE customers ADD COLUMN extra INT DEFAULT 5 AFTER id, DROP COLUMN name")
    system.execute("UPDATE customers SET v = 8 WHERE id = 1")
    assert command.main(arguments, session) == 0, capsys.readouterr().err
    found = other.execute("SELECT id, extra, v FROM customers WHERE id IN (1, 1001)", database=TARGET)
    assert sorted(found) == [(1, 5, 8), (1001, 5, 0)]
    tables = other.execute("SHOW TABLES", database=TARGET)
    assert {name for (name,) in tables} == {"customers", "seats", STATE_TABLE}
    # The source itself cannot hold its copy
    monkeypatch.setenv("COPY_PASSWORD", "app")
    primary = system.config.keyspaces["shop"].shards[0].primary
    assert command.main(options(system, primary, port), session) == 2
    assert "has a table customers that is not of this copy" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mysql"])
def test_a_copy_whose_job_is_killed_again_and_again_is_exact(
    system: System,
    other: DatabaseServer,
    session: SparkSession,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed while the dump is written, and while changes are."""
    address = make_database(other)
    monkeypatch.setenv("COPY_PASSWORD", str(address.password))
    arguments = options(system, address, port)
    seen: list[int] = []

    def is_loading() -> bool:
        return any("_freshness_load" in name for (name,) in other.execute("SHOW TABLES", database=TARGET))

    def is_writing() -> bool:
        time.sleep(0.2)  # InnoDB refreshes this table only if nobody has read it for 0.1 s
        return bool(other.execute(_IN_TRANSACTION))

    def kill_when(is_time: Callable[[], bool], what: str) -> None:
        job = subprocess.Popen(
            [sys.executable, "-m", "spark.copy", *arguments, "--master", "local[2]"], start_new_session=True
        )
        try:
            wait_until(lambda: is_time() or job.poll() is not None, what, seconds=120)
            assert job.poll() is None, "the job ended before it was killed"
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    def wait_gone() -> None:
        """The server ends the connections of a killed job, and with them its lock, in its own time."""
        connected = f"SELECT id FROM information_schema.processlist WHERE db = '{TARGET}'"
        wait_until(lambda: not other.execute(connected), "the killed job is gone", seconds=60)

    kill_when(is_loading, "the dump is being written")
    wait_gone()
    assert command.main(arguments, session) == 0, capsys.readouterr().err
    for number in range(2):
        system.execute("UPDATE customers SET v = v + 1 WHERE id = 1")
        system.execute("INSERT INTO customers VALUES (%s, 'new', 0)", 5_000 + number)
        # The job has written the rows of its micro-batch, if it has any, and waits for the row with its position
        with other.connect(TARGET, autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT state FROM {STATE_TABLE} FOR UPDATE")
            kill_when(is_writing, "changes are being written")
        wait_gone()
        seen.extend(v for (v,) in other.execute("SELECT v FROM customers WHERE id = 1", database=TARGET))
    assert seen == [0, 0], "a transaction without its position counts"
    assert command.main(arguments, session) == 0, capsys.readouterr().err
    assert in_target(other, "customers") == in_database("customers", system.pair.primary)
