"""The key reader on events made by hand: every column type, layout and kind of event that the servers of the
integration tests do not make, and damage of every kind."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from freshness.errors import StreamStopped
from freshness.keys.cachekey import ITEM_BYTES_MAX, KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from invalidator.binlog.keys import plan as keyplan
from invalidator.binlog.keys import reader as keyreader
from invalidator.binlog.keys.reader import KeyReader
from invalidator.binlog.rows.decoder import ChangedRows
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.event import FormatDescription
from invalidator.binlog.wire.fieldvalue import decimal_decoder, decompress_field
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

NUMBER = KeyColumn("id", ColumnKind.INTEGER)
ID = integer("id", is_nullable=False)


def definition(name: str, *columns: KeyColumn, table: str = "goods") -> ObjectDefinition:
    return ObjectDefinition(cast(Any, None), cast(Any, None), KeyBuilder("n", name, columns), {table: columns})


def reader_of(*definitions: ObjectDefinition, flavor: str = "mysql") -> KeyReader:
    named = {each.builder.object_name: each for each in definitions or (definition("o", NUMBER),)}
    return KeyReader(flavor, "shop", frozenset(("goods", "idle")), "beats", named)


def read(columns: Sequence[Made], row_event: Any, *keys: KeyColumn, flavor: str = "mysql") -> ChangedRows:
    reader = reader_of(definition("o", *(keys or (NUMBER,))), flavor=flavor)
    reader.map_table(table_map(columns, flavor=flavor))
    return reader.read_rows(row_event)


def items(*arguments: Any, **options: Any) -> list[bytes]:
    answer = read(*arguments, **options)
    assert answer.problem == ""
    assert answer.items is not None
    return answer.items


# -- every type is stepped over and read ------------------------------------------------------------------

FIELDS: dict[str, tuple[Made, bytes]] = {
    "tiny": (Made("c", types.TINY), b"\x80"),
    "short": (Made("c", types.SHORT), b"\1\2"),
    "int24": (Made("c", types.INT24), b"\1\2\3"),
    "long": (Made("c", types.LONG), b"\1\2\3\4"),
    "longlong": (Made("c", types.LONGLONG), b"\1\2\3\4\5\6\7\x08"),
    "float": (Made("c", types.FLOAT, b"\4"), b"\0\0\x80?"),
    "double": (Made("c", types.DOUBLE, b"\x08"), b"\0\0\0\0\0\0\xf0?"),
    "null": (Made("c", types.NULL), b""),
    "year": (Made("c", types.YEAR), b"\x7c"),
    "date": (Made("c", types.DATE), b"\1\2\3"),
    "newdate": (Made("c", types.NEWDATE), b"\1\2\3"),
    "old time": (Made("c", types.TIME), b"\1\2\3"),
    "old datetime": (Made("c", types.DATETIME), b"\1\2\3\4\5\6\7\x08"),
    "old timestamp": (Made("c", types.TIMESTAMP), b"\1\2\3\4"),
    **{
        f"{name}({digits})": (Made("c", kind, bytes((digits,))), bytes(size + (digits + 1) // 2))
        for name, kind, size in (
            ("time", types.TIME2, 3),
            ("datetime", types.DATETIME2, 5),
            ("timestamp", types.TIMESTAMP2, 4),
        )
        for digits in range(7)
    },
    **{
        f"decimal({precision},{scale})": (
            Made("c", types.NEWDECIMAL, bytes((precision, scale))),
            b"\x80" + bytes(size - 1),
        )
        for precision, scale, size in (
            (1, 0, 1), (2, 0, 1), (3, 0, 2), (4, 0, 2), (5, 0, 3), (6, 0, 3), (7, 0, 4), (8, 0, 4),
            (9, 0, 4), (10, 0, 5), (10, 2, 5), (9, 9, 4), (65, 30, 30), (38, 10, 18), (18, 9, 8),
        )
    },
    **{
        f"bit({count})": (Made("c", types.BIT, bytes((count % 8, count // 8))), bytes((count + 7) // 8))
        for count in (1, 7, 8, 9, 63, 64)
    },
    "enum": (Made("c", types.ENUM, b"\xf7\1", labels=(b"a",)), b"\1"),
    "wide enum": (Made("c", types.ENUM, b"\xf7\2", labels=(b"a",) * 300), b"\1\1"),
    **{
        f"set of {size}": (Made("c", types.SET, bytes((0xF8, size)), labels=(b"a",)), bytes(size))
        for size in (1, 2, 3, 4, 8)
    },
    "char": (Made("c", types.STRING, b"\xfe\x1e"), b"\3abc"),
    "char of 300 bytes": (Made("c", types.STRING, b"\xee\x2c"), b"\3\0abc"),
    "char of 1020 bytes": (Made("c", types.STRING, b"\xce\xfc"), b"\x2c\1" + bytes(300)),
    "varchar": (varchar("c", 255), b"\xff" + bytes(255)),
    "long varchar": (varchar("c", 256), b"\0\1" + bytes(256)),
    "var_string": (Made("c", types.VAR_STRING, b"\xfd\x1e"), b"\3abc"),
    **{
        f"{name} with {size}": (Made("c", kind, bytes((size,))), (300 % 256**size).to_bytes(size, "little")
                                + bytes(300 % 256**size))
        for name, kind in (("blob", types.BLOB), ("geometry", types.GEOMETRY), ("json", types.JSON),
                           ("vector", types.VECTOR))
        for size in (1, 2, 3, 4)
    },
    "compressed varchar": (Made("c", types.VARCHAR_COMPRESSED, b"\xff\0"), b"\3\0xy"),
    "long compressed varchar": (Made("c", types.VARCHAR_COMPRESSED, b"\0\1"), b"\3\0\0xy"),
    "compressed blob": (Made("c", types.BLOB_COMPRESSED, b"\2"), b"\3\0\0xy"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FIELDS)
def test_a_column_of_any_type_is_stepped_over(kind: str) -> None:
    column, field = FIELDS[kind]
    key = ID
    for columns in ([column, key], [key, column], [column, column, key, column]):
        lines = [
            [i4(number) if each is key else field if number % 3 else None for each in columns] for number in range(9)
        ]
        insert = rows(30, len(columns), *map(image, lines))
        expected = [b"n:o:%d" % number for number in range(9)]
        reader = reader_of()
        reader.map_table(table_map(columns))
        # The first time without branches for NULL patterns, then with them.
        for _ in range(2):
            answer = reader.read_rows(insert)
            assert (answer.problem, answer.items) == ("", expected)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 250, 251, 255, 256, 300, 1000])
def test_null_bitmaps_of_any_width(count: int) -> None:
    chance = random.Random(count)
    columns = [integer(f"c{place}", types.SHORT) for place in range(count - 1)]
    columns.insert(chance.randrange(count), ID)
    lines = [
        [i4(number) if each is ID else chance.choice((None, b"\1\2")) for each in columns] for number in range(40)
    ]
    reader = reader_of()
    reader.map_table(table_map(columns))
    for _ in range(3):
        answer = reader.read_rows(rows(30, count, *map(image, lines)))
        assert answer.problem == ""
        assert answer.items == [b"n:o:%d" % number for number in range(40)]


def key_item(made: Made, field: bytes, kind: ColumnKind, flavor: str = "mysql", **options: Any) -> bytes:
    column = KeyColumn(made.name, kind, **options)
    [item] = items([made], rows(30, 1, image([field])), column, flavor=flavor)
    return item.removeprefix(b"n:o:")


@pytest.mark.parametrize(
    ("kind", "field", "signed", "unsigned"),
    [
        (types.TINY, b"\xff", b"-1", b"255"),
        (types.SHORT, b"\xfe\xff", b"-2", b"65534"),
        (types.INT24, b"\xff\xff\xff", b"-1", b"16777215"),
        (types.INT24, b"\0\0\x80", b"-8388608", b"8388608"),
        (types.LONG, b"\0\0\0\x80", b"-2147483648", b"2147483648"),
        (types.LONGLONG, b"\0" * 7 + b"\x80", b"-9223372036854775808", b"9223372036854775808"),
    ],
)
def test_integers_of_all_widths_and_signs(kind: int, field: bytes, signed: bytes, unsigned: bytes) -> None:
    for is_unsigned, expected in ((False, signed), (True, unsigned)):
        made = integer("id", kind, is_unsigned=is_unsigned)
        assert key_item(made, field, ColumnKind.INTEGER) == expected
        assert key_item(made, field, ColumnKind.DECIMAL) == expected


DATETIME_FIELD = ((((2026 * 13 + 1) << 5 | 31) << 17 | 23 << 12 | 59 << 6 | 58) + (1 << 39)).to_bytes(5, "big")


@pytest.mark.parametrize(
    ("made", "field", "kind", "expected"),
    [
        (Made("k", types.YEAR), b"\0", ColumnKind.INTEGER, b"0"),
        (Made("k", types.YEAR), b"\x01", ColumnKind.INTEGER, b"1901"),
        (Made("k", types.DATE), (2026 << 9 | 1 << 5 | 31).to_bytes(3, "little"), ColumnKind.DATE, b"2026-01-31"),
        (Made("k", types.NEWDATE), b"\0\0\0", ColumnKind.DATE, b"0000-00-00"),
        (Made("k", types.DATETIME2, b"\0"), DATETIME_FIELD, ColumnKind.DATETIME, b"2026-01-31T23%3A59%3A58"),
        (Made("k", types.DATETIME2, b"\3"), DATETIME_FIELD + b"\x14\xb4", ColumnKind.DATETIME,
         b"2026-01-31T23%3A59%3A58.53"),
        (Made("k", types.DATETIME2, b"\6"), DATETIME_FIELD + b"\0\0\1", ColumnKind.DATETIME,
         b"2026-01-31T23%3A59%3A58.000001"),
        (Made("k", types.DATETIME2, b"\0"), (1 << 39).to_bytes(5, "big"), ColumnKind.DATETIME,
         b"0000-00-00T00%3A00%3A00"),
        (Made("k", types.DATETIME), (20260131235958).to_bytes(8, "little"), ColumnKind.DATETIME,
         b"2026-01-31T23%3A59%3A58"),
        (Made("k", types.TIMESTAMP), b"\0\0\0\0", ColumnKind.DATETIME, b"0000-00-00T00%3A00%3A00"),
        (Made("k", types.TIMESTAMP2, b"\1"),
         int(datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC).timestamp()).to_bytes(4, "big") + b"\x32",
         ColumnKind.DATETIME, b"2026-01-31T23%3A59%3A58.5"),
        (Made("k", types.NEWDECIMAL, b"\x05\x02"), b"\x7f\x82\xf3", ColumnKind.DECIMAL, b"-125.12"),
        (Made("k", types.NEWDECIMAL, b"\x0e\x04"), b"\x81\x0d\xfb\x38\xd2\x04\xd2", ColumnKind.DECIMAL,
         b"1234567890.1234"),
        (Made("k", types.ENUM, b"\xf7\1", 8, labels=(b"gr\xfcn", b"Rot")), b"\1", ColumnKind.STRING, b"grun"),
        (Made("k", types.ENUM, b"\xf7\2", labels=(b"A",) * 300), b"\x2c\1", ColumnKind.STRING, b"a"),
        (Made("k", types.ENUM, b"\xf7\1", labels=(b"A",)), b"\0", ColumnKind.STRING, b""),
        (Made("k", types.SET, b"\xf8\1", labels=(b"A", b"b", b"c")), b"\5", ColumnKind.STRING, b"a%2Cc"),
        (Made("k", types.BIT, b"\3\0"), b"\5", ColumnKind.INTEGER, b"5"),
        (Made("k", types.BIT, b"\1\1"), b"\1\2", ColumnKind.INTEGER, b"258"),
        (Made("k", types.BIT, b"\3\0"), b"\5", ColumnKind.BINARY, b"05"),
        (Made("k", types.BLOB, b"\2", 63), b"\2\0\xff\0", ColumnKind.BINARY, b"ff00"),
        (Made("k", types.STRING, b"\xfe\x10", 63), b"\2\1\2", ColumnKind.BINARY, b"0102"),
        (varchar("k"), b"\7Ab_c.-9", ColumnKind.STRING, b"ab_c.-9"),
        (varchar("k"), b"\5a b: ", ColumnKind.STRING, b"a%20b%3A"),
        (varchar("k"), b"\2\xc3\x89", ColumnKind.STRING, b"e"),
        (varchar("k", collation=8), b"\1\xc9", ColumnKind.STRING, b"e"),
        (varchar("k", collation=8), b"\1\x81", ColumnKind.STRING, b""),
        (varchar("k", collation=54), b"\2\0A", ColumnKind.STRING, b"a"),
        (varchar("k", collation=56), b"\2A\0", ColumnKind.STRING, b"a"),
        (varchar("k", collation=60), b"\4\0\0\0A", ColumnKind.STRING, b"a"),
        (varchar("k", collation=35), b"\2\x20\xac", ColumnKind.STRING, b"%E2%82%AC"),
        (varchar("k", 300), b"\1\0A", ColumnKind.STRING, b"a"),
    ],
)  # fmt: skip
def test_keys_of_every_type(made: Made, field: bytes, kind: ColumnKind, expected: bytes) -> None:
    assert key_item(made, field, kind) == expected


def test_a_binary_key_is_padded_to_its_length() -> None:
    made = Made("k", types.STRING, b"\xfe\4", 63)
    assert key_item(made, b"\2\1\2", ColumnKind.BINARY, length=4) == b"01020000"


def test_collations_that_only_mariadb_has() -> None:
    assert key_item(varchar("k", collation=2304), b"\2\xc3\x89", ColumnKind.STRING, "mariadb") == b"e"
    assert key_item(varchar("k", collation=2816), b"\2\0A", ColumnKind.STRING, "mariadb") == b"a"


@pytest.mark.parametrize(
    ("made", "field", "kind"),
    [
        (Made("k", types.TIME2, b"\0"), b"\x80\0\0", ColumnKind.STRING),
        (Made("k", types.JSON, b"\4"), b"\1\0\0\0\4", ColumnKind.STRING),
        (Made("k", types.DOUBLE, b"\x08"), bytes(8), ColumnKind.DECIMAL),
        (varchar("k"), b"\1\xff", ColumnKind.STRING),
        (varchar("k", collation=12), b"\3\x8f\xb0\xa1", ColumnKind.STRING),
        (varchar("k", collation=32), b"\1\xff", ColumnKind.STRING),
        (varchar("k", collation=1), b"\2\xa1\x5a", ColumnKind.STRING),
        (varchar("k", collation=1999), b"\1a", ColumnKind.STRING),
        (varchar("k", collation=63), b"\1a", ColumnKind.STRING),
        (varchar("k"), b"\1a", ColumnKind.BINARY),
        (varchar("k"), b"\1a", ColumnKind.INTEGER),
        (Made("k", types.ENUM, b"\xf7\1", labels=(b"A",)), b"\2", ColumnKind.STRING),
        (Made("k", types.DATETIME2, b"\0"), b"\0\0\0\0\1", ColumnKind.DATETIME),
        (Made("k", types.NEWDECIMAL, b"\1\0"), b"\x8a", ColumnKind.DECIMAL),
    ],
)
def test_what_cannot_be_told_gives_no_key(made: Made, field: bytes, kind: ColumnKind) -> None:
    answer = read([made], rows(30, 1, image([field])), KeyColumn("k", kind))
    assert answer.items == []
    assert "rows of goods at 4 give no keys" in answer.problem


def test_the_letters_of_an_unknown_but_plain_character_set_are_known() -> None:
    assert key_item(varchar("k", collation=12), b"\2Ab", ColumnKind.STRING) == b"ab"


def test_a_long_key_is_shortened_as_the_builder_does() -> None:
    column = KeyColumn("k", ColumnKind.STRING)
    value = b"x" * 290
    [item] = items([varchar("k", 300)], rows(30, 1, image([b"\x22\1" + value])), column)
    assert item == KeyBuilder("n", "o", (column,)).build((value.decode(),)).item
    assert len(item) == ITEM_BYTES_MAX


def test_a_key_of_several_columns_in_its_own_order() -> None:
    columns = [varchar("b"), integer("x"), ID, varchar("a")]
    keys = (KeyColumn("a", ColumnKind.STRING), NUMBER, KeyColumn("b", ColumnKind.STRING))
    insert = rows(30, 4, image([b"\2x:", None, i4(7), b"\1A"]), image([b"\0", i4(1), i4(-8), b"\1z"]))
    assert items(columns, insert, *keys) == [b"n:o:a:7:x%3A", b"n:o:z:-8:"]


def test_several_objects_in_one_table() -> None:
    owner = KeyColumn("owner", ColumnKind.INTEGER)
    reader = reader_of(definition("o", NUMBER), definition("by_owner", owner))
    reader.map_table(table_map([ID, integer("owner")]))
    insert = rows(30, 2, image([i4(1), i4(5)]), image([i4(2), None]))
    assert reader.read_rows(insert).items == [b"n:o:1", b"n:by_owner:5", b"n:o:2"]


def test_a_composite_takes_the_name_of_its_tables_own_column() -> None:
    """The object's key column has another name than the column of this table."""
    of_table = KeyColumn("customer_id", ColumnKind.INTEGER)
    composite = ObjectDefinition(
        cast(Any, None), cast(Any, None), KeyBuilder("n", "o", (NUMBER,)), {"goods": (of_table,)}
    )
    reader = reader_of(composite)
    reader.map_table(table_map([integer("customer_id")]))
    assert reader.read_rows(rows(30, 1, image([i4(9)]))).items == [b"n:o:9"]


