"""A VStream over several shards, and what it makes of a reshard."""

from __future__ import annotations

from typing import Any

import pytest

from freshness.errors import FreshnessError, SourceUnavailable, SourceUnsuitable, StreamStopped
from integration.servers.vtgate import (
    KEYSPACE,
    SHARD,
    Fail,
    Hold,
    Step,
    Vtgate,
    begin,
    column,
    commit,
    event,
    fields,
    gtid,
    heartbeat,
    inserted,
    journal,
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
    wait_until,
)
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.reader import ShardsMoved, ShardTransaction
from invalidator.vstream.source import VStream, VStreamSource

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
    ("steps", "kind", "seconds"),
    [
        ([], SourceUnavailable, 60.0),
        ([Fail(Code.UNAUTHENTICATED, "x")], SourceUnsuitable, 60.0),
        ([Hold()], SourceUnavailable, 1.0),
    ],
    ids=["end", "refused", "silent"],
)
def test_no_current_position(steps: list[Any], kind: type[FreshnessError], seconds: float) -> None:
    with Vtgate(steps) as vtgate, pytest.raises(kind):
        VStream(address_of(vtgate), TABLES).find_current(timeout_seconds=seconds)


def test_each_shard_has_its_own_columns_and_position() -> None:
    """In the middle of a schema change two shards announce different columns."""
    turned = fields("customers", (column("name", 6165, charset=255), column("id", 265)), shard="80-")
    script: list[Step] = [
        response(
            begin("-80"), fields("customers", shard="-80"), rows("customers", inserted("5", "Ann"), shard="-80")
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
        assert [(each.shard, each.transaction.position, each.transaction.changes[0].after) for each in done] == [
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
            4, fields("customers", shard="-40"), rows("customers", inserted("5", "x"), shard="-40"), shard="-40"
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


def test_a_stream_with_a_part_of_the_shards_ends_with_its_own() -> None:
    """A reshard of several shards names all of them as participants, also those of other streams (F4 in vtgate's
    terms: `Reshard -80,80-` writes one journal for both)."""
    done, error = play(transaction(11), response(begin(), journal(["-80", "80-"], MERGED)))
    assert len(done) == 1
    assert type(error) is ShardsMoved
    assert (error.old, error.new) == (("-80", "80-"), {"-": up_to(7)})
