"""From VStream events to transactions: every shape that vtgate is known to send, and what must stop the stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from freshness.errors import StreamStopped
from freshness.position import MysqlGtidSet, Position
from freshness.stream.heartbeat import topology_row
from freshness.stream.source import UNREADABLE, Heartbeat, RowChange, Transaction
from integration.servers.vtgate import (
    CUSTOMER_COLUMNS,
    KEYSPACE,
    SHARD,
    UUID,
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
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.transaction import Bounds, ShardAssembler

OTHER_UUID = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
TABLES = frozenset(("customers", "orders"))
FIELDS = fields("customers")
ROW_5 = rows("customers", inserted("5", "Ann"))
INSERT_5 = RowChange("customers", "insert", None, {"id": 5, "name": "Ann"})


def up_to(last: int) -> Position:
    return MysqlGtidSet.parse(f"{UUID}:1-{last}")


def number(which: int) -> Position:
    return MysqlGtidSet.of(UUID, which)


def assembler(start: Position | None = None, **bounds: int) -> ShardAssembler:
    return ShardAssembler(KEYSPACE, SHARD, start or up_to(10), TABLES, "freshness_heartbeat", Bounds(**bounds))


def feed(target: ShardAssembler, responses: Iterable[pb.VStreamResponse]) -> list[Transaction]:
    return [done for each in responses for event in each.events for done in target.add(event)]


def play(*responses: pb.VStreamResponse, **bounds: int) -> list[Transaction]:
    return feed(assembler(None, **bounds), responses)


def seconds(done: Transaction) -> int:
    return done.timestamp_us // 1_000_000


# -- transactions ----------------------------------------------------------------------------------------


def test_a_transaction_has_its_rows_position_and_time() -> None:
    (done,) = play(transaction(11, FIELDS, ROW_5))
    assert done.size_bytes > 0
    assert done._replace(size_bytes=0) == Transaction(number(11), 1_700_000_000_000_000, (INSERT_5,))


def test_insert_update_delete_and_a_changed_key() -> None:
    changes = (
        change(None, image("5", "Ann")),
        change(image("5", "Ann"), image("5", "Bob")),
        change(image("5", "Bob"), image("6", "Bob")),
        change(image("6", "Bob"), None),
    )
    (done,) = play(transaction(11, FIELDS, rows("customers", *changes)))
    assert [(each.op, each.before, each.after) for each in done.changes] == [
        ("insert", None, {"id": 5, "name": "Ann"}),
        ("update", {"id": 5, "name": "Ann"}, {"id": 5, "name": "Bob"}),
        ("update", {"id": 5, "name": "Bob"}, {"id": 6, "name": "Bob"}),
        ("delete", {"id": 6, "name": "Bob"}, None),
    ]


def test_a_transaction_over_several_responses_is_one() -> None:
    done = play(
        response(begin(), FIELDS, ROW_5),
        response(rows("customers", inserted("6", None))),
        response(vgtid(11), commit()),
    )
    assert [len(each.changes) for each in done] == [2]
    assert done[0].changes[1].after == {"id": 6, "name": None}


def test_nothing_is_delivered_before_its_commit() -> None:
    target = assembler()
    assert feed(target, [response(begin(), FIELDS, ROW_5, vgtid(11))]) == []
    assert target.position == up_to(10)
    assert len(feed(target, [response(commit())])) == 1
    assert target.position == up_to(11)


def test_a_transaction_that_is_broken_off_and_comes_again_is_delivered_once() -> None:
    """A tablet is lost inside a transaction that came in pieces: vtgate takes another, from the last VGTID."""
    done = play(
        response(begin(), FIELDS, ROW_5),
        response(rows("customers", inserted("6", "Bob"))),
        transaction(11, FIELDS, ROW_5, rows("customers", inserted("6", "Bob"))),
    )
    assert [[each.after for each in one.changes] for one in done] == [
        [{"id": 5, "name": "Ann"}, {"id": 6, "name": "Bob"}]
    ]


def test_an_empty_transaction_moves_the_position() -> None:
    assert play(transaction(11), transaction(12)) == [
        Transaction(number(11), 1_700_000_000_000_000),
        Transaction(number(12), 1_700_000_000_000_000),
    ]


def test_begin_and_commit_without_vgtid_are_nothing() -> None:
    done = play(response(begin(), commit()), transaction(11, FIELDS, ROW_5))
    assert [each.position for each in done] == [number(11)]


def test_version_events_and_a_vgtid_in_the_next_response() -> None:
    """As with schema tracking."""
    done = play(response(begin(), event(pb.VERSION)), response(vgtid(11), commit()))
    assert [each.position for each in done] == [number(11)]


@pytest.mark.parametrize("kind", [pb.VERSION, pb.SAVEPOINT, pb.PREVIOUS_GTIDS, pb.ROWS_QUERY, pb.HEARTBEAT])
def test_events_that_are_known_and_have_no_rows_change_nothing(kind: int) -> None:
    (done,) = play(transaction(11, FIELDS, event(kind, statement="x"), ROW_5))
    assert done.changes == (INSERT_5,)


def test_a_heartbeat_of_vtgate_is_nothing() -> None:
    assert play(heartbeat()) == []


def test_a_vgtid_alone_moves_the_position_when_something_follows() -> None:
    assert [each.position for each in play(response(vgtid(11)), transaction(12))] == [number(11), number(12)]


def test_other_may_be_ddl_of_any_table() -> None:
    """vttablet withholds the text if the statement's main table is not ours: ALTER TABLE x RENAME TO ours."""
    (done,) = play(other(11))
    assert (done.position, done.timestamp_us) == (number(11), 1_700_000_000_000_000)
    assert done.raised_tables == {"customers", "orders"}
    assert "keeps back" in done.reasons[0]