PAGE = (KeyColumn("tenant_id", ColumnKind.INTEGER), KeyColumn("slug", ColumnKind.STRING, "utf8mb4_bin"))
BLOCK = [ID, integer("tenant"), varchar("page")]


def read_blocks(row_event: Any) -> list[bytes]:
    """The items of a composite with two key columns, which its member has under names of its own."""
    of_table = (KeyColumn("tenant", PAGE[0].kind), KeyColumn("page", PAGE[1].kind, PAGE[1].collation))
    composite = ObjectDefinition(cast(Any, None), cast(Any, None), KeyBuilder("n", "o", PAGE), {"goods": of_table})
    reader = reader_of(composite)
    reader.map_table(table_map(BLOCK))
    for _ in range(2):  # a NULL pattern has a branch of its own when it comes again
        answer = reader.read_rows(row_event)
    assert answer.problem == ""
    assert answer.items is not None
    return answer.items


def test_a_member_row_that_moves_by_one_column_of_its_key_names_both_owners() -> None:
    row, other = image([i4(1), i4(7), b"\1a"]), image([i4(1), i4(7), b"\1b"])
    assert read_blocks(rows(31, 3, row, other)) == [b"n:o:7:a", b"n:o:7:b"]
    other = image([i4(1), i4(8), b"\1a"])
    assert read_blocks(rows(31, 3, row, other)) == [b"n:o:7:a", b"n:o:8:a"]
    other = image([i4(2), i4(7), b"\1a"])
    assert read_blocks(rows(31, 3, row, other)) == [b"n:o:7:a"], "the key is the same"
    many = [row, image([i4(1), i4(7), b"\1b"])] * 40
    assert set(read_blocks(rows(31, 3, *many))) == {b"n:o:7:a", b"n:o:7:b"}, "rows that are all alike"


