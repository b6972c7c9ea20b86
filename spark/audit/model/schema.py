"""The columns of the tables that the steps of the audit hand on: the one place that names their types.

The field names and types are those of the classes whose objects travel as rows; each schema names its class, and a
unit test holds them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow

_LONG: Final = pyarrow.int64()
_TEXT: Final = pyarrow.string()
_COUNTS: Final = pyarrow.field("counts", pyarrow.list_(_LONG))


def _longs(*names: str) -> list[pyarrow.Field]:
    return [pyarrow.field(name, _LONG) for name in names]


def _list(name: str, *fields: pyarrow.Field) -> pyarrow.Field:
    return pyarrow.field(name, pyarrow.list_(pyarrow.struct(list(fields))))


REPLAY: Final = pyarrow.schema(
    [
        *_longs("h1"),
        ("h2", pyarrow.int32()),
        ("kind", pyarrow.int32()),
        *_longs("lineage", "ordinal"),
        ("row", pyarrow.int32()),
        *_longs("node", "version", "observed", "begin_us", "end_us", "digest", "before"),
        ("flags", pyarrow.int32()),
        *_longs("who", "client", "sequence"),
        ("stamps", pyarrow.binary()),
    ]
)
"""A row of the audit's shuffle: `spark.audit.model.row.ReplayRow`."""

VIEW: Final = pyarrow.schema(
    [
        *_longs("client", "view", "lineage", "since", "begin", "end"),
        ("row", pyarrow.int32()),
        *_longs("h1"),
        ("h2", pyarrow.int32()),
        *_longs("node", "version", "who", "sequence", "begin_us", "end_us"),
    ]
)
"""A hit of a view: its row was so from the ordinal ``begin`` until before ``end``, which is that of the change
``row``. ``since``: the position of the entry."""

REFERENCE: Final = [pyarrow.field("role", _TEXT), *_longs("source", "sequence", "row")]
"""Which record of the history shows a finding: `spark.audit.model.finding.Reference`."""

FINDING: Final = pyarrow.schema(
    [
        ("kind", _TEXT),
        ("failure", _TEXT),
        *_longs("h1"),
        ("h2", pyarrow.int32()),
        *_longs("node", "version", "lineage", "who"),
        ("clients", pyarrow.list_(_LONG)),
        *_longs("count", "first_us", "last_us", "longest_us"),
        _list("evidence", *REFERENCE),
    ]
)
"""A violation in hashes: `spark.audit.model.finding.Finding`."""

PENDING: Final = pyarrow.schema([*_longs("h1"), ("h2", pyarrow.int32()), *_longs("lineage", "ordinal")])
"""A change that cannot be judged yet: `spark.audit.model.finding.PendingChange`."""

TALLY: Final = pyarrow.schema(
    [
        _list("hits", *_longs("who"), _COUNTS),
        _list("slices", pyarrow.field("tables", pyarrow.list_(_TEXT)), _COUNTS),
        _list("poison", *_longs("who", "other", "first_us", "last_us"), _COUNTS),
        _list("unknown", *_longs("who"), pyarrow.field("why", _TEXT), *_longs("count")),
        _list("counts", pyarrow.field("name", _TEXT), *_longs("count")),
        ("delays", pyarrow.list_(_LONG)),
        _list("hot", *_longs("hits", "h1"), pyarrow.field("h2", pyarrow.int32()), *_longs("client", "sequence")),
    ]
)
"""The counts of one piece: `spark.audit.model.finding.TallyRow`."""

ITEM: Final = pyarrow.schema([*_longs("h1"), ("h2", pyarrow.int32()), ("item", pyarrow.binary())])
"""The name behind two hashes."""

VIOLATION: Final = pyarrow.schema(
    [
        ("kind", _TEXT),
        ("failure", _TEXT),
        ("item", pyarrow.binary()),
        ("object", _TEXT),
        ("node", _TEXT),
        ("lineage", _TEXT),
        ("clients", pyarrow.list_(_TEXT)),
        *_longs("version", "count", "first_us", "last_us", "longest_us"),
        ("evidence", _TEXT),
    ]
)
"""A row of ``violations``. ``evidence``: JSON, a list of the records that show it, in their order."""


def to_table(rows: Iterable[Sequence[Any]], schema: pyarrow.Schema) -> pyarrow.Table:
    """Rows, each with a value for each field."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pyarrow.Table.from_arrays(arrays, schema=schema)