def test_rollback_delivers_what_cannot_be_rolled_back() -> None:
    (done,) = play(response(begin(), FIELDS, ROW_5, vgtid(11), event(pb.ROLLBACK)))
    assert done.changes == (INSERT_5,)
    assert play(response(event(pb.ROLLBACK))) == []


def test_a_time_of_0_says_nothing() -> None:
    (done,) = play(response(begin(timestamp=0), vgtid(11), event(pb.HEARTBEAT, timestamp=9), commit(timestamp=0)))
    assert seconds(done) == 1_700_000_000  # the VGTID's
    parts = (begin(timestamp=0), vgtid(11), commit(timestamp=0))
    parts[1].timestamp = 0
    assert play(response(*parts))[0].timestamp_us == 0


def test_table_names_with_their_keyspace_as_older_versions_send_them() -> None:
    (done,) = play(
        transaction(11, fields(f"{KEYSPACE}.customers"), rows(f"{KEYSPACE}.customers", inserted("5", "Ann")))
    )
    assert done.changes == (INSERT_5,)


def test_tables_that_nobody_asked_for_are_left_out() -> None:
    (done,) = play(transaction(11, rows("elsewhere", inserted("5", "Ann"))))
    assert (done.changes, done.raised_tables) == ((), frozenset())


# -- positions -------------------------------------------------------------------------------------------


def test_the_position_is_what_the_vgtid_added() -> None:
    start = MysqlGtidSet.parse(f"{UUID}:1-10,{OTHER_UUID}:1-3:5")
    target = assembler(start)
    reached = pb.VGtid(
        shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard=SHARD, gtid=f"MySQL56/{UUID}:1-10,{OTHER_UUID}:1-5")]
    )
    (done,) = feed(target, [response(begin(), FIELDS, ROW_5, event(pb.VGTID, vgtid=reached), commit())])
    assert done.position == MysqlGtidSet.of(OTHER_UUID, 4)


