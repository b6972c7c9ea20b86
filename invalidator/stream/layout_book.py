"""The layouts of the tables of all shards, for the keys and digests of rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from freshness.errors import FreshnessError
from freshness.stream.schema import KeySource
from freshness.stream.source import RowChange
from invalidator.binlog.rows.layout import Layout, Layouts
from invalidator.stream.message import StreamMessage

LAYOUT_RETRY_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LayoutBook:
    """The layouts of all shards' tables, read when needed, and again for a shard whose tables were raised: their
    columns may have changed. While they cannot be read there are none, and so no keys and no digests."""

    read: Callable[[str], Layouts]
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Layouts] = field(default_factory=dict)
    _retry_at: dict[str, float] = field(default_factory=dict)

    def find(self, shard: str, table: str) -> Layout | None:
        if shard not in self._known and self._retry_at.get(shard, float("-inf")) <= self.clock():
            try:
                self._known[shard] = self.read(shard)
            except FreshnessError as error:
                self._retry_at[shard] = self.clock() + LAYOUT_RETRY_SECONDS
                log.warning("shard %s: no keys and digests of rows for now: %s", shard, error)
        return self._known.get(shard, {}).get(table)

    def find_key(self, shard: str, change: RowChange) -> tuple[tuple[str, ...] | None, KeySource]:
        """The names of the primary key's columns when the row was changed, if the source has them; else the current
        ones. None if they are unknown."""
        if change.schema is not None and change.schema.key is not None:
            return change.schema.key, change.schema.key_source
        layout = self.find(shard, change.table)
        return (None, "unknown") if layout is None else (layout.key, "server")

    def require(self, shard: str) -> None:
        """Read the layouts of a shard now if they are unknown. Raises `SourceUnavailable`."""
        if shard not in self._known:
            self._known[shard] = self.read(shard)

    def note(self, message: StreamMessage) -> None:
        """To be called after the message's own changes were looked up."""
        if message.transaction.raised_tables:
            self.forget(message.shard)

    def forget(self, shard: str) -> None:
        """Drop the shard's layouts, so that they are read again."""
        self._known.pop(shard, None)


def cut_key(change: RowChange, names: tuple[str, ...] | None) -> dict[str, object] | None:
    """The primary key of a row: the new one, with old values of columns that the image lacks. None if the table has
    none, or the images do not hold all of it."""
    merged = {**(change.before or {}), **(change.after or {})}
    if not names or any(name not in merged for name in names):
        return None
    return {name: merged[name] for name in names}
