"""Steps over recorded changes and actions: they become the rows of the replay, in their pieces, and a stock is taken.

Both are read once. Besides the rows a step yields what is small: which client did what how often (`Stock`), how far
nodes had come (`spark.audit.input.published`), and which positions hold numbers that the archive leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from freshness.errors import FormatError
from spark.audit.engine.step import ScanPart, Told
from spark.audit.input.checksum import PRIME
from spark.audit.input.published import PublishedStep
from spark.audit.input.recording import read_parts
from spark.audit.input.spread import Spread
from spark.audit.kernel.placement import STAMP_COLUMNS, encode_stamps
from spark.audit.model.hashing import (
    combine,
    find_firsts,
    hash_items,
    hash_name,
    hash_names,
    join_lists,
    number_values,
    shorten,
)
from spark.audit.model.row import (
    ABSENT,
    AFTER_ABSENT,
    BEFORE_ABSENT,
    CHANGE,
    FILL,
    HIT,
    INVALIDATION,
    NO_NUMBER,
    ROW,
    SERVED_STALE,
    UNANSWERED,
)
from spark.audit.model.schema import REPLAY
from spark.audit.model.timeline import Lineage

ACTIONS: Final = ("fill", "hit", "refusal", "invalidation", "publish", "dropped")
STOCK_MAX: Final = 1_000_000
"""The most combinations of client, object, node and outcome."""

_KINDS: Final = {"fill": FILL, "hit": HIT, "invalidation": INVALIDATION}
_LIST: Final = "\x1f"
_PART: Final = "\x1e"


def read_kept(spread: Spread, parts: Iterable[ScanPart]) -> Iterator[Told]:
    """A step over rows that a previous audit kept."""
    for batch in read_parts(parts, REPLAY.names):
        yield from spread.divide(pyarrow.Table.from_batches([batch]).cast(REPLAY))


_OF_CHANGE: Final = (
    *("lineage", "ordinal", "row", "op", "items", "row_items", "timestamp_us", "received_us"),
    *("before_digest", "after_digest"),
)
_TAKEN: Final = ("ordinal", "row", "timestamp_us", "received_us", "before_digest", "after_digest")
_OBJECT: Final = "^(?P<object>[^:]*:[^:]*):"
"""How an item begins, see `freshness.keys.cachekey`."""


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """A step: a row (`REPLAY`) for each item of each change. ``duplicates``: (lineage, first ordinal, last ordinal)
    of transactions that were archived again."""

    spread: Spread
    duplicates: Sequence[tuple[int, int, int]]

    def __call__(self, parts: Iterable[ScanPart]) -> Iterator[Told]:
        for batch in read_parts(parts, _OF_CHANGE):
            rows = self._encode(batch)
            if rows.num_rows:
                yield from self.spread.divide(rows)

    def _encode(self, batch: pyarrow.RecordBatch) -> pyarrow.Table:
        counts = pyarrow.compute.list_value_length(batch.column("items")).fill_null(0)
        lineage = hash_names(batch.column("lineage"))
        chosen = counts.to_numpy() > 0
        ordinal = batch.column("ordinal").to_numpy()
        for number, first, last in self.duplicates:
            chosen &= ~((lineage == number) & (first <= ordinal) & (ordinal <= last))
        batch, lineage = batch.filter(pyarrow.array(chosen)), lineage[chosen]
        if not batch.num_rows:
            return REPLAY.empty_table()
        at, items, is_row, has_moved = _read_items(batch)
        op = batch.column("op")
        flags = numpy.where(_is(op, "delete"), AFTER_ABSENT, 0) | numpy.where(_is(op, "insert"), BEFORE_ABSENT, 0)
        h1, h2 = hash_items(items)
        its = batch.select(_TAKEN).take(pyarrow.array(at))
        received = its.column("received_us")
        # The row before stood under another key then, and is nothing that this item ever was.
        before = pyarrow.compute.if_else(
            pyarrow.array(has_moved), pyarrow.scalar(None, pyarrow.int64()), shorten(its.column("before_digest"))
        )
        return _replay(
            h1=h1,
            h2=h2,
            kind=numpy.full(len(at), CHANGE, numpy.int32),
            lineage=lineage[at],
            ordinal=its.column("ordinal"),
            row=its.column("row"),
            begin_us=numpy.minimum(its.column("timestamp_us").to_numpy(), received.to_numpy()),
            end_us=received,
            digest=shorten(its.column("after_digest")),
            before=before,
            flags=(flags[at] | numpy.where(is_row, ROW, 0)).astype(numpy.int32),
        )


def _read_items(
    batch: pyarrow.RecordBatch,
) -> tuple[NDArray[numpy.int64], pyarrow.Array, NDArray[numpy.bool_], NDArray[numpy.bool_]]:
    """(for each item the change's place in the batch, the items, whether its whole value is the row, whether the row
    has moved there from another key). A change names an item once."""
    compute = pyarrow.compute
    listed = [batch.column(name) for name in ("items", "row_items")]
    of = [compute.list_parent_indices(column).to_numpy().astype(numpy.int64) for column in listed]
    flat = [compute.list_flatten(column) for column in listed]
    codes = pyarrow.concat_arrays(flat).dictionary_encode().indices.to_numpy().astype(numpy.int64)
    keys = numpy.concatenate(of) * (len(codes) + 1) + codes
    mine, wanted = keys[: len(of[0])], keys[len(of[0]) :]
    first = find_firsts(number_values(mine)[0])
    at, items, is_row = of[0][first], flat[0].take(pyarrow.array(first)), numpy.isin(mine[first], wanted)
    return at, items, is_row, is_row & _find_siblings(at, items)


def _find_siblings(at: NDArray[numpy.int64], items: pyarrow.Array) -> NDArray[numpy.bool_]:
    """True for an item whose change names several items of its object: those of the row's keys before and after."""
    counts = numpy.bincount(at)
    found = counts[at] > 1
    several = numpy.flatnonzero(found)
    if len(several):
        matches = pyarrow.compute.extract_regex(items.take(pyarrow.array(several)), _OBJECT)
        objects = pyarrow.compute.struct_field(matches, "object").dictionary_encode()
        codes = objects.indices.fill_null(-1).to_numpy().astype(numpy.int64)
        kinds, _ = number_values(at[several] * (len(objects.dictionary) + 1) + codes + 1)
        found[several] = numpy.bincount(kinds)[kinds] > 1
    return found


