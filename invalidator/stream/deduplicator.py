"""Each change once, for a consumer that records the stream: a stream that begins again repeats, and never skips.

Keeps in memory what the consumer has. No I/O. For programs that read ``invalidator.stream.update_stream`` themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from freshness.position.token import EventToken
from invalidator.stream.message import StreamMessage
from invalidator.stream.start import join_positions


class Deduplicator:
    """Drops the transactions in a consumer's vector.

    For consumers that record each change once: after a start at a time, or a reshard with GTIDs kept, transactions
    come again. Pieces of a transaction count with its last one. One that was cut off comes again from row 0, and may
    be another one then: a server that crashed gives its GTID again (F29). So a message from row 0 makes the pieces
    void that the consumer holds of its lineage. A change that cannot be compared (another epoch, no position known)
    is not dropped. Rows of a refresh pass, and do not count.
    """

    def __init__(
        self, recorded: Mapping[str, EventToken], continues: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``recorded``: the vector that was stored with the data. ``continues``: see
        `freshness.config.keyspace.Shard`."""
        self._known = dict(recorded)
        self._continues = dict(continues or {})

    def take(self, message: StreamMessage) -> StreamMessage | None:
        """The message; None if its transaction was taken before."""
        if message.is_refresh:
            return message
        lineage = message.token.lineage
        known = self._find_known(message.token)
        if known is not None and known.position.contains(message.token.position):
            return None
        if message.is_last:
            position = message.token.position
            position = position if known is None else known.position.union(position)
            self._known[lineage] = replace(message.token, position=position)
        return message

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
