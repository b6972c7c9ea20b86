"""Assembling transactions from their parts, without a server; and events as bytes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

import pytest

from freshness.config.keyspace import SkippedTransaction
from freshness.database.foreignkey import Cascades, Cause
from freshness.errors import StreamStopped
from freshness.position import MariadbPosition, MysqlGtidSet
from freshness.stream.heartbeat import topology_row
from freshness.stream.source import RowChange, Transaction
from invalidator.binlog import transaction as transaction_module
from invalidator.binlog.decoder import EventDecoder
from invalidator.binlog.fasttrack import FastTrack, make_decoder
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable
from invalidator.binlog.transaction import Subscription, TransactionAssembler
from invalidator.binlog.wire.event import (
    HARMLESS,
    GroupStart,
    parse_event,
    parse_mysql_gtid,
    parse_query,
    parse_xa_prepare,
)
from invalidator.statement import Xid

SID = "00000000-0000-0000-0000-000000000001"
TABLES = frozenset(("goods", "child"))
XID = Xid(b"x", b"", 1)
XA_TEXT = "X'78',X'',1"
HEARTBEAT = {"id": "me", "sequence": 3, "min_us": 1, "max_us": 2, "epoch": 4}


def assembler(
    flavor: str = "mysql",
    rows_max: int = 1000,
    cascades: Cascades | None = None,
    piece_rows: int | None = None,
    subscription: Subscription | None = None,
) -> TransactionAssembler:
    if subscription is None:
        subscription = Subscription(flavor, "shop", TABLES, "freshness_heartbeat")
    made = TransactionAssembler(
        subscription, rows_max=rows_max, piece_rows=piece_rows, find_cascades=lambda: cascades or {}
    )
    made.restart()
    return made


def start(number: int = 1, *, in_transaction: bool = False) -> GroupStart:
    return GroupStart(MysqlGtidSet.of(SID, number), number * 1000, in_transaction)


def table(name: str, database: str = "shop", *, wanted: bool = True) -> MappedTable:
    return MappedTable(database, name, wanted, b"")


def change(identity: int, name: str = "goods") -> RowChange:
    return RowChange(name, "insert", None, {"id": identity})


def inserted(*changes: RowChange, name: str = "goods", ends_statement: bool = True) -> ChangedRows:
    return ChangedRows(table(name), "insert", ends_statement, changes)


def deleted(name: str, *, ends_statement: bool = True, wanted: bool = True) -> ChangedRows:
    changes = (RowChange(name, "delete", {"id": 1}, None),) if wanted else ()
    return ChangedRows(table(name, wanted=wanted), "delete", ends_statement, changes)


def transact(made: TransactionAssembler, *rows: ChangedRows, number: int = 1) -> Transaction:
    made.start_group(start(number))
    assert made.add_query("BEGIN", "shop") is None
    for each in rows:
        if each.table is not None:
            made.announce_table(each.table)
    for each in rows:
        made.add_rows(each)
    return made.commit()


def test_a_transaction_is_its_gtid_its_time_and_its_rows() -> None:
    assert transact(assembler(), inserted(change(1), change(2))) == Transaction(
        MysqlGtidSet.of(SID, 1), 1000, (change(1), change(2))
    )


def test_one_without_interesting_rows_still_has_its_position() -> None:
    assert transact(assembler(), deleted("boring", wanted=False)) == Transaction(MysqlGtidSet.of(SID, 1), 1000)


def test_a_commit_statement_ends_what_began_and_a_rollback_reports_its_rows() -> None:
    for end in ("COMMIT", "ROLLBACK"):
        made = assembler()
        made.start_group(start())
        assert made.add_query("BEGIN", "shop") is None
        made.announce_table(table("goods"))
        made.add_rows(inserted(change(1)))
        assert made.add_query("SAVEPOINT `a`", "shop") is None
        assert made.add_query("ROLLBACK TO `a`", "shop") is None
        ended = made.add_query(end, "shop")
        assert ended is not None
        assert ended.changes == (change(1),)


def test_a_definition_is_a_transaction_of_its_own() -> None:
    made = assembler()
    made.start_group(start())
    ended = made.add_query("TRUNCATE goods", "shop")
    assert ended is not None
    assert ended.raised_tables == {"goods"}
    assert "TRUNCATE goods" in ended.reasons[0]


def test_a_statement_inside_a_transaction_does_not_end_it() -> None:
    made = assembler("mariadb")
    made.start_group(start(in_transaction=True))
    assert made.add_query("DELETE FROM x", "shop") is None
    assert made.commit().raised_tables == TABLES


@pytest.mark.parametrize("part", ["table", "rows", "query", "commit"])
def test_a_part_without_a_gtid_stops_the_stream(part: str) -> None:
    """F61: the stream was joined inside a transaction."""
    made = assembler()
    parts = {
        "table": lambda: made.announce_table(table("goods")),
        "rows": lambda: made.add_rows(inserted(change(1))),
        "query": lambda: made.add_query("COMMIT", "shop"),
        "commit": made.commit,
    }
    with pytest.raises(StreamStopped, match="without a GTID"):
        parts[part]()


def test_a_gtid_inside_a_transaction_stops_the_stream() -> None:
    made = assembler()
    made.start_group(start(1))
    with pytest.raises(StreamStopped, match=f"{SID}:2 starts inside {SID}:1"):
        made.start_group(start(2))


def test_a_transaction_that_its_file_cuts_off_is_not_reported() -> None:
    """F29: it was never committed, and its number may come again."""
    made = assembler()
    made.start_group(start(1))
    made.add_query("BEGIN", "shop")
    made.announce_table(table("goods"))
    made.add_rows(inserted(change(1)))
    made.start_file()
    assert transact(made, inserted(change(2)), number=1).changes == (change(2),)


def test_a_row_event_that_cannot_be_decoded_raises_its_table() -> None:
    problem = ChangedRows(table("goods"), "update", True, problem="unknown type")
    ended = transact(assembler(), problem)
    assert ended.raised_tables == {"goods"}
    assert ended.reasons == ("unknown type",)


def test_a_row_event_without_rows_raises_its_table() -> None:
    assert transact(assembler(), inserted()).raised_tables == {"goods"}


def test_too_many_rows_raise_their_tables_and_are_not_kept() -> None:
    many = inserted(*(change(number) for number in range(6)))
    ended = transact(assembler(rows_max=10), inserted(change(1, "child"), name="child"), many, many, many)
    assert ended.raised_tables == TABLES
    assert len(ended.changes) <= 10


def test_reasons_are_told_once_and_bounded_and_raised_tables_are_not() -> None:
    made = assembler()
    problems = [ChangedRows(table("goods"), "update", True, problem=f"type {number}") for number in range(100)]
    other = ChangedRows(table("child"), "update", True, problem="another")
    ended = transact(made, problems[0], *problems, other)
    assert ended.reasons == tuple(f"type {number}" for number in range(transaction_module.REASONS_MAX))
    assert ended.raised_tables == TABLES


# -- pieces ---------------------------------------------------------------------------------------------


def hand_out(made: TransactionAssembler, *rows: ChangedRows, size_bytes: int = 0) -> list[Transaction]:
    """The pieces of an open transaction that these row events complete."""
    return [piece for each in rows if (piece := made.add_rows(each, size_bytes)) is not None]


def test_a_transaction_comes_in_pieces_that_say_where_they_belong() -> None:
    made = assembler(rows_max=2, piece_rows=3)
    made.start_group(start())
    made.announce_table(table("goods"))
    events = [inserted(change(2 * number), change(2 * number + 1)) for number in range(5)]
    pieces = [*hand_out(made, *events), made.commit()]
    assert [(piece.first_row, len(piece.changes), piece.is_last) for piece in pieces] == [
        (0, 4, False),
        (4, 4, False),
        (8, 2, True),
    ]
    assert [each for piece in pieces for each in piece.changes] == [change(number) for number in range(10)]
    assert {piece.position for piece in pieces} == {MysqlGtidSet.of(SID, 1)}
    assert all(not piece.raised_tables for piece in pieces)


def test_the_last_piece_may_be_empty_and_the_next_transaction_begins_at_row_0() -> None:
    made = assembler(piece_rows=1)
    made.start_group(start())
    [first] = hand_out(made, inserted(change(1)))
    last = made.commit()
    assert (first.is_last, last.first_row, last.changes, last.is_last) == (False, 1, (), True)
    made.start_group(start(2))
    [first] = hand_out(made, inserted(change(2)))
    assert (first.first_row, first.position) == (0, MysqlGtidSet.of(SID, 2))


def test_large_rows_end_a_piece_too() -> None:
    made = assembler(piece_rows=1000)
    made.start_group(start())
    half = transaction_module.PIECE_BYTES_MAX // 2
    pieces = hand_out(made, *(inserted(change(number)) for number in range(4)), size_bytes=half)
    assert [(piece.size_bytes, len(piece.changes)) for piece in pieces] == [(2 * half, 2)] * 2


def test_each_piece_has_its_own_raised_tables_and_none_is_lost() -> None:
    made = assembler("mariadb", piece_rows=1)
    made.start_group(start(in_transaction=True))
    made.add_query("DELETE FROM goods", "shop")
    [first] = hand_out(made, inserted(change(1), ends_statement=False))
    made.announce_table(table("child"))
    [second] = hand_out(made, deleted("goods", ends_statement=False))
    last = made.commit()
    assert first.raised_tables == TABLES
    assert second.raised_tables == frozenset()
    assert last.raised_tables == {"child"}


def test_pieces_of_a_transaction_that_its_file_cuts_off_have_no_last_one() -> None:
    made = assembler(piece_rows=1)
    made.start_group(start())
    assert not hand_out(made, inserted(change(1)))[0].is_last
    made.start_file()
    assert transact(made, number=2).first_row == 0


def test_rows_of_an_xa_transaction_come_in_no_pieces() -> None:
    """Whether it is committed is not known yet."""
    made = assembler(piece_rows=2)
    assert prepare(made, inserted(change(1), change(2)), inserted(change(3))).changes == ()
    committed = finish(made, f"XA COMMIT {XA_TEXT}")
    assert (committed.first_row, committed.is_last) == (0, True)
    assert committed.changes == (change(1), change(2), change(3))


def test_an_xa_transaction_of_mariadb_is_known_by_its_gtid() -> None:
    made = assembler("mariadb", piece_rows=1)
    made.start_group(start(in_transaction=True)._replace(is_xa=True))
    assert hand_out(made, inserted(change(1))) == []
    assert made.prepare(XID).changes == ()


# -- foreign keys (F23) ---------------------------------------------------------------------------------


def test_an_announced_table_without_rows_may_be_a_cascades_child_on_mariadb() -> None:
    for flavor, expected in (("mariadb", {"child"}), ("mysql", set[str]())):
        made = assembler(flavor)
        made.start_group(start(in_transaction=True))
        made.announce_table(table("goods"))
        made.announce_table(table("child"))
        made.add_rows(deleted("goods"))
        assert made.commit().raised_tables == expected


def test_each_statement_counts_for_itself() -> None:
    made = assembler("mariadb")
    made.start_group(start(in_transaction=True))
    made.announce_table(table("child"))
    made.add_rows(inserted(change(5, "child"), name="child"))
    made.announce_table(table("parent", wanted=False))
    made.announce_table(table("child"))
    made.add_rows(deleted("parent", wanted=False))
    assert made.commit().raised_tables == {"child"}


def test_an_insert_cascades_to_nothing() -> None:
    made = assembler("mariadb")
    made.start_group(start(in_transaction=True))
    made.announce_table(table("goods"))
    made.announce_table(table("child"))
    made.add_rows(inserted(change(1)))
    assert made.commit().raised_tables == frozenset()


def test_the_schema_tells_of_a_child_that_has_rows_too_and_of_one_that_refers_to_itself() -> None:
    made = assembler("mariadb", cascades={"child": frozenset((Cause("shop", "goods"), Cause("shop", "child")))})
    assert transact(made, deleted("goods", ends_statement=False), deleted("child")).raised_tables == {"child"}
    assert transact(made, deleted("child")).raised_tables == {"child"}
    assert transact(made, deleted("goods")).raised_tables == frozenset()


def test_a_new_foreign_key_is_read_when_it_comes() -> None:
    known: dict[str, frozenset[Cause]] = {}
    made = assembler("mariadb", cascades=known)
    assert transact(made, deleted("child")).raised_tables == frozenset()
    known["child"] = frozenset((Cause("shop", "child"),))
    made.start_group(start())
    made.add_query("ALTER TABLE child ADD FOREIGN KEY (a) REFERENCES child (id) ON DELETE CASCADE", "shop")
    assert transact(made, deleted("child")).raised_tables == {"child"}


def test_a_foreign_key_that_is_gone_counts_for_what_is_yet_to_be_read() -> None:
    """The schema is read as it is now, and the log as it was."""
    known = {"child": frozenset((Cause("shop", "child"),))}
    made = TransactionAssembler(Subscription("mariadb", "shop", TABLES, "beats"), find_cascades=lambda: dict(known))
    made.restart()
    known.clear()
    made.start_group(start())
    made.add_query("CREATE TABLE more (a INT REFERENCES child (id))", "shop")
    assert transact(made, deleted("child")).raised_tables == {"child"}


# -- XA (F54) -------------------------------------------------------------------------------------------


def prepare(made: TransactionAssembler, *rows: ChangedRows, xid: Xid = XID, number: int = 1) -> Transaction:
    made.start_group(start(number))
    assert made.add_query(f"XA START {XA_TEXT}", "shop") is None
    for each in rows:
        made.add_rows(each)
    assert made.add_query(f"XA END {XA_TEXT}", "shop") is None
    return made.prepare(xid)


def finish(made: TransactionAssembler, sql: str, number: int = 2) -> Transaction:
    made.start_group(start(number))
    ended = made.add_query(sql, "shop")
    assert ended is not None
    return ended


def test_xa_rows_come_at_the_commit_under_its_gtid() -> None:
    made = assembler()
    assert prepare(made, inserted(change(1))) == Transaction(MysqlGtidSet.of(SID, 1), 1000)
    made.restart()  # a new connection in between forgets nothing
    committed = finish(made, f"XA COMMIT {XA_TEXT}")
    assert (committed.changes, committed.raised_tables) == ((change(1),), frozenset())
    assert committed.position == MysqlGtidSet.of(SID, 2)
    # The name is free again.
    assert finish(made, f"XA COMMIT {XA_TEXT}", 3).raised_tables == TABLES


def test_xa_keys_come_at_the_commit() -> None:
    """Of a source that was asked for keys."""
    made = assembler()
    rows = ChangedRows(table("goods"), "update", True, items=[b"n:o:1", b"n:o:2"])
    assert prepare(made, rows).items == ()
    committed = finish(made, f"XA COMMIT {XA_TEXT}")
    assert (committed.items, committed.raised_tables) == ((b"n:o:1", b"n:o:2"), frozenset())


def test_tables_that_an_xa_transaction_raises_are_raised_at_the_commit() -> None:
    made = assembler()
    assert prepare(made, inserted()).raised_tables == frozenset()
    assert finish(made, f"XA COMMIT {XA_TEXT}").raised_tables == {"goods"}


def test_xa_rows_that_were_committed_are_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "XA_ROWS_MAX", 2)
    made = assembler()
    for number in range(5):
        prepare(made, inserted(change(number)), number=2 * number + 1)
        assert finish(made, f"XA COMMIT {XA_TEXT}", 2 * number + 2).changes == (change(number),)


def test_xa_rollback_forgets() -> None:
    made = assembler()
    prepare(made, inserted(change(1)))
    assert finish(made, f"XA ROLLBACK {XA_TEXT}") == Transaction(MysqlGtidSet.of(SID, 2), 2000)
    assert finish(made, f"XA COMMIT {XA_TEXT}", 3).raised_tables == TABLES


def test_xa_commit_of_what_changed_nothing_of_ours_raises_nothing() -> None:
    made = assembler()
    prepare(made)
    assert finish(made, f"XA COMMIT {XA_TEXT}").raised_tables == frozenset()


def test_xa_commit_that_cannot_be_read_raises_all() -> None:
    made = assembler()
    prepare(made, inserted(change(1)))
    assert finish(made, "XA COMMIT 'x'").raised_tables == TABLES


def test_xa_memory_is_bounded_and_forgets_towards_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "XA_ROWS_MAX", 2)
    monkeypatch.setattr(transaction_module, "XA_TRANSACTIONS_MAX", 2)
    made = assembler()
    prepare(made, inserted(change(1), change(2), change(3)))
    committed = finish(made, f"XA COMMIT {XA_TEXT}")
    assert committed.changes == ()
    assert committed.raised_tables == {"goods"}
    for number in range(3):
        prepare(made, inserted(change(1)), xid=Xid(b"%d" % number, b"", 1))
    assert finish(made, "XA COMMIT X'30',X'',1").raised_tables == TABLES
    assert finish(made, "XA COMMIT X'31',X'',1").changes == (change(1),)


def test_large_rows_of_an_xa_transaction_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "KEPT_BYTES_MAX", 100)
    made = assembler(piece_rows=1)
    made.start_group(start())
    made.add_query(f"XA START {XA_TEXT}", "shop")
    made.add_rows(inserted(change(1)), 101)
    committed = made.commit()  # in one phase
    assert (committed.changes, committed.raised_tables) == ((), frozenset(("goods",)))


def test_large_rows_of_a_transaction_that_is_held_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "KEPT_BYTES_MAX", 100)
    made = assembler()
    made.start_group(start())
    for number in range(3):
        made.add_rows(inserted(change(number)), 60)
    committed = made.commit()
    assert (committed.changes, committed.raised_tables) == ((change(2),), frozenset(("goods",)))


def test_keys_of_large_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "KEPT_BYTES_MAX", 100)
    made = assembler()
    made.start_group(start())
    made.add_rows(ChangedRows(table("goods"), "insert", True, items=[b"shop:good:1"]), 101)
    committed = made.commit()
    assert (committed.items, committed.raised_tables) == ((b"shop:good:1",), frozenset())


@pytest.mark.parametrize("transactions", [1, 2])
def test_bytes_of_xa_transactions_are_bounded_too(transactions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "KEPT_BYTES_MAX", 100)
    made = assembler()
    for number in range(transactions):
        made.start_group(start(number + 1))
        made.add_query(f"XA START {XA_TEXT}", "shop")
        for row in range(2):
            made.add_rows(inserted(change(row)), 60 // transactions)
        made.prepare(Xid(b"%d" % number, b"", 1))
    last = finish(made, f"XA COMMIT X'3{transactions - 1}',X'',1", 9)
    assert (last.changes, last.raised_tables) == ((), frozenset(("goods",)))
    if transactions == 2:
        assert finish(made, "XA COMMIT X'30',X'',1", 10).changes == (change(0), change(1))


# -- heartbeats -----------------------------------------------------------------------------------------


def skipping(flavor: str, *tables: str, on_skip: Callable[[], None] = lambda: None) -> Subscription:
    """The transaction 2 is skipped."""
    skip = SkippedTransaction(gtid=f"{SID}:2", tables=tables, reason="it is broken")
    gtid = MysqlGtidSet.of(SID, 2)
    return Subscription(flavor, "shop", TABLES, "freshness_heartbeat", {gtid: skip}, on_skip)


def pass_over(made: TransactionAssembler) -> Transaction:
    made.start_group(start(2))
    assert made.is_skipping
    return made.commit()


def test_a_skipped_transaction_raises_the_tables_that_the_operator_names_or_else_all() -> None:
    used: list[None] = []
    for tables, raised in (((), TABLES), (("goods",), {"goods"})):
        made = assembler(subscription=skipping("mysql", *tables, on_skip=lambda: used.append(None)))
        assert transact(made, inserted(change(1))).raised_tables == frozenset()
        assert not used
        skipped = pass_over(made)
        assert skipped.raised_tables == raised
        assert "it is broken" in skipped.reasons[0]
        assert used.pop() is None
        assert transact(made, inserted(change(3)), number=3) == Transaction(
            MysqlGtidSet.of(SID, 3), 3000, (change(3),)
        )


def test_a_skipped_transaction_raises_what_foreign_keys_reach_from_its_tables() -> None:
    made = assembler(
        "mariadb", cascades={"child": frozenset({Cause("shop", "goods")})}, subscription=skipping("mariadb", "goods")
    )
    assert pass_over(made).raised_tables == {"goods", "child"}


def test_a_skipped_transaction_may_have_added_a_foreign_key() -> None:
    known: dict[str, frozenset[Cause]] = {}
    made = TransactionAssembler(skipping("mariadb", "goods"), find_cascades=lambda: dict(known))
    made.restart()
    known["goods"] = frozenset({Cause("shop", "goods")})
    pass_over(made)
    assert transact(made, deleted("goods"), number=3).raised_tables == {"goods"}


def test_a_skipped_transaction_may_have_been_the_prepare_of_any_xa_transaction() -> None:
    made = assembler(subscription=skipping("mysql", "goods"))
    prepare(made, inserted(change(1)))
    pass_over(made)
    committed = finish(made, f"XA COMMIT {XA_TEXT}", 3)
    assert (committed.raised_tables, committed.changes) == (TABLES, ())


def test_heartbeats_are_no_changes_and_rows_of_the_database_are_no_heartbeats() -> None:
    rows = ChangedRows(
        table("freshness_heartbeat"),
        "update",
        True,
        (
            RowChange("freshness_heartbeat", "update", {"id": "me"}, HEARTBEAT),
            RowChange("freshness_heartbeat", "update", {}, {**HEARTBEAT, "id": "epoch"}),
            RowChange("freshness_heartbeat", "update", {}, {**HEARTBEAT, "id": topology_row("shop", "shop/-80")}),
            RowChange("freshness_heartbeat", "delete", HEARTBEAT, None),
        ),
    )
    ended = transact(assembler(), rows)
    assert [(beat.instance, beat.sequence, beat.epoch) for beat in ended.heartbeats] == [("me", 3, 4)]
    assert (ended.changes, ended.raised_tables, ended.reasons) == ((), frozenset(), ())


def test_a_heartbeat_that_cannot_be_read_is_told() -> None:
    row = RowChange("freshness_heartbeat", "insert", None, {**HEARTBEAT, "epoch": None})
    ended = transact(assembler(), inserted(row, name="freshness_heartbeat"))
    assert ended.heartbeats == ()
    assert "epoch" in ended.reasons[0]


# -- events as bytes ------------------------------------------------------------------------------------


def packet(kind: int, body: bytes, *, flags: int = 0, server_id: int = 7) -> bytes:
    return b"\0" + struct.pack("<IBIIIH", 1000, kind, server_id, 19 + len(body), 4711, flags) + body


def statement(sql: bytes, *, database_length: int = 4, status_length: int = 0) -> bytes:
    head = struct.pack("<IIBHH", 1, 0, database_length, 0, status_length)
    return packet(2, head + b"shop\0" + sql)


def decoder(flavor: str = "mysql") -> EventDecoder | FastTrack:
    made = make_decoder(Subscription(flavor, "shop", TABLES, "freshness_heartbeat"), find_cascades=dict)
    made.restart(has_checksum=False)
    return made


def decode(made: EventDecoder | FastTrack, data: bytes) -> Transaction | None:
    """The transaction that one packet completed."""
    found: list[Transaction] = []
    made.decode([data], found)
    assert len(found) <= 1
    return found[0] if found else None


def gtid_body(number: int) -> bytes:
    return b"\0" + uuid.UUID(SID).bytes + struct.pack("<QBQQ", number, 2, 1, 2)


def test_the_commit_time_of_a_mysql_gtid() -> None:
    plain = parse_event(packet(33, gtid_body(5)), has_checksum=False)
    assert parse_mysql_gtid(plain) == GroupStart(MysqlGtidSet.of(SID, 5), 1_000_000_000, False)
    only = gtid_body(5) + (77).to_bytes(7, "little")
    assert parse_mysql_gtid(parse_event(packet(33, only), has_checksum=False)).timestamp_us == 77
    both = gtid_body(5) + (77 | 1 << 55).to_bytes(7, "little") + (66).to_bytes(7, "little")
    assert parse_mysql_gtid(parse_event(packet(33, both), has_checksum=False)).timestamp_us == 66


def test_unknown_status_variables_do_not_hide_the_statement() -> None:
    body = struct.pack("<IIBHH", 1, 0, 4, 0, 3) + b"\xfa\xfb\xfc" + b"shop\0DELETE FROM x"
    query = parse_query(parse_event(packet(2, body), has_checksum=False))
    assert (query.sql, query.default_database) == ("DELETE FROM x", "shop")


def test_load_data_as_a_statement_raises_all() -> None:
    made = decoder()
    decode(made, packet(33, gtid_body(5)))
    decode(made, packet(2, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0BEGIN"))
    assert decode(made, packet(18, b"x" * 40)) is None
    ended = decode(made, packet(16, b"x" * 8))
    assert ended is not None
    assert ended.raised_tables == TABLES


def test_xa_prepare_as_bytes() -> None:
    body = struct.pack("<?III", True, 7, 1, 2) + b"abc"
    assert parse_xa_prepare(parse_event(packet(38, body), has_checksum=False)) == (Xid(b"a", b"bc", 7), True)


@pytest.mark.parametrize("one_phase", [True, False])
def test_an_xa_prepare_event_is_no_commit_unless_it_says_one_phase(one_phase: bool) -> None:
    made = decoder()
    decode(made, packet(33, gtid_body(5)))
    decode(made, statement(f"XA START {XA_TEXT}".encode()))
    ended = decode(made, packet(38, struct.pack("<?III", one_phase, 1, 1, 0) + b"x"))
    assert ended is not None
    decode(made, packet(33, gtid_body(6)))
    committed = decode(made, statement(f"XA COMMIT {XA_TEXT}".encode()))
    assert committed is not None
    assert committed.raised_tables == (TABLES if one_phase else frozenset()), "it is known if it was prepared"


@pytest.mark.parametrize("kind", [26, 34, 42, 1, 8, 20, 43, 99, 172, 255])
def test_an_event_that_must_not_be_skipped_stops_the_stream(kind: int) -> None:
    made = decoder()
    decode(made, packet(33, gtid_body(5)))
    with pytest.raises(StreamStopped, match=rf"event {kind} .*4711.*{SID}:5") as caught:
        decode(made, packet(kind, b"x" * 30))
    assert caught.value.hint


@pytest.mark.parametrize("kind", [40, 165, 166, 167, 168, 169, 170, 171])
def test_a_compressed_event_that_cannot_be_unpacked_stops_the_stream(kind: int) -> None:
    made = decoder()
    decode(made, packet(33, gtid_body(5)))
    with pytest.raises(StreamStopped, match=rf"event {kind} at 4711") as caught:
        decode(made, packet(kind, b"x" * 30))
    assert caught.value.hint


def test_harmless_events_pass_and_so_does_what_the_server_calls_ignorable() -> None:
    made = decoder()
    for kind in HARMLESS:
        assert decode(made, packet(kind, b"x" * 30)) is None
    assert decode(made, packet(99, b"x" * 30, flags=0x80)) is None


def test_rows_of_a_table_that_was_not_announced_stop_the_stream() -> None:
    made = decoder()
    decode(made, packet(33, gtid_body(5)))
    with pytest.raises(StreamStopped, match="not announced"):
        decode(made, packet(30, (99).to_bytes(6, "little") + b"\1\0" + b"x" * 30))


@pytest.mark.parametrize("kind", [2, 19, 33, 38])
def test_events_that_are_cut_off_stop_the_stream(kind: int) -> None:
    made = decoder()
    with pytest.raises(StreamStopped):
        decode(made, packet(kind, b"xx"))
    with pytest.raises(StreamStopped):
        decode(made, packet(kind, b"x" * 40)[:-1])


def test_an_event_that_is_longer_than_it_says_stops_the_stream() -> None:
    whole = packet(33, gtid_body(5))
    assert decode(decoder(), whole) is None
    with pytest.raises(StreamStopped, match=rf"announces {len(whole) - 1} bytes and has {len(whole)}"):
        decode(decoder(), whole + b"\0")


@pytest.mark.parametrize(("database_length", "status_length"), [(10, 0), (200, 0), (4, 6), (4, 600)])
def test_a_statement_that_is_shorter_than_its_parts_stops_the_stream(
    database_length: int, status_length: int
) -> None:
    """The first and the third end exactly at the place of a required NUL byte."""
    made = decoder()
    decode(made, packet(33, gtid_body(5)))
    with pytest.raises(StreamStopped, match="QUERY event at 4711 is shorter than its parts"):
        decode(made, statement(b"BEGIN", database_length=database_length, status_length=status_length))


def test_numbers_of_a_mariadb_domain_only_rise() -> None:
    """F59: two servers write one history, or the previous one was reset."""
    made = decoder("mariadb")
    group = packet(162, struct.pack("<QIB", 100, 0, 1) + b"\0" * 6)
    commit = packet(2, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0GRANT x")
    decode(made, group)
    ended = decode(made, commit)
    assert ended is not None
    assert ended.position == MariadbPosition.of(0, 7, 100)
    with pytest.raises(StreamStopped, match="0-7-100 comes after"):
        decode(made, group)
    made.restart(has_checksum=False)  # resumed from an earlier position, it comes again
    assert decode(made, group) is None
