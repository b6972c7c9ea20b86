"""Each schema has the fields of the class whose objects travel as its rows, and types that hold their values."""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import pyarrow
import pytest

from spark.audit.input.heads import ISLAND, Island
from spark.audit.model import schema as audit_schema
from spark.audit.model.finding import Finding, PendingChange, Reference, TallyRow
from spark.audit.model.row import ReplayRow

ROWS: Final[list[tuple[type, pyarrow.Schema]]] = [
    (ReplayRow, audit_schema.REPLAY),
    (Reference, pyarrow.schema(audit_schema.REFERENCE)),
    (Finding, audit_schema.FINDING),
    (PendingChange, audit_schema.PENDING),
    (TallyRow, audit_schema.TALLY),
    (Island, ISLAND),
]
PLAIN: Final[dict[str, object]] = {"string": str, "int64": int, "int32": int, "bool": bool, "binary": bytes}


@pytest.mark.parametrize(("kind", "wanted"), ROWS)
def test_the_fields_of_a_row_are_those_of_its_schema(kind: type, wanted: pyarrow.Schema) -> None:
    hints = get_type_hints(kind)
    assert list(hints) == wanted.names
    for field in wanted:
        if str(field.type) in PLAIN:
            plain = PLAIN[str(field.type)]
            assert hints[field.name] in (plain, plain | None), field.name  # type: ignore[operator]


def _of_type(kind: pyarrow.DataType) -> Any:
    """A value as the replay makes it: tuples and lists of tuples."""
    if pyarrow.types.is_struct(kind):
        return tuple(_of_type(kind.field(at).type) for at in range(kind.num_fields))
    if pyarrow.types.is_list(kind):
        return [_of_type(kind.value_type)]
    return {"string": "é", "int64": 1 << 62, "int32": 7, "binary": b"\0"}[str(kind)]


@pytest.mark.parametrize("name", ["FINDING", "PENDING", "TALLY"])
def test_a_result_of_the_replay_keeps_its_values(name: str) -> None:
    schema = getattr(audit_schema, name)
    row = tuple(_of_type(field.type) for field in schema)
    table = audit_schema.to_table([row, row], schema)
    assert [_plain(each) for each in table.to_pylist()] == [_plain(list(row))] * 2
    assert audit_schema.to_table([], schema).num_rows == 0


def _plain(value: Any) -> Any:
    """Without the names of fields."""
    if isinstance(value, dict):
        return list(map(_plain, value.values()))
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
