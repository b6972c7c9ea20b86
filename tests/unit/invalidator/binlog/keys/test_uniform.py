"""Rows that are alike are read by stride, and whatever is nearly alike gives what the walk through each row gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from invalidator.binlog.keys import plan as keyplan
from invalidator.binlog.keys import uniform
from invalidator.binlog.keys.reader import KeyReader
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.event import LogEvent
from tests.unit.invalidator.binlog.rowevents import Made, i4, image, integer, rows, table_map, varchar

ROWS_MAX = 30
INSERT, UPDATE, DELETE = 30, 31, 32

Fields = tuple[bytes | None, ...]


@dataclass(frozen=True)
class Column:
    """A column, what its key would be, and what its rows hold: a value, NULL, or one of another length."""

    made: Made
    key: ColumnKind
    values: st.SearchStrategy[bytes]
    others: st.SearchStrategy[bytes | None] = st.none()


def number(kind: int, size: int, *, is_unsigned: bool = False) -> Column:
    made = integer("c", kind, is_unsigned=is_unsigned)
    return Column(made, ColumnKind.INTEGER, st.binary(min_size=size, max_size=size))


def string(made: Made, length_bytes: int) -> Column:
    def spelled(texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return texts.map(lambda text: len(text).to_bytes(length_bytes, "little") + text)

    letters = st.sampled_from((b"abcd", b"ABcd", b"a:c/", b"\xc3\xa4\xc3\xa4"))
    others = spelled(st.sampled_from((b"", b"abc", b"abcde", b"\x04abc", b"a" * min(300, 256**length_bytes - 1))))
    return Column(made, ColumnKind.STRING, spelled(letters), st.none() | others)


COLUMNS = (
    *(
        number(kind, size, is_unsigned=is_unsigned)
        for kind, size in ((types.TINY, 1), (types.SHORT, 2), (types.INT24, 3), (types.LONG, 4), (types.LONGLONG, 8))
        for is_unsigned in (False, True)
    ),
    Column(Made("c", types.YEAR), ColumnKind.INTEGER, st.sampled_from((b"\0", b"\1", b"\x7c"))),
    Column(Made("c", types.DATE), ColumnKind.DATE, st.sampled_from((b"\1\2\3", b"\x21\xcc\x0f"))),
    string(varchar("c", 60), 1),
    string(varchar("c", 300), 2),
    string(Made("c", types.BLOB, b"\3"), 3),
)  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> tuple[list[Made], list[KeyColumn], LogEvent]:
    """A table, the columns of its key in any order, and an event whose rows are alike, or all but a few are."""
    chosen = [draw(st.sampled_from(COLUMNS)) for _ in range(draw(st.integers(1, 9)))]
    names = [f"c{place}" for place in range(len(chosen))]
    made = [
        Made(name, each.made.kind, each.made.metadata, each.made.collation, each.made.is_unsigned)
        for name, each in zip(names, chosen, strict=True)
    ]
    places = draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1, max_size=3, unique=True))
    keys = [KeyColumn(names[place], chosen[place].key) for place in places]
    kind = draw(st.sampled_from((INSERT, UPDATE, DELETE)))
    images = ROWS_MAX * (2 if kind == UPDATE else 1)
    usual = [draw(st.booleans() if draw(st.booleans()) else st.just(False)) for _ in chosen]
    lines: list[list[bytes | None]] = []
    for _ in range(images):
        lines.append([None if n else draw(c.values) for n, c in zip(usual, chosen, strict=True)])
    for _ in range(draw(st.integers(0, 3))):
        line, place = draw(st.integers(0, images - 1)), draw(st.integers(0, len(chosen) - 1))
        lines[line][place] = draw(st.one_of(chosen[place].values, chosen[place].others))
    return made, keys, rows(kind, len(made), *map(image, lines))


def reader_of(columns: Sequence[Made], keys: Sequence[KeyColumn]) -> KeyReader:
    builder = KeyBuilder("n", "o", tuple(keys))
    definition = ObjectDefinition(cast(Any, None), cast(Any, None), builder, {"goods": tuple(keys)})
    reader = KeyReader("mysql", "shop", frozenset(("goods",)), "beats", {"o": definition})
    reader.map_table(table_map(columns))
    return reader


def read(columns: Sequence[Made], keys: Sequence[KeyColumn], event: LogEvent) -> tuple[list[bytes], bool]:
    """The items, and whether there was a problem."""
    answer = reader_of(columns, keys).read_rows(event)
    assert answer.items is not None
    return answer.items, bool(answer.problem)


@contextmanager
def reading(*, by_stride: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyplan, "EVENT_BYTES_MIN", 0 if by_stride else 1 << 40)
        patch.setattr(uniform, "ROWS_MIN", 1)
        yield


def both(columns: Sequence[Made], keys: Sequence[KeyColumn], event: LogEvent) -> list[tuple[list[bytes], bool]]:
    answers = []
    for by_stride in (True, False):
        with reading(by_stride=by_stride):
            answers.append(read(columns, keys, event))
    return answers


@given(events())
@settings(max_examples=400)
def test_by_stride_and_row_by_row_are_the_same(made: tuple[list[Made], list[KeyColumn], LogEvent]) -> None:
    by_stride, walked = both(*made)
    assert by_stride == walked


@given(events(), st.data())
@settings(max_examples=200)
def test_damage_is_the_same_too(made: tuple[list[Made], list[KeyColumn], LogEvent], data: st.DataObject) -> None:
    columns, keys, event = made
    packet = bytearray(event.packet)
    # Behind the head: a byte there is changed, or the end is missing.
    place = data.draw(st.integers(len(packet) // 2, len(packet) - 1))
    packet[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from((len(packet), place)))
    damaged = LogEvent(event.kind, 0, 1, 4, 0, bytes(packet[:end]), event.start, end)
    by_stride, walked = both(columns, keys, damaged)
    assert by_stride == walked


ID = integer("id", is_nullable=False)
NUMBER = KeyColumn("id", ColumnKind.INTEGER)
Row = Callable[[int], Fields]


def insert(columns: Sequence[Made], row: Row, count: int = 100) -> LogEvent:
    return rows(INSERT, len(columns), *(image(row(at)) for at in range(count)))


def test_rows_of_one_length_that_are_not_alike() -> None:
    """A key between two columns of variable length, of which one gains what the other loses, and rows that together
    have the length of as many others."""
    columns = [varchar("a"), ID, varchar("b")]

    def swap(at: int) -> Fields:
        first, last = (bytes((n,)) + b"\x01" * n for n in ((1, 3), (2, 2), (3, 1))[at % 3])
        return first, i4(at), last

    swapped = insert(columns, swap, count=99)
    columns_of_one = [varchar("a"), ID]
    uneven = insert(columns_of_one, lambda at: (b"\3abc" if at % 2 else b"\1a", i4(at)), count=99)
    nulls = insert([integer("x"), integer("y"), ID], lambda at: (
        (None, i4(1), i4(at)) if at == 50 else (i4(1), None, i4(at))
    ))  # fmt: skip
    for made, event, count in (
        (columns, swapped, 99),
        (columns_of_one, uneven, 99),
        ([integer("x"), integer("y"), ID], nulls, 100),
    ):
        for items, is_problem in both(made, [NUMBER], event):
            assert items == [b"n:o:%d" % at for at in range(count)]
            assert not is_problem


def test_rows_that_are_alike_are_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [ID, varchar("v"), integer("x")]

    def row(at: int) -> Fields:
        return i4(at), b"\4abcd", None

    def walk(*_: object) -> list[bytes]:
        raise AssertionError("walked")

    expected = [b"n:o:%d" % at for at in range(100)]
    assert read(columns, [NUMBER], insert(columns, row)) == (expected, False)
    monkeypatch.setattr(keyplan.Code, "_compile", lambda _: walk)
    assert read(columns, [NUMBER], insert(columns, row)) == (expected, False)
    _, is_problem = read(columns, [NUMBER], insert(columns, lambda at: (i4(at), b"\1a" * (1 + at % 2), None)))
    assert is_problem


def test_layouts_are_bounded_and_rows_that_differ_are_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [varchar("v", 200), ID]
    reader = reader_of(columns, [NUMBER])
    expected = [b"n:o:%d" % at for at in range(100)]
    looked_at, compiled = [], []
    make_uniform_reader = keyplan.TablePlan.make_uniform_reader

    def find_uniform_row(*arguments: Any) -> uniform.UniformRow | None:
        looked_at.append(arguments)
        return uniform.find_uniform_row(*arguments)

    def note_layout(*arguments: Any) -> keyplan.Read:
        compiled.append(arguments)
        return make_uniform_reader(*arguments)

    monkeypatch.setattr(keyplan, "find_uniform_row", find_uniform_row)
    monkeypatch.setattr(keyplan.TablePlan, "make_uniform_reader", note_layout)
    for length in range(20):
        value = bytes((length,)) + b"a" * length
        assert reader.read_rows(insert(columns, lambda at, v=value: (v, i4(at)))).items == expected  # type: ignore[misc]
    assert (len(looked_at), len(compiled)) == (20, uniform.UNIFORM_ROWS_MAX)
    looked_at.clear()
    uneven = insert(columns, lambda at: (b"\3abc" if at % 2 else b"\1a", i4(at)))
    for _ in range(2 * (uniform.PAUSE_EVENTS + 1)):
        assert reader.read_rows(uneven).items == expected
    assert len(looked_at) == 2


def test_events_of_any_number_of_rows_are_read_and_their_formats_are_bounded() -> None:
    columns = [integer("owner"), ID, varchar("v")]
    keys = [KeyColumn("owner", ColumnKind.INTEGER), NUMBER]
    for made in (columns, [integer("owner", is_nullable=False), *columns[1:]]):
        reader = reader_of(made, keys)
        for count in (*range(90, 140), uniform.FORMAT_ROWS_MAX, uniform.FORMAT_ROWS_MAX + 1, 100):
            event = insert(made, lambda at: (i4(-at), i4(at), b"\1a"), count)
            assert reader.read_rows(event).items == [b"n:o:%d:%d" % (-at, at) for at in range(count)]
    number_reader = uniform.NumberReader("4xi", b"n:%d")
    for count in range(1, 100):
        assert number_reader(bytes(8 * count), 0, 8 * count) == [b"n:0"] * count
    assert len(number_reader._formats) == uniform.FORMATS_MAX
