"""The transactions of an archive, read as columns: which follow one another, and when they were committed.

Steps over recorded changes. An **island** is a row of consecutive numbers of one source at consecutive ordinals;
islands of several parts that touch are merged by `spark.audit.input.archive`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from freshness.errors import FormatError
from spark.audit.engine.step import ScanPart, Told
from spark.audit.input.recording import read_parts
from spark.audit.kernel.placement import read_singles
from spark.audit.model.hashing import combine, hash_name
from spark.audit.model.schema import to_table
from spark.audit.model.timeline import Lineage

_OF: Final = ("lineage", "epoch", "ordinal", "gtid")
_TIMES: Final = ("timestamp_us", "received_us")
_COLUMNS: Final = (*_OF, "row", "rows", "op", "table", "detail", *_TIMES)
_MYSQL: Final = r"^(?P<source>.*):(?P<number>[0-9]{1,18})$"
_MARIADB: Final = r"^(?P<source>[0-9]+)-(?P<server>[0-9]+)-(?P<number>[0-9]{1,18})$"

ISLAND: Final = pyarrow.schema(
    [
        ("lineage", pyarrow.string()),
        ("epoch", pyarrow.int64()),
        ("source", pyarrow.string()),
        ("server", pyarrow.string()),
        *((name, pyarrow.int64()) for name in ("delta", "first", "last", "transactions", "received_us")),
    ]
)
TIME: Final = pyarrow.schema(
    [(name, pyarrow.int64()) for name in ("number", "at", "latest_us", "earliest_us", "ahead_us")]
)
ODD: Final = pyarrow.schema([(name, pyarrow.int64()) for name in ("number", "ordinal", "timestamp_us", "by_us")])


class Island(NamedTuple):
    """``delta``: number - ordinal, the same for all of it. ``transactions``: number seen, doubles too."""

    lineage: str
    epoch: int
    source: str
    server: str
    delta: int
    first: int
    last: int
    transactions: int
    received_us: int


def find_islands(parts: Iterable[ScanPart]) -> Iterator[Told]:
    """A step. ``islands``; ``raises``: (lineage, table, ordinal) of statements that changed a table as a whole;
    ``others``: transactions without changes of rows, of which several rows are one. Raises `FormatError` for a GTID
    that cannot be read. A transaction with changes has a row 0, one without anything is ``empty``."""
    for batch in read_parts(parts, _COLUMNS):
        table = pyarrow.Table.from_batches([batch])
        is_whole, is_bare = _find_heads(batch)
        whole = table.filter(is_whole).select([*_OF, "received_us"])
        yield "islands", make_islands(whole, numpy.ones(whole.num_rows, numpy.int64))
        if is_bare.true_count:
            yield "others", table.filter(is_bare).drop_columns(["row", "rows", "timestamp_us"])
        is_raise = pyarrow.compute.equal(batch.column("op"), "raise")
        if is_raise.true_count:
            raised = table.filter(is_raise).select(["lineage", "table", "ordinal"])
            yield "raises", raised.group_by(raised.column_names).aggregate([])


def _find_heads(batch: pyarrow.RecordBatch) -> tuple[pyarrow.BooleanArray, pyarrow.BooleanArray]:
    """(first rows of transactions, rows of transactions that have no changes of rows)."""
    compute = pyarrow.compute
    is_empty = compute.equal(batch.column("op"), "empty")
    is_whole = compute.or_(compute.equal(batch.column("row"), 0), is_empty)
    return is_whole, compute.and_not(compute.equal(batch.column("rows"), 0), is_whole)


def merge_others(others: pyarrow.Table) -> pyarrow.Table:
    """Islands of the transactions without changes of rows, of which each may have several rows."""
    named = [*_OF, "op", "table", "detail"]
    once = others.group_by(named).aggregate([("received_us", "count"), ("received_us", "max")])
    single = once.group_by(list(_OF)).aggregate([("received_us_count", "max"), ("received_us_max", "max")])
    doubles = single.column("received_us_count_max").to_numpy()
    return make_islands(
        single.rename_columns([*_OF, "doubles", "received_us"]).combine_chunks(), doubles.astype(numpy.int64)
    )


def make_islands(heads: pyarrow.Table, doubles: NDArray[numpy.int64]) -> pyarrow.Table:
    """`ISLAND`. ``doubles``: how often each transaction is there."""
    if not heads.num_rows:
        return ISLAND.empty_table()
    [batch] = heads.combine_chunks().to_batches()
    source, server, numbers = _read_gtids(batch)
    ordinal = batch.column("ordinal").to_numpy()
    received = batch.column("received_us").to_numpy()
    delta = numbers - ordinal
    code, first_row = combine([batch.column("lineage"), batch.column("epoch"), source, server])
    order = numpy.lexsort((ordinal, delta, code))
    code, delta, ordinal = code[order], delta[order], ordinal[order]
    is_new = numpy.ones(len(order), numpy.bool_)
    is_new[1:] = (numpy.diff(code) != 0) | (numpy.diff(delta) != 0) | (numpy.diff(ordinal) > 1)
    starts = numpy.flatnonzero(is_new)
    ends = numpy.append(starts[1:], len(order)) - 1
    row = pyarrow.array(first_row[code[starts]])
    names = [column.take(row) for column in (batch.column("lineage"), batch.column("epoch"), source, server)]
    counts = numpy.add.reduceat(doubles[order], starts), numpy.maximum.reduceat(received[order], starts)
    columns = [*names, *map(pyarrow.array, (delta[starts], ordinal[starts], ordinal[ends], *counts))]
    return pyarrow.Table.from_arrays(columns, schema=ISLAND)


def _read_gtids(batch: pyarrow.RecordBatch) -> tuple[pyarrow.Array, pyarrow.Array, NDArray[numpy.int64]]:
    """(sources, servers, numbers); the server is "" for MySQL."""
    compute, gtids = pyarrow.compute, batch.column("gtid")
    single = read_singles(gtids)
    if single.is_plain.all() and (single.first == single.last).all():
        source = pyarrow.DictionaryArray.from_arrays(single.source, single.sources)
        return source.cast(pyarrow.string()), pyarrow.repeat("", len(gtids)), single.last
    mysql = compute.extract_regex(gtids, _MYSQL)
    is_mysql = mysql.is_valid()
    mariadb = compute.extract_regex(compute.if_else(is_mysql, None, gtids), _MARIADB)
    source = compute.if_else(is_mysql, mysql.field("source"), mariadb.field("source"))
    server = compute.if_else(is_mysql, "", mariadb.field("server"))
    number = compute.if_else(is_mysql, mysql.field("number"), mariadb.field("number"))
    bad = compute.index(compute.or_(is_mysql, mariadb.is_valid()), False).as_py()
    if bad >= 0:
        raise FormatError(
            f"the archive of {batch.column('lineage')[bad]} has a GTID that cannot be read, "
            f"at ordinal {batch.column('ordinal')[bad]}",
            hint="expected uuid:number, uuid:tag:number or domain-server-number",
        )
    return source, server, number.cast(pyarrow.int64()).to_numpy()


class _Heads(NamedTuple):
    """Transactions of one lineage in a part, as columns."""

    number: int
    ordinal: NDArray[Any]
    timestamp_us: NDArray[Any]
    received_us: NDArray[Any]


def _read_heads(parts: Iterable[ScanPart]) -> Iterator[_Heads]:
    for batch in read_parts(parts, ("lineage", "ordinal", "row", "rows", "op", *_TIMES)):
        is_whole, is_bare = _find_heads(batch)
        heads = batch.filter(pyarrow.compute.or_(is_whole, is_bare))
        lineage = heads.column("lineage").dictionary_encode()
        of = lineage.indices.to_numpy()
        columns = [heads.column(name).to_numpy() for name in ("ordinal", *_TIMES)]
        for code, name in enumerate(lineage.dictionary.to_pylist()):
            mine = of == code
            yield _Heads(hash_name(name), *(column[mine] for column in columns))


def find_times(firsts: Mapping[int, int], bucket: int, parts: Iterable[ScanPart]) -> Iterator[Told]:
    """A step. ``times`` (`TIME`): of each bucket of ordinals the latest time that was not after its receipt, the
    earliest time, and how far one was ahead of its receipt. ``firsts``: first ordinal of each lineage."""
    for heads in _read_heads(parts):
        at = (heads.ordinal - firsts[heads.number]) // bucket
        order = numpy.argsort(at, kind="stable")
        at = at[order]
        starts = numpy.flatnonzero(numpy.append(True, numpy.diff(at) != 0))
        timestamp, received = heads.timestamp_us[order], heads.received_us[order]
        columns = (
            numpy.full(len(starts), heads.number),
            at[starts],
            numpy.maximum.reduceat(numpy.minimum(timestamp, received), starts),
            numpy.minimum.reduceat(timestamp, starts),
            numpy.maximum.reduceat(timestamp - received, starts),
        )
        yield "times", pyarrow.Table.from_arrays(list(map(pyarrow.array, columns)), schema=TIME)


def find_odd_times(lineages: Mapping[int, Lineage], clock_wrong_us: int, parts: Iterable[ScanPart]) -> Iterator[Told]:
    """A step. ``odd`` (`ODD`): commits whose time is far before that of an earlier one, or after their receipt."""
    for heads in _read_heads(parts):
        lineage = lineages[heads.number]
        before = (heads.ordinal - lineage.first) // lineage.bucket - 1
        stamps = heads.timestamp_us
        latest = numpy.where(before >= 0, lineage.times[numpy.maximum(before, 0)], stamps)
        ahead = stamps - heads.received_us
        by_us = numpy.where(ahead > clock_wrong_us, ahead, stamps - latest)
        odd = numpy.abs(by_us) > clock_wrong_us
        rows = zip(heads.ordinal[odd].tolist(), stamps[odd].tolist(), by_us[odd].tolist(), strict=True)
        yield "odd", to_table(((heads.number, *row) for row in rows), ODD)
