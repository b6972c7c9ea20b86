"""An external copy of tables of a real Vitess: dumped through vtgate while they are written, exact afterwards."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from freshness.database.connection import read_rows
from freshness.database.vitess import of_primary
from freshness.errors import SourceUnavailable
from freshness.position import parse_position
from integration.servers.vitess import Vitess
from integration.spark.seats import SEATS_TABLE, in_frame
from integration.vitess.real.deployment import VSCHEMA, Deployment, deployment
from spark.copy import __main__ as command
from spark.copy.job import read_head
from spark.copy.state import read_copy, read_state
from spark.copy.table import KeySpan, dump_span, read_table, reading_shown

HALLS: Final = 20
ROWS: Final = 30_000
ROWS_PER_RANGE: Final = 12_000
"""More than the 10,000 rows that vttablet returns at once by default."""

INSERT: Final = (
    "INSERT INTO seats (hall, seat, price, at, day, big, note, raw, changed, share, mood) VALUES"
    " (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
WRITE_SECONDS: Final = 0.05


def seat_of(number: int) -> tuple[str, bytes]:
    return f"A{number % HALLS}", number.to_bytes(3, "little")


def values_of(number: int) -> tuple[Any, ...]:
    times = "2026-01-31 10:00:00.125", "2026-02-01"
    note = None if number % 2 else "ü 'quoted'"
    rest = 2**63 + number, note, b"\0\xff", "2026-03-01 00:00:00", 0.1, "bad"
    return (*seat_of(number), Decimal(number % 99) / 4, *times, *rest)


def fill(made: Deployment) -> None:
    cluster = made.cluster
    by_hall = {"column_vindexes": [{"column": "hall", "name": "xxhash"}]}
    vschema = {**VSCHEMA, "tables": {**VSCHEMA["tables"], "seats": by_hall}}
    cluster.control("ApplyVSchema", "--vschema", json.dumps(vschema), cluster.keyspace)
    cluster.control("ApplySchema", "--sql", SEATS_TABLE, cluster.keyspace)
    with cluster.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, [values_of(number) for number in range(ROWS)])
    for shard in made.serving:
        with cluster.connect(shard) as connection:
            [(rows,)] = read_rows(connection, "SELECT COUNT(*) FROM seats")
            assert rows > ROWS_PER_RANGE, "a range of each shard is longer than vttablet allows"


@contextmanager
def changing(cluster: Vitess) -> Iterator[None]:
    """Seats change, go and come, until the end."""
    stopping, errors, written = threading.Event(), list[Exception](), itertools.count()

    def write() -> None:
        try:
            with cluster.connect() as connection, connection.cursor() as cursor:
                while not stopping.wait(WRITE_SECONDS):
                    number = next(written)
                    place = seat_of(number * 7919 % ROWS)
                    cursor.execute("UPDATE seats SET price = price + 0.25 WHERE hall = %s AND seat = %s", place)
                    place = seat_of(number * 104729 % ROWS)
                    cursor.execute("DELETE FROM seats WHERE hall = %s AND seat = %s", place)
                    cursor.execute(INSERT, values_of(ROWS + number))
        except Exception as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert errors == []
    assert next(written) > 1, "nothing was written meanwhile"


def in_database(made: Deployment) -> list[str]:
    with made.cluster.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET workload = 'olap'")
        return sorted(map(str, read_rows(connection, "SELECT * FROM seats")))


@pytest.mark.timeout(1800)
def test_a_copy_of_two_shards_that_is_made_while_rows_change_is_exact(
    session: SparkSession, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copy"
    with deployment(tmp_path, replicas=1, sections=f'[http]\nlisten = "127.0.0.1:{port}"\n') as (made, writer):
        writer.stop()
        fill(made)
        made.wait_ready()
        arguments = ["--config", str(made.path), "--out", str(out), "--url", f"http://127.0.0.1:{port}"]
        arguments += ["--tables", "seats", "--rows-per-range", str(ROWS_PER_RANGE), "--json"]
        with changing(made.cluster):
            for _ in range(2):
                assert command.main(arguments, session) == 0, capsys.readouterr().err
        assert command.main(arguments, session) == 0, capsys.readouterr().err
        assert in_frame(read_copy(session, out, "seats")) == in_database(made)
        state = read_state(out)
        assert state is not None
        assert state.tables["seats"].generation > 1, "the stream was not applied"
        refuse_what_a_tablet_does_not_show(made)


def refuse_what_a_tablet_does_not_show(made: Deployment) -> None:
    keyspace = made.config.keyspaces["shop"]
    shard = keyspace.serving_shards[0]
    layout = read_table(shard.primary, "seats")
    shown = read_head(keyspace, shard.writable)
    beyond = shown.union(parse_position("mysql", "11111111-2222-3333-4444-555555555555:1"))
    span = KeySpan(None, None)

    def dump(position: Any) -> list[Any]:
        begin = lambda connection: reading_shown(of_primary(shard), position, connection)  # noqa: E731
        return list(dump_span(shard.lineage, shard.writable, layout, span, begin=begin))

    assert len(dump(shown)) > ROWS_PER_RANGE
    with pytest.raises(SourceUnavailable, match="and not"):
        dump(beyond)