def test_the_order_of_shards_in_a_vgtid_means_nothing() -> None:
    entries = [
        pb.ShardGtid(keyspace=KEYSPACE, shard=name, gtid=gtid(last)) for name, last in (("80-", 99), (SHARD, 11))
    ]
    for order in (entries, entries[::-1]):
        marked = event(pb.VGTID, vgtid=pb.VGtid(shard_gtids=order))
        assert [each.position for each in play(response(begin(), marked, commit()))] == [number(11)]


def test_an_entry_of_another_keyspace_is_not_taken_for_ours() -> None:
    foreign = pb.ShardGtid(keyspace="other", shard=SHARD, gtid=gtid(99))
    ours = pb.ShardGtid(keyspace=KEYSPACE, shard=SHARD, gtid=gtid(11))
    marked = event(pb.VGTID, vgtid=pb.VGtid(shard_gtids=[foreign, ours]))
    assert [each.position for each in play(response(begin(), marked, commit()))] == [number(11)]


@pytest.mark.parametrize("text", [f"{UUID}:13", f"MySQL56/{UUID}:13"], ids=["bare", "with its flavor"])
def test_the_transactions_own_gtid_is_preferred(text: str) -> None:
    """What vtgate passed over comes before it, without rows: the position must not have holes."""
    done = play(response(begin(event_gtid=text), FIELDS, ROW_5, vgtid(13), commit(event_gtid=text)))
    assert [(each.position, len(each.changes)) for each in done] == [
        (MysqlGtidSet.parse(f"{UUID}:11-12"), 0),
        (number(13), 1),
    ]


def test_the_own_gtid_serves_where_the_vgtid_is_missing() -> None:
    target = assembler()
    text = f"{UUID}:11"
    (done,) = feed(target, [response(begin(event_gtid=text), FIELDS, ROW_5, commit())])
    assert done.position == number(11)
    assert target.position == up_to(11)


def test_a_transaction_that_comes_again_keeps_its_own_gtid() -> None:
    text = f"{UUID}:9"
    (done,) = play(response(begin(event_gtid=text), FIELDS, ROW_5, vgtid(10), commit()))
    assert done.position == number(9)


def test_the_same_position_again_without_rows_is_nothing() -> None:
    assert play(transaction(10), other(10)) == []


# -- unreadable rows raise their table ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("announced", "row", "reason"),
    [
        (None, inserted("5", "Ann"), "without FIELD"),
        (FIELDS, inserted("5"), "1 columns where 2"),
        (FIELDS, change(None, pb.Row(lengths=[1, 3], values=b"5Anna")), "5 bytes whose columns have 4"),
        (FIELDS, change(None, pb.Row(lengths=[1, 3], values=b"5A")), "2 bytes whose columns have 4"),
        (FIELDS, pb.RowChange(), "without any image"),
        (fields("customers", (column("@1", 265), column("@2", 6165))), inserted("5", "Ann"), "match the log"),
        (fields("customers", (column("id", 265), column("id", 6165))), inserted("5", "Ann"), "announced as"),
        (fields("customers", ()), inserted(), "announced as"),
        (
            FIELDS,
            change(None, image("5", None), data_columns=pb.Bitmap(count=3, cols=b"\x01")),
            "partial row image of 3",
        ),
    ],
    ids=["no field", "few", "long", "short", "no image", "@1", "twice", "no columns", "bitmap"],
)
def test_rows_that_cannot_be_read_raise_the_table(
    announced: pb.VEvent | None, row: pb.RowChange, reason: str
) -> None:
    events = [announced] if announced is not None else []
    orders = (fields("orders"), rows("orders", inserted("1", "x")))
    (done,) = play(transaction(11, *events, rows("customers", row), *orders))
    assert done.raised_tables == {"customers"}
    assert reason in done.reasons[0]
    # The others are not touched.
    assert [each.table for each in done.changes] == ["orders"]
    assert done.position == number(11)


def test_a_row_event_without_rows_raises_the_table() -> None:
    (done,) = play(transaction(11, FIELDS, rows("customers")))
    assert done.raised_tables == {"customers"}


