"""The cache items that a change of the stream concerns. For the invalidator, the archive and the Spark jobs.

Both images of every change count (F35). A change that gives no key raises its table, so none is left out. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from freshness.errors import FormatError
from freshness.objects.registry import ObjectDefinition
from freshness.stream.source import UNREADABLE, Transaction


@dataclass(slots=True)
class KeyFinder:
    """Finds the cache items that a row change concerns. ``definitions``: the objects of this keyspace."""

    definitions: Mapping[str, ObjectDefinition]
    _by_table: dict[str, list[ObjectDefinition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for definition in self.definitions.values():
            for table in definition.columns_by_table:
                self._by_table.setdefault(table, []).append(definition)

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(self._by_table)

    def find(self, transaction: Transaction) -> tuple[dict[bytes, None], dict[str, str]]:
        """(items of both images of every change, tables whose floor must be raised with the reason). Items are in the
        order of the changes, so that a run can be repeated exactly."""
        # A source that was asked for keys has found them already.
        items: dict[bytes, None] = dict.fromkeys(transaction.items)
        raised = {
            table: "; ".join(transaction.reasons) or "rows changed in a way that gives no keys"
            for table in sorted(transaction.raised_tables & self.tables)
        }
        for change in transaction.changes:
            for definition in self._by_table.get(change.table, ()):
                try:
                    items.update(dict.fromkeys(_items_of(definition, change.table, change.before, change.after)))
                except FormatError as error:
                    raised[change.table] = f"a row gives no key for object {definition.config.name}: {error}"
        return items, raised


def _items_of(
    definition: ObjectDefinition, table: str, before: Mapping[str, object] | None, after: Mapping[str, object] | None
) -> Iterable[bytes]:
    columns = definition.columns_by_table[table]
    known = before or {}
    for image in (before, after):
        if image is None:
            continue
        values = []
        for column in columns:
            # A MINIMAL after-image leaves out what did not change.
            value = image[column.name] if column.name in image else known.get(column.name, UNREADABLE)
            if value is UNREADABLE:
                raise FormatError(f"column {table}.{column.name} is not in the binary log")
            values.append(column.pad(value) if isinstance(value, bytes) else value)
        if None not in values:  # a row with NULL belongs to no object
            yield definition.builder.build(values).item
