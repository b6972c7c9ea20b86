"""Whatever is written is read back; whatever is damaged is a FormatError and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.algorithm.envelope import (
    LIFE_SIZE,
    Coverage,
    Filled,
    Kind,
    NodeRecord,
    PendingStripe,
    Stamp,
    Stripe,
    decode_wanted,
    encode_chunk,
    encode_wanted,
    find_stripe,
    is_within,
    live_prefix,
    split_live,
)
from freshness.algorithm.request import Item
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.view import NodeView
from freshness.errors import FormatError
from freshness.position import MariadbPosition, MysqlGtidSet, Position

SOURCES = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562")
DECODERS: tuple[Callable[[bytes], Any], ...] = (Filled.decode, Stripe.decode, PendingStripe.decode, NodeRecord.decode)

numbers = st.integers(1, 2**63 - 1)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
names = st.text(printable, min_size=1, max_size=15)
nonces = st.binary(min_size=LIFE_SIZE, max_size=LIFE_SIZE)


def union(positions: list[Position], empty: Position) -> Position:
    for position in positions:
        empty = empty.union(position)
    return empty


mysql = st.lists(st.builds(MysqlGtidSet.of, st.sampled_from(SOURCES), numbers), max_size=6).map(
    lambda parts: union(list(parts), MysqlGtidSet())
)
mariadb = st.lists(st.builds(MariadbPosition.of, st.integers(0, 3), st.integers(1, 3), numbers), max_size=4).map(
    lambda parts: union(list(parts), MariadbPosition())
)
positions = st.one_of(mysql, mariadb)
stamps = st.builds(Stamp, names, nonces, u64, positions).flatmap(
    lambda stamp: st.sampled_from((stamp, replace(stamp, until=stamp.position)))
)
stamps_and_identity = st.lists(stamps, min_size=1, max_size=3).map(tuple), st.binary(max_size=30)
without_value = st.builds(Filled, *stamps_and_identity, st.none())
with_value = st.builds(Filled, *stamps_and_identity, st.binary(max_size=60), st.booleans())
filled = without_value | with_value
stripes = st.builds(Stripe, nonces, positions)
pending = st.builds(PendingStripe, nonces)
records = st.builds(
    NodeRecord,
    lineage=names,
    life=nonces,
    tenure=nonces,
    is_open=st.booleans(),
    epoch=u64,
    ring=u32,
    as_of_us=st.integers(-(2**63), 2**63 - 1),
    heartbeat_age_ms=u32,
    node=names,
    stripes=u32,
    progress=positions,
    floor=positions,
    table_floors=st.dictionaries(names, positions, max_size=3),
    objects=st.dictionaries(names, st.builds(Coverage, u32, positions), max_size=3),
    starts=st.dictionaries(u32, positions, max_size=3),
    is_settling=st.booleans(),
)
Made = Filled | Stripe | PendingStripe | NodeRecord
items = st.one_of(filled, stripes, pending, records)


@given(items)
def test_what_is_written_is_read_back(item: Made) -> None:
    data = item.encode()
    assert type(item).decode(data) == item
    assert type(item).decode(data).encode() == data


@given(st.one_of(stripes, pending, records, without_value), st.data())
def test_a_cut_item_does_not_parse(item: Made, data: st.DataObject) -> None:
    encoded = item.encode()
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(FormatError):
        type(item).decode(encoded[:size])


@given(with_value)
def test_every_cut_of_an_entry_before_its_value_does_not_parse(entry: Filled) -> None:
    """The value goes to the end of the item: that it is whole is memcached's to know."""
    encoded = entry.encode()
    for size in range(len(encoded) - len(entry.value or b"")):
        with pytest.raises(FormatError):
            Filled.decode(encoded[:size])


@given(st.one_of(stripes, pending, records), st.binary(min_size=1, max_size=5))
def test_bytes_that_follow_do_not_parse(item: Made, more: bytes) -> None:
    with pytest.raises(FormatError):
        type(item).decode(item.encode() + more)


def decode_or_refuse(decode: Callable[[bytes], Any], data: bytes) -> None:
    """Nothing but a FormatError, and what parses is written as it was read, chunks as one."""
    try:
        item = decode(data)
    except FormatError:
        return
    if isinstance(item, Stripe):
        item = replace(item, chunk_count=1)
    if isinstance(item, PendingStripe):
        item = replace(item, chunks=())
    assert decode(item.encode()) == item


chunks = st.lists(st.tuples(st.sampled_from((b"LIFELIFE", b"PREVIOUS")), mysql), max_size=6)


@given(st.tuples(st.sampled_from((b"LIFELIFE", b"PREVIOUS")), mysql), chunks)
def test_a_stripe_is_the_union_of_the_chunks_of_its_first_life(
    first: tuple[bytes, Position], more: list[tuple[bytes, Position]]
) -> None:
    data = Stripe(*first).encode() + b"".join(encode_chunk(*chunk) for chunk in more)
    stripe = Stripe.decode(data)
    life, position = first
    assert stripe == Stripe(life, union([at for name, at in more if name == life], position), 1 + len(more))
    assert find_stripe(data, life) == stripe
    assert find_stripe(data, b"ANOTHER!") is None
    pending_data = PendingStripe(b"NONCE...").encode() + b"".join(encode_chunk(*chunk) for chunk in more)
    assert find_stripe(pending_data, life) is None
    whole = PendingStripe.decode(pending_data).complete(life, position)
    assert whole == replace(stripe, chunk_count=1)


