"""The query of the update stream, as a reader sends it over HTTP or gives it on the command line. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from invalidator.stream.refresh_request import RefreshRequest
from invalidator.stream.selection import WHOLE, Selection
from invalidator.stream.start import Start


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """``keyspace``: None for the only one. ``since``: a text as `invalidator.stream.start.parse_start` reads it.
    ``tables``: names and patterns; none for the tables of the cached objects. ``minimize_skew``: None for the
    configured choice. ``refresh``: None for a reader that takes no rows of a refresh; with one, the stream continues
    the refresh of a resume text, or begins one. ``count``: changes until the end; None for no end. ``heartbeats``:
    lines of invalidators' heartbeats, too."""

    keyspace: str | None = None
    key_range: str = "-"
    since: str | Start = "now"
    tables: Sequence[str] = ()
    minimize_skew: bool | None = None
    refresh: RefreshRequest | None = None
    count: int | None = None
    heartbeats: bool = True

    @property
    def selection(self) -> Selection:
        return WHOLE if self.refresh is None else self.refresh.selection
