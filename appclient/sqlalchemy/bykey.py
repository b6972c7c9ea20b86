"""Which SELECT reads rows of one table by a key, and what it asks for.

Decided on the statement as SQLAlchemy has compiled it: the criteria of the application's own hooks, of
inheritance and of joined loading are in it. In doubt a statement is none of these. Used by
``appclient.sqlalchemy``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from sqlalchemy import Column, Select, Table
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList, ColumnElement, Grouping

_COLUMN: Final = r"[\w`][^\s(),]*( AS [^\s(),]+)?"
_BY_KEY: Final = re.compile(
    rf"SELECT (DISTINCT )?{_COLUMN}(, {_COLUMN})* ?\nFROM (?P<table>\S+) ?\nWHERE "
    r"(\S+ = %\(\w+\)s( AND \S+ = %\(\w+\)s)*|\S+ IN \(__\[POSTCOMPILE_\w+\]\))"
)
"""The whole text: bare columns, and no join, order, limit, lock or function."""


_OF_GET: Final = frozenset(
    ("_compile_options", "_is_clone_of", "_label_style", "_order_by", "_propagate_attrs", "_raw_columns",
     "_where_criteria")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ByKey:
    """A SELECT of ``columns`` of one table. ``parameters``: by column of the key. ``is_many``: the only one is a
    list of keys."""

    table: str
    schema: str | None
    parameters: Mapping[str, str]
    columns: tuple[str, ...]
    is_many: bool

    def keys(self, values: Mapping[str, Any], processors: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
        """The keys that one execution asks for. ``values``: by parameter; ``processors``: they return the
        value for the driver. ``columns``: columns of the key, in its order."""
        names = [self.parameters[column] for column in columns]
        given = values[names[0]] or () if self.is_many else [values[name] for name in names]
        if processors:
            of = [processors.get(name) for name in (names * len(given) if self.is_many else names)]
            given = [each if to is None else to(each) for to, each in zip(of, given, strict=True)]
        return list(given) if self.is_many or len(names) == 1 else [tuple(given)]


def may_be_by_key(statement: Any, columns: Container[tuple[Any, str]]) -> bool:
    """A quick look before the statement is compiled. ``columns``: (table, column) of keys that are not primary."""
    criteria = _conjuncts(statement._where_criteria)
    for criterion in criteria:
        column = getattr(criterion, "left", None)
        if not isinstance(column, Column):
            return False
        if not column.primary_key and (getattr(column.table, "name", None), column.name) not in columns:
            return False
    return bool(criteria)


def find_get(statement: Any) -> tuple[Any, ...] | None:
    """The identity of a plain statement of `Session.get` while it exists: SQLAlchemy's own key of it takes half as
    long as a hit. None for other statements, and before SQLAlchemy 2.1."""
    if statement.__dict__.keys() != _OF_GET:
        return None
    criteria, columns, options = statement._where_criteria, statement._raw_columns, statement._compile_options
    mapper = statement._propagate_attrs.get("plugin_subject")
    if not isinstance(options, type) or len(columns) != 1 or not getattr(mapper, "is_mapper", False):
        return None
    is_get = len(criteria) == 1 and criteria[0] is mapper._get_clause[0]
    return (options, statement._label_style, id(columns[0]), id(criteria[0])) if is_get else None


def find_by_key(compiled: Any) -> ByKey | None:
    """The read by key; None for any other statement."""
    statement = getattr(compiled.compile_state, "statement", compiled.statement)
    text = _BY_KEY.fullmatch(compiled.string)
    if text is None or not isinstance(statement, Select):
        return None
    froms = statement.get_final_froms()
    if len(froms) != 1 or not isinstance(froms[0], Table):
        return None
    table = froms[0]
    if text["table"] != compiled.preparer.format_table(table):
        return None
    names = []
    for result_column in compiled._result_columns:
        found = next((each for each in result_column[2] if isinstance(each, Column)), None)
        if found is None or not _is_of(found, table):
            return None
        names.append(found.name)
    parameters: dict[str, str] = {}
    is_many = False
    for criterion in _conjuncts(statement._where_criteria):
        named = _find_parameter(criterion, table, compiled)
        if named is None or named[0] in parameters:
            return None
        is_many |= criterion.operator is operators.in_op
        parameters.update([named])
    if is_many and len(parameters) > 1:
        return None
    return ByKey(table.name, table.schema, parameters, tuple(names), is_many)


def find_columns(compiled: Any) -> dict[str, set[str]]:
    """By table, the columns that a result is made of: also under another name of their table, and in expressions."""
    found: dict[str, set[str]] = {}
    for result_column in compiled._result_columns:
        for each in result_column[2]:
            parts = visitors.iterate(each) if isinstance(each, ColumnElement) else ()
            for base in chain.from_iterable(getattr(part, "base_columns", ()) for part in parts):
                if isinstance(base, Column) and isinstance(base.table, Table):
                    found.setdefault(base.table.name, set()).add(base.name)
    return found


def _conjuncts(criteria: Any) -> list[Any]:
    found: list[Any] = []
    for each in criteria:
        inner = each.element if isinstance(each, Grouping) else each
        if isinstance(inner, BooleanClauseList) and inner.operator is operators.and_:
            found += _conjuncts(inner.clauses)
        else:
            found.append(inner)
    return found


def _find_parameter(criterion: Any, table: Table, compiled: Any) -> tuple[str, str] | None:
    """The column that must be equal to a parameter, and the parameter's name."""
    if not isinstance(criterion, BinaryExpression) or criterion.operator not in (operators.eq, operators.in_op):
        return None
    column, bind = criterion.left, criterion.right
    if not isinstance(column, Column) or not _is_of(column, table) or not isinstance(bind, BindParameter):
        return None
    return None if bind.literal_execute else (column.name, compiled.bind_names[bind])


def _is_of(column: Column[Any], table: Table) -> bool:
    """SQLAlchemy copies tables and columns to annotate them."""
    of = column.table
    return isinstance(of, Table) and (of.schema, of.name) == (table.schema, table.name)
