"""``[stream]``: how the invalidator follows the binlog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freshness.config.setting import setting


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
        "How much earlier a consumer of the update stream starts if only a time is given: clocks differ, and the "
        "times in a log do not rise evenly.",
        30.0,
        bounds=(0, 86_400),
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
