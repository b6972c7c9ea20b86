"""One table of rows, judged by arrays and row by row: everything that each of them says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow

from spark.audit.judge.replay import replay
from spark.audit.kernel.judge import judge, read_rows
from spark.audit.model.finding import Finding, Knowledge, PendingChange, Rules, Tally
from spark.audit.model.row import NO_NUMBER, ReplayRow
from spark.audit.model.schema import REPLAY
from spark.audit.shuffle.survey import Survey


def to_table(rows: Sequence[ReplayRow]) -> pyarrow.Table:
    """`REPLAY`, with nulls as an audit has them."""
    arrays = []
    for column, field in zip(zip(*rows, strict=True), REPLAY, strict=True):
        missing = NO_NUMBER if field.type == pyarrow.int64() else None
        arrays.append(pyarrow.array([None if value == missing else value for value in column], field.type))
    return pyarrow.Table.from_arrays(arrays, schema=REPLAY)


def gather_rows(survey: Survey) -> pyarrow.Table:
    """All rows of an audit."""
    return pyarrow.concat_tables(gather_pieces(survey))


def gather_pieces(survey: Survey) -> list[pyarrow.Table]:
    """The rows of each piece of an audit."""
    tables: list[pyarrow.Table] = []

    def take(_: int, table: pyarrow.Table) -> Iterator[tuple[str, pyarrow.Table]]:
        tables.append(table)
        yield from ()

    survey.shuffled.reduce("all", take)
    return tables


def judge_both(table: pyarrow.Table, rules: Rules, known: Knowledge) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the kernel says, and what the judge says that gets all rows of all items."""
    by_arrays, by_rows = Tally(), Tally()
    found = list(judge(table, rules, known, by_arrays))
    expected = list(replay(read_rows(table), rules, known, by_rows))
    return told(found, by_arrays), told(expected, by_rows)


def told(results: Iterable[Finding | PendingChange], tally: Tally) -> dict[str, Any]:
    """What was said, in an order of its own."""
    row = tally.to_row()
    return {
        "results": Counter(map(str, results)),
        "hits": {who: counts for who, counts in row.hits if any(counts)},
        "slices": {tables: counts for tables, counts in row.slices if any(counts)},
        "poison": sorted(row.poison),
        "unknown": sorted(row.unknown),
        "counts": {name: count for name, count in row.counts if count},
        "delays": list(row.delays),
        "hot": sorted(row.hot),
    }
