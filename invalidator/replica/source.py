"""A source that reads from one of a shard's servers, and leaves it for another when it stops being a good one.

It looks at all servers at bounded intervals, on short connections in helper threads: who answers, who follows, how
far each has executed. On `open` it chooses (``invalidator.replica.candidate``); while it polls it leaves, by raising
`SourceUnavailable`, and the caller opens again from what was acknowledged, so that nothing is skipped and nothing
goes back. It never delivers a transaction of a replica that the primary does not know (F53), and never takes the log
of a replica that would lack changes (I8). The primary is the one that the configuration names, nobody else, and it
must have been seen once.

Used as `freshness.stream.source.Source`; built by the composition root, which says how a source of one server is
made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, TypeAlias

from freshness.algorithm.driver import running_clock
from freshness.config.server import ServerAddress
from freshness.errors import (
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.position import Position, empty_position
from freshness.stream.source import Source, Transaction
from invalidator.replica.candidate import (
    CandidateVerdict,
    Choice,
    Look,
    Rank,
    Refusal,
    ReplicaBounds,
    Server,
    Situation,
    judge,
    put_in_order,
)
from invalidator.replica.server import ServerState, look_at, require_applied

log = logging.getLogger(__name__)

DRAINS_MAX: Final = 100
"""Batches that are still handed out of a server that is being left. The rest comes from the next server."""

Looks: TypeAlias = Mapping[ServerAddress, Look]


class Lookout:
    """Looks at all servers: the replicas side by side, and then the primary, so that a transaction that a replica has
    executed in the ordinary way is known to the primary by its own, later look. In helper threads."""

    def __init__(
        self,
        servers: Sequence[Server],
        look: Callable[[ServerAddress], ServerState],
        timeout_seconds: float,
        make_executor: Callable[[int], Executor],
    ) -> None:
        self._groups = (
            [server.address for server in servers if not server.is_primary],
            [server.address for server in servers if server.is_primary],
        )
        self._look = look
        self._timeout_seconds = timeout_seconds
        self._looking: dict[ServerAddress, Future[ServerState]] = {}
        self._rounds = make_executor(1)
        self._looks = make_executor(len(servers))

    def begin(self) -> Future[Looks]:
        """A round. It takes two times the time-out at most, and starts when the one before has ended."""
        return self._rounds.submit(self._look_at_all)

    def close(self) -> None:
        """No further rounds. A look that hangs ends by the time-outs of its connection."""
        self._rounds.shutdown(wait=False, cancel_futures=True)
        self._looks.shutdown(wait=False, cancel_futures=True)

    def _look_at_all(self) -> Looks:
        found: dict[ServerAddress, Look] = {}
        for group in self._groups:
            # One that still hangs in an earlier round's look is not waited for, and not looked at twice
            idle = [each for each in group if each not in self._looking or self._looking[each].done()]
            for address in idle:
                self._looking[address] = self._looks.submit(self._look, address)
            wait([self._looking[address] for address in idle], self._timeout_seconds)
            found.update((address, self._take(address)) for address in group)
        return found

    def _take(self, address: ServerAddress) -> Look:
        if not self._looking[address].done():
            return SourceUnavailable(
                f"{address.host}:{address.port} does not answer within {self._timeout_seconds:g} s",
                hint="is the server up and reachable from here?",
            )
        try:
            return self._looking[address].result()
        except FreshnessError as error:
            return error


class ReplicaSource:
    """See the module. `open`, `poll` and `close` belong to one thread of the caller. ``servers``: the primary, then
    the replicas. ``make_source`` makes the source of one server. ``serving``: the server that is read from, None
    while there is none; ``reason``: why it was chosen."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        flavor: str,
        choice: Choice,
        make_source: Callable[[ServerAddress], Source],
        *,
        bounds: ReplicaBounds | None = None,
        look: Callable[[ServerAddress], ServerState] | None = None,
        clock: Callable[[], float] = running_clock,
        make_executor: Callable[[int], Executor] = ThreadPoolExecutor,
    ) -> None:
        self.serving: ServerAddress | None = None
        self.reason = ""
        self._choice = choice
        self._make_source = make_source
        self._bounds = bounds or ReplicaBounds()
        self._look = look or partial(look_at, flavor=flavor, timeout_seconds=self._bounds.look_timeout)
        self._clock = clock
        self._make_executor = make_executor
        self._servers = [Server(address, is_primary=each == 0) for each, address in enumerate(servers)]
        self._primary = self._servers[0]
        places = {(server.address.host, server.address.port) for server in self._servers}
        assert len(places) == len(self._servers), "a server is named twice"
        self._lookout: Lookout | None = None
        self._round: Future[Looks] | None = None
        self._confirmation: Future[Looks] | None = None
        self._looked_at = 0.0
        # of the stream that is running, or was last
        self._current: Server | None = None
        self._opened_at = ""
        self._source: Source | None = None
        self._start = self._position = empty_position(flavor)
        self._primary_had = self._start
        self._pending: list[Transaction] = []
        self._leaving: FreshnessError | None = None
        self._drains_left = 0
        self._failure: FreshnessError | None = None
        self._better_since: float | None = None

    def open(self, start: Position) -> None:
        """See `Source.open`: from the best server that has the start position and the log after it.

        Raises `HistoryLost` if the primary lacks the start position, `HistoryPurged` if the primary and all others
        that answer and that could serve have purged it, `SourceUnavailable` if one may serve later. Takes two rounds
        of looks at most, and what it takes to connect.
        """
        self._end_stream()
        self._note(self._begin_round().result())
        self._start = self._position = start
        situation = self._situation(is_streaming=False)
        self._primary_had = situation.primary.executed
        self._check_primary(situation)
        verdicts = [judge(each, situation, is_current=each is self._current) for each in self._servers]
        for index in put_in_order(self._servers, verdicts, self._choice, self._current):
            failed = self._try(self._servers[index], start)
            if failed is None:
                self._tell(index, verdicts)
                return
            verdicts[index] = failed
        raise self._no_server(verdicts)

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """See `Source.poll`. Never waits longer than ``timeout_seconds`` for a look."""
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, hint=self._failure.hint)
        if self.serving is None:
            raise SourceUnavailable("the stream is not open")
        self._watch()
        if not self._pending:
            self._pending = self._take(timeout_seconds, transactions_max)
        return self._release(timeout_seconds, transactions_max)

    def close(self) -> None:
        self._end_stream()
        lookout, self._lookout = self._lookout, None
        if lookout is not None:
            lookout.close()

    def _situation(self, *, is_streaming: bool) -> Situation:
        primary = self._primary.state
        if primary is None:
            raise SourceUnavailable(
                f"{self._primary.name} was never seen: {self._primary.error}",
                hint="without it, errant transactions of a replica could not be told (F53)",
            ) from self._primary.error
        return Situation(
            self._choice, self._bounds, primary, self._start, self._position, is_streaming, self._clock()
        )

    def _check_primary(self, situation: Situation) -> None:
        """A primary that answers must have all that was acknowledged, whichever server is read (F28, F29)."""
        executed, start = situation.primary.executed, situation.start
        if self._primary.error is not None:
            return
        require_applied(self._primary.name, situation.primary.is_elected)
        if not executed.contains(start):
            raise HistoryLost(
                f"{self._primary.name} has never executed all of the start position: it has {str(executed)[:200]!r},"
                f" the start is {str(start)[:200]!r}",
                hint="a future position or another history (F28, F29): raise the epoch, end the lives of all nodes",
            )

    def _try(self, server: Server, start: Position) -> CandidateVerdict | None:
        """Open the stream there; return the verdict if that failed."""
        if self._source is None or server is not self._current:
            # A source's memory of prepared XA transactions holds only as long as no other source is read
            if self._source is not None:
                self._source.close()
            self._current, self._source = server, self._make_source(server.address)
        try:
            self._source.open(start)
        except FreshnessError as error:
            server.hold(error.message, self._clock() + self._bounds.holdoff)
            if isinstance(error, HistoryPurged):
                return CandidateVerdict(Refusal.PURGED, error.message)
            if server.is_primary and _is_final(error):
                raise
            server.error = error
            # A replica whose log does not lead on from the start, which it contains, has another history
            return CandidateVerdict(Refusal.NOT_YET if error.is_retryable else Refusal.UNFIT, error.message)
        self.serving = server.address
        self._opened_at = "" if server.state is None else _name_server(server.state)
        return None

    def _tell(self, chosen: int, verdicts: Sequence[CandidateVerdict]) -> None:
        others = [
            f"{server.name}: {verdict.reason}"
            for index, (server, verdict) in enumerate(zip(self._servers, verdicts, strict=True))
            if index != chosen
        ]
        self.reason = verdicts[chosen].reason
        log.info(
            "reading the log of %s (%s): %s. Others: %s",
            self._servers[chosen].name,
            self._choice,
            self.reason,
            "; ".join(others) or "none",
        )

    def _no_server(self, verdicts: Sequence[CandidateVerdict]) -> FreshnessError:
        """The error to raise if no server serves."""
        named = zip(self._servers, verdicts, strict=True)
        reasons = "; ".join(f"{server.name}: {verdict.reason}" for server, verdict in named)
        grades = {verdict.grade for verdict in verdicts}
        # A primary that does not answer may still have the log; the end of all lives cannot be taken back
        if verdicts[0].grade is Refusal.PURGED and grades <= {Refusal.PURGED, Refusal.UNFIT, Refusal.DOWN}:
            return HistoryPurged(
                f"no server that answers has the log from the start position on: {reasons}",
                hint="purged (F15): the lives of all nodes must end; keep binary logs longer than the longest outage",
            )
        hints = [each.error.hint for each in self._servers if isinstance(each.error, SourceUnsuitable)]
        if len(hints) == len(self._servers):
            return SourceUnsuitable(f"no server can serve the stream: {reasons}", hint=hints[0])
        return SourceUnavailable(
            f"no server can serve the stream now: {reasons}",
            hint="start one, or its replication; a replica that lags is waited for",
        )

    def _take(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """The next transactions of the source. While it is being left: those it has at once, and then the reason."""
        assert self._source is not None
        try:
            taken = self._source.poll(0 if self._leaving else timeout_seconds, transactions_max)
        except FreshnessError as error:
            raise self._end(error) from error
        if self._leaving:
            self._drains_left -= 1
            if not taken or self._drains_left < 0:
                raise self._end(self._leaving)
        return taken

    def _release(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """The pending transactions before the first one that the primary does not know (F53)."""
        known = self._count_known()
        if self._pending and not known:
            if not self._is_confirmed(timeout_seconds):
                return []
            known = self._count_known()
            if not known:
                raise self._end(self._unknown(self._pending[0].position))
        released = self._pending[: min(known, transactions_max)]
        del self._pending[: len(released)]
        for transaction in released:
            if transaction.is_last:
                self._position = self._position.union(transaction.position)
        return released

    def _count_known(self) -> int:
        """How many of those pending the primary knows. It knows a transaction that began there, shown or not
        (F57)."""
        assert self._current is not None
        primary = self._primary.state
        if self._current.is_primary or primary is None:
            return len(self._pending)
        for count, transaction in enumerate(self._pending):
            position = transaction.position
            if not primary.is_origin(position) and not primary.knows(position):
                return count
        return len(self._pending)

    def _is_confirmed(self, timeout_seconds: float) -> bool:
        """Whether a round of looks that began after the transaction came has ended."""
        if self._confirmation is None:
            self._confirmation = self._get_lookout().begin()
        wait([self._confirmation], timeout_seconds)
        if not self._confirmation.done():
            return False
        looks, self._confirmation = self._confirmation.result(), None
        self._note(looks)
        return True

    def _unknown(self, position: Position) -> FreshnessError:
        assert self._current is not None
        if self._primary.error is not None:
            return SourceUnavailable(
                f"{self._current.name} delivers {position}, and the primary cannot be asked whether it knows it:"
                f" {self._primary.error.message}",
                hint="it waits until the primary answers (F53)",
            )
        return SourceUnavailable(
            f"{self._current.name} delivers the errant transaction {position}, unknown to the primary (F53)",
            hint="it was not applied; rebuild the replica, which is not read from until it is gone",
        )

    def _watch(self) -> None:
        """Take in a finished round of looks and draw the conclusions; begin the next one when it is due."""
        if self._round is not None and self._round.done():
            looks, self._round = self._round.result(), None
            self._note(looks)
            if not self._leaving:
                self._conclude()
        if self._round is None and self._clock() - self._looked_at >= self._bounds.look:
            self._begin_round()

    def _conclude(self) -> None:
        assert self._current is not None
        situation = self._situation(is_streaming=True)
        if situation.primary.is_elected:
            self._leave(self._left(f"{self._primary.name} still applies what its predecessor has committed"))
            return
        before, self._primary_had = self._primary_had, situation.primary.executed
        if not self._primary_had.contains(before):
            self._leave(
                HistoryLost(
                    f"{self._primary.name} went back from {str(before)[:200]!r} to {str(self._primary_had)[:200]!r}",
                    hint="a crash or a failover lost transactions (F28, F55): if that stays so, raise the epoch",
                )
            )
            return
        if self._current.is_primary and _name_server(situation.primary) != self._opened_at:
            self._leave(self._left(f"its address leads to another server now than to {self._opened_at}"))
            return
        verdict = judge(self._current, situation, is_current=True)
        if isinstance(verdict.grade, Refusal) and verdict.grade is not Refusal.DOWN:
            self._leave(self._left(verdict.reason))
            return
        grade = verdict.grade if isinstance(verdict.grade, Rank) else Rank.LAST
        self._compare(grade, verdict.reason, situation)

    def _compare(self, grade: Rank, reason: str, situation: Situation) -> None:
        """Leave for a server of a better rank: at once from one that is bad, after a while from one that is good."""
        better = ""
        for other in self._servers:
            found = judge(other, situation, is_current=False).grade
            if other is not self._current and isinstance(found, Rank) and found < grade:
                better = better or other.name
        if not better:
            self._better_since = None
            return
        if self._better_since is None:
            self._better_since = situation.now
        if grade is Rank.LAST or situation.now - self._better_since >= self._bounds.back:
            self._leave(self._left(f"{reason}; {better} is better"))

    def _get_lookout(self) -> Lookout:
        if self._lookout is None:
            self._lookout = Lookout(self._servers, self._look, self._bounds.look_timeout, self._make_executor)
        return self._lookout

    def _begin_round(self) -> Future[Looks]:
        self._looked_at = self._clock()
        self._round = self._get_lookout().begin()
        return self._round

    def _note(self, looks: Looks) -> None:
        now = self._clock()
        self._primary.note(looks[self._primary.address], None, now)
        for server in self._servers:
            if server is not self._primary:
                server.note(looks[server.address], self._primary.state, now)

    def _left(self, reason: str) -> SourceUnavailable:
        assert self._current is not None
        return SourceUnavailable(
            f"{self._current.name} is left: {reason}", hint="another server goes on from the same position"
        )

    def _leave(self, error: FreshnessError) -> None:
        self._leaving, self._drains_left = error, DRAINS_MAX

    def _end(self, error: FreshnessError) -> FreshnessError:
        """The stream is over; the server is held off. An error that is final for a replica's log may not be so
        elsewhere, nor one for a log that the primary has purged."""
        assert self._current is not None
        assert self._source is not None
        is_tried_on = isinstance(error, HistoryPurged) or not self._current.is_primary
        if is_tried_on and _is_final(error) and error is not self._leaving:
            error = SourceUnavailable(f"{self._current.name}: {error.message}", hint=error.hint)
        self._current.hold(error.message, self._clock() + self._bounds.holdoff)
        self._end_stream()
        self._failure = error
        return error

    def _end_stream(self) -> None:
        """Nothing is under way after this. The source is kept, for the case that its server serves on."""
        self.serving = None
        self._failure = self._leaving = self._better_since = None
        self._round = self._confirmation = None
        self._pending.clear()
        if self._source is not None:
            self._source.close()


def _name_server(state: ServerState) -> str:
    """Whom an address leads to."""
    return state.server or state.identity


def _is_final(error: FreshnessError) -> bool:
    """Whether the error stays when the same server is tried again. `HistoryPurged` may pass on another one."""
    return isinstance(error, (HistoryLost, StreamStopped))
