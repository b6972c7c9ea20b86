"""Whole rows of made-up events: equal to mysql-replication's, compiled and walked alike; damage is never a row."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from freshness.errors import FormatError, StreamStopped
from freshness.stream.source import UNREADABLE, RowChange, Shape
from invalidator.binlog.rows import plan as rowplan
from invalidator.binlog.rows.decoder import ChangedRows, RowDecoder
from invalidator.binlog.rows.layout import FindPeriod, Period, find_period
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.binaryjson import decode_json
from invalidator.binlog.wire.event import FormatDescription, LogEvent
from tests.unit.invalidator.binlog.library import Images, LibraryDecoder
from tests.unit.invalidator.binlog.rowevents import (
    Made,
    event,
    i4,
    image,
    integer,
    rows,
    rows_body,
    table_map,
    text,
    varchar,
)

NAIVE = datetime.fromisoformat


def decoder_of(columns: Sequence[Made], flavor: str = "mysql", **options: Any) -> RowDecoder:
    decoder = RowDecoder(flavor, "shop", frozenset(("goods",)))
    decoder.start_file(FormatDescription((), False))
    decoder.map_table(table_map(columns, flavor=flavor, **options))
    return decoder


def read(columns: Sequence[Made], row_event: LogEvent, flavor: str = "mysql") -> ChangedRows:
    return decoder_of(columns, flavor).read_rows(row_event)


def value_of(made: Made, field: bytes | None, flavor: str = "mysql") -> object:
    """Of a column between two others; decoded a few times, so that both ways are taken and must agree."""
    columns = [integer("a"), made, integer("z")]
    answer = read(columns, rows(30, 3, *[image([i4(1), field, i4(2)])] * 7), flavor)
    assert answer.problem == ""
    found = [dict(change.after or {}) for change in answer.changes]
    assert len({repr(each) for each in found}) == 1
    assert (found[0]["a"], found[0]["z"]) == (1, 2)
    return found[0][made.name]


def problem_of(made: Made, field: bytes, flavor: str = "mysql") -> str:
    answer = read([made], rows(30, 1, image([field])), flavor)
    assert answer.changes == ()
    return answer.problem


def be(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big")


def datetime2(year: int, month: int, day: int, *time: int, fraction: bytes = b"") -> bytes:
    hour, minute, second = time or (0, 0, 0)
    date_bits = (year * 13 + month) << 22 | day << 17
    return be((1 << 39) | date_bits | hour << 12 | minute << 6 | second, 5) + fraction


# -- single values ----------------------------------------------------------------------------------------

LATIN1, UTF8MB4, BINARY, UTF16, SWE7, CP1251, HP8 = 8, 45, 63, 54, 10, 51, 6
BIT12 = Made("v", types.BIT, b"\4\1")

VALUES: dict[str, tuple[Made, bytes | None, object]] = {
    "NULL": (integer("v"), None, None),
    "TINYINT": (integer("v", types.TINY), b"\x80", -128),
    "TINYINT UNSIGNED": (integer("v", types.TINY, is_unsigned=True), b"\xff", 255),
    "SMALLINT": (integer("v", types.SHORT), b"\xfe\xff", -2),
    "MEDIUMINT": (integer("v", types.INT24), b"\xff\xff\xff", -1),
    "MEDIUMINT UNSIGNED": (integer("v", types.INT24, is_unsigned=True), b"\xff\xff\xff", 0xFFFFFF),
    "BIGINT": (integer("v", types.LONGLONG), b"\xff" * 8, -1),
    "BIGINT UNSIGNED": (integer("v", types.LONGLONG, is_unsigned=True), b"\xff" * 8, (1 << 64) - 1),
    "FLOAT": (Made("v", types.FLOAT, b"\4"), struct.pack("<f", 0.5), 0.5),
    "DOUBLE": (Made("v", types.DOUBLE, b"\x08"), struct.pack("<d", -1e300), -1e300),
    "DECIMAL(14,4)": (
        Made("v", types.NEWDECIMAL, b"\x0e\4"), bytes.fromhex("7ef204c72dfb2d"),
        Decimal("-1234567890.1234"),
    ),
    "DECIMAL(2,0)": (Made("v", types.NEWDECIMAL, b"\2\0"), b"\x8c", Decimal("12")),
    "DECIMAL(2,2)": (Made("v", types.NEWDECIMAL, b"\2\2"), b"\x8c", Decimal("0.12")),
    "YEAR": (Made("v", types.YEAR), b"\x7c", 2024),
    "BINARY(4)": (Made("v", types.STRING, b"\xfe\4", BINARY), b"\1a", b"a\0\0\0"),
    "YEAR 0": (Made("v", types.YEAR), b"\0", 0),
    "BIT(12)": (BIT12, b"\x0a\xf0", "101011110000"),
    "BIT(1)": (Made("v", types.BIT, b"\1\0"), b"\1", "1"),
    "DATE": (Made("v", types.DATE), (2024 << 9 | 2 << 5 | 29).to_bytes(3, "little"), date(2024, 2, 29)),
    "DATE zero": (Made("v", types.DATE), b"\0\0\0", UNREADABLE),
    "DATE 2024-02-31": (Made("v", types.DATE), (2024 << 9 | 2 << 5 | 31).to_bytes(3, "little"), UNREADABLE),
    "DATETIME": (
        Made("v", types.DATETIME2, b"\0"), datetime2(2024, 1, 2, 3, 4, 5),
        NAIVE("2024-01-02 03:04:05"),
    ),
    "DATETIME(3)": (
        Made("v", types.DATETIME2, b"\3"), datetime2(2024, 1, 2, fraction=be(5670, 2)),
        NAIVE("2024-01-02 00:00:00.567"),
    ),
    "DATETIME(6)": (
        Made("v", types.DATETIME2, b"\6"), datetime2(9999, 12, 31, fraction=be(999999, 3)),
        NAIVE("9999-12-31 00:00:00.999999"),
    ),
    "DATETIME zero": (Made("v", types.DATETIME2, b"\0"), datetime2(0, 0, 0), UNREADABLE),
    "TIMESTAMP": (Made("v", types.TIMESTAMP2, b"\0"), be(86400, 4), NAIVE("1970-01-02 00:00:00")),
    "TIMESTAMP(1)": (
        Made("v", types.TIMESTAMP2, b"\1"), be(86400, 4) + b"\x32",
        NAIVE("1970-01-02 00:00:00.5"),
    ),
    "TIMESTAMP zero": (Made("v", types.TIMESTAMP2, b"\0"), be(0, 4), UNREADABLE),
    "TIMESTAMP after 2038": (
        Made("v", types.TIMESTAMP2, b"\0"), be(1 << 31, 4),
        NAIVE("2038-01-19 03:14:08"),
    ),
    "TIME": (
        Made("v", types.TIME2, b"\0"), be(0x800000 + (838 << 12 | 59 << 6 | 59), 3),
        timedelta(hours=838, minutes=59, seconds=59),
    ),
    "TIME negative": (
        Made("v", types.TIME2, b"\0"), be(0x800000 - (1 << 12 | 2 << 6 | 3), 3),
        -timedelta(hours=1, minutes=2, seconds=3),
    ),
    "TIME(3) negative": (
        Made("v", types.TIME2, b"\3"), be((0x800000 << 16) - (1 << 16 | 5000), 5),
        -timedelta(seconds=1.5),
    ),
    "TIME(6) below a second": (
        Made("v", types.TIME2, b"\6"), be((0x800000 << 24) - 1, 6),
        -timedelta(microseconds=1),
    ),
    "old DATETIME": (
        Made("v", types.DATETIME), (20240102030405).to_bytes(8, "little"),
        NAIVE("2024-01-02 03:04:05"),
    ),
    "old DATETIME zero": (Made("v", types.DATETIME), bytes(8), UNREADABLE),
    "old TIME": (
        Made("v", types.TIME), (8385959).to_bytes(3, "little"),
        timedelta(hours=838, minutes=59, seconds=59),
    ),
    "old TIMESTAMP": (
        Made("v", types.TIMESTAMP), (86400).to_bytes(4, "little"),
        NAIVE("1970-01-02 00:00:00"),
    ),
    "VARCHAR": (varchar("v"), text("€".encode()), "€"),
    "long VARCHAR": (varchar("v", 300), b"\3\0" + "€".encode(), "€"),
    "latin1": (varchar("v", collation=LATIN1), b"\2\x80\xe9", "€é"),
    "latin1 that Python lacks": (varchar("v", collation=LATIN1), b"\2\x81\xe9", "\x81é"),
    "utf16": (varchar("v", collation=UTF16), b"\2\x20\xac", "€"),
    "cp1251": (varchar("v", collation=CP1251), b"\1\xff", "я"),
    "a character set that Python lacks": (varchar("v", collation=SWE7), b"\2ab", b"ab"),
    "an unknown collation": (varchar("v", collation=2000), b"\2ab", b"ab"),
    "VARBINARY": (varchar("v", collation=BINARY), b"\2\xff\0", b"\xff\0"),
    "no bytes": (varchar("v", collation=BINARY), b"\0", b""),
    "MEDIUMTEXT": (Made("v", types.BLOB, b"\3"), b"\2\0\0ab", "ab"),
    "LONGBLOB": (Made("v", types.BLOB, b"\4", BINARY), b"\2\0\0\0ab", b"ab"),
    "GEOMETRY": (Made("v", types.GEOMETRY, b"\2"), b"\3\0abc", b"abc"),
    "ENUM": (Made("v", types.ENUM, b"\xf7\1", labels=(b"a", b"b")), b"\2", "b"),
    "ENUM 0": (Made("v", types.ENUM, b"\xf7\2", labels=(b"a",) * 300), b"\0\0", ""),
    "ENUM in latin1": (Made("v", types.ENUM, b"\xf7\1", LATIN1, labels=(b"gr\xfcn",)), b"\1", "grün"),
    "ENUM NULL in latin1": (Made("v", types.ENUM, b"\xf7\1", LATIN1, labels=(b"gr\xfcn",)), None, None),
    "ENUM in swe7": (Made("v", types.ENUM, b"\xf7\1", SWE7, labels=(b"{", b"b")), b"\1", UNREADABLE),
    "SET": (Made("v", types.SET, b"\xf8\1", labels=(b"a", b"b", b"c")), b"\5", {"a", "c"}),
    "SET of none": (Made("v", types.SET, b"\xf8\1", labels=(b"a", b"b", b"c")), b"\0", set()),
    "SET in hp8": (Made("v", types.SET, b"\xf8\1", HP8, labels=(b"a",)), b"\1", {"a"}),
    "VECTOR": (Made("v", types.VECTOR, b"\4"), b"\4\0\0\0abcd", UNREADABLE),
    "JSON": (Made("v", types.JSON, b"\4"), b"\3\0\0\0\5\7\0", 7),
    "JSON of no bytes": (Made("v", types.JSON, b"\4"), bytes(4), UNREADABLE),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_a_value(case: str) -> None:
    made, field, expected = VALUES[case]
    found = value_of(made, field)
    assert (found, type(found)) == (expected, type(expected))
    assert str(found) == str(expected) or isinstance(expected, set)


@pytest.mark.parametrize("kind", [types.VARCHAR_COMPRESSED, types.BLOB_COMPRESSED])
def test_a_compressed_column_is_its_content(kind: int) -> None:
    made = Made("v", kind, b"\xff\0" if kind == types.VARCHAR_COMPRESSED else b"\1")
    assert value_of(made, text(b"\0" + "€".encode()), "mariadb") == "€"
    assert value_of(made, text(b"\x81\x3c" + zlib.compress(b"Abc" * 20)), "mariadb") == "Abc" * 20
    assert problem_of(made, text(b"\x81\x3d" + zlib.compress(b"Abc" * 20)), "mariadb")


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (varchar("v"), b"\1\xff"),
        (varchar("v", collation=CP1251), b"\1\x98"),
        (Made("v", types.ENUM, b"\xf7\1", labels=(b"a",)), b"\2"),
        (Made("v", types.SET, b"\xf8\1", labels=(b"a",)), b"\2"),
        (Made("v", types.DATETIME), (20241399000000).to_bytes(8, "little")),
        (Made("v", types.NEWDECIMAL, b"\2\0"), b"\xff"),
        (Made("v", types.JSON, b"\1"), b"\3\5\7\0\0"),
        (Made("v", types.JSON, b"\1"), b"\1\x0d"),
    ],
)
def test_a_field_that_cannot_be_decoded_raises_its_table(made: Made, field: bytes) -> None:
    assert "cannot be decoded" in problem_of(made, field)


# -- rows and images --------------------------------------------------------------------------------------


def test_the_images_of_each_operation() -> None:
    columns = [integer("id"), varchar("v")]
    one, two = image([i4(1), text(b"a")]), image([i4(1), None])
    decoder = decoder_of(columns)
    before, after = {"id": 1, "v": "a"}, {"id": 1, "v": None}
    for kind, images, expected in (
        (23, [one], (None, before)), (30, [one], (None, before)),
        (24, [one, two], (before, after)), (31, [one, two], (before, after)),
        (25, [two], (after, None)), (32, [two], (after, None)),
    ):  # fmt: skip
        answer = decoder.read_rows(rows(kind, 2, *images * 9))
        assert [(change.before, change.after) for change in answer.changes] == [expected] * 9
        assert {(change.table, change.op) for change in answer.changes} == {("goods", answer.op)}
        assert answer.changes[0].shapes == {"id": Shape("same"), "v": Shape("text")}
        assert answer.ends_statement


def test_columns_that_an_image_leaves_out_are_absent() -> None:
    columns = [integer("id"), varchar("v"), integer("n")]
    update = rows(
        31, 3, image([i4(1)]), image([text(b"a"), None]),
        present=[True, False, False], present_after=[False, True, True],
    )  # fmt: skip
    assert read(columns, update).changes == (RowChange("goods", "update", {"id": 1}, {"v": "a", "n": None}),)


ENDLESS, PAST = be((1 << 31) - 1, 4) + be(999999, 3), be(86400, 4) + be(1, 3)
MOMENT = Made("end", types.TIMESTAMP2, b"\6", is_nullable=False)
KEY_OF_ID_AND_END = b"\x08\x02\x00\x01"


def versioned(find_period: FindPeriod) -> RowDecoder:
    decoder = RowDecoder("mariadb", "shop", frozenset(("goods",)), find_period=find_period)
    decoder.start_file(FormatDescription((), False))
    columns = [integer("id"), MOMENT, integer("v")]
    decoder.map_table(table_map(columns, flavor="mariadb", more=KEY_OF_ID_AND_END))
    return decoder


def test_rows_of_the_past_are_no_rows() -> None:
    decoder = versioned(lambda table, moments, key: Period("end", frozenset(("end",))))
    one, two = image([i4(1), ENDLESS, i4(5)]), image([i4(1), ENDLESS, i4(6)])
    past, next_past = image([i4(1), PAST, i4(5)]), image([i4(1), PAST, i4(6)])
    late = image([i4(1), be((1 << 32) - 1, 4) + be(999999, 3), i4(5)])
    five, six = {"id": 1, "v": 5}, {"id": 1, "v": 6}
    for kind, images, expected in (
        (23, [one], [("insert", None, five)]),
        (23, [late], [("insert", None, five)]),
        (24, [one, two], [("update", five, six)]),
        (24, [one, past], [("delete", five, None)]),
        (25, [one], [("delete", five, None)]),
        (23, [past], []),
        (25, [past], []),
        (24, [past, next_past], []),
    ):
        answer = decoder.read_rows(rows(kind, 3, *images))
        assert [(change.op, change.before, change.after) for change in answer.changes] == expected
        assert (answer.problem, answer.is_past) == ("", not expected)
        for change in answer.changes:
            assert change.schema is not None
            assert change.shapes is not None
            assert change.schema.key == ("id",)
            assert [column.name for column in change.schema.columns] == [*change.shapes] == ["id", "v"]


def test_a_table_of_which_it_is_not_known_whether_it_has_a_past_raises_itself() -> None:
    rows_of = [("BASE TABLE", "id", None), ("BASE TABLE", "v", None)]
    assert find_period([*rows_of, ("BASE TABLE", "end", None)], "goods", ["end"], ["id", "end"]) is None
    assert find_period(rows_of, "goods", ["seen"], ["id"]) is None, "it was dropped, and no period's"
    for moments, key in ((["end"], ["id", "end"]), (["row_end"], [])):
        with pytest.raises(FormatError, match="perhaps system-versioned"):
            find_period(rows_of, "goods", moments, key)
    decoder = versioned(lambda table, moments, key: find_period(rows_of, table, moments, key))
    answer = decoder.read_rows(rows(23, 3, image([i4(1), PAST, i4(5)])))
    assert answer.changes == ()
    assert "perhaps system-versioned" in answer.problem


def test_a_partial_json_value_is_unreadable_and_the_rest_of_the_row_is_not() -> None:
    columns = [Made("j", types.JSON, b"\4"), integer("n"), Made("k", types.JSON, b"\4")]
    whole, part = b"\3\0\0\0\5\7\0", b"\4\0\0\0\0\2$a"
    before = image([whole, i4(1), whole])
    after = b"\1\2" + image([whole, i4(2), part])  # the option, the bitmap of JSON columns
    plain = b"\0" + image([whole, i4(3), whole])
    answer = read(columns, rows(39, 3, before, after, before, plain))
    assert [change.after for change in answer.changes] == [
        {"j": 7, "n": 2, "k": UNREADABLE},
        {"j": 7, "n": 3, "k": 7},
    ]
    assert [change.before for change in answer.changes] == [{"j": 7, "n": 1, "k": 7}] * 2
    assert "binlog_row_value_options" in read(columns, rows(39, 3, before, b"\2" + after[1:])).problem
    [change] = read([integer("n")], rows(39, 1, image([i4(1)]), b"\0" + image([i4(2)]))).changes
    assert (change.before, change.after) == ({"n": 1}, {"n": 2})


def test_a_table_that_cannot_be_read_raises_itself() -> None:
    for columns, options, expected in (
        ([integer("id")], {"has_names": False}, "binlog_row_metadata"),
        ([integer("id"), Made("x", 200)], {}, "column type 200"),
        ([integer("id"), Made("x", types.BIT, b"\0\x09")], {}, "unknown type 16"),
    ):
        decoder = RowDecoder("mysql", "shop", frozenset(("goods",)))
        table = decoder.map_table(table_map(columns, **options))  # type: ignore[arg-type]
        assert table.wanted
        answer = decoder.read_rows(rows(30, len(columns), image([i4(1)])))
        assert answer.problem == table.problem
        assert expected in answer.problem


YEAR_AND_NUMBERS = [integer("a"), Made("y", types.YEAR), integer("b", is_unsigned=True)]


@pytest.mark.parametrize(
    ("columns", "flavor", "has_visibility", "is_certain"),
    [
        (YEAR_AND_NUMBERS, "mysql", True, True),
        (YEAR_AND_NUMBERS, "mysql", False, False),
        (YEAR_AND_NUMBERS, "mariadb", False, True),
        ([*YEAR_AND_NUMBERS[::2], YEAR_AND_NUMBERS[1]], "mysql", False, True),
        (YEAR_AND_NUMBERS[::2], "mysql", False, True),
    ],
)
def test_signs_behind_a_year_are_not_certain_in_an_old_log(
    columns: list[Made], flavor: str, has_visibility: bool, is_certain: bool
) -> None:
    """MySQL 8.0.15 counts no sign for YEAR, later ones do; nothing in the table map says which."""
    decoder = decoder_of(columns, flavor, has_visibility=has_visibility)
    table = decoder.map_table(table_map(columns, flavor=flavor, has_visibility=has_visibility))
    assert ("before 8.0.23" in table.problem) != is_certain


def test_a_table_that_changed_is_read_by_its_new_columns() -> None:
    """A server may keep the number of a table."""
    decoder = decoder_of([integer("a"), integer("b")])
    decoder.map_table(table_map([integer("b"), integer("a")]))
    [change] = decoder.read_rows(rows(30, 2, image([i4(1), i4(2)]))).changes
    assert change.after == {"b": 1, "a": 2}


def test_other_tables_are_not_decoded() -> None:
    decoder = RowDecoder("mysql", "shop", frozenset(("goods",)))
    for place in ({"name": "other"}, {"database": "elsewhere"}):
        assert not decoder.map_table(table_map([Made("x", 200)], **place)).wanted  # type: ignore[arg-type]
        answer = decoder.read_rows(rows(30, 1, b"anything"))
        assert (answer.changes, answer.problem) == ((), "")


def test_rows_without_a_table_map_and_events_without_a_head_stop_the_stream() -> None:
    decoder = decoder_of([integer("id")])
    with pytest.raises(StreamStopped, match="not announced"):
        decoder.read_rows(rows(30, 1, image([i4(1)]), table_id=5))
    decoder.start_file(FormatDescription((), False))
    with pytest.raises(StreamStopped, match="not announced"):
        decoder.read_rows(rows(30, 1, image([i4(1)])))
    with pytest.raises(StreamStopped, match="shorter than its head"):
        decoder.read_rows(event(30, b"\1\2\3"))
    with pytest.raises(StreamStopped, match="shorter than its names"):
        decoder.map_table(event(19, bytes(8) + b"\x09shop"))
    with pytest.raises(StreamStopped, match="very old"):
        decoder.start_file(FormatDescription((6,) * 40, False))


def test_an_event_that_only_ends_a_statement() -> None:
    answer = decoder_of([integer("id")]).read_rows(event(30, b"\xff\xff\xff\0\0\0\1\0\2\0\0"))
    assert (answer.table, answer.ends_statement) == (None, True)


def test_plans_and_compiled_patterns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowplan, "PATTERNS_MAX", 3)
    monkeypatch.setattr(rowplan, "WALKS_BEFORE_COMPILING", 0)
    columns = [integer(f"c{place}") for place in range(8)]
    decoder = decoder_of(columns)
    for nulls in range(256):
        fields = [None if nulls >> place & 1 else i4(place) for place in range(8)]
        [change] = decoder.read_rows(rows(30, 8, image(fields))).changes
        assert change.after == {f"c{n}": None if nulls >> n & 1 else n for n in range(8)}


# -- against the library ----------------------------------------------------------------------------------

Field = tuple[Made, st.SearchStrategy[bytes]]


def fixed(made: Made, size: int) -> Field:
    return made, st.binary(min_size=size, max_size=size)


def counted(made: Made, size: int, content: st.SearchStrategy[bytes]) -> Field:
    return made, content.map(lambda raw: len(raw).to_bytes(size, "little") + raw)


def numbers(low: int, top: int, size: int, byte_order: Any = "big") -> st.SearchStrategy[bytes]:
    return st.integers(low, top).map(lambda number: number.to_bytes(size, byte_order))


DEFINED_LATIN1 = st.text(st.characters(codec="cp1252"), max_size=12).map(lambda text: text.encode("cp1252"))
TEXTS = st.text(max_size=12).map(str.encode)
ASCII = st.text(st.characters(max_codepoint=127), max_size=12).map(str.encode)
FRACTIONS = {0: 0, 1: 90, 2: 99, 3: 9990, 4: 9999, 5: 999990, 6: 999999}
DATETIMES = st.builds(
    datetime2, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 28), st.integers(0, 23), st.integers(0, 59),
    st.integers(0, 59),
)  # fmt: skip


def with_fraction(whole: st.SearchStrategy[bytes], digits: int) -> st.SearchStrategy[bytes]:
    size = (digits + 1) // 2
    step = 10 if digits % 2 else 1
    fractions = st.integers(0, FRACTIONS[digits] // step).map(lambda number: be(number * step, size))
    return st.builds(bytes.__add__, whole, fractions) if size else whole


def sign_decimal(is_positive: bool, raw: bytes) -> bytes:
    return bytes(byte ^ (0 if is_positive else 0xFF) for byte in (raw[0] ^ 0x80, *raw[1:]))


FIELDS: tuple[Field, ...] = (
    *(
        fixed(integer("c", kind, is_unsigned=is_unsigned), size)
        for kind, size in ((types.TINY, 1), (types.SHORT, 2), (types.INT24, 3), (types.LONG, 4), (types.LONGLONG, 8))
        for is_unsigned in (False, True)
    ),
    fixed(Made("c", types.FLOAT, b"\4"), 4),
    fixed(Made("c", types.DOUBLE, b"\x08"), 8),
    fixed(Made("c", types.YEAR), 1),
    *(fixed(Made("c", types.BIT, bytes((bits % 8, bits // 8))), (bits + 7) // 8) for bits in (1, 7, 8, 9, 29, 64)),
    (Made("c", types.NEWDECIMAL, b"\x12\x09"), st.builds(
        lambda sign, *parts: sign_decimal(sign, b"".join(be(part, 4) for part in parts)),
        st.booleans(), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))),
    (Made("c", types.NEWDECIMAL, b"\x0e\4"), st.builds(
        lambda sign, *parts: sign_decimal(sign, b"".join(map(be, parts, (1, 4, 2)))),
        st.booleans(), st.integers(0, 9), st.integers(0, 10**9 - 1), st.integers(0, 9999))),
    (Made("c", types.NEWDECIMAL, b"\5\0"), st.builds(sign_decimal, st.booleans(), numbers(0, 99999, 3))),
    (Made("c", types.DATE), st.builds(
        lambda year, month, day: (year << 9 | month << 5 | day).to_bytes(3, "little"),
        st.integers(0, 9999), st.integers(0, 12), st.integers(0, 28))),
    (Made("c", types.TIME), st.builds(
        lambda *parts: (parts[0] * 10000 + parts[1] * 100 + parts[2]).to_bytes(3, "little"),
        st.integers(0, 838), st.integers(0, 59), st.integers(0, 59))),
    (Made("c", types.DATETIME), st.builds(
        lambda day, time: int(day.strftime("%Y%m%d") + f"{time:06d}").to_bytes(8, "little"),
        st.dates(date(1000, 1, 1)), st.integers(0, 235959).filter(lambda t: t % 100 < 60 and t // 100 % 100 < 60))),
    (Made("c", types.TIMESTAMP), numbers(0, (1 << 31) - 1, 4, "little")),
    *((Made("c", types.DATETIME2, bytes((digits,))), with_fraction(DATETIMES, digits)) for digits in range(7)),
    *((Made("c", types.TIMESTAMP2, bytes((digits,))), with_fraction(numbers(0, (1 << 31) - 1, 4), digits))
      for digits in range(7)),
    *((Made("c", types.TIME2, bytes((digits,))), with_fraction(
        st.builds(lambda h, m, s: be(0x800000 + (h << 12 | m << 6 | s), 3),
                  st.integers(0, 838), st.integers(0, 59), st.integers(0, 59)), digits)) for digits in range(7)),
    *(counted(Made("c", kind, metadata, UTF8MB4), size, TEXTS)
      for kind, metadata, size in ((types.VARCHAR, b"\xff\0", 1), (types.VARCHAR, b"\0\1", 2), (types.BLOB, b"\1", 1),
                                   (types.STRING, b"\xfe\x1e", 1), (types.BLOB, b"\3", 3), (types.BLOB, b"\4", 4))),
    *(counted(Made("c", types.VARCHAR, b"\xff\0", collation), 1, content)
      for collation, content in ((LATIN1, DEFINED_LATIN1), (BINARY, st.binary(max_size=9)), (UTF16, TEXTS),
                                 (SWE7, ASCII), (CP1251, st.binary(max_size=9)), (HP8, ASCII),
                                 (1, st.binary(max_size=9)))),
    counted(Made("c", types.GEOMETRY, b"\2"), 2, st.binary(max_size=300)),
    (Made("c", types.ENUM, b"\xf7\1", labels=(b"a", "€".encode())), numbers(0, 2, 1)),
    (Made("c", types.ENUM, b"\xf7\2", LATIN1, labels=(b"x",) * 300), numbers(0, 300, 2, "little")),
    (Made("c", types.SET, b"\xf8\1", labels=(b"a", b"b", "€".encode())), numbers(0, 7, 1)),
    (Made("c", types.SET, b"\xf8\2", LATIN1, labels=tuple(b"%d" % n for n in range(12))),
     numbers(0, 4095, 2, "little")),
)  # fmt: skip


@st.composite
def tables_and_rows(draw: st.DrawFn) -> tuple[list[Made], LogEvent]:
    chosen = [draw(st.sampled_from(FIELDS)) for _ in range(draw(st.integers(1, 12)))]
    columns = [
        Made(f"c{n}", made.kind, made.metadata, made.collation, made.is_unsigned, made.labels)
        for n, (made, _) in enumerate(chosen)
    ]
    op = draw(st.sampled_from((23, 24, 25, 30, 31, 32)))
    bitmaps = [draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)).filter(any))]
    if op in (24, 31):
        bitmaps.append(draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)).filter(any)))
    images = []
    for _ in range(draw(st.integers(1, 9))):
        for bitmap in bitmaps:
            fields = [
                draw(st.none() | st.just(b"") | content) if draw(st.integers(0, 3)) == 0 else draw(content)
                for (_, content), is_present in zip(chosen, bitmap, strict=True)
                if is_present
            ]
            images.append(image([field or None for field in fields]))
    return columns, rows(op, len(chosen), *images, present=bitmaps[0], present_after=bitmaps[-1])


def exact(value: object) -> object:
    """Equal only for equal values of one type, and of one scale."""
    if isinstance(value, dict):
        return {key: exact(part) for key, part in value.items()}
    if isinstance(value, set):
        return type(value), value
    return type(value), repr(value)


@settings(max_examples=300)
@given(tables_and_rows())
def test_rows_are_those_of_the_library(made: tuple[list[Made], LogEvent]) -> None:
    columns, row_event = made
    library = LibraryDecoder("mysql")
    library.map_table(table_map(columns))
    expected: list[Images] | None
    try:
        expected = library.read_rows(row_event)
    except Exception:  # noqa: BLE001 - whatever the library trips over
        expected = None
    decoder = decoder_of(columns)
    for _ in range(2):  # compiled the second time, if a pattern has come often enough
        answer = decoder.read_rows(row_event)
        if expected is None:
            assert answer.problem
            assert answer.changes == ()
        else:
            assert answer.problem == ""
            found = [(change.before, change.after) for change in answer.changes]
            assert [tuple(map(exact, each)) for each in found] == [tuple(map(exact, each)) for each in expected]


@settings(max_examples=200)
@given(tables_and_rows(), st.data())
def test_an_event_that_is_cut_gives_no_rows(made: tuple[list[Made], LogEvent], data: st.DataObject) -> None:
    """Cut between two rows it is another whole event, with fewer rows."""
    columns, row_event = made
    whole = read(columns, row_event)
    assume(not whole.problem)  # text that cannot be decoded may be in the part that is cut off
    packet = row_event.packet[: data.draw(st.integers(row_event.start, row_event.end - 1))]
    try:
        answer = read(columns, row_event._replace(packet=packet, end=len(packet)))
    except StreamStopped:
        return
    if not answer.problem:
        rows = [[(each.before, each.after) for each in found.changes] for found in (answer, whole)]
        assert exact(rows[0]) == exact(rows[1][: len(rows[0])])
        assert len(answer.changes) < len(whole.changes)


@settings(max_examples=200)
@given(tables_and_rows(), st.data())
def test_compiled_and_walked_rows_are_the_same_also_where_bytes_are_damaged(
    made: tuple[list[Made], LogEvent], data: st.DataObject
) -> None:
    columns, row_event = made
    packet = bytearray(row_event.packet)
    if data.draw(st.booleans()):
        packet[data.draw(st.integers(row_event.start + 8, row_event.end - 1))] = data.draw(st.integers(0, 255))
    damaged = row_event._replace(packet=bytes(packet))
    answers = []
    for walks in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rowplan, "WALKS_BEFORE_COMPILING", walks)
            answers.append(read(columns, damaged))
    compiled, walked = answers
    assert bool(compiled.problem) is bool(walked.problem)
    assert [exact(each.after) for each in compiled.changes] == [exact(each.after) for each in walked.changes]


# -- JSON -------------------------------------------------------------------------------------------------


def encode_json(value: Any, *, is_large: bool) -> tuple[int, bytes]:
    """(type, bytes) of a document as MySQL stores it; containers all in the small or all in the large format."""
    if value is None or isinstance(value, bool):
        return 4, bytes(((None, True, False).index(value),))
    if isinstance(value, int):
        for kind, code in enumerate("hHiIqQ", start=5):
            try:
                return kind, struct.pack(f"<{code}", value)
            except struct.error:
                continue
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        return 12, counted_bytes(value.encode())
    number = "I" if is_large else "H"
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    width = struct.calcsize(number)
    members = list(value.values()) if isinstance(value, dict) else list(value)
    place = 2 * width + len(keys) * (width + 2) + len(members) * (width + 1)
    key_entries, tail = b"", b""
    for key in keys:
        key_entries += struct.pack(f"<{number}H", place + len(tail), len(key))
        tail += key
    entries = b""
    for member in members:
        kind, raw = encode_json(member, is_large=is_large)
        if kind in (4, 5, 6) or (is_large and kind in (7, 8)):
            entries += bytes((kind,)) + raw.ljust(width, b"\0")
        else:
            entries += struct.pack(f"<B{number}", kind, place + len(tail))
            tail += raw
    size = place + len(tail)
    kind = (0 if isinstance(value, dict) else 2) + is_large
    return kind, struct.pack(f"<{number}{number}", len(members), size) + key_entries + entries + tail


def counted_bytes(value: bytes) -> bytes:
    length, out = len(value), b""
    while length > 0x7F:
        out += bytes((length & 0x7F | 0x80,))
        length >>= 7
    return out + bytes((length,)) + value


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda parts: st.lists(parts, max_size=6) | st.dictionaries(st.text(max_size=9), parts, max_size=6),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=300)
@given(DOCUMENTS, st.booleans())
def test_a_json_document_is_that_of_the_library(document: Any, is_large: bool) -> None:
    kind, content = encode_json(document, is_large=is_large)
    raw = bytes((kind,)) + content
    columns = [Made("v", types.JSON, b"\4")]
    row_event = rows(30, 1, image([len(raw).to_bytes(4, "little") + raw]))
    library = LibraryDecoder("mysql")
    library.map_table(table_map(columns))
    [(_, expected)] = library.read_rows(row_event)
    [change] = read(columns, row_event).changes
    if document is None:  # which the library does not distinguish from NULL
        assert change.after == {"v": UNREADABLE}
        return
    assert change.after == expected == {"v": document}
    assert repr(change.after) == repr(expected)


@settings(max_examples=300)
@given(DOCUMENTS, st.booleans(), st.data())
def test_a_json_document_that_is_cut_or_damaged_is_a_document_or_an_error(
    document: Any, is_large: bool, data: st.DataObject
) -> None:
    kind, content = encode_json(document, is_large=is_large)
    raw = bytearray(bytes((kind,)) + content)
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError, struct.error, IndexError):
        decode_json(bytes(raw))
    cut = bytes((kind,)) + content[: data.draw(st.integers(0, max(0, len(content) - 1)))]
    if kind < 4:
        with pytest.raises((FormatError, struct.error, IndexError)):
            decode_json(cut)


def opaque(kind: int, content: bytes) -> bytes:
    return b"\x0f" + bytes((kind,)) + counted_bytes(content)


def packed_time(whole: int, micros: int) -> bytes:
    return (whole << 24 | micros).to_bytes(8, "little", signed=True)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (opaque(246, b"\x0e\4" + bytes.fromhex("810dfb38d204d2")), Decimal("1234567890.1234")),
        (opaque(11, packed_time(23 << 12 | 59 << 6 | 58, 7)), time_of_day(23, 59, 58, 7)),
        (opaque(11, packed_time(100 << 12, 0)), UNREADABLE),
        (opaque(11, (-(1 << 36)).to_bytes(8, "little", signed=True)), UNREADABLE),
        (opaque(12, packed_time((2024 * 13 + 2) << 22 | 29 << 17 | 1 << 12, 5)), NAIVE("2024-02-29 01:00:00.000005")),
        (opaque(7, packed_time((2024 * 13 + 2) << 22 | 29 << 17, 0)), NAIVE("2024-02-29 00:00:00")),
        (opaque(10, packed_time((2024 * 13 + 2) << 22 | 29 << 17, 0)), NAIVE("2024-02-29 00:00:00")),
        (opaque(12, bytes(8)), "0000-00-00 00:00:00"),
        (opaque(252, "é".encode()), "é".encode()),
        (opaque(252, b"\xff"), b"\xff"),
        (b"\2" + struct.pack("<HHBH", 1, 10, 15, 7) + opaque(252, b"\xff")[1:], [b"\xff"]),
        (b"\x0c\2\xc3\xa9", "é"),
        (b"\x0c\1\xff", UNREADABLE),
    ],
)  # fmt: skip
def test_a_value_of_sql_inside_of_a_document(raw: bytes, expected: object) -> None:
    found = decode_json(raw)
    assert (found, type(found)) == (expected, type(expected))


def test_a_document_that_holds_itself_is_refused() -> None:
    with pytest.raises(FormatError, match="nested"):
        decode_json(b"\2" + struct.pack("<HHBH", 1, 7, 2, 0))


def test_a_large_document() -> None:
    chance = random.Random(1)
    document = {f"{n}": [chance.random(), "x" * chance.randrange(400)] for n in range(4000)}
    kind, raw = encode_json(document, is_large=True)
    assert decode_json(bytes((kind,)) + raw) == document


def test_compressed_row_events_are_left_to_the_caller() -> None:
    """`invalidator.binlog.decoder` unpacks them first; taken as they are they would be read as garbage."""
    columns = [integer("id")]
    assert read(columns, event(166, rows_body(166, 1, b"\x81\5" + zlib.compress(b"1234")))).problem
