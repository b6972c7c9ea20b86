"""The one rule, case by case: when a value may be stored, and when an entry may be served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from freshness.algorithm.envelope import Coverage, Filled, NodeRecord, Stamp, Stripe
from freshness.algorithm.rule import (
    ObjectPolicy,
    ReadOutcome,
    Span,
    are_of_one_state,
    find_fill_refusal,
    find_hit_refusal,
    find_record_refusal,
)
from freshness.position import MysqlGtidSet, Position, empty_position, parse_position
from freshness.position.token import EventToken

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ONE: Final = ObjectPolicy("customer", 5, ("customers", "addresses"), ("a",), 60)
TWO: Final = replace(ONE, lineages=("a", "b"))


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:{numbers}") if numbers else empty_position("mysql")


def record(lineage: str = "a", **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "lineage": lineage,
        "life": b"LIFELIFE",
        "tenure": b"TENURE..",
        "is_open": True,
        "epoch": 1,
        "ring": 7,
        "as_of_us": 0,
        "heartbeat_age_ms": 0,
        "node": "n1",
        "stripes": 8,
        "progress": at("1-10"),
        "floor": at("1-5"),
        "table_floors": {},
        "objects": {"customer": Coverage(5, at("1-3"))},
    }
    return NodeRecord(**{**fields, **changes})


def token(numbers: str, lineage: str = "a", epoch: int = 1, timestamp_us: int = 0) -> EventToken:
    return EventToken(lineage, "-", epoch, timestamp_us, at(numbers))


def judge_fill(
    policy: ObjectPolicy = ONE,
    *,
    ring: int = 7,
    records: Mapping[str, NodeRecord | None] | None = None,
    stripes: Mapping[str, Stripe | None] | None = None,
    tokens: Mapping[str, EventToken] | None = None,
) -> ReadOutcome | None:
    return find_fill_refusal(
        policy,
        ring,
        {"a": record()} if records is None else records,
        {name: stripe("") for name in "ab"} if stripes is None else stripes,
        {"a": token("1-10")} if tokens is None else tokens,
    )


def stripe(numbers: str, life: bytes = b"LIFELIFE") -> Stripe:
    return Stripe(life, at(numbers))


def judge_one(**changes: Any) -> ReadOutcome | None:
    return judge_fill(records={"a": record(**changes)})


def test_a_read_that_contains_everything_is_stored() -> None:
    assert judge_fill() is None
    assert judge_fill(stripes={"a": stripe("6-10")}) is None
    assert judge_one(floor=at("1-10")) is None, "equal is fresh (F38)"


def test_doubt_about_the_node() -> None:
    assert judge_fill(records={}) is ReadOutcome.NO_RECORD
    assert judge_fill(records={"a": None}) is ReadOutcome.NO_RECORD
    assert judge_fill(ring=8) is ReadOutcome.RING
    assert judge_one(is_open=False) is ReadOutcome.CLOSED
    assert find_record_refusal(record(), (7,)) is None
    assert find_record_refusal(record(is_open=False), (8,)) is ReadOutcome.RING, "another ring is never trusted"


def test_doubt_about_the_object() -> None:
    assert judge_one(objects={}) is ReadOutcome.OBJECT
    assert judge_one(objects={"customer": Coverage(6, at("1-3"))}) is ReadOutcome.OBJECT
    assert judge_one(objects={"customer": Coverage(5, at("1-11"))}) is ReadOutcome.FLOOR


def test_doubt_about_the_read() -> None:
    assert judge_fill(tokens={}) is ReadOutcome.NO_TOKEN
    assert judge_fill(tokens={"a": token("1-10", epoch=2)}) is ReadOutcome.EPOCH
    assert judge_fill(tokens={"a": token("1-10", epoch=0)}) is ReadOutcome.EPOCH
    maria = EventToken("a", "-", 1, 0, parse_position("mariadb", "0-1-100"))
    assert judge_fill(tokens={"a": maria}) is ReadOutcome.FLOOR, "another flavor is UNKNOWN"


@pytest.mark.parametrize("numbers", ["1-4", "2-10", "1-3:5-10", ""])
def test_the_floor_must_be_contained(numbers: str) -> None:
    assert judge_fill(tokens={"a": token(numbers)}) is ReadOutcome.FLOOR


@pytest.mark.parametrize("numbers", ["11", "6-11", "3:12"])
def test_the_stripe_must_be_contained(numbers: str) -> None:
    assert judge_fill(stripes={"a": stripe(numbers)}) is ReadOutcome.STRIPE


def test_a_stripe_must_be_found() -> None:
    """Absence refuses: with the stripe everything is forgotten that was sent to it."""
    assert judge_fill(stripes={}) is ReadOutcome.STRIPE_ABSENT
    assert judge_fill(stripes={"a": None}) is ReadOutcome.STRIPE_ABSENT
    assert judge_fill(stripes={"b": stripe("")}) is ReadOutcome.STRIPE_ABSENT
    assert judge_fill(stripes={"a": stripe("", b"PREVIOUS")}) is ReadOutcome.STRIPE_ABSENT


def test_a_stripe_of_another_flavor_is_doubt() -> None:
    foreign = Stripe(b"LIFELIFE", parse_position("mariadb", "0-1-1"))
    assert judge_fill(stripes={"a": foreign}) is ReadOutcome.STRIPE


def test_a_later_timestamp_proves_nothing() -> None:
    """F3, F4."""
    tokens = {"a": token("1-10", timestamp_us=2**60)}
    assert judge_fill(stripes={"a": stripe("11")}, tokens=tokens) is ReadOutcome.STRIPE


def test_every_table_floor_of_the_object_must_be_contained() -> None:
    assert judge_one(table_floors={"addresses": at("11")}) is ReadOutcome.TABLE_FLOOR
    assert judge_one(table_floors={"customers": at("9"), "addresses": at("8")}) is None
    assert judge_one(table_floors={"orders": at("11")}) is None, "not a table of this object"


@pytest.mark.parametrize("lagging", ["a", "b"])
def test_two_lineages_are_both_held_to_the_rule(lagging: str) -> None:
    """F31."""
    records = {"a": record(), "b": record("b")}
    tokens = {name: token("1-4" if name == lagging else "1-10", name) for name in "ab"}
    fresh = {name: token("1-10", name) for name in "ab"}
    assert judge_fill(TWO, records=records, tokens=fresh) is None
    assert judge_fill(TWO, records=records, tokens=tokens) is ReadOutcome.FLOOR
    stripes: dict[str, Stripe | None] = {name: stripe("7-8") for name in "ab"}
    assert judge_fill(TWO, records=records, tokens=fresh, stripes=stripes) is None
    late = {**stripes, lagging: stripe("7-11")}
    assert judge_fill(TWO, records=records, tokens=fresh, stripes=late) is ReadOutcome.STRIPE
    absent = {**stripes, lagging: None}
    assert judge_fill(TWO, records=records, tokens=fresh, stripes=absent) is ReadOutcome.STRIPE_ABSENT
    del records[lagging]
    assert judge_fill(TWO, records=records, tokens=fresh) is ReadOutcome.NO_RECORD


# -- hits ----------------------------------------------------------------------------------------------


def entry(*lineages: str, numbers: str = "1-10", life: bytes = b"LIFELIFE", epoch: int = 1) -> Filled:
    stamps = tuple(Stamp(lineage, life, epoch, at(numbers)) for lineage in lineages)
    return Filled(stamps, b"1", b"value")


def judge_hit(
    found: Filled,
    policy: ObjectPolicy = ONE,
    records: Mapping[str, NodeRecord | None] | None = None,
    identity: bytes = b"1",
) -> ReadOutcome | None:
    return find_hit_refusal(policy, identity, found, {"a": record()} if records is None else records, 7)


def test_an_entry_of_this_life_is_a_hit_however_old_its_position() -> None:
    """What has changed since was invalidated by key; the floor is for fills."""
    assert judge_hit(entry("a")) is None
    assert judge_hit(entry("a", numbers="1-4")) is None


def test_an_entry_of_another_key_life_or_history_is_not() -> None:
    assert judge_hit(entry("a"), identity=b"2") is ReadOutcome.IDENTITY
    assert judge_hit(entry("a", life=b"PREVIOUS")) is ReadOutcome.DEAD
    assert judge_hit(entry("a", epoch=2)) is ReadOutcome.DEAD
    assert judge_hit(entry("b")) is ReadOutcome.DEAD
    assert judge_hit(entry("a"), records={"a": None}) is ReadOutcome.DEAD
    assert judge_hit(entry("a"), records={}) is ReadOutcome.DEAD


def test_an_entry_is_held_to_the_start_of_its_definition() -> None:
    """F70."""
    assert judge_hit(entry("a"), records={"a": record(objects={})}) is ReadOutcome.OBJECT
    later = record(objects={"customer": Coverage(5, at("11"))})
    assert judge_hit(entry("a"), records={"a": later}) is ReadOutcome.DEAD
    assert judge_hit(entry("a", numbers="1-11"), records={"a": later}) is None


def test_an_entry_is_held_to_the_table_floors() -> None:
    """F21, F68."""
    floors = {"addresses": at("11")}
    assert judge_hit(entry("a"), records={"a": record(table_floors=floors)}) is ReadOutcome.TABLE_FLOOR
    for newer in ("1-3:11", "1-12"):
        assert judge_hit(entry("a", numbers=newer), records={"a": record(table_floors=floors)}) is None


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([("1-5", "1-5"), ("1-9", "1-5")], True),
        ([("1-5", "1-5"), ("1-9", "1-6")], False),  # the second shows what the first may lack
        ([("1-5", "1-3"), ("1-5", "1-5")], True),
    ],
)
def test_entries_are_of_one_state_if_each_progress_has_each_bound(
    spans: list[tuple[str, str]], expected: bool
) -> None:
    history = 1, "primary"
    made = [Span(at(since), at(until), history) for since, until in spans]
    assert are_of_one_state(made) is expected
    assert are_of_one_state([made[0], replace(made[1], history=(1, "another"))]) is False
    assert are_of_one_state([made[0], replace(made[1], history=(2, "primary"))]) is False


def test_an_entry_of_two_lineages_needs_both() -> None:
    records: dict[str, NodeRecord | None] = {"a": record(), "b": record("b")}
    assert judge_hit(entry("a", "b"), TWO, records) is None
    assert judge_hit(entry("a"), TWO, records) is ReadOutcome.DEAD
    assert judge_hit(entry("a", "b"), TWO, {**records, "b": record("b", life=b"ANOTHER!")}) is ReadOutcome.DEAD
    condemned = {**records, "b": record("b", table_floors={"customers": at("11")})}
    assert judge_hit(entry("a", "b"), TWO, condemned) is ReadOutcome.TABLE_FLOOR
