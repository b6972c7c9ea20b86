"""``[stream]``: how the invalidator follows the binlog; ``[archive]``, ``[history]``: what is kept as files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freshness.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """``[archive]``: the update stream as Parquet files, for the Spark jobs and for replay."""

    path: str | None = setting("Folder of the archive. Left out: no archive is written.", None)
    tables: tuple[str, ...] = setting(
        "Names of tables, and patterns with * and ?, whose changes are recorded. Left out: those of cached objects.",
        (),
    )
    rotate_seconds: int = setting("A file is closed when it is so old.", 300, bounds=(1, 3600))
    rotate_mb: int = setting("A file is closed at about this size.", 64, bounds=(1, 4096))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """``[history]``: the actions of applications and invalidators on the cache, as Parquet files for the audit."""

    path: str | None = setting("Folder of the history. Left out: nothing is recorded.", None)
    sample: float = setting(
        "The share of items whose actions are recorded. Each sampled item is recorded completely.", 1.0, bounds=(0, 1)
    )
    rotate_seconds: int = setting("A file is closed when it is so old.", 60, bounds=(1, 3600))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """``[stream]``: how the invalidator follows the binlog."""

    start: Literal["progress", "now"] = setting(
        'The start of the invalidator: "progress" resumes from the position that the cache nodes have acknowledged, '
        '"now" drops their entries and starts at the primary\'s head.',
        "progress",
        later="a token or a time is an option of one start, invalidator run --since. "
        "Consumers of the update stream start where they like",
    )
    replica_choice: Literal["primary", "freshest", "slowest"] = setting(
        "The server whose binlog is read. With replicas, the invalidator leaves one that is stuck or far behind for "
        'another; "slowest" refuses the fewest fills.',
        "primary",
    )
    rewind_seconds: float = setting(
        "How much earlier a consumer of the update stream starts if only a time is given.", 30.0, bounds=(0, 86_400)
    )
    minimize_skew: bool = setting(
        "Whether the update stream aligns the shards in time, unless a consumer says otherwise. "
        "Invalidation never waits for it.",
        False,
    )
    heartbeat_seconds: float = setting(
        "How often the invalidator writes its heartbeat to the primary. Staleness is known no more exactly.",
        1.0,
        bounds=(0.05, 3600),
    )
    clock_error_seconds: float = setting(
        "The assumed error of clocks where ages are computed.", 0.005, bounds=(0, 60)
    )
    batch_transactions_max: int = setting(
        "The most transactions that are invalidated in one batch.", 2000, bounds=(1, 100_000)
    )