small = st.builds(MariadbPosition.of, st.integers(0, 1), st.just(1), st.integers(1, 300))
encoded_stripes = st.lists(st.tuples(st.sampled_from((b"LIFELIFE", b"PREVIOUS")), small), max_size=6).map(
    lambda parts: (
        Stripe(b"LIFELIFE", MariadbPosition.of(0, 1, 1)).encode() + b"".join(encode_chunk(*part) for part in parts)
    )
)


@given(st.lists(encoded_stripes, max_size=4), small, st.data())
def test_a_stripe_is_within_a_position_that_contains_it_and_no_other_bytes_are(
    whole: list[bytes], position: Position, draw: st.DataObject
) -> None:
    """One set of known chunks serves for all of them, in the order in which they come."""
    known: set[bytes] = set()
    cut = [data[: draw.draw(st.integers(0, len(data)))] for data in whole]
    for data in draw.draw(st.permutations([*whole, *cut])):
        for life in (b"LIFELIFE", b"PREVIOUS"):
            stripe = find_stripe(data, life)
            expected = stripe is not None and position.contains(stripe.position)
            assert is_within(data, life, position, known if life == b"LIFELIFE" else set()) == expected


few = st.sampled_from(
    [MysqlGtidSet(), *(MysqlGtidSet.parse(f"{SOURCES[0]}:{numbers}") for numbers in ("1-5", "6", "6-500", "1-5:9"))]
)
few_chunks = st.lists(st.tuples(st.sampled_from((b"LIFELIFE", b"LIFELIFE", b"PREVIOUS")), few), max_size=5)
damage = st.none() | st.tuples(st.integers(0, 200), st.binary(max_size=2))


@given(st.lists(st.tuples(few_chunks, damage), max_size=6), few)
@settings(max_examples=500)
def test_a_stripe_is_told_to_be_within_a_position_as_if_it_were_decoded(
    made: list[tuple[list[tuple[bytes, Position]], tuple[int, bytes] | None]], position: Position
) -> None:
    """Chunks that were seen in one stripe are known in the next."""
    known: set[bytes] = set()
    for parts, damaged in made:
        data = bytes((0xFA, 2, Kind.STRIPE)) + b"".join(encode_chunk(*part) for part in parts)
        if damaged is not None:
            place, put_in = damaged
            data = data[:place] + put_in
        stripe = find_stripe(data, b"LIFELIFE")
        expected = stripe is not None and position.contains(stripe.position)
        assert is_within(data, b"LIFELIFE", position, known) is expected


@given(st.lists(u32, max_size=8), st.binary(max_size=3))
def test_a_list_of_wanted_stripes_is_read_back_as_far_as_it_is_whole(wanted: list[int], cut: bytes) -> None:
    assert decode_wanted(encode_wanted(wanted) + cut) == wanted


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for decode in DECODERS:
        decode_or_refuse(decode, data)


@given(st.sampled_from(Kind), st.binary(max_size=120))
def test_random_bytes_behind_our_head_are_refused(kind: Kind, data: bytes) -> None:
    for decode in DECODERS:
        decode_or_refuse(decode, bytes((0xFA, 2, kind)) + data)


@given(items, st.data())
def test_damaged_items_are_refused_or_are_other_items(item: Made, data: st.DataObject) -> None:
    encoded = bytearray(item.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(type(item).decode, bytes(encoded))


# -- the hit path --------------------------------------------------------------------------------------

LIFE = b"LIFELIFE"
POLICY = ObjectPolicy("customer", 5, ("customers",), ("a",), 60)


def view_of(table_floors: dict[str, Position]) -> NodeView:
    nothing = MysqlGtidSet()
    objects = {POLICY.name: Coverage(POLICY.fingerprint, nothing)}
    record = NodeRecord("a", LIFE, LIFE, True, 1, 7, 0, 0, "n1", 8, nothing, nothing, table_floors, objects)
    return NodeView("n1", ("a",), [Item(record.encode(), 1, 5)], 0.0, 7)


@given(filled, st.booleans())
def test_the_short_way_and_the_long_way_agree(entry: Filled, has_floor: bool) -> None:
    view = view_of({"customers": MysqlGtidSet.of(SOURCES[0], 7)} if has_floor else {})
    stamp = entry.stamps[0]
    for made in (
        entry,
        Filled((Stamp("a", LIFE, 1, stamp.position),), entry.identity, entry.value),
        Filled((Stamp("a", stamp.life, 1, stamp.position),), entry.identity, entry.value),
    ):
        refusal, value = view.judge(POLICY, entry.identity, made.encode())
        mine = {one.lineage: one for one in made.stamps}.get("a")
        if mine is None or mine.life != LIFE or mine.epoch != 1:
            assert refusal is ReadOutcome.DEAD
        elif has_floor and not mine.position.contains(MysqlGtidSet.of(SOURCES[0], 7)):
            assert refusal is ReadOutcome.TABLE_FLOOR
        else:
            assert (refusal, value) == (None, made.value)
        assert view.judge(POLICY, entry.identity + b"?", made.encode())[0] is ReadOutcome.IDENTITY


@given(st.binary(max_size=60), st.booleans())
def test_a_damaged_entry_is_never_an_error(data: bytes, has_floor: bool) -> None:
    view = view_of({"customers": MysqlGtidSet.of(SOURCES[0], 7)} if has_floor else {})
    prefix = live_prefix(Kind.FILLED, "a", LIFE)
    for damaged in (data, prefix + data):
        refusal, value = view.judge(POLICY, b"1", damaged)
        assert refusal is not None or value is not None
        split_live(damaged, len(prefix))
