"""Why values were not stored, in the log: a line for each cause and object, now and then, with what to do.

Refused fills are counted by telemetry; this is for those who only read a log. Used by ``appclient.reading.pipeline``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from appclient.telemetry.observer import NOT_REFUSED
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read

log = logging.getLogger("appclient.refusal")  # applications know this name: docs/application.md

LOG_SECONDS: Final = 60.0
"""There is at most one line for a cause and an object in this time."""

_FILES = "application and invalidator run with different files: give both the same one"
_PRIMARY = (
    "the primary was read, and is not known to show it: on MariaDB, a row, or a member of a composite, that a "
    "writer holds. Otherwise a position that no server reaches (an errant GTID)"
)

REMEDIES: Final[dict[ReadOutcome, str]] = {
    ReadOutcome.NO_RECORD: "no invalidator runs, or it is catching up: see its log",
    ReadOutcome.CLOSED: "no invalidator runs, or it is catching up: see its log",
    ReadOutcome.BOUNDED: "replicas lag, and the primary is not read in their place: `cache.primary_reads_per_second` "
    "is reached, or 0, or the primary is down or not the one in the file. Many with little lag and many writes: "
    "false sharing, raise `cache.stripes`",
    ReadOutcome.FLOOR: _PRIMARY,
    ReadOutcome.STRIPE: _PRIMARY,
    ReadOutcome.TABLE_FLOOR: _PRIMARY,
    ReadOutcome.CLOCK: "the clock of a node stood still or was set back (a machine that was suspended), or the wall "
    "clocks of the application's and the invalidator's machines differ by more than `cache.clock_skew_seconds`",
    ReadOutcome.STRIPE_ABSENT: "a life has just begun; or the node evicts stripes: give it more memory, or lower "
    "`cache.stripes`; or no invalidator puts them back: see its log",
    ReadOutcome.NO_TOKEN: "the heartbeat table is not on the server that is read",
    ReadOutcome.EPOCH: "the server that is read lags behind a change of the epoch; or it is of another history "
    "than the primary",
    ReadOutcome.BEHIND: "the invalidator lags, so its nodes learn of commits late. Without `fill_from_log` each "
    "change makes the next reads with `at_least` reads of a server",
    ReadOutcome.RING: _FILES,
    ReadOutcome.OBJECT: _FILES,
    ReadOutcome.IDENTITY: "keys that fold to one item, or entries of an older definition of the object",
    ReadOutcome.DEAD: "entries of a previous life whose place could not be taken: the node answers badly",
    ReadOutcome.LIFE: "the node restarted or was flushed; if it is often, see why",
    ReadOutcome.NODE_DOWN: "a node does not answer: see that it runs and is reachable",
    ReadOutcome.FOREIGN: "something else writes to the nodes under the cache's keys, or another format version does",
    ReadOutcome.KEY: "keys that no row has, or that the row spells otherwise, as collations allow: ask with the "
    "stored spelling, or give the column a binary collation",
    ReadOutcome.PARTS: "the node evicts parts of large values: give it more memory",
    ReadOutcome.TOO_LARGE: "values above `cache.value_bytes_max`: raise it, or cache less of the row; or the node "
    "takes smaller items (memcached: -I) than `cache.part_bytes`",
    ReadOutcome.LOST_RACE: "rows that change as often as they are read; nothing is wrong",
    ReadOutcome.STALE: "callers ask for less staleness than the nodes have; nothing is wrong, unless the "
    "invalidator lags",
}
"""The meaning of many refusals of one cause, and the remedy. For the log and for docs/operations.md."""

ORDINARY: Final = frozenset(
    (
        ReadOutcome.LOST_RACE,
        ReadOutcome.STRIPE,
        ReadOutcome.LIFE,
        ReadOutcome.STALE,
        ReadOutcome.BEHIND,
        ReadOutcome.TABLE_FLOOR,
    )
)
"""They come without a fault of anything: the log has them as INFO, all others as WARNING."""


@dataclass(slots=True)
class _Line:
    """The last one of a cause and an object. ``unsaid``: refusals since then."""

    said_at: float
    unsaid: int = 0


class Refusals:
    """The refusals of one cache. ``clock``: monotonic, in seconds. Safe for threads: a lost update costs a count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines: dict[tuple[str, ReadOutcome], _Line] = {}

    def note(self, lookups: Sequence[Lookup], reads: Sequence[Read]) -> None:
        """These were read past the short way of hits: the first of each cause and object has a line, and later ones
        one in `LOG_SECONDS`."""
        for lookup, read in zip(lookups, reads, strict=True):
            if read.outcome not in NOT_REFUSED:
                self._note(lookup.policy.name, read.outcome)

    def _note(self, name: str, cause: ReadOutcome) -> None:
        now = self._clock()
        line = self._lines.get((name, cause))
        if line is not None and now - line.said_at < LOG_SECONDS:
            line.unsaid += 1
            return
        more = f" ({line.unsaid} more since the last such line)" if line is not None and line.unsaid else ""
        self._lines[name, cause] = _Line(now)
        log.log(
            logging.INFO if cause in ORDINARY else logging.WARNING,
            "%s: a value was read from the database and not stored, %s: %s%s; many of these mean: %s",
            name,
            cause.name,
            cause.value,
            more,
            REMEDIES[cause].replace("`", ""),
        )