def test_one_reason_is_kept_of_a_million_unreadable_rows() -> None:
    bad = rows("customers", inserted("5"))
    (done,) = play(transaction(11, FIELDS, *[bad] * 1000))
    assert len(done.reasons) == 1


def test_a_later_field_event_repairs_the_table() -> None:
    unmatched = fields("customers", (column("@1", 265), column("@2", 6165)))
    done = play(transaction(11, unmatched, ROW_5), transaction(12, FIELDS, ROW_5))
    assert [each.raised_tables for each in done] == [{"customers"}, frozenset()]
    assert done[1].changes == (INSERT_5,)


def test_a_schema_change_is_read_with_the_new_columns() -> None:
    wider = fields("customers", (*CUSTOMER_COLUMNS, column("age", 263)))
    done = play(
        transaction(11, FIELDS, ROW_5),
        ddl(12, "ALTER TABLE customers ADD age INT"),
        transaction(13, wider, rows("customers", inserted("6", "Bob", "30"))),
    )
    assert done[2].changes[0].after == {"id": 6, "name": "Bob", "age": 30}


def test_a_partial_image_leaves_columns_out_and_never_makes_them_null() -> None:
    partial = change(image("5", None), image("5", None), data_columns=pb.Bitmap(count=2, cols=b"\x01"))
    (done,) = play(transaction(11, FIELDS, rows("customers", partial)))
    assert done.changes == (RowChange("customers", "update", {"id": 5}, {"id": 5}),)


def test_a_whole_image_has_all_columns_of_its_table_also_those_that_were_not_asked_for() -> None:
    """vttablet marks the columns of the table, not of the stream."""
    whole = change(image("5", "Ann"), image("6", "Ann"), data_columns=pb.Bitmap(count=9, cols=b"\xff\x01"))
    (done,) = play(transaction(11, FIELDS, rows("customers", whole)))
    assert done.changes[0].after == {"id": 6, "name": "Ann"}
    assert not done.raised_tables


def test_a_partial_json_value_is_unreadable() -> None:
    announced = fields("customers", (column("id", 265), column("doc", 2078)))
    partial = change(image("5", "{}"), image("5", "[1]"), json_partial_values=pb.Bitmap(count=1, cols=b"\x01"))
    (done,) = play(transaction(11, announced, rows("customers", partial)))
    assert done.changes[0].before == {"id": 5, "doc": {}}
    assert done.changes[0].after == {"id": 5, "doc": UNREADABLE}


# -- large transactions ----------------------------------------------------------------------------------


def test_above_its_bound_of_rows_a_transaction_raises_its_tables() -> None:
    many = [rows("customers", inserted(str(key), "x")) for key in range(50)]
    few = (fields("orders"), rows("orders", inserted("1", "x")))
    (done,) = play(transaction(11, FIELDS, *many, *few), rows_max=20)
    assert done.raised_tables == {"customers"}
    assert "more than 20 rows" in done.reasons[0]
    assert [each.table for each in done.changes] == ["orders"]


def test_at_its_bound_it_does_not() -> None:
    (done,) = play(transaction(11, FIELDS, rows("customers", *[inserted("5", "x")] * 20)), rows_max=20)
    assert (len(done.changes), done.raised_tables) == (20, frozenset())


def test_above_its_bound_of_bytes_a_transaction_raises_its_tables() -> None:
    large = rows("customers", inserted("5", "x" * 1000))
    (done,) = play(transaction(11, FIELDS, large, large), bytes_max=1500)
    assert not done.changes
    assert done.raised_tables == {"customers"}


def test_what_is_held_of_a_transaction_is_bounded_at_every_moment() -> None:
    target = assembler(rows_max=20)
    feed(target, [response(begin(), FIELDS, fields("orders"))])
    for key in range(500):
        table = ("customers", "orders")[key % 2]
        feed(target, [response(rows(table, inserted(str(key), "x")))])
        assert target._group is not None
        assert len(target._group.changes) <= 20
    (done,) = feed(target, [response(vgtid(11), commit())])
    assert done.raised_tables == TABLES


