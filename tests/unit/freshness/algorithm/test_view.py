"""A copy of a node's records: what it vouches for, to whom, and how old a hit of it can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from freshness.algorithm.envelope import Coverage, Filled, NodeRecord, Stamp, find_live_value
from freshness.algorithm.request import Item
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.view import NodeView
from freshness.position import MysqlGtidSet, Position

NODE: Final = "n1"
RING: Final = 7
CUSTOMER: Final = ObjectPolicy("customer", 5, ("customers",), ("a",), 60)
ORDER: Final = ObjectPolicy("order", 6, ("orders",), ("a",), 60)
PAIR: Final = replace(CUSTOMER, name="pair", lineages=("a", "b"))


def judge(
    copy: NodeView, policy: ObjectPolicy, identity: bytes, data: bytes
) -> tuple[ReadOutcome | None, bytes | None]:
    """What the view says of one entry; the short way, if it knows the entry, says the same."""
    judged = copy.judge(policy, identity, data)
    value_at = find_live_value(data, copy.trust(policy).plain, identity)
    assert not value_at or judged == (None, data[value_at:])
    return judged


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{numbers}")


def record(lineage: str = "a", **changes: Any) -> NodeRecord:
    objects = {policy.name: Coverage(policy.fingerprint, at("1")) for policy in (CUSTOMER, ORDER, PAIR)}
    fields: dict[str, Any] = {"heartbeat_age_ms": 0, "is_open": True, "objects": objects, **changes}
    return NodeRecord(
        lineage,
        b"LIFELIFE",
        b"TENURE..",
        epoch=1,
        ring=RING,
        as_of_us=0,
        node=NODE,
        stripes=8,
        progress=at("1-10"),
        floor=at("1-5"),
        **fields,
    )


def view(records: Mapping[str, NodeRecord], ttl_seconds: int = 6, ring: int = RING) -> NodeView:
    """As read at 100 s, when so much was left of the leases."""
    replies = [Item(each.encode(), 1, ttl_seconds) for each in records.values()]
    return NodeView(NODE, tuple(records), replies, 100.0, ring)


def entry(numbers: str = "1-10", life: bytes = b"LIFELIFE", lineage: str = "a") -> bytes:
    return Filled((Stamp(lineage, life, 1, at(numbers)),), b"1", b"value").encode()


@pytest.mark.parametrize("ages", [(8000, 6000), (6000, 8000)])
def test_a_value_of_two_shards_is_as_old_as_the_older_one(ages: tuple[int, int]) -> None:
    """I7."""
    records = {name: record(name, heartbeat_age_ms=age) for name, age in zip("ab", ages, strict=True)}
    assert view(records).staleness_seconds(PAIR, 100.0) == 8.0 - 5


def test_the_ages_of_heartbeat_record_and_copy_add_up() -> None:
    """I7: the heartbeat's age at the end of the lease, less what is left of that, and the age of the copy. A node
    counts whole seconds, so a second less is left (F50)."""
    copy = view({"a": record(heartbeat_age_ms=8500)}, ttl_seconds=3)
    assert copy.staleness_seconds(CUSTOMER, 100.5) == 8.5 - 2 + 0.5
    assert view({"a": record(heartbeat_age_ms=8500)}, 0).staleness_seconds(CUSTOMER, 100.0) == 8.5


def test_a_value_is_of_any_age_where_a_record_is_closed_or_missing() -> None:
    closed = view({"a": record(), "b": record("b", is_open=False)})
    assert closed.staleness_seconds(CUSTOMER, 100.0) == 0.0
    assert closed.staleness_seconds(PAIR, 100.0) == float("inf")
    assert view({"a": record()}).staleness_seconds(PAIR, 100.0) == float("inf")


def test_a_refusal_is_remembered_for_the_shards_and_the_rings_that_it_is_of() -> None:
    copy = view({"a": record(), "b": record("b", is_open=False)})
    other = view({"a": record()}, ring=RING + 1)
    for _ in range(2):
        assert copy.find_refusal(CUSTOMER) is None
        assert copy.find_refusal(PAIR) is ReadOutcome.CLOSED
        assert other.find_refusal(CUSTOMER) is ReadOutcome.RING
        assert other.find_refusal(replace(CUSTOMER, previous_rings=(RING,))) is None


def test_a_verdict_over_table_floors_is_remembered_for_its_object() -> None:
    """F21: two objects of one position, of which one depends on the table."""
    copy = view({"a": record(table_floors={"orders": at("11"), "customers": at("7")})})
    for _ in range(2):
        assert judge(copy, CUSTOMER, b"1", entry()) == (None, b"value")
        assert judge(copy, ORDER, b"1", entry()) == (ReadOutcome.TABLE_FLOOR, None)
    assert judge(copy, ORDER, b"1", entry("1-12")) == (None, b"value")


def test_a_verdict_over_table_floors_is_remembered_for_its_shard() -> None:
    """F21: two shards of MariaDB with the default domain and server id have equal GTIDs."""
    there = replace(CUSTOMER, lineages=("b",))
    copy = view(
        {"a": record(table_floors={"customers": at("7")}), "b": record("b", table_floors={"customers": at("11")})}
    )
    for _ in range(2):
        assert judge(copy, CUSTOMER, b"1", entry()) == (None, b"value")
        assert judge(copy, there, b"1", entry(lineage="b")) == (ReadOutcome.TABLE_FLOOR, None)


def test_the_floors_of_all_tables_of_an_object_decide() -> None:
    """F21."""
    profile = replace(CUSTOMER, tables=("customers", "orders"))
    copy = view({"a": record(table_floors={"customers": at("1"), "orders": at("11")})})
    assert judge(copy, profile, b"1", entry()) == (ReadOutcome.TABLE_FLOOR, None)
    assert judge(copy, profile, b"1", entry("1-12")) == (None, b"value")


def test_an_entry_of_another_life_or_key_is_no_hit() -> None:
    copy = view({"a": record()})
    assert judge(copy, CUSTOMER, b"1", entry()) == (None, b"value")
    assert judge(copy, CUSTOMER, b"1", entry(life=b"PREVIOUS")) == (ReadOutcome.DEAD, None)
    assert judge(copy, CUSTOMER, b"2", entry()) == (ReadOutcome.IDENTITY, None)


def test_an_object_is_covered_in_its_own_definition_alone() -> None:
    """F70."""
    copy = view({"a": record(), "b": record("b", objects={})})
    assert copy.find_refusal(CUSTOMER) is None
    for other in (replace(CUSTOMER, fingerprint=6), replace(CUSTOMER, name="other"), PAIR):
        assert copy.find_refusal(other) is ReadOutcome.OBJECT
        assert judge(copy, other, b"1", entry())[0] in (ReadOutcome.OBJECT, ReadOutcome.DEAD)


def test_an_entry_from_before_its_definition_was_covered_is_no_hit() -> None:
    """Of the common entry, and of one that is decoded."""
    copy = view({"a": record(objects={CUSTOMER.name: Coverage(CUSTOMER.fingerprint, at("11"))})})
    for _ in range(2):
        assert judge(copy, CUSTOMER, b"1", entry()) == (ReadOutcome.DEAD, None)
        assert judge(copy, CUSTOMER, b"1", entry("1-12")) == (None, b"value")


@pytest.mark.parametrize("changes", [{"lineage": "b"}, {"node": "n2"}], ids=["lineage", "node"])
def test_a_record_of_another_lineage_or_node_vouches_for_nothing(changes: dict[str, str]) -> None:
    """F94: two names of one server, which has one record."""
    copy = view({"a": replace(record(), **changes)})  # type: ignore[arg-type]
    assert copy.find_refusal(CUSTOMER) is ReadOutcome.NO_RECORD
    assert judge(copy, CUSTOMER, b"1", entry()) == (ReadOutcome.DEAD, None)
