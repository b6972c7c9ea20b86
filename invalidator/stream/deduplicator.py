"""Each change once, for a consumer that records the stream: a stream that begins again repeats, and never skips.

Keeps in memory what the consumer has. No I/O. For programs that read ``invalidator.stream.update_stream`` themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from freshness.position import Position
from freshness.position.token import EventToken
from invalidator.stream.message import StreamMessage
from invalidator.stream.start import join_positions


class Deduplicator:
    """Drops what a consumer has: transactions in its vector, and rows of a transaction that began before.

    For consumers that record each change once. After a restart from their own vector nothing comes twice but the
    rows of a transaction that they held half; after a start at a time, or a reshard with GTIDs kept, whole
    transactions do. A change that cannot be compared (another epoch, no position known) is not dropped.
    """

    def __init__(
        self, recorded: Mapping[str, EventToken], continues: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``recorded``: the vector that was stored with the data. ``continues``: see
        `freshness.config.settings.Shard`."""
        self._known = dict(recorded)
        self._continues = dict(continues or {})
        self._begun: dict[str, tuple[Position, int]] = {}

    def take(self, message: StreamMessage) -> StreamMessage | None:
        """The message without what was taken before; None where nothing is left of it."""
        lineage = message.token.lineage
        known = self._find_known(message.token)
        if known is not None and known.position.contains(message.token.position):
            return None
        taken = self._drop_rows(message)
        if message.is_last:
            self._begun.pop(lineage, None)
            position = message.token.position
            position = position if known is None else known.position.union(position)
            self._known[lineage] = replace(message.token, position=position)
        return taken

    def _find_known(self, token: EventToken) -> EventToken | None:
        known = self._known.get(token.lineage)
        if known is None:
            continued = [self._known.get(lineage) for lineage in self._continues.get(token.lineage, ())]
            found = [each for each in continued if each is not None]
            if not found or len(found) < len(continued):
                return None
            position = join_positions(token.position.flavor, [each.position for each in found])
            known = self._known[token.lineage] = replace(token, position=position)
        return known if known.epoch == token.epoch else None

    def _drop_rows(self, message: StreamMessage) -> StreamMessage | None:
        lineage, position = message.token.lineage, message.token.position
        begun, next_row = self._begun.get(lineage, (position, 0))
        if begun != position:
            next_row = 0
        rows = message.rows
        new = sum(row >= next_row for row in rows)
        self._begun[lineage] = (position, max(next_row, rows[-1] + 1 if rows else 0))
        if new == len(rows):
            return message
        if not new and not message.is_last:
            return None
        changes = message.transaction.changes[len(rows) - new :]
        return replace(
            message,
            transaction=message.transaction._replace(changes=changes),
            row_numbers=tuple(rows)[len(rows) - new :],
        )
