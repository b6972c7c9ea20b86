"""A refresh between the changes of a real Vitess: two shards under writers, cut, resumed, and on other primaries."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from freshness.database.connection import read_rows
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.pulse import Pulse
from freshness.errors import SourceUnsuitable
from freshness.stream.resume import REFRESH_PREFIX, TEXT_PREFIX
from freshness.stream.source import UNREADABLE
from integration.configuration import write_sharded_config
from integration.harness import wait_until
from integration.servers.vitess import Vitess
from integration.stream.test_refresh import (
    BEAT_SECONDS,
    BOUND_SECONDS,
    CHUNK_ROWS,
    GOODS,
    POLL_SECONDS,
    ROWS,
    Consumer,
    Goods,
    follow,
    follow_rows,
    follow_to_head,
    opened,
)
from integration.vitess.real.test_oracle import COLUMNS, TABLES, TYPES
from invalidator.stream.query import RefreshRequest

SHARDS: Final = ("-80", "80-")
REPLACE: Final = "INSERT INTO goods (kind, name, v) VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE v = VALUES(v)"
"""Vitess has no REPLACE for several shards."""

WIDE: Final = "CREATE TABLE wide (id BIGINT PRIMARY KEY)"
WIDE_ROWS: Final = 24_000
RETRY_SECONDS: Final = 0.2
DELAY_SECONDS: Final = 1
BY_ID: Final[Mapping[str, Any]] = {"column_vindexes": [{"column": "id", "name": "hash"}]}
VSCHEMA: Final[Mapping[str, Any]] = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {
        "goods": {"column_vindexes": [{"column": "kind", "name": "hash"}]},
        "empties": BY_ID,
        "wide": BY_ID,
        "everything": BY_ID,
        "freshness_heartbeat": {"type": "reference"},
    },
}


class VitessGoods(Goods):
    """Goes on if a primary is away: a change that may or may not have been made is repeated as a newer one."""

    refused = 0

    def _write(self, place: int) -> None:
        while not self.stopping.is_set():
            super()._write(place)
            self.refused += len(self.errors)
            self.errors.clear()
            self.stopping.wait(RETRY_SECONDS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    """Servers of another time zone than the log. One of a shard's two replicas is late, and vtgate reads both."""
    options = ("--default-time-zone=+05:00",)
    with Vitess(SHARDS, replicas=2, vschema=VSCHEMA, mysql_options=options) as made:
        for shard in SHARDS:
            made.tablets[shard][-1].delay(DELAY_SECONDS)
        for sql in (GOODS, "CREATE TABLE empties (id INT PRIMARY KEY)", WIDE, TABLES["everything"]):
            made.control("ApplySchema", "--sql", sql, made.keyspace)
        yield made


@pytest.fixture
def config_path(cluster: Vitess, tmp_path: Path) -> Iterator[Path]:
    """Both shards, whose heartbeats are written."""
    with ExitStack() as stack:
        for shard in SHARDS:
            cluster.connect(shard).close()
            writer = HeartbeatWriter(cluster.mysql_address(shard), "mysql", "me", 0)
            writer.prepare()
            cluster.wait_caught_up(shard)  # a late replica that has no heartbeat yet is refused
            pulse = Pulse(writer, BEAT_SECONDS, time.monotonic, lambda: None)
            pulse.start()
            stack.callback(pulse.stop)
        yield write_sharded_config(
            tmp_path,
            "vitess",
            [
                {
                    "name": shard,
                    "primary": f"mysql://root@127.0.0.1:{cluster.vtgate.mysql_port}/{cluster.keyspace}",
                    "vtgate": f"vitess://127.0.0.1:{cluster.vtgate.grpc_port}/{cluster.keyspace}",
                }
                for shard in SHARDS
            ],
            ["127.0.0.1:1"],
            column="kind",
            function="hash",
            objects="[objects.goods]\ntable = 'goods'\n",
        )


@pytest.fixture
def goods(cluster: Vitess) -> VitessGoods:
    with cluster.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM goods")
    made = VitessGoods(cluster.mysql_address(), REPLACE)
    made.fill()
    for shard in SHARDS:
        with cluster.connect(shard) as connection:
            assert read_rows(connection, "SELECT COUNT(*) FROM goods")[0][0] > ROWS / 10, "both have rows"
    return made


