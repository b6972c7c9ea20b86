"""An external copy of real tables: dumped while they are written, exact afterwards, and never back in time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import LongType, StringType, StructType

from freshness.errors import ConfigError, FormatError
from integration.configuration import CUSTOMER, write_config
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_until
from integration.servers import Pair
from integration.spark.seats import REPLACE_SEAT, SEAT, SEATS_TABLE, in_database, in_frame
from spark.copy import __main__ as command
from spark.copy.folder import PROBE, FolderTarget, require_format
from spark.copy.job import Snapshot, find_floor
from spark.copy.state import TableState, read_copy, read_state
from spark.copy.table import CopyColumn, CopyTable, dump_span, find_spans, read_table

ROWS: Final = 200


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    tables = (CUSTOMERS_TABLE, SEATS_TABLE)
    extra = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + SEAT, extra=extra) as started:
        for key in range(1, ROWS + 1):
            started.execute("INSERT INTO customers VALUES (%s, %s, 0)", key, f"näme {key}")
        for key in range(20):
            started.execute(
                REPLACE_SEAT,
                f"A{key % 3}",
                bytes((key, 0, 0)),
                Decimal(key) / 4,
                2**63 + key,
                None if key % 2 else "ü 'quoted'",
                b"\0\xff",
                key,
                0,
            )
        yield started


class Writer:
    """Changes rows of all kinds until it is stopped. ``v`` of customer 1 only grows."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with self._system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            while not self._stopping.wait(0.005):
                self.count += 1
                key = self.count % ROWS + 1
                cursor.execute("UPDATE customers SET v = v + 1 WHERE id = 1")
                cursor.execute("DELETE FROM customers WHERE id = %s AND id > 1", (key,))
                cursor.execute("INSERT INTO customers VALUES (%s, 'new', %s)", (10_000 + self.count, self.count))
                cursor.execute("UPDATE customers SET id = id + 5000 WHERE id = %s", (ROWS - key + 2,))
                cursor.execute(
                    "UPDATE seats SET price = price + 0.25, seat = %s WHERE hall = 'A1' LIMIT 1",
                    (bytes((100 + self.count % 100, self.count % 7, 0)),),
                ) if self.count < 100 else None


def in_copy(session: SparkSession, out: Path, table: str) -> list[str]:
    return in_frame(read_copy(session, out, table))


