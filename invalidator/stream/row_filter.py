"""The rows of a shard's log that lie in a key range; for a log that also has others.

A row whose range is unknown stays, with the reason: nothing is left out in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from freshness.errors import FreshnessError
from freshness.keys.keyrange import KeyRange
from freshness.stream.source import RowChange, Transaction

KeyspaceIdFinder: TypeAlias = Callable[[str, Mapping[str, object]], bytes]
"""Table and row → keyspace id. Raises `FreshnessError`, KeyError, TypeError or ValueError if it is unknown."""

REASONS_ADDED_MAX: Final = 10
"""Reasons that `RowFilter` adds to one transaction, or piece."""


class RowFilter:
    """Leaves out the rows that lie outside one of the key ranges; for logs that also have others. An UPDATE that
    moves a row out is a delete, one that moves a row in is an insert. A row whose range is unknown stays."""

    def __init__(self, key_ranges: Sequence[KeyRange], find_keyspace_id: KeyspaceIdFinder) -> None:
        self._key_ranges = tuple(key_ranges)
        self._find_keyspace_id = find_keyspace_id

    def apply(self, transaction: Transaction) -> tuple[Transaction, tuple[int, ...] | None]:
        """The transaction with what is left, and the place of each change in the whole."""
        if not transaction.changes:
            return transaction, None
        changes: list[RowChange] = []
        numbers: list[int] = []
        reasons: dict[str, None] = {}
        for number, change in enumerate(transaction.changes, transaction.first_row):
            try:
                kept = self._cut(change)
            except (FreshnessError, KeyError, TypeError, ValueError) as error:
                reasons[f"keyspace id of a row of {change.table} unknown: {error}"[:200]] = None
                kept = change
            if kept is not None:
                changes.append(kept)
                numbers.append(number)
        added = tuple(reasons)[:REASONS_ADDED_MAX]
        return (transaction._replace(changes=tuple(changes), reasons=(*transaction.reasons, *added)), tuple(numbers))

    def _cut(self, change: RowChange) -> RowChange | None:
        before, after = change.before, change.after
        if after is not None and before is not None:
            after = {**before, **after}  # an image may leave out what did not change
        was_in = before is not None and self._is_inside(change.table, before)
        is_in = after is not None and self._is_inside(change.table, after)
        if change.op != "update" or was_in == is_in:
            return change if was_in or is_in else None
        if was_in:
            return replace(change, op="delete", after=None)
        return replace(change, op="insert", before=None, after=after)

    def _is_inside(self, table: str, row: Mapping[str, object]) -> bool:
        keyspace_id = self._find_keyspace_id(table, row)
        return all(key_range.contains(keyspace_id) for key_range in self._key_ranges)