@pytest.mark.parametrize("read_from", ["primary", "replica"])
def test_a_consumer_has_the_table_of_both_shards_and_no_row_goes_back(
    goods: VitessGoods, config_path: Path, read_from: Literal["primary", "replica"]
) -> None:
    consumer = Consumer()
    request = RefreshRequest(("goods", "empties"), read_from, chunk_rows=CHUNK_ROWS)
    with opened(config_path, request) as stream:
        assert stream.stream.resume.format().startswith(REFRESH_PREFIX)
        with goods.being_written():
            follow(stream, consumer, lambda: consumer.is_over)
        assert consumer.resume.startswith(TEXT_PREFIX), "the refresh is over"
        follow_to_head(stream, consumer)
    assert goods.refused == 0
    assert 0 < consumer.refreshed <= 2 * ROWS
    assert consumer.rows == goods.read()


def test_a_refresh_that_is_cut_goes_on_where_it_was_and_on_other_primaries(
    cluster: Vitess, goods: VitessGoods, config_path: Path
) -> None:
    consumer, cuts = Consumer(), 0
    request = RefreshRequest(("goods",), chunk_rows=CHUNK_ROWS, rows_per_second=2_000)
    with goods.being_written():
        while not consumer.is_over:
            with opened(config_path, request, consumer.resume) as stream:
                if cuts < len(SHARDS):
                    follow_rows(stream, consumer, CHUNK_ROWS)
                    reparent(cluster, SHARDS[cuts])
                follow_rows(stream, consumer, 3 * CHUNK_ROWS)
            cuts += 1
            request = RefreshRequest(chunk_rows=CHUNK_ROWS)
    assert cuts > 3
    assert consumer.refreshed <= ROWS + cuts * CHUNK_ROWS, "it did not begin again"
    with opened(config_path, None, consumer.resume) as stream:
        follow_to_head(stream, consumer)
    assert consumer.rows == goods.read()


def reparent(cluster: Vitess, shard: str) -> None:
    """A replica is the primary now, and vtgate knows it."""
    cluster.reparent(shard, cluster.replicas(shard)[0])

    def is_taken() -> bool:
        with cluster.connect(shard) as connection:
            return bool(read_rows(connection, "SELECT @@global.super_read_only") == [(0,)])

    wait_until(is_taken, f"the primary of {shard} is asked")


def test_a_row_reads_the_same_as_in_the_stream(cluster: Vitess, config_path: Path) -> None:
    with opened(config_path, None) as stream:
        begun = stream.stream.resume.format()
    insert_everything(cluster)
    for shard in SHARDS:
        cluster.wait_caught_up(shard)
    streamed: dict[Any, Any] = {}
    read: dict[Any, Any] = {}
    with opened(config_path, RefreshRequest(("everything",)), begun) as stream:
        deadline = time.monotonic() + BOUND_SECONDS
        while stream.stream.resume.refresh is not None:
            assert time.monotonic() < deadline, (len(read), len(streamed))
            message = stream.stream.poll(POLL_SECONDS)
            for change in message.transaction.changes if message is not None else ():
                if change.table == "everything" and change.after is not None:
                    found = read if change.op == "refresh" else streamed
                    found[change.after["id"]] = change.after
    assert len(read) == len(streamed) == max(map(len, TYPES.values())) + 1
    untold: set[str] = set()
    for key, row in streamed.items():
        assert row.keys() == read[key].keys()
        for name, value in row.items():
            if repr(value) != repr(read[key][name]):
                assert read[key][name] is UNREADABLE, (COLUMNS[name], value, read[key][name])
                untold.add(COLUMNS[name])
    assert untold == {"JSON", "VARCHAR(20) CHARACTER SET sjis"}


def insert_everything(cluster: Vitess) -> None:
    """Rows with all values of `TYPES`, and one of NULLs."""
    with cluster.connect() as connection, connection.cursor() as cursor:
        for key, values in enumerate(itertools.zip_longest(*TYPES.values(), fillvalue="NULL")):
            cursor.execute(f"INSERT INTO everything (id, {', '.join(COLUMNS)}) VALUES ({key}, {', '.join(values)})")
        cursor.execute("INSERT INTO everything (id) VALUES (1000)")


def test_more_rows_at_once_than_vttablet_gives_end_the_stream_with_the_remedy(
    cluster: Vitess, config_path: Path
) -> None:
    with cluster.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO wide (id) VALUES (%s)", [(number,) for number in range(WIDE_ROWS)])
    request = RefreshRequest(("wide",), chunk_rows=WIDE_ROWS)
    with (
        opened(config_path, request) as stream,
        pytest.raises(SourceUnsuitable, match="Row count exceeded") as caught,
    ):
        follow(stream, Consumer(), lambda: False)
    assert "fewer rows at once" in caught.value.hint
