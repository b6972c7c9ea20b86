"""The filters of a query that the files of an archive can answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow.dataset
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_COMPARISONS: Final[Mapping[type, str]] = {
    GreaterThan: "__gt__",
    GreaterThanOrEqual: "__ge__",
    LessThan: "__lt__",
    LessThanOrEqual: "__le__",
}
_SCALARS: Final = (str, int, bytes)


def push_condition(condition: Filter) -> tuple[str, str, Any] | None:
    """(column, operator, value) of what the files can be asked for; None for all else."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(condition, IsNotNull):
        return column, "valid", None
    if isinstance(condition, EqualTo) and isinstance(condition.value, _SCALARS):
        return column, "in", [condition.value]
    if isinstance(condition, In) and all(isinstance(each, _SCALARS) for each in condition.value):
        return column, "in", list(condition.value)
    comparison = _COMPARISONS.get(type(condition))
    if comparison is not None and isinstance(condition.value, _SCALARS):
        return column, comparison, condition.value
    return None


def to_condition(filters: Iterable[tuple[str, str, Any]]) -> Any:
    condition = None
    for column, operator, value in filters:
        name = pyarrow.dataset.field(column)
        if operator == "valid":
            one = name.is_valid()
        elif operator == "in":
            one = name.isin(value)
        else:
            one = getattr(name, operator)(value)
        condition = one if condition is None else condition & one
    return condition
