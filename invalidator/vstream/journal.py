"""A reshard as VStream reports it: the journal's hand-over from old shards to new ones.

Raised by ``invalidator.vstream.source`` when everything before it was delivered; handled by the owner of the
topology.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freshness.errors import FreshnessError
from freshness.position import Position


class ShardsMoved(FreshnessError):
    """The stream's shards ``old`` are at their end: from here on writes go to the shards of ``new``.

    Open the stream of each new shard at the position given with it; it continues at the end of the old ones, in the
    lineage of the new shard. The journal's own transaction is not delivered: a stream that is opened again from what
    was delivered meets the journal again. ``journal_id`` is the same for every participant.
    """

    exit_code = 4

    def __init__(
        self, keyspace: str, journal_id: int, old: tuple[str, ...], new: Mapping[str, Position]
    ) -> None:
        super().__init__(
            f"keyspace {keyspace}: shards {', '.join(old)} were replaced by {', '.join(sorted(new))}",
            hint="put the new shards into freshness.toml, each with a lineage of its own, and load it (SIGHUP); who"
            " reads VStream itself goes on at the positions of the journal",
        )
        self.keyspace = keyspace
        self.journal_id = journal_id
        self.old = old
        self.new = dict(new)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardsMoved, (self.keyspace, self.journal_id, self.old, self.new))