def test_a_member_row_with_null_in_any_column_of_its_key_has_no_owner() -> None:
    row = [i4(1), i4(7), b"\1a"]
    for place in (1, 2):
        apart = image([None if place == each else value for each, value in enumerate(row)])
        assert read_blocks(rows(30, 3, apart)) == []
        assert read_blocks(rows(31, 3, image(row), apart)) == [b"n:o:7:a"]
        assert read_blocks(rows(31, 3, apart, image(row))) == [b"n:o:7:a"]
        assert read_blocks(rows(30, 3, *[apart] * 80)) == [], "rows that are all alike"


# -- kinds of events --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [23, 25, 30, 32])
def test_one_image(kind: int) -> None:
    assert items([ID], rows(kind, 1, image([i4(1)]), image([i4(2)]))) == [b"n:o:1", b"n:o:2"]


@pytest.mark.parametrize("kind", [24, 31])
def test_both_images_of_an_update(kind: int) -> None:
    columns = [ID, varchar("v")]
    update = rows(
        kind, 2,
        image([i4(1), None]), image([i4(1), b"\1x"]),
        image([i4(2), b"\1x"]), image([i4(3), None]),
    )  # fmt: skip
    assert items(columns, update) == [b"n:o:1", b"n:o:2", b"n:o:3"]