# -- statements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "raised"),
    [
        ("TRUNCATE TABLE customers", {"customers"}),
        ("ALTER TABLE `orders` ADD COLUMN x INT", {"orders"}),
        ("RENAME TABLE customers TO _old, _vt_shadow TO customers", {"customers"}),
        ("DROP TABLE IF EXISTS shop.customers, vt_shop.orders", set(TABLES)),
        ("CREATE TABLE unrelated (id INT)", set()),
        ("ANALYZE TABLE customers", set()),
        ("nobody knows this statement", set(TABLES)),
        ("", set(TABLES)),
    ],
)
def test_ddl_raises_the_tables_that_it_names(sql: str, raised: set[str]) -> None:
    (done,) = play(ddl(11, sql))
    assert done.position == number(11)
    assert done.raised_tables == raised


@pytest.mark.parametrize("kind", [pb.INSERT, pb.REPLACE, pb.UPDATE, pb.DELETE])
def test_a_statement_instead_of_rows_raises_all_tables(kind: int) -> None:
    (done,) = play(transaction(11, event(kind, dml="update customers set name = 'x'")))
    assert done.raised_tables == TABLES


def test_a_statement_with_ddl_inside_a_transaction_waits_for_its_commit() -> None:
    (done,) = play(transaction(11, FIELDS, ROW_5, event(pb.DDL, statement="TRUNCATE orders")))
    assert done.changes == (INSERT_5,)
    assert done.raised_tables == {"orders"}


# -- our heartbeats --------------------------------------------------------------------------------------

BEAT_COLUMNS = (
    column("id", 6165, charset=11),
    *(column(name, 265) for name in ("sequence", "min_us", "max_us", "epoch")),
    column("watermark", 6165, charset=11),
)


@pytest.mark.parametrize(
    "id_column", [column("id", 6165, charset=65), column("id", 10262), column("id", 10262, charset=65)]
)
def test_rows_of_our_heartbeat_table_are_heartbeats(id_column: pb.Field) -> None:
    beat = rows(
        "freshness_heartbeat", change(image("me", "1", "1", "2", "3", ""), image("me", "2", "5", "6", "3", ""))
    )
    epoch = rows("freshness_heartbeat", inserted("epoch", "0", "0", "0", "1", ""))
    number = rows("freshness_heartbeat", inserted(topology_row("shop", "shop/-80"), "2", "0", "0", "0", ""))
    (done,) = play(
        transaction(11, fields("freshness_heartbeat", (id_column, *BEAT_COLUMNS[1:])), beat, epoch, number)
    )
    assert done.heartbeats == (Heartbeat("me", 2, 5, 6, 3),)
    assert (done.changes, done.raised_tables) == ((), frozenset())


@pytest.mark.parametrize("announced", [(), (fields("freshness_heartbeat", BEAT_COLUMNS[:2]),)])
def test_a_heartbeat_that_cannot_be_read_is_told_and_is_none(announced: tuple[pb.VEvent, ...]) -> None:
    (done,) = play(transaction(11, *announced, rows("freshness_heartbeat", inserted("me", "2"))))
    assert done.heartbeats == ()
    assert done.raised_tables == frozenset()
    assert len(done.reasons) == 1


# -- what stops the stream -------------------------------------------------------------------------------

