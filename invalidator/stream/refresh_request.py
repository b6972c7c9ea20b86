"""A consumer's wish for the rows that tables have now (``invalidator.stream.refresh``), checked. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from freshness.config.settings import ServerAddress, Shard
from freshness.errors import ConfigError
from invalidator.stream.selection import WHOLE, Selection

CHUNK_ROWS: Final = 1_000
CHUNK_ROWS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """The refresh that a consumer asks for. ``tables``: none where it goes on with the one of its resume text.
    ``read_from``: the primary, or the first replica of each shard. ``rows_per_second``: that are read, on the
    average; None for no bound. ``selection``: of its stream."""

    tables: tuple[str, ...] = ()
    read_from: Literal["primary", "replica"] = "primary"
    rows_per_second: float | None = None
    chunk_rows: int = CHUNK_ROWS
    selection: Selection = WHOLE

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a rate that is no number above 0."""
        rate = self.rows_per_second
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigError(f"a refresh of {rate:g} rows per second", hint="expected a number above 0")

    def find_server(self, shard: Shard) -> ServerAddress:
        return shard.primary if self.read_from == "primary" else shard.replicas[0]

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
