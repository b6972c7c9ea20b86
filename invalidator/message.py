"""What a consumer of the merged update stream gets: messages of whole transactions, each with where to resume.

Made by ``invalidator.update_stream``; printed, archived and served by others. Plain data, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from freshness.token import EventToken
from invalidator.source import Transaction


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One transaction of one shard, or a piece of one that is too large to be held whole.

    ``token``: the transaction's own position. ``resume``: for every lineage of the stream, everything delivered up to
    and with this message; a piece that is not the last carries the vector from before its transaction.
    ``first_row``: place of ``transaction.changes[0]`` in the whole transaction. ``min_timestamp_us``: no shard will
    deliver anything older, as far as its watermark tells. ``is_aligned``: False where waiting for a slower shard was
    given up.
    """

    keyspace: str
    shard: str
    token: EventToken
    transaction: Transaction
    resume: Mapping[str, EventToken]
    min_timestamp_us: int
    first_row: int = 0
    is_last: bool = True
    is_aligned: bool = True
