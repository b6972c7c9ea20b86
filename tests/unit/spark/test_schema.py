"""Each schema has the fields of the class whose objects travel as its rows, and types that hold their values."""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import pyarrow
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StructType

from spark import schema
from spark.audit.finding import Finding, PendingChange, Reference, Replayed, TallyRow
from spark.audit.row import ReplayRow
from spark.live.comparison import EntryVerdict
from spark.live.entry import NodeEntry

ROWS: Final[list[tuple[type, StructType]]] = [
    (ReplayRow, schema.REPLAY),
    (Reference, schema.REFERENCE),
    (Finding, schema.FINDING),
    (PendingChange, schema.PENDING),
    (TallyRow, schema.TALLY),
    (Replayed, schema.REPLAYED),
    (NodeEntry, schema.ENTRY),
    (EntryVerdict, schema.VERDICT),
]
PLAIN: Final[dict[str, object]] = {
    "string": str,
    "bigint": int,
    "int": int,
    "boolean": bool,
    "binary": bytes,
}


@pytest.mark.parametrize(("kind", "wanted"), ROWS)
def test_the_fields_of_a_row_are_those_of_its_schema(kind: type, wanted: StructType) -> None:
    hints = get_type_hints(kind)
    assert list(hints) == wanted.names
    for field in wanted.fields:
        if field.dataType.simpleString() in PLAIN:
            plain = PLAIN[field.dataType.simpleString()]
            assert hints[field.name] in (plain, plain | None), field.name  # type: ignore[operator]


def _of_type(kind: DataType) -> Any:
    """A value as the replay makes it: tuples and lists of tuples."""
    if isinstance(kind, StructType):
        return tuple(_of_type(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return [_of_type(kind.elementType)]
    return {"string": "é", "bigint": 1 << 62, "int": 7, "boolean": True, "binary": b"\0"}[kind.simpleString()]


@pytest.mark.parametrize("name", ["finding", "pending", "tally"])
def test_a_result_of_the_replay_is_one_of_three_and_keeps_its_values(name: str) -> None:
    arrow = to_arrow_schema(schema.REPLAYED)
    value = _of_type(schema.REPLAYED[name].dataType)
    row = Replayed(**{name: value})
    [column] = [pyarrow.array([cell], field.type) for cell, field in zip(row, arrow, strict=True) if cell]
    assert _plain(column.to_pylist()[0]) == _plain(value)
    assert [field.name for cell, field in zip(row, arrow, strict=True) if cell] == [name]


def _plain(value: Any) -> Any:
    """Without the names of fields."""
    if isinstance(value, dict):
        return tuple(map(_plain, value.values()))
    return [_plain(each) for each in value] if isinstance(value, list) else value
