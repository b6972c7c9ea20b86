"""The plan of a table: which columns hold keys, and the compiled functions that read them from row events.

Theory of operation. A row event is a head with the bitmaps of present columns, then one or two images for each row.
An image is a bitmap of NULLs, then the fields of the columns that are not NULL. Nothing in the event marks the start
of the next row, so a reader must step over every field; it need only decode the keys.

- `TablePlan` is made once for a table map: formats of all columns, places and spellings of the key columns.
- `Code` is made once for the bitmaps of an event. It holds a function, compiled from source text that `TablePlan`
  writes. While the function runs, ``b`` is the packet, ``o`` the place in it, ``e`` the end of the rows, ``k`` the
  NULLs, ``n`` a length; ``x3`` is column 3 before the change and ``y3`` after it.
- A NULL pattern that was seen before has a branch in the function, which adds one constant to ``o`` for a run of
  fixed fields. Other patterns take a branch that looks at each NULL bit. `Code` notes new patterns and recompiles.
- Large events whose rows are all alike are read by stride, without stepping (``invalidator.binlog.keys.uniform``).

The source text is made of numbers in the table map and of names of this module, never of text of the log.

Safety. The function does not look at ``e`` while it steps. A truncated or damaged event either raises on the way or
does not end with its last row; the function then raises, none of the event's keys is used, and the table is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from freshness.errors import FormatError
from freshness.keys.cachekey import ITEM_BYTES_MAX, KeyBuilder, shorten_item
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from invalidator.binlog.keys.spelling import Spell, find_spelling
from invalidator.binlog.keys.uniform import (
    EVENT_BYTES_MIN,
    PAUSE_EVENTS,
    UNIFORM_ROWS_MAX,
    NumberReader,
    UniformRow,
    find_uniform_row,
)
from invalidator.binlog.wire import tablemap as types
from invalidator.binlog.wire.fieldformat import NAMES, find_format, refuse_old_temporals
from invalidator.binlog.wire.fieldvalue import INTEGER_BYTES
from invalidator.binlog.wire.rowevent import ImageBitmaps, find_present
from invalidator.binlog.wire.tablemap import MappedColumn

PATTERNS_MAX: Final = 6
"""NULL patterns of one image that get a branch of their own."""

CODES_MAX: Final = 64
"""Functions of one table (a change of its columns brings a new table map). More bitmaps than that start over."""

Read = Callable[[bytes, int, int], list[bytes]]
"""(packet, place of the first row, end of the last) → items. Raises any exception if the bytes do not add up."""


class TableKey(NamedTuple):
    builder: KeyBuilder
    columns: tuple[KeyColumn, ...]


def find_targets(definitions: Mapping[str, ObjectDefinition]) -> dict[str, tuple[TableKey, ...]]:
    """The keys that the rows of each table hold, of all objects."""
    found: dict[str, tuple[TableKey, ...]] = {}
    for definition in definitions.values():
        for table, columns in definition.columns_by_table.items():
            found[table] = (*found.get(table, ()), TableKey(definition.builder, tuple(columns)))
    return found


@dataclass(slots=True)
class _Image:
    """One image of a row: the columns in it, the NULL patterns that have a branch, and those seen since."""

    letter: str
    places: tuple[int, ...]
    patterns: list[bytes] = field(default_factory=list)
    fresh: set[Any] = field(default_factory=set)

    @property
    def null_bytes(self) -> int:
        return (len(self.places) + 7) // 8


class TablePlan:
    """The keys of one table, as it was announced. Raises `FormatError` if a key cannot be read from it."""

    def __init__(self, columns: Sequence[MappedColumn], targets: Sequence[TableKey], flavor: str) -> None:
        self.columns = tuple(columns)
        self._targets = tuple(targets)
        if flavor == "mariadb":
            for mapped in columns:
                refuse_old_temporals(mapped)
        self.formats = [find_format(column) for column in columns]
        by_name = {column.name: place for place, column in enumerate(columns)}
        for target in targets:
            for column in target.columns:
                if column.name not in by_name:
                    raise FormatError(f"the table has no column {column.name} in the binary log")
        self._places = [[by_name[column.name] for column in target.columns] for target in targets]
        self._spellings = [
            [
                _find_spelling(columns[place], of_table, of_object, flavor)
                for place, of_table, of_object in zip(places, target.columns, target.builder.columns, strict=True)
            ]
            for target, places in zip(targets, self._places, strict=True)
        ]
        self._codes: dict[ImageBitmaps, Code] = {}
        self.heads: dict[tuple[int, bytes], Code] = {}
        """By the number of a row event and its bytes between flags and rows; `head_bytes` says how many."""
        self.head_bytes: dict[int, int] = {}
        json = sum(column.kind == types.JSON for column in columns)
        self.json_bytes = (json + 7) // 8

    def find_code(self, bitmaps: ImageBitmaps) -> Code:
        """The reader of events with these bitmaps. Raises `FormatError` if they do not hold the keys."""
        code = self._codes.get(bitmaps)
        if code is None:
            if len(self._codes) >= CODES_MAX:
                self._codes.clear()
                self.heads.clear()
            code = self._codes[bitmaps] = Code(self, bitmaps)
        return code

    def remember_head(self, kind: int, head: bytes, code: Code) -> None:
        """Rows of this kind that begin like this are read by ``code``."""
        if len(self.heads) >= CODES_MAX:
            self.heads.clear()
        self.head_bytes[kind] = len(head)
        self.heads[kind, head] = code

    def source(self, before: _Image, after: _Image | None, json_bytes: int) -> tuple[str, dict[str, Any]]:
        """The function's text, and what it names."""
        names: dict[str, Any] = {**NAMES, "fresh_x": before.fresh.add, "shorten": shorten_item}
        lines = ["def read(b, o, e):", " r = []; a = r.append", " while o < e:"]
        lines += _indent(2, self._image_lines(before, names))
        if after is not None:
            names["fresh_y"] = after.fresh.add
            if json_bytes >= 0:
                lines += ["  if b[o] > 1: raise ValueError(b[o])", f"  o += {1 + json_bytes} if b[o] else 1"]
            lines += _indent(2, self._image_lines(after, names))
        for number in range(len(self._targets)):
            lines += _indent(2, self._collect_lines(number, before, after, names))
        lines.append(" if o != e: raise ValueError(f'the last row ends at {o} and not at {e}')")
        lines.append(" return r")
        return "\n".join(lines), names

    def make_uniform_reader(self, before: _Image, after: _Image | None, row: UniformRow) -> Read:
        """Reads rows that are all laid out like this."""
        images = (before,) if after is None else (before, after)
        wanted = {
            name: self.formats[place]
            for image in images
            for place in image.places
            if (name := self._variable(place, image))
        }
        row_format, found, nulls = row.format(wanted)
        unpack = struct.Struct(f"<{row_format}").iter_unpack
        names: dict[str, Any] = {**NAMES, "shorten": shorten_item, "unpack": unpack}
        converted = [f"{name} = {wanted[name].convert.format(name)}" for name in found if wanted[name].convert]
        collected = [
            line for number in range(len(self._targets)) for line in self._collect_lines(number, before, after, names)
        ]
        row_itself = f"({', '.join(found)})" if len(found) > 1 else "".join(found)
        if not converted and collected == [f"a(p0 % {row_itself})"]:
            return NumberReader(row_format, names["p0"])
        lines = ["def read(b, o, e):", " r = []; a = r.append", *(f" {name} = None" for name in nulls)]
        lines.append(f" for ({''.join(f'{name}, ' for name in found)}) in unpack(b[o:e]):")
        lines += _indent(2, iter([*converted, *collected]))
        return _compile("\n".join([*lines, " return r"]), names)

    def _image_lines(self, image: _Image, names: dict[str, Any]) -> Iterator[str]:
        size = image.null_bytes
        if not size:
            return
        yield "k = b[o]" if size == 1 else f"k = b[o:o + {size}]"
        word = "if"
        for pattern in image.patterns:
            yield f"{word} k == {pattern[0] if size == 1 else pattern!r}:"
            yield from _indent(1, self._known_pattern_lines(image, int.from_bytes(pattern, "little")))
            word = "elif"
        inner = 1 if image.patterns else 0
        if inner:
            yield "else:"
        if len(image.patterns) < PATTERNS_MAX:
            yield " " * inner + f"fresh_{image.letter}(k)"
        yield from _indent(inner, self._any_pattern_lines(image))

    def _known_pattern_lines(self, image: _Image, nulls: int) -> Iterator[str]:
        """All distances up to the next value of variable length are one constant."""
        offset = image.null_bytes
        for index, place in enumerate(image.places):
            variable = self._variable(place, image)
            if nulls >> index & 1:
                if variable:
                    yield f"{variable} = None"
                continue
            form = self.formats[place]
            if form.is_fixed:
                if variable:
                    yield f"{variable} = {form.read(_sum('o', offset))}"
                offset += form.size
            elif variable:
                yield f"o += {offset + form.size}; n = {form.length(f'o - {form.size}')}"
                yield f"{variable} = b[o:o + n]; o += n"
                offset = 0
            else:
                yield f"o += {offset + form.size} + {form.length(_sum('o', offset))}"
                offset = 0
        if offset:
            yield f"o += {offset}"

    def _any_pattern_lines(self, image: _Image) -> Iterator[str]:
        size = image.null_bytes
        if size > 1:
            yield "k = from_bytes(k, 'little')"
        yield f"o += {size}"
        for index, place in enumerate(image.places):
            variable = self._variable(place, image)
            form = self.formats[place]
            mask = 1 << index
            if form.is_fixed:
                taken = f"{variable} = {form.read('o')}; o += {form.size}" if variable else f"o += {form.size}"
            elif variable:
                taken = f"n = {form.length('o')}; o += {form.size}; {variable} = b[o:o + n]; o += n"
            else:
                taken = f"o += {form.size} + {form.length('o')}"
            if variable:
                yield f"if k & {mask}: {variable} = None"
                yield f"else: {taken}"
            else:
                yield f"if not k & {mask}: {taken}"

    def _variable(self, place: int, image: _Image) -> str:
        return f"{image.letter}{place}" if any(place in places for places in self._places) else ""

    def _collect_lines(
        self, number: int, before: _Image, after: _Image | None, names: dict[str, Any]
    ) -> Iterator[str]:
        places = self._places[number]
        old = [f"x{place}" for place in places]
        yield from self._append_lines(number, old, [], names)
        if after is None or not set(places) & set(after.places):
            return
        new = [f"y{place}" if place in after.places else f"x{place}" for place in places]
        yield from self._append_lines(number, new, old, names)

    def _append_lines(
        self, number: int, variables: Sequence[str], other_than: Sequence[str], names: dict[str, Any]
    ) -> Iterator[str]:
        """NULL is not a key: the row belongs to no object. An unchanged key is appended only once."""
        conditions = [
            f"{variable} is not None"
            for place, variable in zip(self._places[number], variables, strict=True)
            if self.columns[place].is_nullable
        ]
        changed = " or ".join(
            f"{new} != {old}" for new, old in zip(variables, other_than, strict=False) if new != old
        )
        if changed:
            conditions.insert(0, f"({changed})")
        if conditions:
            yield f"if {' and '.join(conditions)}:"
        yield from _indent(1 if conditions else 0, self._item_lines(number, variables, names))

    def _item_lines(self, number: int, variables: Sequence[str], names: dict[str, Any]) -> Iterator[str]:
        """Append the item of these values."""
        spellings = self._spellings[number]
        names[f"p{number}"] = self._targets[number].builder.prefix + b":".join(
            b"%d" if spelling is None else b"%b" for spelling in spellings
        )
        spelled = []
        for index, (variable, spelling) in enumerate(zip(variables, spellings, strict=True)):
            if spelling is not None:
                names[f"s{number}_{index}"] = spelling
            spelled.append(variable if spelling is None else f"s{number}_{index}({variable})")
        item = f"p{number} % {spelled[0] if len(spelled) == 1 else '(' + ', '.join(spelled) + ')'}"
        if all(spelling is None for spelling in spellings):
            yield f"a({item})"
        else:
            yield f"i = {item}"
            yield f"a(i if len(i) <= {ITEM_BYTES_MAX} else shorten(i))"