_COPYING = pb.VGtid(
    shard_gtids=[
        pb.ShardGtid(
            keyspace=KEYSPACE, shard=SHARD, gtid=gtid(11), table_p_ks=[pb.TableLastPK(table_name="customers")]
        )
    ]
)
_OF_ANOTHER = pb.VGtid(shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard="80-", gtid=gtid(11))])
STOPS: dict[str, tuple[list[Any], str]] = {
    "COMMIT without BEGIN": ([response(commit())], "a COMMIT came without BEGIN"),
    "ROW without BEGIN": ([response(FIELDS, ROW_5)], "a ROW came without BEGIN"),
    "rows without position": ([response(begin(), FIELDS, ROW_5, commit())], "without its position"),
    "raised without position": ([response(begin(), ROW_5, commit())], "without its position"),
    "rows at the same position": ([transaction(10, FIELDS, ROW_5)], "did not move the position"),
    "BEGIN where a COMMIT is missing": ([response(begin(), vgtid(11), begin())], "the COMMIT of the last one"),
    "position goes back": ([transaction(9)], "lacks some of it"),
    "own GTID not in the position": (
        [response(begin(event_gtid=f"{OTHER_UUID}:1"), vgtid(11), commit())],
        "lacks the transaction's own GTID",
    ),
    "DDL without position": ([response(event(pb.DDL, statement="TRUNCATE customers"))], "DDL came without"),
    "unknown event": ([response(begin(), event(99), vgtid(11), commit())], "type 99"),
    "event of type 0": ([response(event(pb.UNKNOWN))], "type 0"),
    "GTID, which vtgate rewrites": ([response(event(pb.GTID))], "type 1,"),
    "LASTPK": ([response(begin(), event(pb.LASTPK))], "copies tables"),
    "COPY_COMPLETED": ([response(event(pb.COPY_COMPLETED))], "copies tables"),
    "a position with keys of a copy": ([response(begin(), event(pb.VGTID, vgtid=_COPYING))], "copies tables"),
    "a VGTID without this shard": ([response(begin(), event(pb.VGTID, vgtid=_OF_ANOTHER))], "without this shard"),
    "a MariaDB position": (
        [
            response(
                begin(),
                event(
                    pb.VGTID,
                    vgtid=pb.VGtid(
                        shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard=SHARD, gtid="MariaDB/0-1-100")]
                    ),
                ),
                commit(),
            )
        ],
        "MariaDB/0-1-100",
    ),
    "rows after the end of the shard": (
        [response(begin(), journal([SHARD], {"-40": 3, "40-80": 4})), transaction(12, FIELDS, ROW_5)],
        "after the journal",
    ),
    "a journal inside a transaction with rows": (
        [response(begin(), FIELDS, ROW_5, journal([SHARD], {"-40": 3, "40-80": 4}))],
        "inside a transaction",
    ),
    "our table is moved to another keyspace": (
        [response(begin(), journal([SHARD], {}, migration_type=pb.TABLES, tables=["customers"]))],
        "moved to another keyspace",
    ),
}


@pytest.mark.parametrize("name", STOPS)
def test_what_cannot_be_understood_stops_the_stream(name: str) -> None:
    responses, reason = STOPS[name]
    with pytest.raises(StreamStopped) as caught:
        play(*responses)
    assert reason in str(caught.value)
    assert caught.value.hint


# -- journals --------------------------------------------------------------------------------------------


def test_a_journal_ends_the_shard_and_its_own_transaction_is_not_delivered() -> None:
    """Otherwise a reopened stream would begin behind it, and never learn the new shards."""
    target = assembler()
    done = feed(
        target,
        [
            transaction(11, FIELDS, ROW_5),
            response(begin(), journal([SHARD], {"-40": 3, "40-80": 4}), vgtid(12), commit()),
            transaction(13),
        ],
    )
    assert [each.position for each in done] == [number(11)]
    assert target.position == up_to(11)
    assert target.journal is not None


@pytest.mark.parametrize(
    "harmless",
    [journal(["80-"], {"80-c0": 1, "c0-": 1}), journal([SHARD], {}, migration_type=pb.TABLES, tables=["others"])],
    ids=["of other shards", "of other tables"],
)
def test_other_journals_change_nothing(harmless: pb.VEvent) -> None:
    target = assembler()
    done = feed(target, [response(begin(), harmless, vgtid(11), commit()), transaction(12, FIELDS, ROW_5)])
    assert [each.position for each in done] == [number(11), number(12)]
    assert target.journal is None
