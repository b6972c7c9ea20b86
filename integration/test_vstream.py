"""The VStream source against a stand-in for vtgate, over gRPC: every shape and every error that vtgate is known for.

The stand-in plays scripts (``integration/servers/vtgate.py``). What the shapes mean in detail is tested without a
network in ``tests/unit/test_vstream_transaction.py``; a real Vitess is in ``compose/``.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from freshness.backends.memcached import MemcachedNode
from freshness.backends.schema import keyspace_id
from freshness.cachekey import tombstone_key
from freshness.config import load_config
from freshness.driver import BlockingDriver, drive, running_clock
from freshness.envelope import NodeRecord, Tombstone, record_key
from freshness.errors import (
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.keycolumn import ColumnKind, KeyColumn
from freshness.membership import NodePolicy
from freshness.placement import Placement
from freshness.position import MysqlGtidSet, Position, empty_position
from freshness.registry import build_registry
from freshness.request import Add, Get, Head, Item
from freshness.source import Source, Transaction
from freshness.vtgate_address import VtgateAddress
from integration.servers import Memcached
from integration.servers.vtgate import (
    KEYSPACE,
    SHARD,
    UUID,
    Certificates,
    Fail,
    Hold,
    Log,
    Script,
    Step,
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
    make_certificates,
    other,
    response,
    rows,
    transaction,
    vgtid,
)
from invalidator.loop import LoopObserver, OpenStream, Poll, run_loop
from invalidator.proto import vitess_pb2 as pb
from invalidator.shard import KeyFinder, ShardInvalidator
from invalidator.vstream import VStream, VStreamSource
from invalidator.vstream_journal import ShardsMoved
from invalidator.vstream_reader import ShardTransaction
from invalidator.vstream_transaction import Bounds

TABLES: Mapping[str, Sequence[str]] = {"customers": (), "orders": ()}
ARRIVES_SECONDS = 30.0
FIELDS = fields("customers")
ROW_5 = rows("customers", inserted("5", "Ann"))
Code = grpc.StatusCode


def up_to(last: int) -> Position:
    return MysqlGtidSet.parse(f"{UUID}:1-{last}")


def number(which: int) -> Position:
    return MysqlGtidSet.of(UUID, which)


def address_of(vtgate: Vtgate, **parts: Any) -> VtgateAddress:
    return VtgateAddress("127.0.0.1", KEYSPACE, vtgate.port, **parts)


def wait_until(ask: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + ARRIVES_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)
    return answer


def take(source: VStreamSource | VStream, count: int) -> list[Any]:
    """So many transactions. A stream without them fails the test instead of hanging it."""
    taken: list[Any] = []
    deadline = time.monotonic() + ARRIVES_SECONDS
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} arrived"
        taken += source.poll(0.2, count - len(taken))
    return taken


def read_to_end(source: VStreamSource | VStream) -> tuple[list[Any], FreshnessError]:
    """What comes before the error that ends the stream, and the error."""
    taken: list[Any] = []
    deadline = time.monotonic() + ARRIVES_SECONDS
    while time.monotonic() < deadline:
        try:
            taken += source.poll(0.2, 100)
        except FreshnessError as error:
            return taken, error
    raise AssertionError(f"the stream did not end; it brought {taken[-3:]}")


@contextmanager
def source_of(
    vtgate: Vtgate, *, start: int = 10, parts: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[VStreamSource]:
    source = VStreamSource(address_of(vtgate, **(parts or {})), SHARD, TABLES, **options)
    source.open(up_to(start))
    try:
        yield source
    finally:
        source.close()


def play(*steps: Any, **options: Any) -> tuple[list[Transaction], FreshnessError]:
    """What one stream with this script brings, and the error at its end."""
    with Vtgate(steps) as vtgate, source_of(vtgate, **options) as source:
        return read_to_end(source)


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
    "OTHER": ([other(11)], [(11, 0, set())]),
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
        [
            response(
                begin(), journal([SHARD], {}, migration_type=pb.TABLES, tables=["x"]), vgtid(11), commit()
            )
        ],
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
    "maximum age of a stream": (
        [Fail(Code.UNAVAILABLE, "stream exceeded its maximum age")],
        SourceUnavailable,
        "maximum age",
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
    "only some of the shards of a merge": (
        [Fail(Code.INTERNAL, "not all journaling participants are in the stream: journal: id:7")],
        StreamStopped,
        "all shards of the keyspace",
    ),
    "partial row images": (
        [Fail(Code.UNKNOWN, "partial row image encountered")],
        SourceUnsuitable,
        "binlog_row_image=FULL",
    ),
    "unknown event type": ([response(event(99))], StreamStopped, "type 99"),
    "COMMIT without BEGIN": ([response(commit())], StreamStopped, "without BEGIN"),
    "ROW without BEGIN": ([response(FIELDS, ROW_5)], StreamStopped, "without BEGIN"),
    "rows without VGTID": (
        [response(begin(), FIELDS, ROW_5, commit())],
        StreamStopped,
        "without its position",
    ),
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
    log = Log(ends_after=3, end=Fail(Code.UNAVAILABLE, "stream exceeded its maximum age"))
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


# -- the connection --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_login(certificates: Certificates) -> None:
    script: Script = [transaction(11, FIELDS, ROW_5)]
    with Vtgate(then=script, users={"app": "geheim"}) as vtgate:
        with source_of(vtgate, parts={"user": "app", "password": "geheim"}) as source:
            assert len(take(source, 1)) == 1
        assert vtgate.logins[0]["username"] == "app"
        for parts, word in (
            ({}, "static authentication"),
            ({"user": "app", "password": "x"}, "check user and password"),
        ):
            with source_of(vtgate, parts=parts) as source:
                _, error = read_to_end(source)
            assert type(error) is SourceUnsuitable
            assert word in error.hint
            assert "geheim" not in str(error)


def test_tls_and_login(certificates: Certificates) -> None:
    script = [transaction(11, FIELDS, ROW_5)]
    with (
        Vtgate(script, users={"app": "geheim"}, certificates=certificates) as vtgate,
        source_of(vtgate, parts={"user": "app", "password": "geheim", "tls_ca": certificates.ca}) as source,
    ):
        assert len(take(source, 1)) == 1


def test_tls_with_a_client_certificate(certificates: Certificates) -> None:
    script: Script = [transaction(11, FIELDS, ROW_5)]
    with Vtgate(then=script, certificates=certificates, wants_client_certificate=True) as vtgate:
        mine = {"tls_ca": certificates.ca, "tls_cert": certificates.cert, "tls_key": certificates.key}
        with source_of(vtgate, parts=mine) as source:
            assert len(take(source, 1)) == 1
        with (
            pytest.raises((SourceUnsuitable, SourceUnavailable)),
            source_of(vtgate, parts={"tls_ca": certificates.ca}) as source,
        ):
            raise read_to_end(source)[1]


def test_a_vtgate_that_nobody_vouches_for_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    stranger = make_certificates(tmp_path)
    with (
        Vtgate(then=[transaction(11)], certificates=certificates) as vtgate,
        pytest.raises(SourceUnsuitable, match="tls_ca"),
        source_of(vtgate, parts={"tls_ca": stranger.ca}),
    ):
        pass


def test_plaintext_and_tls_mixed_up_is_said(certificates: Certificates) -> None:
    with (
        Vtgate(then=[]) as vtgate,
        pytest.raises(SourceUnsuitable, match="check tls"),
        source_of(vtgate, parts={"tls_ca": certificates.ca}),
    ):
        pass
    with (
        Vtgate(then=[], certificates=certificates) as vtgate,
        pytest.raises(SourceUnavailable),
        source_of(vtgate, parts={"connect_seconds": 2.0}),
    ):
        pass


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with (
        Vtgate(then=[]) as vtgate,
        pytest.raises(SourceUnsuitable, match="cannot be read: No such file"),
        source_of(vtgate, parts={"tls_ca": tmp_path / "nowhere.pem"}),
    ):
        pass


def test_a_port_where_nobody_listens() -> None:
    with Vtgate() as vtgate:
        pass
    with pytest.raises(SourceUnavailable, match="UNAVAILABLE"), source_of(vtgate):
        pass


def test_a_port_that_is_no_vtgate() -> None:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = VtgateAddress("127.0.0.1", KEYSPACE, server.getsockname()[1], connect_seconds=0.5)
        with pytest.raises(SourceUnavailable, match="no answer within"):
            VStreamSource(address, SHARD, TABLES).open(up_to(10))


def test_a_silent_vtgate_is_given_up() -> None:
    with Vtgate([transaction(11), Hold()]) as vtgate, source_of(vtgate, silence_seconds=2.0) as source:
        done, error = read_to_end(source)
        assert len(done) == 1
        assert type(error) is SourceUnavailable
        assert "not even a heartbeat" in error.message


def wait_until_full(source: VStreamSource, count: int) -> None:
    reader = source._stream._reader
    assert reader is not None
    mailbox = reader.mailbox
    wait_until(lambda: len(mailbox._waiting) == count, "the mailbox is full")


def test_heartbeats_of_vtgate_are_signs_of_life_and_nothing_else() -> None:
    hold = Hold()
    with Vtgate([hold, heartbeat(), Hold()]) as vtgate, source_of(vtgate) as source:
        reader = source._stream._reader
        assert reader is not None
        before = reader.heard_at
        hold.released.set()
        wait_until(lambda: reader.heard_at > before, "the heartbeat is heard")
        assert source.poll(0, 10) == []


def assert_closes(source: VStreamSource) -> None:
    reader = source._stream._reader
    assert reader is not None
    source.close()
    assert not reader._thread.is_alive()
    source.close()


def test_closing_ends_a_thread_that_waits_for_vtgate() -> None:
    with Vtgate([Hold()]) as vtgate, source_of(vtgate) as source:
        assert_closes(source)


def test_closing_ends_a_thread_that_waits_for_room() -> None:
    many = [transaction(last, FIELDS, ROW_5) for last in range(11, 40)]
    with Vtgate(many) as vtgate, source_of(vtgate, transactions_queued_max=3) as source:
        wait_until_full(source, 3)
        assert_closes(source)


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


def test_an_empty_start_is_never_sent() -> None:
    """vtgate would copy the tables."""
    with Vtgate() as vtgate:
        source = VStreamSource(address_of(vtgate), SHARD, TABLES)
        with pytest.raises(HistoryPurged, match="is empty"):
            source.open(empty_position("mysql"))
        with pytest.raises(StreamStopped, match="tagged"):
            source.open(MysqlGtidSet.parse(f"{UUID}:1-3:tag:1"))
        assert vtgate.requests == []


# -- several shards --------------------------------------------------------------------------------------


def test_the_current_positions_of_all_shards() -> None:
    shards = {"-80": 10, "80-": 20}

    def current(*known: str) -> pb.VStreamResponse:
        entries = [
            pb.ShardGtid(keyspace=KEYSPACE, shard=shard, gtid=gtid(last) if shard in known else "current")
            for shard, last in shards.items()
        ]
        return response(event(pb.VGTID, vgtid=pb.VGtid(shard_gtids=entries)), event(pb.OTHER))

    with Vtgate(then=[current("80-"), current("-80", "80-"), Hold()]) as vtgate:
        assert VStream(address_of(vtgate), TABLES).find_current() == {"-80": up_to(10), "80-": up_to(20)}
        assert VStreamSource(address_of(vtgate), "80-", TABLES).find_current() == up_to(20)
        with pytest.raises(SourceUnsuitable, match="has no shard 0"):
            VStreamSource(address_of(vtgate), "0", TABLES).find_current()
        (entry,) = vtgate.requests[0].vgtid.shard_gtids
    assert (entry.keyspace, entry.shard, entry.gtid) == (KEYSPACE, "", "current")


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([], SourceUnavailable),
        ([Fail(Code.UNAUTHENTICATED, "x")], SourceUnsuitable),
        ([Hold()], SourceUnavailable),
    ],
    ids=["end", "refused", "silent"],
)
def test_no_current_position(steps: list[Any], kind: type[FreshnessError]) -> None:
    with Vtgate(steps) as vtgate, pytest.raises(kind):
        VStream(address_of(vtgate), TABLES).find_current(timeout_seconds=1.0)


def test_each_shard_has_its_own_columns_and_position() -> None:
    """In the middle of a schema change two shards announce different columns."""
    turned = fields("customers", (column("name", 6165, charset=255), column("id", 265)), shard="80-")
    script: list[Step] = [
        response(
            begin("-80"),
            fields("customers", shard="-80"),
            rows("customers", inserted("5", "Ann"), shard="-80"),
        ),
        transaction(21, turned, rows("customers", inserted("Bob", "6"), shard="80-"), shard="80-"),
        response(vgtid(11, "-80", others={"80-": 21}), commit("-80")),
        heartbeat(),
        response(
            begin("-80"),
            rows("customers", inserted("7", "Cid"), shard="-80"),
            vgtid(12, "-80", others={"80-": 21}),
            commit("-80"),
        ),
        transaction(22, rows("customers", inserted("Dan", "8"), shard="80-"), shard="80-"),
        Fail(Code.UNAVAILABLE, "age"),
    ]
    with Vtgate(script, [Hold()]) as vtgate:
        stream = VStream(address_of(vtgate), TABLES)
        stream.open({"-80": up_to(10), "80-": up_to(20)})
        done, _ = read_to_end(stream)
        assert [
            (each.shard, each.transaction.position, each.transaction.changes[0].after) for each in done
        ] == [
            ("80-", number(21), {"name": "Bob", "id": 6}),
            ("-80", number(11), {"id": 5, "name": "Ann"}),
            ("-80", number(12), {"id": 7, "name": "Cid"}),
            ("80-", number(22), {"name": "Dan", "id": 8}),
        ]
        assert stream.positions == {"-80": up_to(12), "80-": up_to(22)}
        stream.open(stream.positions)
        wait_until(lambda: len(vtgate.requests) == 2, "it is opened again")
        stream.close()
    assert {each.shard: each.gtid for each in vtgate.requests[1].vgtid.shard_gtids} == {
        "-80": gtid(12),
        "80-": gtid(22),
    }


def test_the_position_covers_what_was_taken_and_not_what_only_arrived() -> None:
    script: list[Step] = [transaction(11), transaction(12), Hold()]
    with Vtgate(script) as vtgate:
        stream = VStream(address_of(vtgate), TABLES)
        stream.open({SHARD: up_to(10)})
        assert len(take(stream, 1)) == 1
        assert stream.positions == {SHARD: up_to(11)}
        stream.close()


def test_an_event_without_a_shard_belongs_to_the_only_one_there_is() -> None:
    old = transaction(11, FIELDS, ROW_5)
    for each in old.events:
        each.shard = each.keyspace = ""
    with Vtgate(then=[old]) as vtgate:
        with source_of(vtgate) as source:
            assert len(take(source, 1)) == 1
        stream = VStream(address_of(vtgate), TABLES)
        stream.open({"-80": up_to(10), "80-": up_to(10)})
        _, error = read_to_end(stream)
        stream.close()
    assert type(error) is StreamStopped


# -- resharding ------------------------------------------------------------------------------------------

SPLIT = journal(["-80"], {"-40": 3, "40-80": 4})
MERGED = {"-": 7}


def test_a_split_hands_over_after_all_before_it() -> None:
    log_of_new = [
        transaction(
            4,
            fields("customers", shard="-40"),
            rows("customers", inserted("5", "x"), shard="-40"),
            shard="-40",
        )
    ]
    script = [transaction(11, FIELDS, ROW_5), response(begin(), SPLIT, vgtid(12), commit())]
    with Vtgate(script, script[1:], log_of_new) as vtgate:
        with source_of(vtgate) as source:
            done, moved = read_to_end(source)
            assert [each.position for each in done] == [number(11)]
            assert isinstance(moved, ShardsMoved)
            assert (moved.keyspace, moved.journal_id, moved.old) == (KEYSPACE, 7, ("-80",))
            assert moved.new == {"-40": up_to(3), "40-80": up_to(4)}
        # A process that dies here and begins again at what was delivered meets it again.
        with source_of(vtgate, start=11) as source:
            assert isinstance(read_to_end(source)[1], ShardsMoved)
        follower = VStreamSource(address_of(vtgate), "-40", TABLES)
        follower.open(moved.new["-40"])
        assert [each.position for each in take(follower, 1)] == [number(4)]
        follower.close()
        assert vtgate.requests[2].vgtid.shard_gtids[0].gtid == gtid(3)


def test_a_merge_hands_over_when_both_have_come_to_it() -> None:
    script = [
        response(begin("-80"), journal(["-80", "80-"], MERGED, "-80")),
        response(vgtid(11, "-80"), commit("-80")),
        transaction(21, shard="80-"),
        response(begin("80-"), journal(["-80", "80-"], MERGED, "80-"), vgtid(22, "80-"), commit("80-")),
    ]
    with Vtgate(script) as vtgate:
        stream = VStream(address_of(vtgate), TABLES)
        stream.open({"-80": up_to(10), "80-": up_to(20)})
        done, moved = read_to_end(stream)
        stream.close()
    assert done == [ShardTransaction("80-", done[0].transaction)]
    assert isinstance(moved, ShardsMoved)
    assert (moved.old, moved.new) == (("-80", "80-"), {"-": up_to(7)})


def test_a_merge_that_breaks_off_before_both_have_come_is_only_an_end() -> None:
    script = [response(begin("-80"), journal(["-80", "80-"], MERGED, "-80"), vgtid(11, "-80"), commit("-80"))]
    with Vtgate(script) as vtgate:
        stream = VStream(address_of(vtgate), TABLES)
        stream.open({"-80": up_to(10), "80-": up_to(20)})
        done, error = read_to_end(stream)
        assert stream.positions == {"-80": up_to(10), "80-": up_to(20)}
        stream.close()
    assert done == []
    assert type(error) is SourceUnavailable


def test_a_merge_of_which_only_a_part_is_in_the_stream_stops_it() -> None:
    done, error = play(transaction(11), response(begin(), journal(["-80", "80-"], MERGED)))
    assert len(done) == 1
    assert type(error) is StreamStopped
    assert "'80-'" in error.message
    assert "one stream with all of them" in error.hint


# -- much ------------------------------------------------------------------------------------------------


def test_a_slow_caller_slows_vtgate_and_loses_nothing() -> None:
    total, sent = 3_000, 0

    def script(_: pb.VStreamRequest) -> Iterator[pb.VStreamResponse]:
        nonlocal sent
        for last in range(11, 11 + total):
            sent += 1
            yield transaction(last, FIELDS, rows("customers", inserted("5", "x" * 20_000)))
        yield from [transaction(11 + total)]

    with Vtgate(script) as vtgate, source_of(vtgate, transactions_queued_max=10) as source:
        wait_until_full(source, 10)
        assert sent < total
        done = take(source, total)
        assert [each.position for each in done[-2:]] == [number(9 + total), number(10 + total)]


@pytest.mark.parametrize("rows_max", [200_000, 1_000_000])
def test_a_transaction_in_pieces_with_very_many_rows(rows_max: int) -> None:
    """As with transaction_chunk_size: the end is told long after the rows."""
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


# -- from the stream to the cache ------------------------------------------------------------------------

CONFIG = """
[cache]
nodes = ["{node}"]
namespace = "shop"
lease_seconds = 2
tombstone_ttl_seconds = 30