def _is(texts: pyarrow.Array, text: str) -> NDArray[numpy.bool_]:
    encoded = texts.dictionary_encode()
    code = encoded.dictionary.index(text).as_py()
    found: NDArray[numpy.bool_] = encoded.indices.fill_null(-1).to_numpy() == code
    return found if code >= 0 else numpy.zeros(len(texts), numpy.bool_)


def _replay(**columns: Any) -> pyarrow.Table:
    """`REPLAY`; numbers that are not named are `NO_NUMBER` or 0, which stand for null."""
    count = len(columns["h1"])
    arrays = []
    for field in REPLAY:
        column = columns.get(field.name)
        if column is None:
            column = _make_nothing(field.type, count)
        elif not isinstance(column, pyarrow.Array):
            column = pyarrow.array(column)
        arrays.append(column.cast(field.type))
    return pyarrow.Table.from_arrays(arrays, schema=REPLAY)


def _make_nothing(kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    if not pyarrow.types.is_integer(kind):
        return pyarrow.nulls(count, kind)
    return pyarrow.array(numpy.full(count, NO_NUMBER if kind == pyarrow.int64() else 0), kind)


_OF_ACTION: Final = (
    *("client", "sequence", "action", "outcome", "object", "tables", "item", "node"),
    *STAMP_COLUMNS,
    *("digest", "is_absent", "version", "observed", "begin_us", "end_us", "count"),
)


@dataclass(frozen=True, slots=True)
class ActionStep:
    """A step: a row (`REPLAY`) for each fill, invalidation and hit; ``stock`` (`STOCK`), and the tables of
    ``published``."""

    spread: Spread
    lineages: Mapping[str, Lineage]
    published: PublishedStep

    def __call__(self, parts: Iterable[ScanPart]) -> Iterator[Told]:
        for batch in read_parts(parts, _OF_ACTION):
            code, named = _name_combinations(batch)
            who = named.column("who").to_numpy()[code]
            needs_item = pyarrow.compute.is_in(batch.column("action"), pyarrow.array(list(_KINDS)))
            has_item = batch.column("item").is_valid()
            yield "stock", _take_stock(batch, code, named, pyarrow.compute.and_not(needs_item, has_item))
            yield from self.published.read(batch)
            is_told = pyarrow.compute.and_(needs_item, has_item)
            chosen = is_told.to_numpy(zero_copy_only=False)
            if chosen.any():
                told = batch if chosen.all() else batch.filter(is_told)
                yield from self.spread.divide(self._encode(told, who[chosen]))

    def _encode(self, batch: pyarrow.RecordBatch, who: NDArray[numpy.int64]) -> pyarrow.Table:
        action, outcome = batch.column("action"), batch.column("outcome")
        is_fill = _is(action, "fill")
        flags = numpy.where(batch.column("is_absent").to_numpy(zero_copy_only=False), ABSENT, 0)
        flags |= numpy.where(is_fill & _is(outcome, "NODE_DOWN"), UNANSWERED, 0)
        flags |= numpy.where(_is(outcome, "STALE_SERVED"), SERVED_STALE, 0)
        of_stamps = {name: batch.column(name) for name in STAMP_COLUMNS}
        of_stamps["floors"] = pyarrow.compute.if_else(
            pyarrow.array(is_fill), of_stamps["floors"], pyarrow.scalar([], of_stamps["floors"].type)
        )
        stamps, below = encode_stamps(self.lineages, of_stamps)
        h1, h2 = hash_items(batch.column("item"))
        kind = numpy.where(is_fill, FILL, numpy.where(_is(action, "hit"), HIT, INVALIDATION))
        return _replay(
            h1=h1,
            h2=h2,
            kind=kind.astype(numpy.int32),
            node=hash_names(batch.column("node")),
            digest=shorten(batch.column("digest")),
            flags=flags.astype(numpy.int32) | below,
            who=who,
            client=hash_names(batch.column("client")),
            stamps=stamps,
            **{name: batch.column(name) for name in ("version", "observed", "begin_us", "end_us", "sequence")},
        )


def _name_combinations(batch: pyarrow.RecordBatch) -> tuple[NDArray[numpy.int64], pyarrow.Table]:
    """(for each row the number of its combination, `_NAMES` of each combination)."""
    columns = {name: batch.column(name).fill_null("") for name in ("client", "object", "node")}
    columns.update((name, join_lists(batch.column(name), _LIST)) for name in ("tables", "lineages"))
    columns.update((name, batch.column(name)) for name in ("action", "outcome"))
    code, first = combine(list(columns.values()))
    named = {name: column.take(pyarrow.array(first)).to_pylist() for name, column in columns.items()}
    named["who"] = list(map(hash_name, map(_PART.join, zip(*(named[name] for name in _WHO), strict=True))))
    return code, pyarrow.table([named[name] for name in _NAMES.names], schema=_NAMES)


_WHO: Final = ("client", "object", "node", "tables", "lineages")
"""Hits are counted by these."""
_NAMES: Final = pyarrow.schema(
    [
        ("who", pyarrow.int64()),
        *(
            (name, pyarrow.string())
            for name in ("client", "action", "outcome", "object", "tables", "node", "lineages")
        ),
    ]
)
STOCK: Final = pyarrow.schema(
    [
        *_NAMES,
        *(
            (name, pyarrow.int64())
            for name in ("actions", "lost", "first", "last", "begin_us", "end_us", "total", "squares", "nameless")
        ),
    ]
)
_FOLDS: Final = {"first": "min", "last": "max", "begin_us": "min", "end_us": "min"}


class Stock(NamedTuple):
    """How many actions of one kind a client recorded about one object on one node.

    ``who``: the hash that hits are counted by. ``lost``: number of actions that the client dropped, by its own count.
    ``first``, ``last``: its sequence numbers; ``total``, ``squares``: their sums (`spark.audit.input.checksum`).
    ``begin_us``, ``end_us``: the earliest ones.
    """

    who: int
    client: str
    action: str
    outcome: str
    object: str
    tables: tuple[str, ...]
    node: str
    lineages: tuple[str, ...]
    actions: int
    lost: int
    first: int
    last: int
    begin_us: int
    end_us: int
    total: int
    squares: int


def _take_stock(
    batch: pyarrow.RecordBatch, code: NDArray[numpy.int64], named: pyarrow.Table, is_nameless: pyarrow.BooleanArray
) -> pyarrow.Table:
    """``code``, ``named``: result of `_name_combinations`. ``is_nameless``: True for an action that lacks its
    item."""
    is_dropped = _is(batch.column("action"), "dropped")
    sequence = batch.column("sequence").to_numpy()
    rest = sequence % PRIME
    numbers = {
        "actions": numpy.ones(len(code), numpy.int64),
        "lost": numpy.where(is_dropped, batch.column("count").fill_null(0).to_numpy(), 0),
        "first": sequence,
        "last": sequence,
        "begin_us": batch.column("begin_us").to_numpy(),
        "end_us": batch.column("end_us").to_numpy(),
        "total": rest,
        "squares": rest * rest % PRIME,
        "nameless": is_nameless.to_numpy(zero_copy_only=False).astype(numpy.int64),
    }
    folded = pyarrow.table({"code": code, **numbers}).group_by("code").aggregate(_fold_of(numbers))
    of_names = named.take(folded.column("code").combine_chunks())
    return pyarrow.table([*of_names.columns, *folded.columns[1:]], schema=STOCK)


def _fold_of(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, _FOLDS.get(name, "sum")) for name in names]


def _fold(stock: pyarrow.Table) -> pyarrow.Table:
    found = stock.group_by(_NAMES.names).aggregate(_fold_of(STOCK.names[len(_NAMES) :]))
    return found.rename_columns(STOCK.names)


def read_stock(told: pyarrow.Table) -> list[Stock]:
    """The stock of all actions. Raises `FormatError` for actions that cannot be understood."""
    table = _fold(told)
    if table.num_rows > STOCK_MAX:
        raise FormatError(
            f"more than {STOCK_MAX:,} clients, objects and nodes in one history",
            hint="audit a shorter span, or fewer clients",
        )
    stock = []
    for row in table.to_pylist():
        nameless = row.pop("nameless")
        if row["action"] not in ACTIONS or nameless:
            what = "names no item" if row["action"] in ACTIONS else "is not known"
            raise FormatError(
                f"the action {row['action']!r} of {row['client']} {what}",
                hint="another release recorded it; audit with that one",
            )
        for name in ("tables", "lineages"):
            row[name] = tuple(row[name].split(_LIST)) if row[name] else ()
        for name in ("total", "squares"):
            row[name] %= PRIME
        stock.append(Stock(**row))
    return stock
