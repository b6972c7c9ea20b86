"""The VStream source against a stand-in for vtgate, over gRPC: every shape and every error that vtgate is known for.

The stand-in plays scripts (``integration/servers/vtgate.py``). The details of each shape are tested without a network
in ``tests/unit/invalidator/vstream/test_transaction.py``; a real Vitess is in ``real/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from freshness.errors import (
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.position import MysqlGtidSet, empty_position
from freshness.stream.source import Transaction
from integration.servers.vtgate import (
    KEYSPACE,
    SHARD,
    UUID,
    Fail,
    Log,
    Vtgate,
    begin,
    change,
    column,
    commit,
    ddl,
    event,
    fields,
    gtid,
    heartbeat,
    image,
    inserted,
    journal,
    other,
    response,
    rows,
    transaction,
    vgtid,
)
from integration.vitess.vstreaming import (
    FIELDS,
    ROW_5,
    TABLES,
    Code,
    address_of,
    number,
    play,
    read_to_end,
    source_of,
    take,
    up_to,
    wait_until_full,
)
from invalidator.mailbox import QueueBounds
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.source import VStream, VStreamSource
from invalidator.vstream.transaction import Bounds

# -- shapes ----------------------------------------------------------------------------------------------

# Responses → (own transaction number, number of rows, raised tables) of each transaction that must come.
SHAPES: dict[str, tuple[list[Any], list[tuple[int, int, set[str]]]]] = {
    "transaction": ([transaction(11, FIELDS, ROW_5)], [(11, 1, set())]),
    "transaction with its keyspace in the table names": (
        [transaction(11, fields("shop.customers"), rows("shop.customers", inserted("5", "Ann")))],
        [(11, 1, set())],
    ),
    "several row changes and row events": (
        [transaction(11, FIELDS, rows("customers", inserted("1", "a"), inserted("2", "b")), ROW_5)],
        [(11, 3, set())],
    ),
    "two transactions in one response": (
        [response(begin(), FIELDS, ROW_5, vgtid(11), commit(), begin(), ROW_5, vgtid(12), commit())],
        [(11, 1, set()), (12, 1, set())],
    ),
    "a transaction over several responses": (
        [response(begin(), FIELDS), response(ROW_5), response(ROW_5, vgtid(11)), response(commit())],
        [(11, 2, set())],
    ),
    "empty transaction (another database, the sidecar)": ([transaction(11)], [(11, 0, set())]),
    "VERSION in a response of its own": (
        [response(begin(), event(pb.VERSION)), response(vgtid(11), commit())],
        [(11, 0, set())],
    ),
    "BEGIN and COMMIT without VGTID": (
        [response(begin(), commit()), transaction(11, FIELDS, ROW_5)],
        [(11, 1, set())],
    ),
    "DDL": ([ddl(11, "ALTER TABLE customers ADD x INT")], [(11, 0, {"customers"})]),
    "TRUNCATE": ([ddl(11, "TRUNCATE TABLE orders")], [(11, 0, {"orders"})]),
    "RENAME of an online schema change": (
        [ddl(11, "RENAME TABLE `customers` TO `_vt_x`, `_vt_y` TO `customers`")],
        [(11, 0, {"customers"})],
    ),
    "OTHER": ([other(11)], [(11, 0, {"customers", "orders"})]),
    "the position that a stream from current begins with": ([other(10), transaction(11)], [(11, 0, set())]),
    "VGTID alone": ([response(vgtid(11)), transaction(12)], [(11, 0, set()), (12, 0, set())]),
    "vtgate's heartbeats": ([heartbeat(), transaction(11), heartbeat()], [(11, 0, set())]),
    "a heartbeat inside a transaction": (
        [response(begin(), FIELDS, ROW_5), heartbeat(), response(vgtid(11), commit())],
        [(11, 1, set())],
    ),
    "broken off and begun anew": (
        [response(begin(), FIELDS, ROW_5), transaction(11, FIELDS, ROW_5)],
        [(11, 1, set())],
    ),
    "own GTID, and others passed over": (
        [response(begin(event_gtid=f"{UUID}:13"), FIELDS, ROW_5, vgtid(13), commit())],
        [(11, 0, set()), (13, 1, set())],
    ),
    "update of a key": (
        [transaction(11, FIELDS, rows("customers", change(image("5", "A"), image("6", "A"))))],
        [(11, 1, set())],
    ),
    "ROW without FIELD": ([transaction(11, ROW_5)], [(11, 0, {"customers"})]),
    "columns named @1": (
        [transaction(11, fields("customers", (column("@1", 265), column("@2", 6165))), ROW_5)],
        [(11, 0, {"customers"})],
    ),
    "partial image": (
        [
            transaction(
                11,
                FIELDS,
                rows(
                    "customers",
                    change(image("5", None), image("5", None), data_columns=pb.Bitmap(count=2, cols=b"\1")),
                ),
            )
        ],
        [(11, 1, set())],
    ),
    "a statement instead of rows": (
        [transaction(11, event(pb.UPDATE, dml="update customers set name = 1"))],
        [(11, 0, {"customers", "orders"})],
    ),
    "ROLLBACK": ([response(begin(), vgtid(11), event(pb.ROLLBACK))], [(11, 0, set())]),
    "a journal of tables that are not ours": (
        [response(begin(), journal([SHARD], {}, migration_type=pb.TABLES, tables=["x"]), vgtid(11), commit())],
        [(11, 0, set())],
    ),
}


def summary(done: Transaction) -> tuple[int, int, set[str]]:
    return int(str(done.position).split(":")[1].split("-")[0]), len(done.changes), set(done.raised_tables)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    responses, expected = SHAPES[name]
    done, error = play(*responses)
    assert list(map(summary, done)) == expected
    assert type(error) is SourceUnavailable
    assert "ended the stream" in error.message


# -- ends and errors -------------------------------------------------------------------------------------

ENDS: dict[str, tuple[list[Any], type[FreshnessError], str]] = {
    "EOF": ([], SourceUnavailable, "ended the stream"),
    "maximum age of a connection": (
        [Fail(Code.UNAVAILABLE, "transport is closing: max_age")],
        SourceUnavailable,
        "max_age",
    ),
    "tablet gone": ([Fail(Code.UNAVAILABLE, "tablet health error")], SourceUnavailable, "UNAVAILABLE"),
    "no tablet event for 10 minutes": ([Fail(Code.UNAVAILABLE, "stream is dead")], SourceUnavailable, "dead"),
    "skew": ([Fail(Code.CANCELLED, "timed out while waiting for skew to reduce")], SourceUnavailable, "skew"),
    "unknown": ([Fail(Code.UNKNOWN, "something")], SourceUnavailable, "something"),
    "internal": ([Fail(Code.INTERNAL, "unexpected")], SourceUnavailable, "unexpected"),
    "a position that replicas lack": (
        [Fail(Code.INVALID_ARGUMENT, "GTIDSet Mismatch: requested source position")],
        SourceUnavailable,
        "no tablet has executed",
    ),
    "purged 1236": ([Fail(Code.UNKNOWN, "purged binary logs (errno 1236)")], HistoryPurged, "F15"),
    "purged 1789": ([Fail(Code.UNKNOWN, "(errno 1789) (sqlstate HY000)")], HistoryPurged, "F15"),
    "bad request": ([Fail(Code.INVALID_ARGUMENT, "unknown table")], SourceUnsuitable, "refuses the request"),
    "shard deleted": (
        [Fail(Code.FAILED_PRECONDITION, "shard provided in VGTID, -80, not found")],
        SourceUnsuitable,
        "resharded away",
    ),
    "only some of the shards of a reshard": (
        [Fail(Code.INTERNAL, "not all journaling participants are in the stream: journal: id:7")],
        StreamStopped,
        "the keyspace was resharded",
    ),
    "partial row images": (
        [Fail(Code.UNKNOWN, "partial row image encountered")],
        SourceUnsuitable,
        "binlog_row_image=FULL",
    ),
    "unknown event type": ([response(event(99))], StreamStopped, "type 99"),
    "COMMIT without BEGIN": ([response(commit())], StreamStopped, "without BEGIN"),
    "ROW without BEGIN": ([response(FIELDS, ROW_5)], StreamStopped, "without BEGIN"),
    "rows without VGTID": ([response(begin(), FIELDS, ROW_5, commit())], StreamStopped, "without its position"),
    "DDL without VGTID": (
        [response(event(pb.DDL, statement="DROP TABLE customers"))],
        StreamStopped,
        "DDL came without",
    ),
    "copy phase": ([response(begin(), event(pb.LASTPK))], StreamStopped, "copies tables"),
    "copy completed": ([response(event(pb.COPY_COMPLETED))], StreamStopped, "copies tables"),
    "an event of a shard that was not asked for": (
        [response(begin("c0-"))],
        StreamStopped,
        "was the keyspace resharded",
    ),
    "bytes that are no message": ([b"\xff\xff\xff"], StreamStopped, "not be decoded"),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_come_after_all_before_them_and_then_every_time(name: str) -> None:
    steps, kind, text = ENDS[name]
    with Vtgate([transaction(11, FIELDS, ROW_5), *steps]) as vtgate, source_of(vtgate) as source:
        done, error = read_to_end(source)
        assert list(map(summary, done)) == [(11, 1, set())]
        assert type(error) is kind
        assert text in str(error)
        with pytest.raises(kind):
            source.poll(0, 1)


def test_a_position_that_a_primary_lacks_is_lost() -> None:
    steps = [Fail(Code.INVALID_ARGUMENT, "GTIDSet Mismatch: requested source position")]
    _, error = play(*steps, parts={"tablet_type": "primary"})
    assert type(error) is HistoryLost


def test_a_message_beyond_the_limit_stops_the_stream_with_the_remedy() -> None:
    large = transaction(11, FIELDS, rows("customers", inserted("5", "x" * 100_000)))
    done, error = play(large, parts={"message_bytes_max": 10_000})
    assert done == []
    assert type(error) is StreamStopped
    assert "message_bytes_max" in error.hint
    done, error = play(large)
    assert len(done) == 1


def test_every_routine_end_can_be_opened_again_and_nothing_is_lost_or_repeated() -> None:
    log = Log(ends_after=3, end=Fail(Code.UNAVAILABLE, "transport is closing: max_age"))
    for key in range(21):
        log.append(FIELDS, rows("customers", inserted(str(key), "x")))
    with Vtgate(then=log) as vtgate:
        source = VStreamSource(address_of(vtgate), SHARD, TABLES)
        position, keys = up_to(10), []
        while not position.contains(up_to(31)):
            source.open(position)
            done, error = read_to_end(source)
            assert type(error) is SourceUnavailable
            assert done, "no progress"
            for each in done:
                position = position.union(each.position)
                keys += [one.after["id"] for one in each.changes if one.after is not None]
        source.close()
        assert keys == list(range(21))
        assert len(vtgate.requests) == 7


def test_vtgate_restarts() -> None:
    log = Log()
    log.append(FIELDS, ROW_5)
    with Vtgate(then=log) as vtgate, source_of(vtgate) as source:
        assert len(take(source, 1)) == 1
        vtgate.stop()
        assert type(read_to_end(source)[1]) is SourceUnavailable
        with pytest.raises(SourceUnavailable, match="UNAVAILABLE"):
            source.open(up_to(11))
        with pytest.raises(SourceUnavailable, match="not open"):
            source.poll(0, 1)
        vtgate.start()
        log.append(FIELDS, ROW_5)
        source.open(up_to(11))
        assert [each.position for each in take(source, 1)] == [number(12)]


# -- what is asked ---------------------------------------------------------------------------------------


def test_the_request() -> None:
    address = {"tablet_type": "rdonly", "cells": "zone1", "chunk_bytes": 1 << 20}
    with Vtgate([transaction(11)]) as vtgate:
        stream = VStream(
            address_of(vtgate, **address), {"customers": ("id",), "odd`name": ("a", "b")}, key_range="-40"
        )
        stream.open({SHARD: up_to(10)})
        take(stream, 1)
        stream.close()
        (request,) = vtgate.requests
    assert request.tablet_type == pb.RDONLY
    assert [(each.keyspace, each.shard, each.gtid) for each in request.vgtid.shard_gtids] == [
        (KEYSPACE, SHARD, gtid(10))
    ]
    assert [(rule.match, rule.filter) for rule in request.filter.rules] == [
        ("customers", "select `id` from `customers` where in_keyrange('-40')"),
        ("odd`name", "select `a`, `b` from `odd``name` where in_keyrange('-40')"),
        ("freshness_heartbeat", "select * from `freshness_heartbeat`"),
    ]
    assert request.filter.field_event_mode == pb.BEST_EFFORT, "a table that is gone must not end the stream"
    flags = request.flags
    assert (flags.stop_on_reshard, flags.exclude_keyspace_from_table_name) == (True, True)
    assert (flags.heartbeat_interval, flags.transaction_chunk_size, flags.cells) == (5, 1 << 20, "zone1")


def test_only_the_key_is_asked_for_and_read() -> None:
    announced = fields("customers", (column("id", 265),))
    moved = rows("customers", change(image("5"), image("6")))
    with Vtgate([transaction(11, announced, moved)]) as vtgate:
        source = VStreamSource(address_of(vtgate), SHARD, {"customers": ("id",)})
        source.open(up_to(10))
        (done,) = take(source, 1)
        source.close()
    (changed,) = done.changes
    assert (changed.before, changed.after) == ({"id": 5}, {"id": 6})


UNFIT = (
    "error in vstream for ks/-80 on tablet zone1-101: target: ks.-80.replica: vttablet: rpc error: code = Unknown"
    " desc = stream (at source tablet) error @ (including the GTID we failed to process) MySQL56/x:1-12: cannot use"
    " column names in vstream filter as the current table schema for customers does not match the binlog"
)


def test_a_stream_gets_past_rows_from_before_a_ddl() -> None:
    """With all columns the rows come under the names @1, @2, and the table is raised. Later streams ask for the keys
    alone again."""
    unmatched = fields("customers", (column("@1", 265), column("@2", 6165)))
    old = rows("customers", change(image("5", "x"), image("6", "x")))
    left = Fail(Code.UNAVAILABLE, "a tablet left")
    scripts: list[list[Any]] = [
        [transaction(11), Fail(Code.UNKNOWN, UNFIT)],
        [transaction(12, unmatched, old), left],
        [left],
    ]
    done: list[Transaction] = []
    with Vtgate(*scripts) as vtgate:
        source = VStreamSource(address_of(vtgate), SHARD, {"customers": ("id",)})
        for _ in scripts:
            source.open(up_to(10 + len(done)))
            more, error = read_to_end(source)
            assert isinstance(error, SourceUnavailable)
            done += more
        source.close()
        asked = [request.filter.rules[0].filter for request in vtgate.requests]
    assert asked == ["select `id` from `customers`", "select * from `customers`", "select `id` from `customers`"]
    assert [summary(each) for each in done] == [(11, 0, set()), (12, 0, {"customers"})]
    assert "@1" in done[1].reasons[0]


NO_TABLET = Fail(
    Code.CANCELLED,
    "failed to find a REPLICA tablet for VStream in shop/-80 within the zone1 cell(s): context has expired",
)


@pytest.mark.parametrize(
    ("purged", "kind"), [(up_to(9), SourceUnavailable), (up_to(10), SourceUnavailable), (up_to(12), HistoryPurged)]
)
def test_a_purged_history_is_noticed_where_vtgate_only_finds_no_tablet(
    purged: MysqlGtidSet, kind: type[FreshnessError]
) -> None:
    """vtgate leaves tablets that have purged the position out of its search, and keeps their word to itself."""
    with Vtgate(then=[NO_TABLET]) as vtgate:
        source = VStreamSource(address_of(vtgate), SHARD, TABLES, read_purged=lambda: purged)
        for _ in range(2):
            source.open(up_to(10))
            _, error = read_to_end(source)
        source.close()
    assert isinstance(error, kind)
    assert isinstance(error, HistoryPurged) == (kind is HistoryPurged)
    assert "failed to find a REPLICA tablet" in error.message


def test_an_empty_start_is_never_sent() -> None:
    """vtgate would copy the tables."""
    with Vtgate() as vtgate:
        source = VStreamSource(address_of(vtgate), SHARD, TABLES)
        with pytest.raises(HistoryPurged, match="is empty"):
            source.open(empty_position("mysql"))
        with pytest.raises(StreamStopped, match="tagged"):
            source.open(MysqlGtidSet.parse(f"{UUID}:1-3:tag:1"))
        assert vtgate.requests == []


# -- much ------------------------------------------------------------------------------------------------


def test_a_slow_caller_slows_vtgate_and_loses_nothing() -> None:
    total, sent = 3_000, 0

    def script(_: pb.VStreamRequest) -> Iterator[pb.VStreamResponse]:
        nonlocal sent
        for last in range(11, 11 + total):
            sent += 1
            yield transaction(last, FIELDS, rows("customers", inserted("5", "x" * 20_000)))
        yield from [transaction(11 + total)]

    with Vtgate(script) as vtgate, source_of(vtgate, queue=QueueBounds(10)) as source:
        wait_until_full(source, 10)
        assert sent < total
        done = take(source, total)
        assert [each.position for each in done[-2:]] == [number(9 + total), number(10 + total)]


@pytest.mark.parametrize("rows_max", [200_000, 1_000_000])
def test_a_transaction_in_pieces_with_very_many_rows(rows_max: int) -> None:
    """As with transaction_chunk_size: the end arrives long after the rows."""
    pieces, rows_of_piece = 220, 1_000
    announced = fields("customers", (column("id", 265),))

    def script(_: pb.VStreamRequest) -> Iterator[pb.VStreamResponse]:
        yield response(begin(), announced)
        for piece in range(pieces):
            keys = range(piece * rows_of_piece, (piece + 1) * rows_of_piece)
            yield response(rows("customers", *(inserted(str(key)) for key in keys)))
        yield response(vgtid(11), commit())

    with Vtgate(script) as vtgate, source_of(vtgate, bounds=Bounds(rows_max=rows_max)) as source:
        (done,) = take(source, 1)
    is_whole = rows_max >= pieces * rows_of_piece
    assert len(done.changes) == (pieces * rows_of_piece if is_whole else 0)
    assert done.raised_tables == (frozenset() if is_whole else {"customers"})