def test_null_is_no_key_in_either_image() -> None:
    columns = [integer("id")]
    update = rows(31, 1, *(image([each]) for each in (None, i4(1), i4(2), None, None, None, i4(3), i4(4))))
    for _ in range(2):
        assert items(columns, update) == [b"n:o:1", b"n:o:2", b"n:o:3", b"n:o:4"]


@pytest.mark.parametrize("extra", [b"", b"\0\3\0", b"\1\4\0", b"\1\4\0\5\0", b"\x07" + bytes(300)])
def test_extra_information_is_stepped_over(extra: bytes) -> None:
    assert items([ID], rows(30, 1, image([i4(1)]), extra=extra)) == [b"n:o:1"]


def test_an_after_image_may_leave_out_what_did_not_change() -> None:
    columns = [ID, varchar("v"), integer("w")]
    minimal = {"present": (True, False, False), "present_after": (False, True, True)}
    update = rows(31, 3, image([i4(1)]), image([b"\1x", None]), image([i4(2)]), image([None, i4(3)]), **minimal)
    assert items(columns, update) == [b"n:o:1", b"n:o:2"]
    changed = {"present": (True, False, False), "present_after": (True, True, False)}
    update = rows(31, 3, image([i4(1)]), image([i4(5), b"\1x"]), **changed)
    assert items(columns, update) == [b"n:o:1", b"n:o:5"]