[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app:app@127.0.0.1:1/shop"
lineage = "shop/-80"

[objects.customer]
keyspace = "shop"
table = "customers"
"""
BEAT_COLUMNS = (
    column("id", 6165, charset=11),
    *(column(name, 265) for name in ("sequence", "min_us", "max_us", "epoch")),
    column("watermark", 6165, charset=11),
)


class Process:
    """The invalidator's own loop on a thread, fed by a source."""

    def __init__(self, node: Memcached, log: Log, vtgate: Vtgate, folder: Path) -> None:
        path = folder / "freshness.toml"
        path.write_text(CONFIG.format(node=node.address))
        config = load_config(path, {})
        cache = config.cache
        self.registry = build_registry(config, lambda *_: (KeyColumn("id", ColumnKind.INTEGER),), keyspace_id)
        placement = Placement(cache.nodes, cache.namespace)
        policy = NodePolicy(
            namespace=cache.namespace,
            lineage="shop/-80",
            ring=placement.ring_version,
            objects={name: each.policy.fingerprint for name, each in self.registry.items()},
            tombstone_ttl_seconds=cache.tombstone_ttl_seconds,
            lease_seconds=cache.lease_seconds,
            trail_seconds=cache.trail_seconds,
            heartbeat_age_max_seconds=cache.heartbeat_age_max_seconds,
            node_refresh_seconds=cache.node_refresh_seconds,
        )
        lives = iter(range(1, 100))
        self.written: dict[int, float] = {}
        self._shard = ShardInvalidator.create(
            cache.nodes,
            policy,
            placement,
            KeyFinder(self.registry),
            instance="me",
            clock=running_clock,
            nonce=lambda: bytes([next(lives)] * 8),
            find_heartbeat=self.written.get,
            nothing=empty_position("mysql"),
        )
        columns = {"customers": ("id",)}
        self._source: Source = VStreamSource(address_of(vtgate), SHARD, columns)
        self._driver = BlockingDriver(
            {name: MemcachedNode(name) for name in cache.nodes},
            time.sleep,
            read_head=lambda: Head(up_to(log.last), 1),
        )
        self._stopping = threading.Event()
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)

    def item(self, key: int) -> bytes:
        return self.registry["customer"].builder.build((key,)).item

    def __enter__(self) -> Process:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._source.close()
        if not self._failures.empty():
            raise self._failures.get()

    def _run(self) -> None:
        try:
            loop = run_loop(
                self._shard,
                transactions_max=100,
                is_stopping=self._stopping.is_set,
                observer=LoopObserver(),
            )
            drive(loop, self._answer)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that joins
            self._failures.put(error)

    def _answer(self, step: Any) -> Any:
        match step:
            case Poll():
                return self._source.poll(step.timeout_seconds, step.transactions_max)
            case OpenStream():
                return self._source.open(step.start)
            case _:
                return self._driver.answer(step)


