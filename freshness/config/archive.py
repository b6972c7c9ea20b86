"""``[archive]`` and ``[history]``: what is kept as Parquet files, the update stream and the actions on the cache."""

from __future__ import annotations

from dataclasses import dataclass

from freshness.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """``[archive]``: the update stream as Parquet files, for the Spark jobs and for replay."""

    path: str | None = setting(
        "Folder of the archive, relative to this file. Left out: no archive is written.", None
    )
    tables: tuple[str, ...] = setting(
        "Names of tables, and patterns with * and ?, whose changes are recorded. Left out: those of cached objects.",
        (),
    )
    rotate_seconds: int = setting("A file is closed when it is so old.", 300, bounds=(1, 3600))
    rotate_mb: int = setting("A file is closed at about this size.", 64, bounds=(1, 4096))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """``[history]``: the actions of applications and invalidators on the cache, as Parquet files for the audit."""

    path: str | None = setting(
        "Folder of the history, relative to this file. Left out: nothing is recorded.", None
    )
    sample: float = setting(
        "The share of items whose actions are recorded. Each sampled item is recorded completely.",
        1.0,
        bounds=(0, 1),
    )
    rotate_seconds: int = setting("A file is closed when it is so old.", 60, bounds=(1, 3600))