@pytest.mark.slow
@pytest.mark.parametrize("flavor", [pytest.param("mysql", marks=pytest.mark.long), "mariadb"])
def test_a_copy_that_is_made_while_rows_change_is_exact_and_only_moves_forward(
    system: System, session: SparkSession, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copy"
    arguments = ["--config", str(system.config_path), "--out", str(out), "--url", f"http://127.0.0.1:{port}"]
    arguments += ["--rows-per-range", "60", "--json"]
    seen: list[int] = []
    with Writer(system) as writer:
        for _ in range(2):
            assert command.main(arguments, session) == 0, capsys.readouterr().err
            [row] = read_copy(session, out, "customers").where("id = 1").collect()
            seen.append(row["v"])
        assert writer.count > 5, "nothing was written meanwhile"
    assert command.main(arguments, session) == 0, capsys.readouterr().err
    assert seen == sorted(seen)
    for table in ("customers", "seats"):
        assert in_copy(session, out, table) == in_database(table, system.pair.primary)
    state = read_state(out)
    assert state is not None
    assert all(each.generation > 1 for each in state.tables.values()), "the stream was not applied"

    # A table that is changed as a whole is dumped again
    system.execute("TRUNCATE customers")
    system.execute("INSERT INTO customers VALUES (7, 'after', 1)")
    system.execute("ALTER TABLE seats ADD COLUMN extra INT DEFAULT 5")
    assert command.main(arguments, session) == 0, capsys.readouterr().err
    for table in ("customers", "seats"):
        assert in_copy(session, out, table) == in_database(table, system.pair.primary)
    capsys.readouterr()
    assert command.main([*arguments, "--tables", "seats"], session) == 2
    assert "give the same ones" in capsys.readouterr().err


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_a_table_that_nobody_caches_is_copied_from_the_service(
    system: System, session: SparkSession, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system.execute("CREATE TABLE weights (w DOUBLE PRIMARY KEY, v INT)")
    system.execute("INSERT INTO weights VALUES (0.5, 1), (1.5, 2)")
    arguments = ["--config", str(system.config_path), "--tables", "weights"]
    for out, followed in (("copy", ["--url", f"http://127.0.0.1:{port}"]), ("other", ["--archive", str(tmp_path)])):
        options = [*arguments, "--out", str(tmp_path / out), *followed]
        assert command.main(options, session) == (0 if out == "copy" else 2), capsys.readouterr().err
    assert "there is no file of an archive" in capsys.readouterr().err
    arguments += ["--out", str(tmp_path / "copy"), "--url", f"http://127.0.0.1:{port}"]
    for weight in (2.5, 3.5):
        system.execute("UPDATE weights SET w = %s WHERE v = 2", weight)
        assert command.main(arguments, session) == 0, capsys.readouterr().err
        assert in_copy(session, tmp_path / "copy", "weights") == in_database("weights", system.pair.primary)
        # The next run begins at the position in the state; Spark keeps no checkpoint
        kept = {path.name for path in (tmp_path / "copy").iterdir()}
        assert kept == {"weights", "state.json", ".copying.lock"}
    state = read_state(tmp_path / "copy")
    assert state is not None
    assert state.tables["weights"].generation > 2, "the stream was not applied"


@pytest.mark.parametrize("flavor", ["mysql"])
def test_a_dump_reads_a_replica_that_shows_enough(
    system: System, session: SparkSession, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(system.config_path), "--out", str(tmp_path / "copy"), "--tables", "customers"]
    arguments += ["--url", f"http://127.0.0.1:{port}", "--dump-from", "replica", "--rows-per-second", "100000"]
    keyspace = system.config.keyspaces["shop"]
    shard = keyspace.shards[0]
    system.pair.replica.execute("STOP REPLICA SQL_THREAD")
    try:
        system.execute("INSERT INTO customers VALUES (9999, 'late', 0)")
        shown = find_floor(keyspace, shard, shard.replicas[0]).position
        wait_until(
            lambda: not shown.contains(find_floor(keyspace, shard, shard.primary).position),
            "the primary shows more than its replica",
        )
        assert command.main([*arguments, "--wait-seconds", "2"], session) == 3
        said = capsys.readouterr().err
        assert f":{system.pair.replica.port}/shop, a server of shop/-, does not show" in said
    finally:
        system.pair.replica.execute("START REPLICA SQL_THREAD")
    assert command.main(arguments, session) == 0, capsys.readouterr().err
    assert in_copy(session, tmp_path / "copy", "customers") == in_database("customers", system.pair.primary)


def test_ranges_are_all_rows_once(system: System) -> None:
    primary = system.config.keyspaces["shop"].shards[0].primary
    for table, rows in (("customers", 7), ("seats", 3), ("seats", 1000)):
        layout = read_table(primary, table)
        found = [
            row[0] for span in find_spans(primary, layout, rows) for row in dump_span("shop/-", primary, layout, span)
        ]
        assert len(found) == len(set(found)) == len(in_database(table, system.pair.primary))


def test_what_cannot_be_copied_alike_is_refused(system: System) -> None:
    primary = system.config.keyspaces["shop"].shards[0].primary
    system.execute("CREATE TABLE odd (id INT PRIMARY KEY, doc JSON, bits BIT(3), t TIME)")
    system.execute("CREATE TABLE keyless (id INT)")
    with pytest.raises(ConfigError, match="odd.bits" if system.pair.primary.flavor == "mariadb" else "odd.doc"):
        read_table(primary, "odd")
    assert [column.name for column in read_table(primary, "odd", ["doc", "bits", "t"]).columns] == ["id"]
    with pytest.raises(ConfigError, match="no primary key"):
        read_table(primary, "keyless")
    with pytest.raises(ConfigError, match="no table"):
        read_table(primary, "none")


def test_a_row_that_moves_to_another_shard_is_there_once(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of two shards is not known: the delete may have the higher number, or come in a later batch."""
    layout = CopyTable("goods", (CopyColumn("id", LongType()), CopyColumn("v", StringType())), ("id",))
    nobody: Any = None
    copy = Snapshot(session, nobody, FolderTarget(session, tmp_path), ["goods"], {})
    told = "table STRING, op STRING, lineage STRING, ordinal LONG, row LONG, before STRING, after STRING"

    def batch(*changes: tuple[str, int, dict[str, Any] | None, dict[str, Any] | None]) -> DataFrame:
        rows = [
            ("goods", "update", lineage, ordinal, 0, *(each and json.dumps(each) for each in images))
            for lineage, ordinal, *images in changes
        ]
        return session.createDataFrame(rows, told)

    here, there = {"id": 39, "v": "old"}, {"id": 39, "v": "new"}
    table = TableState(needs_dump=False, folder="goods/000000000", layout=layout.to_json())
    empty = session.createDataFrame([], layout.schema())
    empty.write.parquet(str(tmp_path / table.folder))
    copy._merge("goods", table, batch(("shop/-80", 9, None, here), ("shop/80-", 2, None, {**there, "id": 7})))
    copy._merge("goods", table, batch(("shop/80-", 3, None, there), ("shop/-80", 10, here, None)))
    copy._merge("goods", table, batch(("shop/-80", 11, None, {**here, "id": 7})))
    copy._merge("goods", table, batch(("shop/80-", 4, {**there, "id": 7}, None)))
    made = session.read.parquet(str(tmp_path / table.folder)).select("id", "v").collect()
    assert sorted(map(tuple, made)) == [(7, "old"), (39, "new")]


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"version": 99}')
    with pytest.raises(FormatError, match="version 99"):
        read_state(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(FormatError, match="no state"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("file_format", "told"),
    [
        ("delta", "DATA_SOURCE_NOT_FOUND"),
        ("iceberg", "DATA_SOURCE_NOT_FOUND"),
        ("jdbc", "url"),
        ("csv", "'csv'"),
        ("json", "'json'"),
    ],
)
def test_a_format_that_cannot_keep_a_copy_is_refused_before_anything_is_read(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], file_format: str, told: str
) -> None:
    config = write_config(tmp_path, "mariadb", "mysql://app@127.0.0.1:1/shop", ["127.0.0.1:1"])
    options = ["--config", str(config), "--out", str(tmp_path / "copy"), "--url", "http://127.0.0.1:1"]
    code = command.main([*options, "--format", file_format], session)
    err = capsys.readouterr().err
    assert code == 2, err
    assert f"a copy cannot be kept as '{file_format}'" in err
    assert told in err
    assert "Traceback" not in err
    assert [each for each in (tmp_path / "copy").iterdir() if each.suffix != ".lock"] == []


class Forgetful(DataSource):  # type: ignore[misc]
    """A package that writes without an error, knows the columns, and cannot read the rows."""

    @classmethod
    def name(cls) -> str:
        return "forgetful"

    def schema(self) -> str:
        return PROBE

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        class Writer(DataSourceWriter):  # type: ignore[misc]
            def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
                return WriterCommitMessage()

        return Writer()

    def reader(self, schema: StructType) -> DataSourceReader:
        class Reader(DataSourceReader):  # type: ignore[misc]
            def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
                return iter(())

        return Reader()


def test_a_format_whose_rows_do_not_come_back_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """As Delta's package for another Spark: the columns are read from its log, and no row from its files."""
    session.dataSource.register(Forgetful)
    with pytest.raises(ConfigError, match="rows do not come back"):
        require_format(session, tmp_path, "forgetful")


def test_a_format_that_keeps_types_will_do(session: SparkSession, tmp_path: Path) -> None:
    require_format(session, tmp_path, "orc")
    assert list(tmp_path.iterdir()) == []
