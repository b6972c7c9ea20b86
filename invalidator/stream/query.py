"""The query of the update stream, as a reader sends it over HTTP or gives it on the command line, with its wish for
the rows that tables have now (``invalidator.stream.refresh``), checked. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.vitess import of_primary, readable
from freshness.errors import ConfigError
from invalidator.stream.selection import WHOLE, Selection
from invalidator.stream.start import Start

CHUNK_ROWS: Final = 1_000
CHUNK_ROWS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """The refresh that a consumer asks for. ``tables``: none if it continues the one of its resume text.
    ``read_from``: the primary, or the first replica of each shard; of Vitess, a tablet of the stream's type.
    ``rows_per_second``: rows that are read on average; None for no bound. ``selection``: the one of its stream."""

    tables: tuple[str, ...] = ()
    read_from: Literal["primary", "replica"] = "primary"
    rows_per_second: float | None = None
    chunk_rows: int = CHUNK_ROWS
    selection: Selection = WHOLE

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a rate that is not a number above 0."""
        rate = self.rows_per_second
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigError(f"a refresh of {rate:g} rows per second", hint="expected a number above 0")

    def aim(self, shard: Shard) -> Shard:
        """The shard as it is read: a vtgate is asked for the primary, or for a tablet of the stream's type."""
        return of_primary(shard) if self.read_from == "primary" else shard

    def find_server(self, shard: Shard) -> ServerAddress:
        """The server whose rows of the shard are read. Raises `ConfigError` for a shard without such a server."""
        if self.read_from == "primary":
            return shard.primary if shard.vtgate is None else readable(self.aim(shard))
        if shard.vtgate is not None and shard.vtgate.tablet_type != "primary":
            return readable(shard)
        if not shard.replicas:
            raise ConfigError(
                f"shard {shard.name} has no replica to read a refresh from",
                hint="configure its replicas (of Vitess: another tablet_type in vtgate), or read the primary",
            )
        return shard.replicas[0]

    @property
    def rows_at_once(self) -> int:
        """Rows of a chunk: what a second may bring, at most."""
        rate = self.rows_per_second
        return self.chunk_rows if rate is None else max(1, min(self.chunk_rows, int(rate)))


def require_key_shown(selection: Selection, table: str, key: Sequence[str]) -> None:
    """The resume texts of a refresh have keys. Raises `ConfigError` for a key that the consumer may not see."""
    if selection.cut_key(table, dict.fromkeys(key)) is None:
        raise ConfigError(
            f"table {table} cannot be refreshed for this consumer: a column of its primary key is hidden",
            hint="give the consumer a token that opens it",
        )


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