def test_an_after_image_without_one_of_two_key_columns() -> None:
    columns = [ID, integer("part")]
    keys = (NUMBER, KeyColumn("part", ColumnKind.INTEGER))
    update = rows(31, 2, image([i4(1), i4(2)]), image([i4(3)]), present_after=(False, True))
    assert items(columns, update, *keys) == [b"n:o:1:2", b"n:o:1:3"]


@pytest.mark.parametrize("kind", [30, 31, 32])
def test_a_key_column_that_is_not_in_the_log_gives_no_key(kind: int) -> None:
    images = [image([b"\1x"])] * (2 if kind == 31 else 1)
    bitmaps = {"present": (False, True), "present_after": (True, False)} if kind == 31 else {
        "present": (False, True)
    }  # fmt: skip
    answer = read([ID, varchar("v")], rows(kind, 2, *images, **bitmaps))
    assert answer.items == []
    assert "column id is not in the binary log" in answer.problem


def test_partial_json_updates() -> None:
    document = b"\2\0\0\0ab"
    columns = [Made("a", types.JSON, b"\4"), ID, Made("b", types.JSON, b"\4")]
    before, after = image([document, i4(1), None]), image([document, i4(2), document])
    for prefix in (b"\0", b"\1\3"):
        assert items(columns, rows(39, 3, before, prefix + after)) == [b"n:o:1", b"n:o:2"]
    # The bitmap is of all JSON columns of the table, also of those that the image leaves out.
    nine = [Made(f"j{place}", types.JSON, b"\4") for place in range(9)]
    bitmaps = {"present": [False] * 9 + [True], "present_after": [True] + [False] * 8 + [True]}
    update = rows(39, 10, image([i4(1)]), b"\1\1\0" + image([document, i4(2)]), **bitmaps)
    assert items([*nine, ID], update) == [b"n:o:1", b"n:o:2"]
    assert "ValueError" in read(columns, rows(39, 3, before, b"\2" + after)).problem


