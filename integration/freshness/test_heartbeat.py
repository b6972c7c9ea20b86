"""The heartbeat table on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from freshness.config.server import ServerAddress
from freshness.database import heartbeat
from freshness.database.heartbeat import ABANDONED_AFTER_US, HeartbeatWriter, parse_heartbeat
from freshness.errors import FormatError, FreshnessError, SourceUnavailable, SourceUnsuitable
from freshness.position import parse_position
from freshness.stream.heartbeat import EPOCH_ROW, HEARTBEAT_TABLE
from freshness.stream.source import Heartbeat
from integration.servers import DatabaseServer, Pair

NOW_US = 1_700_000_000_000_000


@pytest.fixture
def server(pair: Pair) -> DatabaseServer:
    return pair.primary


def writer_of(server: DatabaseServer, instance: str = "one", **options: Any) -> HeartbeatWriter:
    address = ServerAddress("127.0.0.1", server.port, "app", "app", "shop")
    return HeartbeatWriter(address, server.flavor, instance, 0.25, **{"now_us": lambda: NOW_US, **options})


def rows_of(server: DatabaseServer) -> dict[str, tuple[Any, ...]]:
    sql = f"SELECT id, sequence, min_us, max_us, epoch, watermark FROM shop.{HEARTBEAT_TABLE}"
    return {str(row[0]): row[1:] for row in server.execute(sql)}


def test_prepare_creates_the_table_once_and_leaves_the_epoch_alone(server: DatabaseServer) -> None:
    writer = writer_of(server)
    writer.prepare()
    assert rows_of(server) == {EPOCH_ROW: (0, 0, 0, 1, "")}
    assert writer.raise_epoch() == 2
    writer.prepare()
    assert writer.epoch() == 2
    writer.close()


def test_beat_writes_the_interval_the_epoch_and_rising_numbers(server: DatabaseServer) -> None:
    writer = writer_of(server)
    writer.prepare()
    assert writer.beat() == 1
    assert rows_of(server)["one"][:4] == (1, NOW_US - 250_000, NOW_US + 250_000, 1)
    writer.raise_epoch()
    assert writer.beat() == 2
    assert rows_of(server)["one"][:4] == (2, NOW_US - 250_000, NOW_US + 250_000, 2)
    writer.close()
    # A process that starts again under the same name goes on counting.
    again = writer_of(server)
    assert again.beat() == 3
    again.close()


def test_the_watermark_is_the_previous_beat_of_this_session(server: DatabaseServer) -> None:
    writer = writer_of(server)
    writer.prepare()
    for _ in range(3):
        before = server.executed()
        writer.beat()
        watermark = rows_of(server)["one"][4]
        if server.flavor == "mysql":
            assert watermark == ""
        else:
            # Nothing else writes here: what was the head before this beat was this session's last commit.
            assert parse_position("mariadb", watermark) == parse_position("mariadb", before)
    writer.close()
    reconnected = writer_of(server)
    reconnected.beat()
    assert rows_of(server)["one"][4] == ""
    reconnected.close()


def test_a_previous_topology_beats_no_more(server: DatabaseServer) -> None:
    """F102: an invalidator with an old file gets no heartbeat, so it opens no node, whatever nodes have lost."""
    previous = writer_of(server, "previous", namespace="shop")
    elsewhere = writer_of(server, "elsewhere", namespace="other")
    present = writer_of(server, "present", namespace="shop", topology=3)
    previous.prepare()
    elsewhere.prepare()
    assert (previous.beat(), elsewhere.beat()) == (1, 1)
    present.prepare()
    before = rows_of(server)
    with pytest.raises(SourceUnsuitable, match=r"topology 3 is in force, this process has topology 1") as raised:
        previous.beat()
    assert "load the present freshness.toml" in raised.value.hint
    assert rows_of(server) == before
    assert (present.beat(), elsewhere.beat()) == (1, 2)
    again = writer_of(server, "again", namespace="shop", lineage="shop/40-80", topology=2)
    again.prepare()
    with pytest.raises(SourceUnsuitable, match="topology 3 is in force"):
        again.beat()
    present.prepare()
    assert present.beat() == 2
    for writer in (previous, elsewhere, present, again):
        writer.close()


def test_a_row_with_the_number_of_one_shard_is_merged_with_that_of_another(server: DatabaseServer) -> None:
    sources = [
        writer_of(server, f"at {lineage}", namespace="shop", lineage=lineage, topology=2)
        for lineage in ("shop/-80", "shop/80-")
    ]
    numbers = []
    for source in sources:
        source.prepare()
        source.beat()
        numbers.append({row: columns for row, columns in rows_of(server).items() if row.startswith("=")})
        source.close()
        server.execute(f"DROP TABLE shop.{HEARTBEAT_TABLE}")
    assert [len(rows) for rows in numbers] == [1, 1]
    assert not numbers[0].keys() & numbers[1].keys(), "replication would end at a duplicate key"


def test_without_the_number_in_force_a_previous_topology_would_beat(
    server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous = writer_of(server, "previous", namespace="shop")
    present = writer_of(server, "present", namespace="shop", topology=3)
    monkeypatch.setattr(heartbeat, "_RAISE_TOPOLOGY", "DO 0")
    present.prepare()
    assert previous.beat() == 1
    previous.close()
    present.close()


def test_rows_of_the_long_gone_are_deleted(server: DatabaseServer) -> None:
    old, young = writer_of(server, "old", now_us=lambda: NOW_US - 2 * ABANDONED_AFTER_US), writer_of(server)
    old.prepare()
    old.beat()
    young.prepare()
    young.beat()
    assert set(rows_of(server)) == {EPOCH_ROW, "one"}
    old.close()
    young.close()


def test_a_lost_epoch_row_is_no_small_matter(server: DatabaseServer) -> None:
    writer = writer_of(server)
    writer.prepare()
    server.execute(f"DELETE FROM shop.{HEARTBEAT_TABLE}")
    with pytest.raises(SourceUnsuitable, match="no row 'epoch'"):
        writer.beat()
    with pytest.raises(SourceUnsuitable, match="no row 'epoch'"):
        writer.epoch()
    writer.close()


def test_a_broken_connection_is_made_anew_by_the_next_beat(server: DatabaseServer) -> None:
    writer = writer_of(server)
    writer.prepare()
    writer.beat()
    sql = "SELECT id FROM information_schema.processlist WHERE db = 'shop' AND id <> CONNECTION_ID()"
    for (session,) in server.execute(sql):
        server.execute(f"KILL {session}")
    with pytest.raises(SourceUnavailable):
        writer.beat()
    assert writer.beat() == 3, "2 may have been written: nobody knows"
    writer.close()


def test_an_account_that_may_not_write_is_told(server: DatabaseServer) -> None:
    address = ServerAddress("127.0.0.1", server.port, "reader", "reader", "shop")
    with pytest.raises(SourceUnsuitable, match="denied"):
        HeartbeatWriter(address, server.flavor, "one", 0.1).prepare()


@pytest.mark.parametrize("instance", ["", "epoch", "=shop", "x" * 65, "größe"])
def test_names_that_do_not_fit(instance: str) -> None:
    with pytest.raises(FormatError, match="instance"):
        HeartbeatWriter(ServerAddress("127.0.0.1"), "mysql", instance, 0.1)


def test_a_server_that_is_gone() -> None:
    with pytest.raises(FreshnessError) as caught:
        HeartbeatWriter(ServerAddress("127.0.0.1", 1, "app", "app", "shop"), "mysql", "one", 0.1).beat()
    assert caught.value.is_retryable


def test_parse_heartbeat() -> None:
    row = {"id": "me", "sequence": 3, "min_us": 1, "max_us": 2, "epoch": 4, "watermark": ""}
    assert parse_heartbeat(row) == Heartbeat("me", 3, 1, 2, 4)
    for name in ("id", "sequence", "min_us", "max_us", "epoch"):
        with pytest.raises(FormatError, match=name):
            parse_heartbeat({**row, name: None})