class Code:
    """The compiled function for the bitmaps of an event. Rows with new NULL patterns make it compile again."""

    def __init__(self, plan: TablePlan, bitmaps: ImageBitmaps) -> None:
        self._plan = plan
        self._json_bytes = bitmaps.json_bytes
        self._before = _Image("x", find_present(bitmaps.before, len(plan.columns)))
        self._after = None if bitmaps.after is None else _Image("y", find_present(bitmaps.after, len(plan.columns)))
        if not self._before.places:
            raise FormatError("a row event whose rows have no columns")
        for place in chain.from_iterable(plan._places):
            if place not in self._before.places:
                raise FormatError(f"column {plan.columns[place].name} is not in the binary log")
        self._read = self._compile()
        self._readers: dict[UniformRow, Read] = {}
        self._uniform_row: UniformRow | None = None
        self._read_alike: Read | None = None
        self._pause_events = 0

    def read(self, packet: bytes, start: int, end: int) -> list[bytes]:
        """The items of all rows from ``start`` to ``end``. Raises whatever the bytes lead to."""
        if start >= end:
            raise FormatError("a row event without rows")
        if end - start >= EVENT_BYTES_MIN and self._json_bytes < 0:
            read_alike = self._find_alike(packet, start, end)
            if read_alike is not None:
                return read_alike(packet, start, end)
        items = self._read(packet, start, end)
        if self._before.fresh or (self._after is not None and self._after.fresh):
            self._learn()
        return items

    def _find_alike(self, packet: bytes, start: int, end: int) -> Read | None:
        """The function that reads the rows by stride; None if they are not alike, or too many functions are kept."""
        if self._pause_events:
            self._pause_events -= 1
            return None
        if self._uniform_row is None or not self._uniform_row.fits(packet, start, end):
            row = self._find_uniform_row(packet, start, end)
            if row is None or not row.fits(packet, start, end):
                self._pause_events = PAUSE_EVENTS
                return None
            self._uniform_row, self._read_alike = row, self._find_reader(row)
        return self._read_alike

    def _find_reader(self, row: UniformRow) -> Read | None:
        read = self._readers.get(row)
        if read is None and len(self._readers) < UNIFORM_ROWS_MAX:
            read = self._plan.make_uniform_reader(self._before, self._after, row)
            self._readers[row] = read
        return read

    def _find_uniform_row(self, packet: bytes, start: int, end: int) -> UniformRow | None:
        images = [(image.letter, image.places) for image in (self._before, self._after) if image is not None]
        return find_uniform_row(images, self._plan.formats, packet, start, end)

    def _learn(self) -> None:
        for image in (self._before, self._after):
            if image is not None:
                for pattern in sorted(image.fresh)[: PATTERNS_MAX - len(image.patterns)]:
                    image.patterns.append(bytes((pattern,)) if isinstance(pattern, int) else pattern)
                image.fresh.clear()
        self._read = self._compile()

    def _compile(self) -> Read:
        return _compile(*self._plan.source(self._before, self._after, self._json_bytes))


def _compile(source: str, names: dict[str, Any]) -> Read:
    exec(compile(source, "<row reader>", "exec"), names)  # our own text, see the module
    read: Read = names["read"]
    return read


def _find_spelling(column: MappedColumn, of_table: KeyColumn, of_object: KeyColumn, flavor: str) -> Spell | None:
    """None if the value is read as a number and spelled as one."""
    if not (column.kind in INTEGER_BYTES or column.kind == types.YEAR):
        return find_spelling(column, of_table, of_object, flavor)
    if of_object.kind is ColumnKind.INTEGER:
        return None
    # A column that became a number since the definition was read, or a DECIMAL key.
    return lambda number: of_object.spell(number)[0].encode("ascii")


def _sum(name: str, offset: int) -> str:
    return f"{name} + {offset}" if offset else name


def _indent(depth: int, lines: Iterator[str]) -> Iterator[str]:
    return (" " * depth + line for line in lines)
