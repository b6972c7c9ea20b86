"""The foreign keys that change rows of other tables: CASCADE, SET NULL and SET DEFAULT.

They are read from information_schema, as they are now; an account sees those of the tables that it has privileges on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from freshness.database.connection import Connection, read_rows
from freshness.errors import SourceUnsuitable

_HAS_EFFECT: Final = """(delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
    OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))"""
EFFECTIVE: Final = f"""SELECT table_name, referenced_table_name FROM information_schema.referential_constraints
  WHERE {_HAS_EFFECT}"""
"""Child and parent of each. MariaDB opens all tables for it, and again for each table of the join."""

_FOREIGN_KEYS: Final = f"""SELECT r.constraint_schema, r.table_name, k.column_name,
    r.unique_constraint_schema, r.referenced_table_name, k.referenced_column_name, r.delete_rule, r.update_rule
  FROM information_schema.referential_constraints r LEFT JOIN information_schema.key_column_usage k
    ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name
      AND k.table_name = r.table_name AND k.referenced_column_name IS NOT NULL
  WHERE {_HAS_EFFECT}"""
_PASSIVE: Final = frozenset(("NO ACTION", "RESTRICT"))


class Cause(NamedTuple):
    """A change of a parent table that foreign keys pass on: a row was deleted, or with a ``column`` that column was
    changed."""

    database: str
    table: str
    column: str | None = None


Cascades: TypeAlias = Mapping[str, frozenset[Cause]]
"""By child table, the changes of other tables that change its rows, over any number of foreign keys."""


def find_cascades(connection: Connection, database: str, tables: Iterable[str]) -> dict[str, frozenset[Cause]]:
    """The cascades that reach these tables of the database. Raises `SourceUnsuitable` if the columns of a foreign
    key are hidden from the account."""
    if not read_rows(connection, f"{EFFECTIVE} LIMIT 1"):
        return {}
    causes: dict[Cause, set[Cause]] = {}
    for row in read_rows(connection, _FOREIGN_KEYS):
        schema, child, column, parent_schema, parent, referenced, on_delete, on_update = row
        if column is None or referenced is None:
            raise SourceUnsuitable(
                f"the columns of a foreign key of {schema}.{child} are hidden from this account",
                hint="grant it SELECT on both tables of the foreign key",
            )
        changed = Cause(str(schema), str(child), str(column))
        if on_delete not in _PASSIVE:
            effect = changed._replace(column=None) if on_delete == "CASCADE" else changed
            causes.setdefault(effect, set()).add(Cause(str(parent_schema), str(parent)))
        if on_update not in _PASSIVE:
            causes.setdefault(changed, set()).add(Cause(str(parent_schema), str(parent), str(referenced)))
    effects: dict[tuple[str, str], set[Cause]] = {}
    for effect in causes:
        effects.setdefault((effect.database, effect.table), set()).add(effect)
    return {table: _origins(effects[database, table], causes) for table in tables if (database, table) in effects}


def name_parents(causes: Iterable[Cause], database: str) -> str:
    """The tables of the causes, for a message; those of other databases with their database."""
    names = {each.table if each.database == database else f"{each.database}.{each.table}" for each in causes}
    return ", ".join(sorted(names))


def _origins(effects: set[Cause], causes: Mapping[Cause, set[Cause]]) -> frozenset[Cause]:
    found: set[Cause] = set()
    open_ends = list(effects)
    while open_ends:
        fresh = causes.get(open_ends.pop(), set()) - found
        found |= fresh
        open_ends += fresh
    return frozenset(found)