def test_changes_in_vitess_invalidate_memcached(memcached: Memcached, tmp_path: Path) -> None:
    """Through breaks of the stream, too: vtgate ends each after 4 transactions."""
    announced = fields("customers", (column("id", 265),))
    beats = fields("freshness_heartbeat", BEAT_COLUMNS)
    log = Log(ends_after=4, end=Fail(Code.UNAVAILABLE, "stream exceeded its maximum age"))
    mine = MemcachedNode(memcached.address)

    def get(key: bytes) -> bytes | None:
        (reply,) = mine.perform([Get(key)])
        return bytes(reply.value) if isinstance(reply, Item) else None

    def record() -> NodeRecord | None:
        found = get(record_key("shop", "shop/-80"))
        return None if found is None else NodeRecord.decode(found)

    def wait_acknowledged(last: int) -> NodeRecord:
        def find() -> NodeRecord | None:
            found = record()
            return found if found is not None and found.progress.contains(number(last)) else None

        found: NodeRecord = wait_until(find, f"{last} is acknowledged")
        return found

    with Vtgate(then=log) as vtgate, Process(memcached, log, vtgate, tmp_path) as process:
        wait_until(record, "the node is joined")
        for key in range(10):
            mine.perform([Add(process.item(key), b"old", 60)])
        numbers = {
            key: log.append(announced, rows("customers", change(image(str(key)), image(str(key)))))
            for key in range(9)
        }
        wait_acknowledged(numbers[8])
        for key, which in numbers.items():
            assert get(process.item(key)) is None
            tombstone = get(tombstone_key(process.item(key)))
            assert tombstone is not None
            assert Tombstone.decode(tombstone).positions["shop/-80", 1] == number(which)
        assert get(process.item(9)) == b"old"
        # TRUNCATE: no rows, but the floor of the table.
        truncated = log.append_ddl("TRUNCATE TABLE customers")
        assert wait_acknowledged(truncated).table_floors == {"customers": number(truncated)}
        # An own heartbeat, brought back by the stream, opens the node.
        process.written[1] = running_clock()
        log.append(beats, rows("freshness_heartbeat", inserted("me", "1", "5", "6", "1", "")))
        wait_until(lambda: (found := record()) is not None and found.is_open, "the node is open")
    mine.close()
