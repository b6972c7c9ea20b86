"""The verdicts of the audit: the kinds of violation, the failure modes behind them, and the exit code.

A **violation** is proved by records that are kept with it. **Lag** is what was late and came. **Unknown** is what
could not be decided; it is counted, and an audit with unknowns is not green. Used by every step of the audit, by its
report and by docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

CLEAN: Final = 0
NOT_KNOWN: Final = 3
STALE_DATA: Final = 5

POISONED_FILL: Final = "poisoned_fill"
FILL_BELOW_FLOOR: Final = "fill_below_floor"
DIGEST_MISMATCH: Final = "digest_mismatch"
STALE_HIT: Final = "stale_hit"
DEAD_LIFE_HIT: Final = "dead_life_hit"
THIN_AIR_HIT: Final = "thin_air_hit"
TORN_VIEW: Final = "torn_view"
MISSED_INVALIDATION: Final = "missed_invalidation"
ARCHIVE_GAP: Final = "archive_gap"
GTID_GAP: Final = "gtid_gap"
ARCHIVE_DUPLICATE: Final = "archive_duplicate"
ARCHIVE_REORDERING: Final = "archive_reordering"
CLOCK_ANOMALY: Final = "clock_anomaly"
RECORDER_GAP: Final = "recorder_gap"


@dataclass(frozen=True, slots=True)
class ViolationKind:
    """``is_poison``: the cache held or served, or could serve, what it must not. ``is_damage``: the evidence is
    damaged, so that more may be wrong than was found. A kind with neither is reported, and verdicts that rest on it
    are unknown. ``failures``: the failure modes it is classified by, see docs/failure-modes.md."""

    name: str
    failures: tuple[str, ...]
    meaning: str
    is_poison: bool = False
    is_damage: bool = False


_poison = partial(ViolationKind, is_poison=True)
_damage = partial(ViolationKind, is_damage=True)

KINDS: Final = (
    _poison(
        POISONED_FILL,
        ("F1", "F5", "F16"),
        "a value was stored after an invalidation that its position lacks: blindly (F1), past a stripe that was "
        "absent or lacked the invalidation (F5), or below the floor that the reader itself had seen (F16)",
    ),
    _poison(FILL_BELOW_FLOOR, ("F16",), "a value was stored from a position that lacks the node's floor"),
    _poison(
        DIGEST_MISMATCH,
        ("F2", "F46"),
        "the value stored is not the row at its position: an older one, so the token ran ahead (F2), or none of them",
    ),
    _poison(
        STALE_HIT,
        ("F1", "F5", "F11", "F16", "F21"),
        "a value was served after an invalidation that its position lacks was acknowledged: the fill's own failure, "
        "or the entry outlived the invalidation (F11), or a change of the whole table (F21)",
    ),
    _poison(DEAD_LIFE_HIT, ("F7",), "a value of a previous life of the node was served"),
    _poison(THIN_AIR_HIT, ("F45",), "a value was served that nobody stored, or another than was stored"),
    _poison(TORN_VIEW, ("I11",), "values that were read together are those of no one moment"),
    _poison(
        MISSED_INVALIDATION,
        ("F14",),
        "progress names a change, and the item was not invalidated for it: lost, not late",
    ),
    _damage(ARCHIVE_GAP, ("F15",), "ordinals are missing in the archive of a lineage"),
    _damage(GTID_GAP, ("F27",), "a server executed a transaction that was never streamed"),
    _damage(ARCHIVE_DUPLICATE, ("F32",), "a transaction is in the archive twice"),
    _damage(ARCHIVE_REORDERING, ("F29",), "the numbers of a source run backwards in the archive"),
    ViolationKind(
        CLOCK_ANOMALY,
        ("F3", "F4", "F36"),
        "a commit's time runs backwards (F3) or ahead (F4), or a client's clock contradicts the order (F36)",
    ),
    _damage(RECORDER_GAP, ("I8",), "actions of a client are missing in the history, or there twice"),
)
KIND_BY_NAME: Final = {kind.name: kind for kind in KINDS}
FAILURE_TITLES: Final = {
    "F1": "An old read is stored after the invalidation",
    "F2": "The binary log shows a transaction before the engine does",
    "F3": "Timestamps run backwards in the order of commits",
    "F4": "Sessions, replays and statement replication set any timestamp",
    "F5": "The mark of an invalidation is evicted, and an old value is stored",
    "F7": "A flush or a restart removes the marks",
    "F11": "The client library answers a default if the server did not answer",
    "F14": "The checkpoint is ahead of what was invalidated",
    "F15": "The binary log is purged before it was read",
    "F16": "A value is stored from a replica that lags",
    "F21": "TRUNCATE, DROP and partition exchange log no rows",
    "F27": "Unknown or compressed events are dropped while the checkpoint goes on",
    "F29": "RESET MASTER: GTIDs are used again",
    "F32": "Resharding delivers events twice",
    "F36": "Clocks of two machines are compared",
    "F45": "Two keys share a place, or a key is too long",
    "F46": "A driver hands out the answer to another query",
    "I11": "Values that were read together, also one after the other by a view, are those of one moment of each "
    "shard if all come from entries; else those of one snapshot of one server",
    "I8": "Nothing in the stream is skipped silently",
}
"""The failure modes and invariants that `KINDS` name, as docs/failure-modes.md and docs/algorithm.md call them: a
report has no links, and an installed job no docs."""

VIEWED: Final = "hits of views"
"""The count of hits that are compared with others of their views."""

# Why something could not be decided.
NO_POSITION: Final = "position unreadable or of a source that the archive does not have"
BEFORE_ARCHIVE: Final = "position from before the archive begins"
FRAGMENTED: Final = "position in too many pieces"
NOT_FILLED_LOST: Final = "no fill of this value, but actions of its lineage were lost"
NOT_INVALIDATED_LOST: Final = "no invalidation of a change, but actions of its lineage were lost"
NO_PUBLISH: Final = "no invalidation of a change, and no progress of its node recorded"
ROW_UNKNOWN: Final = "the value is no row that the archive has, but the archive lacks transactions there"
VIEW_UNKNOWN: Final = "values that were read together are of no one moment, but the archive lacks transactions there"
WRONG_CLOCK: Final = "times of a client whose clock is wrong"
NO_HISTORY: Final = "nothing of the history could be judged"


def find_exit_code(kinds: Collection[str], unknown: int) -> int:
    """5 with any poison, else 3 where evidence is damaged or anything is unknown, else 0."""
    if any(KIND_BY_NAME[kind].is_poison for kind in kinds):
        return STALE_DATA
    return NOT_KNOWN if unknown or any(KIND_BY_NAME[kind].is_damage for kind in kinds) else CLEAN
