"""Cache keys: spellings that meet, values that must not, and shapes that memcached accepts."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import ConfigError, FormatError
from freshness.keys.cachekey import ITEM_BYTES_MAX, CacheKey, KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn

GENERAL = "utf8mb4_general_ci"
MODERN = "utf8mb4_0900_ai_ci"


def key(kind: ColumnKind, value: object, collation: str = "") -> CacheKey:
    return KeyBuilder("shop", "thing", [KeyColumn("id", kind, collation)]).build([value])


def text(value: str, collation: str = GENERAL) -> CacheKey:
    return key(ColumnKind.STRING, value, collation)


@pytest.mark.parametrize(
    ("kind", "spellings", "item"),
    [
        (ColumnKind.INTEGER, [42, "42", "+042"], b"42"),
        (ColumnKind.INTEGER, [-7, "-7"], b"-7"),
        (ColumnKind.INTEGER, [0, "-0"], b"0"),
        (ColumnKind.INTEGER, [2**64 - 1, "18446744073709551615"], b"18446744073709551615"),
        (ColumnKind.BINARY, [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")], b"00ff"),
        (ColumnKind.DECIMAL, ["1.50", Decimal("1.5"), "01.5", "15e-1", "+1.500"], b"1.5"),
        (ColumnKind.DECIMAL, [100, "1E2", Decimal("100.00")], b"100"),
        (ColumnKind.DECIMAL, ["-0.0", 0, Decimal("0E+5"), ".0"], b"0"),
        (ColumnKind.DECIMAL, ["-0.001", Decimal("-1e-3")], b"-0.001"),
        (ColumnKind.DECIMAL, ["1" * 64 + ".5"], b"1" * 64 + b".5"),
        (ColumnKind.DATE, [date(2026, 1, 31), "2026-01-31"], b"2026-01-31"),
        (ColumnKind.DATE, ["0000-00-00"], b"0000-00-00"),
        (
            ColumnKind.DATETIME,
            [datetime(2026, 1, 31, 10, 0), "2026-01-31 10:00:00", "2026-01-31T10:00:00.000"],  # noqa: DTZ001
            b"2026-01-31T10%3A00%3A00",
        ),
        (
            ColumnKind.DATETIME,
            [datetime(2026, 1, 31, 10, 0, 0, 500_000), "2026-01-31 10:00:00.50"],  # noqa: DTZ001
            b"2026-01-31T10%3A00%3A00.5",
        ),
        (ColumnKind.DATETIME, [date(2026, 1, 31), "2026-01-31"], b"2026-01-31T00%3A00%3A00"),
    ],
)
def test_spellings_of_one_value_meet(kind: ColumnKind, spellings: list[object], item: bytes) -> None:
    assert {key(kind, spelling) for spelling in spellings} == {CacheKey(b"shop:thing:" + item, item, True)}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *[(kind, None) for kind in ColumnKind],
        *[(kind, 1.5) for kind in ColumnKind],
        *[(kind, True) for kind in ColumnKind],
        (ColumnKind.INTEGER, "4 2"),
        (ColumnKind.INTEGER, "٤٢"),
        (ColumnKind.INTEGER, b"42"),
        (ColumnKind.INTEGER, 2**64),
        (ColumnKind.INTEGER, -(2**63) - 1),
        (ColumnKind.STRING, b"abc"),
        (ColumnKind.STRING, 42),
        (ColumnKind.STRING, "x" * 16_385),
        (ColumnKind.STRING, "\udc80"),
        (ColumnKind.BINARY, "abc"),
        (ColumnKind.DECIMAL, "1,5"),
        (ColumnKind.DECIMAL, Decimal("NaN")),
        (ColumnKind.DECIMAL, Decimal("Infinity")),
        (ColumnKind.DECIMAL, Decimal("1e999999")),
        (ColumnKind.DECIMAL, 10**65),
        (ColumnKind.DECIMAL, "1" * 65 + ".5"),
        (ColumnKind.DATE, datetime(2026, 1, 31)),  # noqa: DTZ001
        (ColumnKind.DATE, "31.1.2026"),
        (ColumnKind.DATE, "2026-13-01"),
        (ColumnKind.DATETIME, datetime(2026, 1, 31, tzinfo=UTC)),
        (ColumnKind.DATETIME, "2026-01-31T10:00:00Z"),
        (ColumnKind.DATETIME, "2026-01-31 25:00:00"),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: ColumnKind, value: object) -> None:
    with pytest.raises(FormatError) as caught:
        key(kind, value)
    assert caught.value.hint
    assert "thing" in caught.value.message
    assert "id" in caught.value.message
    assert (type(value).__name__ if value is not None else "NULL") in caught.value.message


@pytest.mark.parametrize("values", [[], [1, 2], "1", b"1"])
def test_a_wrong_number_of_values_is_refused(values: list[object]) -> None:
    with pytest.raises(FormatError, match="thing") as caught:
        KeyBuilder("shop", "thing", [KeyColumn("id", ColumnKind.INTEGER)]).build(values)
    assert "id" in caught.value.hint


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("abc", "ABC"),
        ("abc", "abc  "),
        ("Müller", "muller"),
        ("é", "e\u0301"),
        ("straße", "STRASSE"),
        ("ﬁn", "FIN"),
        ("Σίσυφος", "ΣΊΣΥΦΟΣ"),
        ("İ", "i"),
        ("a\u0000b", "ab"),
        ("", "  "),
    ],
)
def test_text_that_collations_call_equal_shares_a_slot_in_every_collation(one: str, two: str) -> None:
    for collation in ("", GENERAL, MODERN, "utf8mb4_bin", "latin1_general_cs"):
        assert text(one, collation).item == text(two, collation).item


@pytest.mark.parametrize(
    ("collation", "one", "two", "is_same"),
    [
        (GENERAL, "abc", "ABC", True),
        (GENERAL, "abc", "abc ", True),
        (GENERAL, "Ä", "ä", False),  # not ASCII: as spelled
        (GENERAL, "é", "é ", True),
        (MODERN, "abc", "ABC", True),
        (MODERN, "abc", "abc ", False),  # NO PAD: two rows
        ("utf8mb4_0900_bin", "abc", "abc ", False),
        ("utf8mb4_general_nopad_ci", "abc", "abc ", False),
        ("utf8mb4_uca1400_ai_ci", "ABC ", "abc", True),
        ("utf8mb4_bin", "abc", "ABC", False),
        ("utf8mb4_bin", "abc", "abc ", True),
        ("binary", "abc", "abc ", False),
        ("latin1_swedish_ci", "abc", "ABC", True),
        ("latin1_general_cs", "abc", "ABC", False),
        ("utf8mb4_turkish_ci", "I", "i", False),  # two letters in Turkish
        ("utf8mb4_tr_0900_ai_ci", "I", "i", False),
        ("utf8mb4_danish_ci", "aA", "aa", False),
        (GENERAL, "a\tb", "A\tb", False),  # not printable: as spelled
        ("", "abc", "abc ", False),
    ],
)
def test_the_identity_merges_only_what_the_collation_certainly_merges(
    collation: str, one: str, two: str, is_same: bool
) -> None:
    assert (text(one, collation).identity == text(two, collation).identity) is is_same


@pytest.mark.parametrize(
    ("collation", "is_exact"),
    [
        ("utf8mb4_bin", True),
        ("utf8mb4_0900_bin", True),
        ("binary", True),
        ("cp932_bin", False),  # U+6661 is stored as U+6659
        ("tis620_nopad_bin", False),  # U+10041 is stored as A
        (GENERAL, False),
        (MODERN, False),
        ("", False),
    ],
)
def test_only_binary_collations_are_exact(collation: str, is_exact: bool) -> None:
    assert text("abc", collation).is_exact is is_exact
    columns = [KeyColumn("n", ColumnKind.INTEGER), KeyColumn("s", ColumnKind.STRING, collation)]
    assert KeyBuilder("shop", "thing", columns).build([1, "abc"]).is_exact is is_exact


@pytest.mark.parametrize(
    ("column", "spellings", "asked"),
    [
        (KeyColumn("id", ColumnKind.INTEGER), [42, "042", "+42"], 42),
        (KeyColumn("id", ColumnKind.BINARY), [b"a\0", bytearray(b"a\0")], b"a\0"),
        (KeyColumn("id", ColumnKind.DECIMAL), ["1.50", "15e-1", Decimal("1.5")], Decimal("1.5")),
        (KeyColumn("id", ColumnKind.DECIMAL, scale=2), ["1E2", 100, "100.000"], Decimal(100)),
        (KeyColumn("id", ColumnKind.DATE), ["2026-01-31", date(2026, 1, 31)], date(2026, 1, 31)),
        (KeyColumn("id", ColumnKind.DATE), ["2026-00-31"], "2026-00-31"),
        (KeyColumn("id", ColumnKind.DATETIME), ["2026-01-31", date(2026, 1, 31)], datetime(2026, 1, 31)),  # noqa: DTZ001
        (KeyColumn("id", ColumnKind.DATETIME), ["0000-00-00"], "0000-00-00 00:00:00"),
        (
            KeyColumn("id", ColumnKind.DATETIME, scale=1),
            ["2026-01-31T10:00:00.500", "2026-01-31 10:00:00.5"],
            datetime(2026, 1, 31, 10, 0, 0, 500_000),  # noqa: DTZ001
        ),
        (KeyColumn("id", ColumnKind.STRING, "utf8mb4_bin"), ["é: %~ ", "é: %~"], "é: %~"),
        (KeyColumn("id", ColumnKind.STRING, "utf8mb4_0900_bin"), ["a "], "a "),
        (KeyColumn("id", ColumnKind.STRING, GENERAL), ["ABC ", "abc"], "abc"),
        (KeyColumn("id", ColumnKind.STRING, "latin1_general_cs"), ["ABC"], "ABC"),
    ],
)
def test_the_database_is_asked_for_a_value_and_never_for_its_spelling(
    column: KeyColumn, spellings: list[object], asked: object
) -> None:
    builder = KeyBuilder("shop", "thing", [KeyColumn("n", ColumnKind.INTEGER), column])
    for spelling in spellings:
        found = builder.parse(builder.build((7, spelling)).identity)
        assert (found, type(found[1])) == ((7, asked), type(asked))


@pytest.mark.parametrize(
    ("kind", "value"), [(ColumnKind.DECIMAL, "1.505"), (ColumnKind.DATETIME, "2026-01-31 10:00:00.505")]
)
def test_digits_that_a_column_cannot_hold_are_not_asked_for(kind: ColumnKind, value: str) -> None:
    """Servers round them when they look into an index. Rows that come with them are invalidated all the same."""
    builder = KeyBuilder("shop", "thing", [KeyColumn("id", kind, scale=2)])
    key = builder.build((value,))
    with pytest.raises(FormatError, match=r"id .* holds 2 digits") as caught:
        builder.parse(key.identity)
    assert caught.value.hint


def test_binary_values_from_the_binlog_are_padded() -> None:
    column = KeyColumn("id", ColumnKind.BINARY, length=4)
    assert column.pad(b"\x1e") == b"\x1e\0\0\0"
    assert column.pad(b"12345") == b"12345"
    assert KeyColumn("id", ColumnKind.BINARY).pad(b"\x1e") == b"\x1e"


def test_the_fast_path_of_one_integer_agrees_with_the_general_one() -> None:
    builder = KeyBuilder("shop", "customer", [KeyColumn("id", ColumnKind.INTEGER)])
    assert builder.build((42,)) == builder.build(["42"]) == CacheKey(b"shop:customer:42", b"42", True)


@pytest.mark.parametrize("name", ["", "!floor", "a b", "a:b", "ä", "a\n", "x" * 61])
def test_names_that_cannot_stand_in_a_key_are_refused(name: str) -> None:
    columns = [KeyColumn("id", ColumnKind.INTEGER)]
    for namespace, object_name in ((name, "thing"), ("shop", name)):
        with pytest.raises(ConfigError) as caught:
            KeyBuilder(namespace, object_name, columns)
        assert caught.value.hint


def test_columns_are_checked() -> None:
    with pytest.raises(ConfigError):
        KeyBuilder("shop", "thing", [])
    with pytest.raises(ConfigError):
        KeyColumn("id", ColumnKind.INTEGER, length=4)


def test_long_keys_keep_their_start_and_get_a_digest() -> None:
    one, two = text("x" * 300 + "1"), text("x" * 300 + "2")
    assert len(one.item) == ITEM_BYTES_MAX
    assert one.item.startswith(b"shop:thing:xxx")
    assert one.item != two.item
    assert one.identity == b"x" * 300 + b"1"
    longest = text("x" * (ITEM_BYTES_MAX - len(b"shop:thing:")))
    assert longest.item == b"shop:thing:" + longest.identity


def test_no_key_can_be_mistaken_for_a_shortened_one() -> None:
    shortened = text("x" * 300).item
    tail = shortened.decode().removeprefix("shop:thing:")
    assert text(tail).item != shortened


EXACT_COLUMNS = {
    KeyColumn("i", ColumnKind.INTEGER): st.integers(-(2**63), 2**64 - 1),
    KeyColumn("b", ColumnKind.BINARY): st.binary(max_size=40),
    KeyColumn("d", ColumnKind.DECIMAL): st.decimals(allow_nan=False, allow_infinity=False, places=3).map(abs),
    KeyColumn("t", ColumnKind.DATETIME): st.datetimes(),
    KeyColumn("s", ColumnKind.STRING, "utf8mb4_0900_bin"): st.text(st.sampled_from("aA :%!~-é\n"), max_size=90),
}
exact_tuples = st.lists(st.sampled_from(list(EXACT_COLUMNS)), min_size=1, max_size=3).flatmap(
    lambda columns: st.tuples(
        st.just(columns),
        st.tuples(*(EXACT_COLUMNS[column] for column in columns)),
        st.tuples(*(EXACT_COLUMNS[column] for column in columns)),
    )
)


@given(exact_tuples)
def test_two_tuples_have_one_identity_only_if_they_are_equal(
    case: tuple[list[KeyColumn], tuple[object, ...], tuple[object, ...]],
) -> None:
    columns, one, two = case
    first = KeyBuilder("shop", "thing", columns).build(one)
    second = KeyBuilder("shop", "thing", columns).build(two)
    assert first.is_exact
    assert (first.identity == second.identity) == (one == two)
    if one == two:
        assert first.item == second.item


@given(exact_tuples)
def test_items_are_what_memcached_accepts(
    case: tuple[list[KeyColumn], tuple[object, ...], tuple[object, ...]],
) -> None:
    columns, values, _ = case
    built = KeyBuilder("n" * 60, "o" * 60, columns).build(values)
    assert len(built.item) <= ITEM_BYTES_MAX
    assert re.fullmatch(rb"[!-~]+", built.item)
    assert b"!" not in built.item, "the nodes' own items have one"


@given(st.text(max_size=20))
def test_case_and_trailing_blanks_never_change_the_slot_of_any_text(value: str) -> None:
    """Any text, and in every Python version alike: the tables are those of Unicode 3.2."""
    assert text(value).item == text(value + "  ").item
    ascii_upper = "".join(c.upper() if c.isascii() else c for c in value)
    assert text(value).item == text(ascii_upper).item


@given(st.lists(st.text(st.sampled_from("a:%"), max_size=4), min_size=2, max_size=2), st.data())
def test_boundaries_between_columns_do_not_move(values: list[str], data: st.DataObject) -> None:
    columns = [KeyColumn(name, ColumnKind.STRING, "binary") for name in ("a", "b")]
    joined = "".join(values)
    cut = data.draw(st.integers(0, len(joined)))
    other = [joined[:cut], joined[cut:]]
    same_item = KeyBuilder("s", "o", columns).build(values).item == KeyBuilder("s", "o", columns).build(other).item
    assert same_item == (values == other)
