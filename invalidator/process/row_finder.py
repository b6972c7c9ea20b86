"""The rows that a transaction's images hold, for objects with ``fill_from_log``.

A row is used if both images are whole and hold what a client reads, and its key names this shard alone. Any doubt
about one row leaves out all of the transaction: its keys are invalidated as those of any other object. So is the key
of a row that takes several items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from freshness.algorithm.lookup import Lookup
from freshness.algorithm.refill import LoggedRow
from freshness.config.cache import PART_BYTES
from freshness.errors import FormatError
from freshness.objects.registry import ObjectDefinition
from freshness.stream.source import RowChange, Transaction
from freshness.values.codec import encode_value
from invalidator.binlog.rows.image import read_row
from invalidator.stream.layout_book import LayoutBook

Row = Mapping[str, object]


@dataclass(slots=True)
class RowFinder:
    """``definitions``: objects that are single rows. ``layouts``: layouts of the shard ``lineage``. ``encode``:
    `encode_value` or the like, see `freshness.values.compression.compressing`. ``payload_bytes_max``: size of the
    largest row that is one item, in bytes."""

    lineage: str
    definitions: Mapping[str, ObjectDefinition]
    layouts: LayoutBook
    encode: Callable[[object], bytes] = encode_value
    payload_bytes_max: int = PART_BYTES
    _by_table: dict[str, list[ObjectDefinition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for definition in self.definitions.values():
            self._by_table.setdefault(str(definition.config.table), []).append(definition)

    def find(self, transaction: Transaction) -> Mapping[bytes, LoggedRow]:
        """For each item the row after the transaction; empty if one of them is in doubt."""
        rows: dict[bytes, LoggedRow] = {}
        if transaction.raised_tables:
            self.layouts.forget(self.lineage)
            return rows
        try:
            for change in transaction.changes:
                if change.table in self._by_table:
                    for item, row in self._rows_of(change):
                        if row.payload is None or len(row.payload) <= self.payload_bytes_max:
                            rows[item] = row
                        else:
                            rows.pop(item, None)  # of an earlier change of the row
        except _Untold:
            return {}
        return rows

    def _rows_of(self, change: RowChange) -> Iterator[tuple[bytes, LoggedRow]]:
        layout = self.layouts.find(self.lineage, change.table)
        images = [image for image in (change.before, change.after) if image is not None]
        rows = [read_row(image, change.shapes, layout) for image in images]
        for definition in self._by_table[change.table]:
            lookups = [self._locate(definition, row) for row in rows]
            if change.before is not None and (change.after is None or lookups[0].item != lookups[1].item):
                if not lookups[0].is_exact:
                    raise _Untold  # another spelling of the key may find another row
                yield lookups[0].item, LoggedRow(lookups[0], None)
            if change.after is not None:
                yield lookups[-1].item, LoggedRow(lookups[-1], self._encode(rows[-1]))

    def _locate(self, definition: ObjectDefinition, row: Row | None) -> Lookup:
        columns = definition.columns_by_table[str(definition.config.table)]
        if row is None or any(column.name not in row for column in columns):
            raise _Untold
        values = tuple(row[column.name] for column in columns)
        try:
            key, policy = definition.builder.build(values), definition.policy_for(values)
        except FormatError as error:
            raise _Untold from error
        if policy.lineages != (self.lineage,):
            raise _Untold
        return Lookup(policy, "", key.item, definition.identity(key), values, key.is_exact)

    def _encode(self, row: Row | None) -> bytes:
        try:
            return self.encode(row)
        except FormatError as error:
            raise _Untold from error


class _Untold(Exception):
    """The log does not tell a row as a client reads it."""
