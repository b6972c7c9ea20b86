"""The acknowledging side of the sink, for one lineage: executors send, this joins the nodes and acknowledges.

Executors send invalidations; only the acknowledger writes node records. It joins the nodes before a micro-batch and
publishes progress after it, by the procedures of ``freshness.algorithm.applier``, so by the same CAS chain as the
invalidator. A node that missed a batch, or whose progress the stream does not reach back to, begins a new life.

Procedures alone, without a thread, a lock or a clock of its own: ``spark.sink.keeper`` runs them in the driver's
process, the simulator in its worlds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from freshness.algorithm.applier import Applier, Permit
from freshness.algorithm.request import Procedure
from freshness.errors import HistoryLost, StreamStopped
from freshness.position import Position
from spark.sink.sender import Part, join_ranges

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Acknowledger(Applier):
    """See the module. Not for two threads at once."""

    lineage: str

    def begin(self) -> Procedure[Permit]:
        """Join what can be joined. Raises `HistoryLost` if the primary stays behind what the nodes demand, and
        `SourceUnavailable`."""
        yield from self.join_missing()
        if self.joined and not self.is_history_checked:
            yield from self._await_history()
        return Permit.of(self.joined)

    def commit(self, parts: Sequence[Part], permit: Permit) -> Procedure[None]:
        """Acknowledge a micro-batch on every node that was joined throughout, and took all of it. Raises
        `StreamStopped` if the batch is not whole: then nothing is acknowledged."""
        before, streamed = require_whole(self.lineage, parts)
        failed = {node: why for part in parts for node, why in part.failed.items()}
        beats = [beat for part in parts for beat in part.heartbeats.values()]
        yield from self.acknowledge(_join_raised(parts), before, streamed, beats, permit, failed)

    def _await_history(self) -> Procedure[None]:
        """Return when the primary shows all that the nodes demand. A transaction may reach the stream first (F57)."""
        while True:
            try:
                yield from self.check_history()
            except HistoryLost as error:
                if self.confirm_loss():
                    # Not raised here: a job that restarts automatically must not decide that events are lost.
                    raise HistoryLost(
                        f"{self.lineage}: {error.message}",
                        hint="a failover lost transactions: let `invalidator run` raise the epoch, then start again",
                    ) from error
                log.warning("%s: %s", self.lineage, error)
                yield from self.pause()
            else:
                self.lost_looks = 0
                return


def require_whole(lineage: str, parts: Sequence[Part]) -> tuple[Position, Position]:
    """(everything before, everything with it). Every transaction after the begin must be there."""
    begun = [part for part in parts if part.before is not None]
    if not begun:
        raise StreamStopped(
            f"the micro-batch does not say where {lineage} begins",
            hint='hand on what readStream.format("updatestream") gives, all of its rows and columns',
        )
    first = min(begun, key=lambda part: part.first)
    ranges = join_ranges(found for part in parts for found in part.ordinals)
    if len(ranges) > 1 or (ranges and ranges[0][0] not in (first.first, first.first + 1)):
        raise StreamStopped(
            f"the micro-batch lacks transactions of {lineage}: it begins after {first.first} and has "
            f"{', '.join(f'{low} to {high}' for low, high in ranges[:5])}",
            hint="rows were filtered out on the way to the sink",
        )
    assert first.before is not None, "chosen among those that have it"
    streamed = first.before
    for part in parts:
        streamed = streamed if part.streamed is None else streamed.union(part.streamed)
    return first.before, streamed


def _join_raised(parts: Sequence[Part]) -> dict[str, Position]:
    raised: dict[str, Position] = {}
    for part in parts:
        for table, position in part.raised.items():
            held = raised.get(table)
            raised[table] = position if held is None else held.union(position)
            log.warning("table %s is invalidated as a whole at %s: %s", table, position, part.reasons[table])
    return raised
