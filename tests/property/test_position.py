"""Positions against a model: plain Python sets of (source, number), and the laws of a lattice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import FormatError
from freshness.position import (
    MariadbPosition,
    MysqlGtidSet,
    Order,
    Position,
    decode_position,
    empty_position,
    parse_gtids,
    parse_position,
)

UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000000-0000-0000-0000-000000000001")
Gtid = tuple[str, str, int]

gtids = st.tuples(st.sampled_from(UUIDS), st.sampled_from(("", "a", "b_2")), st.integers(1, 40))
models = st.frozensets(gtids, max_size=60)
mariadb_positions = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4)), max_size=5).map(
    lambda parts: MariadbPosition.parse(",".join(f"{d}-{s}-{n}" for d, s, n in parts))
)


def build(model: frozenset[Gtid]) -> MysqlGtidSet:
    position = MysqlGtidSet()
    for sid, tag, number in model:
        position = position.union(MysqlGtidSet.of(sid, number, tag))
    return position


positions: st.SearchStrategy[Position] = st.one_of(models.map(build), mariadb_positions)


def hull(model: frozenset[Gtid]) -> frozenset[Gtid]:
    spans: dict[tuple[str, str], list[int]] = {}
    for sid, tag, number in model:
        spans.setdefault((sid, tag), []).append(number)
    return frozenset(
        (sid, tag, number)
        for (sid, tag), numbers in spans.items()
        for number in range(min(numbers), max(numbers) + 1)
    )


@given(models, models)
def test_mysql_sets_behave_like_sets(one: frozenset[Gtid], two: frozenset[Gtid]) -> None:
    first, second = build(one), build(two)
    assert first.union(second) == build(one | two)
    assert first.intersection(second) == build(one & two)
    assert first.contains(second) == (two <= one)
    assert first.subtract(second) == build(one - two)
    assert (first == second) == (one == two)
    assert first.is_empty == (not one)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 30)), min_size=1, max_size=80), models)
def test_text_in_any_order_with_overlaps_is_the_set_of_its_numbers(
    intervals: list[tuple[int, int]], other: frozenset[Gtid]
) -> None:
    text = ",\n".join(f"{UUIDS[0].upper()}:{start}-{start + size}" for start, size in intervals)
    model = frozenset((UUIDS[0], "", n) for start, size in intervals for n in range(start, start + size + 1))
    position = MysqlGtidSet.parse(text)
    assert position == build(model)
    numbers = sorted(n for _, _, n in model)
    assert position.interval_count == sum(n - 1 not in set(numbers) for n in numbers)
    assert position.union(build(other)) == build(model | other) == build(other).union(position)


@given(models, models)
def test_filling_gaps_takes_only_streamed_numbers_inside_the_hull(
    wanted: frozenset[Gtid], streamed: frozenset[Gtid]
) -> None:
    filled = build(wanted).fill_gaps(build(streamed))
    assert filled == build(wanted | (hull(wanted) & streamed))


@given(models, models, models)
def test_laws_of_the_difference(one: frozenset[Gtid], two: frozenset[Gtid], three: frozenset[Gtid]) -> None:
    first, second, third = build(one), build(two), build(three)
    left = first.subtract(second)
    assert first.contains(left)
    assert left.intersection(second).is_empty
    assert left.union(first.intersection(second)) == first
    assert left.union(second) == first.union(second)
    assert left.is_empty == second.contains(first)
    assert left.subtract(third) == first.subtract(second.union(third))
    assert left.encode() == decode_position(left.encode()).encode()


def of_one_flavor(count: int) -> st.SearchStrategy[tuple[Position, ...]]:
    return st.one_of(*(st.tuples(*[each] * count) for each in (models.map(build), mariadb_positions)))


@given(of_one_flavor(3))
def test_what_a_difference_leaves_out_the_other_has(case: tuple[Position, ...]) -> None:
    """Of every flavor: a chunk of a stripe is what was streamed without the floor, and no event may get lost."""
    one, two, three = case
    left = one.subtract(two)
    assert one.contains(left)
    assert left.union(two).contains(one.union(two))
    assert left.is_empty == two.contains(one)
    assert one.subtract(empty_position(one.flavor)) == one
    assert one.subtract(one).is_empty
    # a token that has the difference and the other has the whole
    assert three.contains(one.union(two)) == (three.contains(left) and three.contains(two))
    assert decode_position(left.encode()) == left


@given(positions)
def test_the_parts_by_source_unite_to_the_whole_and_have_nothing_in_common(position: Position) -> None:
    parts = position.by_source()
    assert empty_position(position.flavor).union_all(parts.values()) == position
    assert sum(part.interval_count for part in parts.values()) == position.interval_count
    assert not any(part.is_empty for part in parts.values())
    assert all(one.intersection(two).is_empty for one in parts.values() for two in parts.values() if one is not two)


@given(models)
def test_intervals_are_the_numbers_with_gaps_between_them(model: frozenset[Gtid]) -> None:
    intervals = build(model).intervals()
    assert {
        (source, number)
        for source, spans in intervals.items()
        for first, last in spans
        for number in range(first, last + 1)
    } == {(f"{sid}:{tag}" if tag else sid, number) for sid, tag, number in model}
    for spans in intervals.values():
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(spans))


@given(mariadb_positions)
def test_the_gtids_of_a_mariadb_position_unite_to_it(position: MariadbPosition) -> None:
    assert MariadbPosition().union_all(MariadbPosition.of(*gtid) for gtid in position.gtids()) == position
    assert parse_gtids(str(position)) == position.gtids()


@given(positions)
def test_text_and_bytes_round_trip(position: Position) -> None:
    again = decode_position(position.encode())
    assert again == position
    assert hash(again) == hash(position)
    assert parse_position(position.flavor, str(position)) == position
    assert parse_position(position.flavor, str(position)).encode() == position.encode()


@given(mariadb_positions, mariadb_positions, mariadb_positions)
def test_mariadb_union_is_the_least_position_above_both(
    one: MariadbPosition, two: MariadbPosition, three: MariadbPosition
) -> None:
    both = one.union(two)
    assert both == two.union(one)
    assert both.contains(one)
    assert both.contains(two)
    assert three.contains(both) == (three.contains(one) and three.contains(two))
    assert both.union(three) == one.union(two.union(three))


@given(mariadb_positions, mariadb_positions)
def test_mariadb_intersection_is_below_both(one: MariadbPosition, two: MariadbPosition) -> None:
    common = one.intersection(two)
    assert common == two.intersection(one)
    assert one.contains(common)
    assert two.contains(common)
    if one.contains(two):
        assert common == two


@given(positions, positions)
def test_compare_agrees_with_containment_in_both_directions(one: Position, two: Position) -> None:
    mirrored = {Order.OLDER: Order.NEWER, Order.NEWER: Order.OLDER}
    order = one.compare(two)
    assert two.compare(one) == mirrored.get(order, order)
    assert (order in (Order.NEWER, Order.EQUAL)) == one.contains(two)
    assert (order is Order.EQUAL) == (one == two)
    if one.flavor != two.flavor:
        assert order is Order.UNKNOWN


@given(
    st.one_of(st.binary(max_size=60), positions.map(lambda p: p.encode())), st.integers(0, 60), st.binary(max_size=2)
)
def test_bytes_are_refused_or_are_exactly_what_encode_writes(data: bytes, cut: int, tail: bytes) -> None:
    mutated = data[:cut] + tail
    for candidate in (mutated, b"\x11" + mutated, b"\x12" + mutated):
        try:
            position = decode_position(candidate)
        except FormatError:
            continue  # refused is one of the two allowed outcomes
        rebuilt = empty_position(position.flavor).union(parse_position(position.flavor, str(position)))
        assert rebuilt.encode() == candidate
