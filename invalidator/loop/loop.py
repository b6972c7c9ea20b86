"""The invalidator's loop: open the stream at what every joined node has acknowledged, apply what it brings, and
begin again when a node or the source demands it.

A procedure like all others, with three steps of its own (`OpenStream`, `Poll`, `RaiseEpoch`), so that the
simulator runs this very loop. It ends when ``is_stopping`` says so; what it cannot handle it raises, such as a purged
log that is to be sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from freshness.algorithm.applier import RETRY_SECONDS
from freshness.algorithm.request import Procedure, Step, Wait
from freshness.errors import FreshnessError, HistoryLost, HistoryPurged, SourceUnavailable
from freshness.position import Position
from freshness.stream.source import Transaction
from invalidator.loop.shard import ShardInvalidator

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.25
"""How long one look into an idle stream waits; also how fast a stop is seen."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open the source. Answer: None, or `SourceUnavailable`, `HistoryLost`, `HistoryPurged` is raised."""

    start: Position


@dataclass(frozen=True, slots=True)
class Poll:
    """Take the next transactions. Answer: a list of `Transaction`, empty after ``timeout_seconds``."""

    timeout_seconds: float
    transactions_max: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Declare the previous history lost, on the primary. Answer: the new epoch."""


LoopStep: TypeAlias = Step | OpenStream | Poll | RaiseEpoch
LoopProcedure: TypeAlias = Generator[LoopStep, Any, None]


class LoopObserver:
    """The loop reports its steps here. This class ignores them; the application's subclass counts."""

    def stream_opened(self, start: Position) -> None: ...

    def stream_closed(self) -> None: ...

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None: ...

    def nodes_joined(self, count: int) -> None: ...

    def failed(self, error: FreshnessError) -> None: ...


def run_loop(
    shard: ShardInvalidator, *, transactions_max: int, is_stopping: Callable[[], bool], observer: LoopObserver
) -> LoopProcedure:
    """Invalidate until ``is_stopping``; then leave the resume copies up to date."""
    logged = ""
    while not is_stopping():
        try:
            yield from shard.join_missing()
            start = shard.start_position()
            if start is None:
                yield Wait(POLL_SECONDS)
                continue
            yield OpenStream(start)
            # Only after the stream is open: an earlier look would miss a failover in between. A later failover ends
            # the stream.
            yield from shard.check_history()
            shard.opened(start)
            observer.stream_opened(start)
            logged = ""
            yield from _follow(shard, transactions_max, is_stopping, observer)
        except HistoryPurged as error:
            if shard.is_repeating:
                raise
            log.error("%s", error)
            shard.end_lives_behind()
        except HistoryLost as error:
            if not shard.confirm_loss():
                logged = yield from _pause(shard, observer, error, logged)
                continue
            try:
                epoch = yield RaiseEpoch()
            except SourceUnavailable as failure:
                logged = yield from _pause(shard, observer, failure, logged)
                continue
            log.error("%s: the epoch is now %d, all nodes begin new lives", error, epoch)
            shard.end_lives()
        except SourceUnavailable as error:
            logged = yield from _pause(shard, observer, error, logged)
        finally:
            observer.stream_closed()
    yield from shard.finish()


def _follow(
    shard: ShardInvalidator, transactions_max: int, is_stopping: Callable[[], bool], observer: LoopObserver
) -> LoopProcedure:
    """Apply what the stream brings, until a stop, or until it must be opened elsewhere."""
    while not is_stopping():
        transactions = yield Poll(POLL_SECONDS, transactions_max)
        if transactions:
            begun, keys_before = shard.clock(), shard.keys_total
            yield from shard.apply(transactions)
            observer.applied(transactions, shard.keys_total - keys_before, begun)
        yield from shard.renew()
        yield from shard.join_missing()
        observer.nodes_joined(len(shard.joined))
        if not shard.joined or shard.needs_rewind:
            log.info("the stream is opened again from what all joined nodes have acknowledged")
            return


def _pause(shard: ShardInvalidator, observer: LoopObserver, error: FreshnessError, logged: str) -> Procedure[str]:
    """Wait before the next try. Leases are kept, or closed, as the age of the own heartbeat demands. Returns the
    error as text: it is logged once, however long it stays, as ``logged``."""
    observer.failed(error)
    if str(error) != logged:
        log.warning("%s; it is tried again every %.0f s", error, RETRY_SECONDS)
    yield from shard.pause()
    return str(error)
