"""Positions: what servers print, what people mistype, and the cases that the databases taught us."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.errors import FlavorMismatch, FormatError
from freshness.position import (
    MariadbPosition,
    MysqlGtidSet,
    Order,
    Position,
    decode_position,
    empty_position,
    parse_gtid,
    parse_gtids,
    parse_position,
)

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" \n", ""),
        (f"{A}:1", f"{A}:1"),
        (f"{A.upper()}:1-5", f"{A}:1-5"),
        (f"MySQL56/{A}:1-5", f"{A}:1-5"),
        (f"{B}:1-2,\n{A}:1-5", f"{A}:1-5,{B}:1-2"),
        (f"{A}:7:1-5", f"{A}:1-5:7"),
        (f"{A}:1-3:4-5", f"{A}:1-5"),
        (f"{A}:1-3, {A}:2-9", f"{A}:1-9"),
        (f" {A} : 1 - 3 : 5 ", f"{A}:1-3:5"),
        (f"{A}:tag:1-3", f"{A}:tag:1-3"),
        (f"{A}:1-3:tag:5:7-9", f"{A}:1-3:tag:5:7-9"),
        (f"{A}:Tag_2:1:b:2:3,{A}:9", f"{A}:9:b:2-3:tag_2:1"),
    ],
)
def test_mysql_text_is_read_and_printed_canonically(text: str, canonical: str) -> None:
    position = MysqlGtidSet.parse(text)
    assert str(position) == canonical
    assert position == MysqlGtidSet.parse(canonical)


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        A,
        f"{A}:",
        f"{A}::1",
        f"{A}:1::3",
        f"{A}:1:",
        f"{A}:0",
        f"{A}:0-5",
        f"{A}:5-3",
        f"{A}:1-",
        f"{A}:-1",
        f"{A}:1.5",
        f"{A}:1 2",
        f"{A}:٣",
        f"{A}:9223372036854775808",
        f"{A}:99999999999999999999",
        f"{A}:tag",
        f"{A}:1:tag",
        f"{A}:tag:other:1",
        f"{A}:ta-g:1",
        f"{A}:{'t' * 33}:1",
        f"{A.replace('-', '')}:1",
        f"g{A[1:]}:1",
        f"{A[:-1]}:1",
        f"{A}:1,",
        f"{A}:1;{B}:1",
    ],
)
def test_malformed_mysql_text_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_position("mysql", text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0-1-100", "0-1-100"),
        ("MariaDB/0-1-100", "0-1-100"),
        ("1-2-5, 0-1-100", "0-1-100,1-2-5"),
        ("0-2-100,0-1-100", "0-1-100,0-2-100"),
        ("0-1-100,0-2-101", "0-2-101"),
        ("0-1-0,1-1-3", "1-1-3"),
        ("0-1-18446744073709551615", "0-1-18446744073709551615"),
    ],
)
def test_mariadb_text_is_read_and_printed_canonically(text: str, canonical: str) -> None:
    assert str(MariadbPosition.parse(text)) == canonical


@pytest.mark.parametrize(
    ("whole", "part", "left"),
    [
        (f"{A}:1-10", f"{A}:1-9", f"{A}:10"),
        (f"{A}:1-10", f"{A}:3-4:7", f"{A}:1-2:5-6:8-10"),
        (f"{A}:1-10,{B}:1", f"{A}:1-10", f"{B}:1"),
        (f"{A}:1-10", f"{A}:1-10", ""),
        (f"{A}:1-10", f"{A}:5-20", f"{A}:1-4"),
        (f"{A}:1-10", f"{A}:20-30", f"{A}:1-10"),
        (f"{A}:5-10:20", f"{A}:1-4:7", f"{A}:5-6:8-10:20"),
        (f"{A}:1-10:tag:1-3", f"{A}:1-10:tag:2", f"{A}:tag:1:3"),
        (f"{A}:1-9223372036854775807", f"{A}:2-9223372036854775807", f"{A}:1"),
        ("", f"{A}:1", ""),
        (f"{A}:1", "", f"{A}:1"),
    ],
)
def test_differences(whole: str, part: str, left: str) -> None:
    assert MysqlGtidSet.parse(whole).subtract(MysqlGtidSet.parse(part)) == MysqlGtidSet.parse(left)


def test_a_difference_of_two_flavors_is_refused() -> None:
    with pytest.raises(FlavorMismatch):
        MysqlGtidSet().subtract(MariadbPosition())


@pytest.mark.parametrize(
    ("flavor", "text", "parts", "intervals"),
    [
        ("mysql", "", {}, {}),
        (
            "mysql",
            f"{B}:3,{A}:1-5:7:tag:2-3",
            {A: f"{A}:1-5:7:tag:2-3", B: f"{B}:3"},
            {A: ((1, 5), (7, 7)), f"{A}:tag": ((2, 3),), B: ((3, 3),)},
        ),
        ("mysql", f"{A}:t:4", {A: f"{A}:t:4"}, {f"{A}:t": ((4, 4),)}),
        ("mariadb", "", {}, {}),
        ("mariadb", "10-1-3,2-1-7,2-5-7", {"2": "2-1-7,2-5-7", "10": "10-1-3"}, {"2": ((1, 7),), "10": ((1, 3),)}),
    ],
)
def test_parts_by_source_and_intervals(
    flavor: str, text: str, parts: dict[str, str], intervals: dict[str, tuple[tuple[int, int], ...]]
) -> None:
    position = parse_position(flavor, text)
    assert {source: str(part) for source, part in position.by_source().items()} == parts
    assert position.intervals() == intervals
    assert list(position.intervals()) == list(intervals)


def test_the_gtids_of_a_mariadb_position_and_of_a_list() -> None:
    assert MariadbPosition.parse("1-3-9,0-2-5,0-1-5").gtids() == [(0, 1, 5), (0, 2, 5), (1, 3, 9)]
    assert parse_gtids(" 0-1-5, 0-2-7,\n0-3-0") == [(0, 1, 5), (0, 2, 7), (0, 3, 0)]
    assert parse_gtids("") == []
    with pytest.raises(FormatError):
        parse_gtids("0-1-5,x")


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "0-1",
        "0-1-",
        "0--1-5",
        "0-1-5-6",
        "0-1-5,",
        "0 1 5",
        "a-1-5",
        "4294967296-1-5",
        "0-4294967296-5",
        "0-4294967296-0",
        "0-1-18446744073709551616",
        "0-1-٣",
    ],
)
def test_malformed_mariadb_text_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_position("mariadb", text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("flavor", "text", "other"),
    [
        ("mysql", "0-1-100", "MariaDB"),
        ("mysql", "MariaDB/0-1-100,1-1-3", "MariaDB"),
        ("mariadb", f"{A}:1-5", "MySQL"),
        ("mariadb", f"MySQL56/{A}:1-5", "MySQL"),
    ],
)
def test_text_of_the_other_flavor_is_named_as_such(flavor: str, text: str, other: str) -> None:
    with pytest.raises(FlavorMismatch) as caught:
        parse_position(flavor, text)
    assert f"looks like a {other}" in caught.value.hint


def test_a_gtid_is_that_of_one_transaction() -> None:
    sid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    assert parse_gtid("mysql", f" {sid.upper()}:23 ") == MysqlGtidSet.of(sid, 23)
    assert parse_gtid("mysql", f"{sid}:Tag:23") == MysqlGtidSet.of(sid, 23, "tag")
    assert parse_gtid("mariadb", "0-1-100") == MariadbPosition.of(0, 1, 100)


@pytest.mark.parametrize(
    ("flavor", "text"),
    [
        ("mysql", ""),
        ("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-2"),
        ("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1:3"),
        ("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1,4e11fa47-71ca-11e1-9e33-c80aa9429562:1"),
        ("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag:1-2"),
        ("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1:tag:1"),
        ("mysql", "0-1-100"),
        ("mariadb", ""),
        ("mariadb", "0-1-0"),
        ("mariadb", "0-1-100,0-2-100"),
        ("mariadb", "0-1-100,1-1-5"),
        ("mariadb", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1"),
    ],
)
def test_what_is_not_the_gtid_of_one_transaction_is_refused_with_a_hint(flavor: str, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_gtid(flavor, text)
    assert caught.value.hint


def test_an_unknown_flavor_is_refused() -> None:
    with pytest.raises(FormatError, match="postgres"):
        empty_position("postgres")


@pytest.mark.parametrize(("number", "tag"), [(0, ""), (-1, ""), (1 << 63, ""), (1, "2x"), (1, "a" * 33)])
def test_a_single_mysql_gtid_is_checked(number: int, tag: str) -> None:
    with pytest.raises(FormatError):
        MysqlGtidSet.of(A, number, tag)


@pytest.mark.parametrize(("domain", "server", "sequence"), [(-1, 1, 1), (0, 1 << 32, 1), (0, 1, 0)])
def test_a_single_mariadb_gtid_is_checked(domain: int, server: int, sequence: int) -> None:
    with pytest.raises(FormatError):
        MariadbPosition.of(domain, server, sequence)


def test_a_prefix_grows_by_its_next_transaction_and_stays_one_interval() -> None:
    prefix = MysqlGtidSet.parse(f"{A}:1-100,{B}:1-7")
    grown = prefix.union(MysqlGtidSet.of(A, 101))
    assert str(grown) == f"{A}:1-101,{B}:1-7"
    assert str(prefix) == f"{A}:1-100,{B}:1-7"
    assert grown.interval_count == 2
    assert grown.union(prefix) is grown


def test_a_tag_is_a_source_of_its_own() -> None:
    assert not MysqlGtidSet.parse(f"{A}:1-5").contains(MysqlGtidSet.of(A, 3, "blue"))


@pytest.mark.parametrize(
    ("one", "two", "order"),
    [
        (f"{A}:1-5", f"{A}:1-5", Order.EQUAL),
        (f"{A}:1-5", f"{A}:1-3:5", Order.NEWER),
        (f"{A}:1-3", f"{A}:1-3,{B}:1", Order.OLDER),
        (f"{A}:1-3:5", f"{A}:1-4", Order.UNKNOWN),  # an out-of-order replica
        ("", f"{A}:1", Order.OLDER),
    ],
)
def test_mysql_order_is_containment(one: str, two: str, order: Order) -> None:
    assert MysqlGtidSet.parse(one).compare(MysqlGtidSet.parse(two)) is order


@pytest.mark.parametrize(
    ("one", "two", "order"),
    [
        ("0-1-100", "0-1-100", Order.EQUAL),
        ("0-2-101", "0-1-100", Order.NEWER),
        ("0-1-100", "0-2-100", Order.UNKNOWN),  # two histories (F59)
        ("0-1-100,0-2-100", "0-2-100", Order.NEWER),
        ("0-1-100", "0-1-99,1-1-1", Order.UNKNOWN),
    ],
)
def test_mariadb_order_is_per_domain(one: str, two: str, order: Order) -> None:
    assert MariadbPosition.parse(one).compare(MariadbPosition.parse(two)) is order


@pytest.mark.parametrize(
    ("one", "two", "union", "common"),
    [
        ("0-1-100", "0-2-100", "0-1-100,0-2-100", ""),
        ("0-1-100,0-2-100", "0-2-100,0-3-100", "0-1-100,0-2-100,0-3-100", "0-2-100"),
        ("0-1-100,1-1-1", "0-2-90", "0-1-100,1-1-1", "0-2-90"),
    ],
)
def test_mariadb_union_and_intersection(one: str, two: str, union: str, common: str) -> None:
    first, second = MariadbPosition.parse(one), MariadbPosition.parse(two)
    assert str(first.union(second)) == union
    assert str(first.intersection(second)) == common


@pytest.mark.parametrize(
    ("one", "two", "left"),
    [
        ("0-1-100", "0-1-90", "0-1-100"),
        ("0-1-100", "0-1-100", ""),
        ("0-1-100", "0-2-101", ""),
        ("0-1-100", "0-2-100", "0-1-100"),
        ("0-1-100,0-2-100", "0-1-100", "0-1-100,0-2-100"),
        ("0-1-100,1-1-7,2-1-9", "0-1-100,2-1-8", "1-1-7,2-1-9"),
        ("", "0-1-100", ""),
    ],
)
def test_a_mariadb_difference_is_of_whole_domains(one: str, two: str, left: str) -> None:
    """A domain cannot be cut at its beginning."""
    assert str(MariadbPosition.parse(one).subtract(MariadbPosition.parse(two))) == left


def test_gaps_are_filled_only_with_numbers_that_were_streamed() -> None:
    floor = MysqlGtidSet.parse(f"{A}:3:9:14,{B}:2")
    streamed = MysqlGtidSet.parse(f"{A}:1-10:13-20,{B}:1-9")  # 11 and 12 were never handed out
    assert str(floor.fill_gaps(streamed)) == f"{A}:3-10:13-14,{B}:2"
    assert floor.fill_gaps(MysqlGtidSet()) == floor


def test_a_mariadb_position_has_no_gaps() -> None:
    position = MariadbPosition.of(0, 1, 9)
    assert position.fill_gaps(MariadbPosition.of(0, 1, 100)) is position


@pytest.mark.parametrize(("one", "two"), [("mysql", "mariadb"), ("mariadb", "mysql")])
def test_flavors_do_not_mix(one: str, two: str) -> None:
    first, second = empty_position(one), empty_position(two)
    assert not first.contains(second)
    assert first.compare(second) is Order.UNKNOWN
    assert first != second
    for combine in (first.union, first.intersection, first.subtract, first.fill_gaps):
        with pytest.raises(FlavorMismatch):
            combine(second)
    with pytest.raises(FlavorMismatch):
        parse_position(one, EXAMPLES[one]).union_all([second, parse_position(two, EXAMPLES[two])])


EXAMPLES = {"mysql": f"{A}:1-9", "mariadb": "0-1-9"}

_sources = st.sampled_from((A, B, f"{A}:tag"))
_mysql = st.builds(
    lambda source, first, more: MysqlGtidSet.parse(f"{source}:{first}-{first + more}"),
    _sources,
    st.integers(1, 30),
    st.sampled_from((0, 0, 0, 1, 5)),
)
_mysql_sets = st.lists(_mysql, max_size=4).map(lambda each: MysqlGtidSet().union_all(each))
_mariadb = st.builds(MariadbPosition.of, st.integers(0, 2), st.integers(1, 3), st.integers(1, 12))
_mariadb_sets = st.lists(_mariadb, max_size=3).map(lambda each: MariadbPosition().union_all(each))


def _in_a_row(first: int, count: int) -> list[Position]:
    return [MysqlGtidSet.of(A, number) for number in range(first, first + count)]


_batches = st.one_of(
    st.tuples(_mysql_sets, st.lists(st.one_of(_mysql, _mysql_sets), max_size=12)),
    st.tuples(_mysql_sets, st.builds(_in_a_row, st.integers(1, 30), st.integers(0, 8))),
    st.tuples(_mariadb_sets, st.lists(st.one_of(_mariadb, _mariadb_sets), max_size=12)),
)


@given(batch=_batches)
@settings(max_examples=500)
def test_a_batch_is_united_as_its_transactions_one_by_one(batch: tuple[Position, list[Position]]) -> None:
    before, transactions = batch
    one_by_one = before
    for transaction in transactions:
        one_by_one = one_by_one.union(transaction)
    at_once = before.union_all(transactions)
    assert at_once == one_by_one
    assert str(at_once) == str(one_by_one)
    assert at_once.encode() == one_by_one.encode()
    assert decode_position(at_once.encode()) == at_once


def test_sets_that_abut_keep_the_gaps_between_them() -> None:
    batch = [MysqlGtidSet.parse(f"{A}:{each}") for each in ("1-5", "6-7:9", "10:12")]
    assert str(MysqlGtidSet().union_all(batch)) == f"{A}:1-7:9-10:12"


POSITIONS: list[Position] = [
    MysqlGtidSet(),
    MysqlGtidSet.parse(f"{A}:1-3:5:tag:7,{B}:9223372036854775807"),
    MariadbPosition(),
    MariadbPosition.parse("0-1-100,0-2-100,4294967295-1-18446744073709551615"),
]


@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_bytes_and_pickles_round_trip(position: Position) -> None:
    assert decode_position(position.encode()) == position
    assert pickle.loads(pickle.dumps(position)) == position  # noqa: S301  our own bytes


@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_cut_or_lengthened_bytes_are_refused(position: Position) -> None:
    data = position.encode()
    for broken in [data[:size] for size in range(len(data))] + [data + b"\0"]:
        with pytest.raises(FormatError) as caught:
            decode_position(broken)
        assert caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"\x21\x00",  # another version
        b"\x11\x80\x00",  # a number spelled too long
        b"\x11" + b"\xff" * 9 + b"\x7f",  # more than 64 bits
        b"\x11\x01" + bytes(16) + b"\x00\x00",  # a source without numbers
        b"\x11\x01" + bytes(16) + b"\x01A\x01\x00\x00",  # a tag in upper case
        b"\x11\x02" + (bytes(16) + b"\x00\x01\x00\x00") * 2,  # a source twice
        b"\x11\x01" + bytes(16) + b"\x00\x01\x00" + b"\xff" * 9 + b"\x01",  # a number above the largest GTID
        b"\x12\x01" + b"\xff" * 4 + b"\x7f\x00\x00\x00",  # a domain above 32 bits
        b"\x12\x01\x00" + b"\xff" * 9 + b"\x01\x00\x00",  # a sequence above 64 bits
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_position(data)