@pytest.mark.parametrize(("kind", "plain"), [(166, 23), (167, 24), (168, 25), (169, 30), (170, 31), (171, 32)])
@pytest.mark.parametrize("length_bytes", [1, 2, 4])
def test_compressed_rows(kind: int, plain: int, length_bytes: int) -> None:
    content = b"".join(image([i4(number)]) for number in range(40))
    unpacked = len(content).to_bytes(length_bytes, "big")
    compressed = bytes((0x80 | length_bytes,)) + unpacked + zlib.compress(content)
    options = {"flavor": "mariadb"}
    expected = items([ID], event(plain, rows_body(plain, 1, content)), **options)
    assert items([ID], event(kind, rows_body(kind, 1, compressed)), **options) == expected
    assert len(expected) == 40


@pytest.mark.parametrize(
    "compressed", [b"\x90\1x", b"\x81\5" + zlib.compress(b"1234"), b"\x81\3" + zlib.compress(b"1234"), b"\x81\5zz"]
)
def test_compressed_rows_that_cannot_be_unpacked_stop_the_stream(compressed: bytes) -> None:
    with pytest.raises(StreamStopped, match="cannot be unpacked"):
        read([ID], event(166, rows_body(166, 1, compressed)), flavor="mariadb")


def test_a_compressed_column_as_a_key() -> None:
    made = Made("k", types.VARCHAR_COMPRESSED, b"\xff\0", 45)
    packer = zlib.compressobj(wbits=-15)
    raw = packer.compress(b"Abc" * 20) + packer.flush()
    for content in (b"\0" + b"Abc" * 20, b"\x89\x3c" + raw, b"\x81\x3c" + zlib.compress(b"Abc" * 20)):
        assert key_item(made, text(content), ColumnKind.STRING, "mariadb") == b"abc" * 20
    assert decompress_field(b"") == b""
    for damaged in (b"\x89\x3b" + raw, b"\x89\x3d" + raw, b"\x71\x3c" + raw):
        answer = read([made], rows(23, 1, image([text(damaged)])), KeyColumn("k", ColumnKind.STRING))
        assert answer.problem


def test_decimals_at_their_bounds() -> None:
    """By the server's documentation: 1234567890.1234 and its negative."""
    assert str(decimal_decoder(14, 4)(bytes.fromhex("810dfb38d204d2"))) == "1234567890.1234"
    assert str(decimal_decoder(14, 4)(bytes.fromhex("7ef204c72dfb2d"))) == "-1234567890.1234"


# -- what surrounds the rows ------------------------------------------------------------------------------


def test_rows_that_only_end_a_statement() -> None:
    answer = reader_of().read_rows(event(30, b"\xff\xff\xff\0\0\0\1\0\2\0\0"))
    assert (answer.table, answer.ends_statement) == (None, True)


def test_rows_without_a_table_map_stop_the_stream() -> None:
    with pytest.raises(StreamStopped, match="was not announced"):
        reader_of().read_rows(rows(30, 1, image([i4(1)])))
    reader = reader_of()
    reader.map_table(table_map([ID]))
    reader.start_file(FormatDescription((), False))
    with pytest.raises(StreamStopped, match="was not announced"):
        reader.read_rows(rows(30, 1, image([i4(1)])))


def test_a_number_that_was_given_to_another_table() -> None:
    reader = reader_of()
    reader.map_table(table_map([ID]))
    reader.map_table(table_map([varchar("v"), ID]))
    assert reader.read_rows(rows(30, 2, image([b"\1x", i4(1)]))).items == [b"n:o:1"]
    reader.map_table(table_map([ID], name="other"))
    answer = reader.read_rows(rows(30, 1, image([i4(1)])))
    assert (answer.items, answer.table and answer.table.wanted) == ([], False)


def test_an_equal_table_map_is_read_once_and_survives_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bytes] = []

    def count(body: bytes, start: int, flavor: str) -> tuple[types.MappedColumn, ...]:
        reads.append(body)
        return types.read_columns(body, start, flavor)

    monkeypatch.setattr(keyreader, "read_columns", count)
    reader = reader_of()
    for table_id in (5, 6, 5):
        reader.map_table(table_map([ID], table_id=table_id))
        reader.start_file(FormatDescription((), False))
    assert len(reads) == 1


def test_the_tables_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyreader, "TABLES_MAPPED_MAX", 3)
    monkeypatch.setattr(keyreader, "PLANS_MAX", 2)
    reader = reader_of()
    for table_id in range(10):
        reader.map_table(table_map([varchar(f"v{table_id}"), ID], table_id=table_id))
    assert len(reader._mapped) == 3
    assert len(reader._known) <= 2
    insert = rows(30, 2, image([b"\1x", i4(1)]), table_id=9)
    assert reader.read_rows(insert).items == [b"n:o:1"]


def test_a_table_that_was_announced_again_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other columns: the one that is forgotten for a new table is the one that was announced longest ago."""
    monkeypatch.setattr(keyreader, "TABLES_MAPPED_MAX", 3)
    reader = reader_of()
    for table_id, columns in ((1, [ID]), (2, [ID]), (1, [ID, varchar("v")]), (3, [ID])):
        reader.map_table(table_map(columns, table_id=table_id))
    reader.map_table(table_map([ID], table_id=4))
    assert [int.from_bytes(table_id, "little") for table_id in reader._mapped] == [1, 3, 4]


def test_null_patterns_and_functions_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    original = keyplan.Code._compile

    def count(code: keyplan.Code) -> keyplan.Read:
        compiled.append(1)
        return original(code)

    monkeypatch.setattr(keyplan.Code, "_compile", count)
    columns = [ID, *(integer(f"c{place}") for place in range(9))]
    reader = reader_of()
    reader.map_table(table_map(columns))
    chance = random.Random(1)
    for _ in range(50):
        line = [i4(1), *(chance.choice((None, i4(2))) for _ in range(9))]
        assert reader.read_rows(rows(30, 10, image(line))).items == [b"n:o:1"]
    assert len(compiled) <= keyplan.PATTERNS_MAX + 1


def test_tables_of_no_object_cost_nothing_and_are_told() -> None:
    reader = reader_of()
    # An unknown type does not matter here.
    strange = Made("c", 200)
    for name, database, wanted in (("idle", "shop", True), ("other", "shop", False), ("goods", "else", False)):
        table = reader.map_table(table_map([strange], name=name, database=database))
        assert (table.name, table.database, table.wanted, table.problem) == (name, database, wanted, "")
        answer = reader.read_rows(rows(30, 1, b"anything"))
        assert (answer.items, answer.problem) == ([], "")


def test_rows_of_the_heartbeat_table_are_rows() -> None:
    reader = reader_of()
    reader.start_file(FormatDescription((), False))
    reader.map_table(table_map([ID], name="beats"))
    answer = reader.read_rows(rows(30, 1, image([i4(7)])))
    assert [change.after for change in answer.changes] == [{"id": 7}]


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ([ID], {"has_names": False}, "binlog_row_metadata"),
        ([ID, Made("c", 200)], {}, "column type 200"),
        ([integer("other")], {}, "no column id"),
        ([ID, Made("c", types.BLOB, b"\5")], {}, "unknown type"),
        ([ID], {"more": b"\x0c\5ab"}, "bytes at"),
        ([ID, Made("c", types.NEWDECIMAL, b"\2\5")], {}, r"DECIMAL\(2,5\)"),
    ],
)
def test_a_table_that_cannot_be_read_raises_itself(
    columns: list[Made], options: dict[str, Any], expected: str
) -> None:
    reader = reader_of()
    table = reader.map_table(table_map(columns, **options))
    assert table.wanted
    answer = reader.read_rows(rows(30, len(columns), image([i4(1)] * len(columns))))
    assert answer.problem == table.problem != ""
    assert re.search(expected, answer.problem)


@pytest.mark.parametrize("kind", [types.TIME, types.DATETIME, types.TIMESTAMP])
def test_temporal_columns_of_old_mariadb_have_no_known_width(kind: int) -> None:
    """With a fraction they are longer, and the log does not say so."""
    answer = read([ID, Made("c", kind)], rows(23, 2, image([i4(1), None])), flavor="mariadb")
    assert "mysql56_temporal_format" in answer.problem
    assert answer.items == []


# -- damage -----------------------------------------------------------------------------------------------


def test_unknown_metadata_are_stepped_over() -> None:
    reader = reader_of()
    reader.map_table(table_map([ID], more=b"\x63\3abc"))
    assert reader.read_rows(rows(30, 1, image([i4(1)]))).items == [b"n:o:1"]


WIDE_COLUMNS = [
    integer("a", types.SHORT),
    varchar("v", 300),
    ID,
    Made("d", types.DATETIME2, b"\3"),
    Made("t", types.BLOB, b"\2", 45),
]


def wide_lines(count: int) -> list[bytes]:
    return [
        image([b"\1\2", None if number % 4 else b"\2\0hi", i4(number), bytes(7), b"\1\0" + b"x"])
        for number in range(count)
    ]


def test_an_event_cut_short_anywhere_gives_no_keys() -> None:
    whole = rows(30, 5, *wide_lines(6))
    reader = reader_of()
    reader.map_table(table_map(WIDE_COLUMNS))
    ends = {0}
    for line in wide_lines(6):
        ends.add(max(ends) + len(line))
    start = whole.end - max(ends)
    for _ in range(2):
        for end in range(28, whole.end):
            cut = event(30, whole.packet[20:end])
            answer = reader.read_rows(cut)
            if end - start in ends - {0}:
                # Cut between two rows: the event does not show it; the length in its header and the checksum do.
                assert answer.items == [b"n:o:%d" % number for number in range(len(answer.items or ()))]
            else:
                assert answer.items == []
                assert answer.problem
    for end in range(20, 28):
        with pytest.raises(StreamStopped):
            reader.read_rows(event(30, whole.packet[20:end]))


def test_bytes_behind_the_last_row_give_no_keys() -> None:
    for more in (b"\0", b"\0\0", bytes(5)):
        assert read(WIDE_COLUMNS, rows(30, 5, *wide_lines(3), more)).problem


def test_any_damage_ends_in_an_answer_or_a_stop_and_never_hangs() -> None:
    """Without a checksum a flipped bit in a value cannot be noticed; everything else must end in an error of ours."""
    chance = random.Random(5)
    whole = rows(31, 5, *wide_lines(4))
    noticed = 0
    for _ in range(1500):
        body = bytearray(whole.packet[20:])
        for _ in range(chance.choice((1, 3))):
            body[chance.randrange(len(body))] = chance.randrange(256)
        reader = reader_of()
        reader.map_table(table_map(WIDE_COLUMNS))
        try:
            noticed += bool(reader.read_rows(event(31, bytes(body))).problem)
        except StreamStopped:
            noticed += 1
    assert noticed > 300


def test_a_damaged_table_map_is_a_problem_or_a_stop() -> None:
    """If a flipped bit gives a table map another meaning, such as another name, nothing can notice it."""
    chance, noticed = random.Random(6), 0
    values = [b"\1\2", None, i4(5), bytes(7), b"\1\0x", b"\1", b"\0"]
    lines = rows(30, 7, image(values), image(values))
    whole = table_map(
        [
            *WIDE_COLUMNS,
            Made("e", types.ENUM, b"\xf7\1", labels=(b"a", b"b")),
            Made("s", types.SET, b"\xf8\1", labels=(b"q",)),
        ]
    )
    undamaged = reader_of()
    undamaged.map_table(whole)
    assert not undamaged.read_rows(lines).problem
    for _ in range(3000):
        body = bytearray(whole.packet[20:])
        for _ in range(chance.choice((1, 2, 5))):
            body[chance.randrange(6, len(body))] = chance.randrange(256)
        cut = chance.choice((len(body), chance.randrange(8, len(body))))
        reader = reader_of()
        try:
            reader.map_table(event(19, bytes(body[:cut])))
            noticed += bool(reader.read_rows(lines).problem)
        except StreamStopped:
            noticed += 1
    assert noticed > 2000


def test_other_counts_of_columns_give_no_keys() -> None:
    for count in (1, 3):
        assert (
            f"{count} columns where the table map has 2"
            in read([ID, varchar("v")], rows(30, count, image([i4(1)] * count))).problem
        )


def test_an_event_without_rows_or_without_columns() -> None:
    assert "without rows" in read([ID], rows(30, 1)).problem
    assert "no columns" in read([ID], rows(30, 1, b"x", present=(False,))).problem


def test_the_id_of_the_table_has_six_bytes() -> None:
    big = 0xFFFF_0000_0001
    reader = reader_of()
    reader.map_table(table_map([ID], table_id=big))
    assert reader.read_rows(rows(30, 1, image([i4(1)]), table_id=big)).items == [b"n:o:1"]
