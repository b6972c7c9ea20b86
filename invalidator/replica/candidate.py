"""Which servers of a shard are good sources of its stream, judged by what looks at them have shown.

Pure: no connection, no clock. `invalidator.replica.source` looks, chooses and reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Literal, TypeAlias

from freshness.config.server import ServerAddress
from freshness.errors import FreshnessError, SourceUnsuitable
from freshness.position import Position
from invalidator.replica.server import APART, ServerState, find_foreign

Choice: TypeAlias = Literal["freshest", "slowest", "primary"]
Look: TypeAlias = "ServerState | FreshnessError"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBounds:
    """When a server is left, and what keeps the choice from flapping. All in seconds.

    ``lag_max``: largest lag of a replica behind the primary's heartbeats; a server is chosen only below half of it.
    ``stuck``: time for which its executed position may stand still while the primary's moves, and for which the
    server that is read from may leave looks unanswered. ``look``: pause between two looks; ``look_timeout``: time for
    a server to answer one. ``holdoff``: time for which a server that was left, or that failed, comes after all
    others. ``back``: time for which a server of a better `Rank` must be there before a good one is left for it.
    """

    lag_max: float = 30.0
    stuck: float = 10.0
    look: float = 1.0
    look_timeout: float = 2.0
    holdoff: float = 30.0
    back: float = 30.0


class Rank(IntEnum):
    """Which servers are tried first."""

    PREFERRED = 0
    """With the choice "primary" the primary, else the replicas that are healthy and within the bound."""
    FALLBACK = 1
    """The other ones of those two."""
    LAST = 2
    """Lagging, stuck, silent, or left a moment ago: better than nothing."""


class Refusal(Enum):
    """Why a server cannot serve at all."""

    DOWN = "does not answer"
    NOT_YET = "is not able to now"
    UNFIT = "would not deliver all, or more than all"
    PURGED = "no longer has the log"


@dataclass(frozen=True, slots=True)
class CandidateVerdict:
    """How good a server is as a source, and why. ``lag_us``: see `Server.find_lag`."""

    grade: Rank | Refusal
    reason: str
    lag_us: int = 0


@dataclass(slots=True)
class Server:
    """One server as looks have shown it. ``state``: state in the last look that it answered, at ``answered_at``.
    ``moved_at``: time at which it was last seen to execute something, or to have executed all that the primary has;
    ``level_at``: time at which it was last seen to have all of the primary's heartbeats."""

    address: ServerAddress
    is_primary: bool
    state: ServerState | None = None
    error: FreshnessError | None = None
    answered_at: float = 0.0
    moved_at: float = 0.0
    level_at: float | None = None
    held_until: float = 0.0
    held_for: str = ""

    @property
    def name(self) -> str:
        role = "primary" if self.is_primary else "replica"
        return f"{role} {self.address.host}:{self.address.port}"

    def note(self, look: Look, primary: ServerState | None, now: float) -> None:
        """Take in one look. ``primary``: latest known state of the primary, from a later look than this one."""
        if isinstance(look, FreshnessError):
            self.error = look
            return
        before, self.state, self.error, self.answered_at = self.state, look, None, now
        is_level = primary is None or look.executed.contains(primary.executed)
        if is_level or before is None or before.executed != look.executed:
            self.moved_at = now
        if primary is None or look.find_behind(primary) <= 0:
            self.level_at = now

    def find_lag(self, primary: ServerState, now: float) -> int:
        """How far its heartbeats are behind the primary's, in µs. No longer than they have been behind: between two
        of them may lie a long time, and the newer one may be on its way."""
        assert self.state is not None
        behind_us = max(0, self.state.find_behind(primary))
        if self.level_at is None:
            return behind_us
        return min(behind_us, round((now - self.level_at) * 1_000_000))

    def hold(self, reason: str, until: float) -> None:
        self.held_for, self.held_until = reason, until


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts by which all servers are judged. ``start``: start of the stream that is wanted, or that is running;
    ``position``: position of everything that it has handed out."""

    choice: Choice
    bounds: ReplicaBounds
    primary: ServerState
    start: Position
    position: Position
    is_streaming: bool
    now: float


def judge(server: Server, situation: Situation, *, is_current: bool) -> CandidateVerdict:
    """How good this server is as a source now. ``is_current``: it is read from, or was until now."""
    state, bounds, start = server.state, situation.bounds, situation.start
    is_read = is_current and situation.is_streaming
    is_silent = server.error is not None and not (is_read and situation.now - server.answered_at < bounds.stuck)
    if state is None or is_silent:
        told = server.error.message if isinstance(server.error, SourceUnsuitable) else str(server.error)
        needed = "; it must, only where its log is read" if isinstance(server.error, SourceUnsuitable) else ""
        return CandidateVerdict(Refusal.DOWN, f"does not tell its state: {told}{needed}")
    refused = None if server.is_primary else _refuse_replica(state, situation)
    if refused is not None:
        return refused
    if not state.executed.contains(start):
        return CandidateVerdict(Refusal.NOT_YET, "lacks a part of the start position")
    if not (is_read or situation.position.contains(state.purged)):
        return CandidateVerdict(Refusal.PURGED, "no longer has the log from the start position")
    lag_us = server.find_lag(situation.primary, situation.now)
    held_back = _find_drawback(server, situation, lag_us, is_current=is_current)
    if held_back:
        return CandidateVerdict(Rank.LAST, held_back, lag_us)
    is_preferred = server.is_primary == (situation.choice == "primary")
    rank = Rank.PREFERRED if is_preferred else Rank.FALLBACK
    return CandidateVerdict(rank, f"healthy, lag {lag_us / 1e6:.1f} s", lag_us)


def _refuse_replica(state: ServerState, situation: Situation) -> CandidateVerdict | None:
    if state.is_apart(situation.primary):
        return CandidateVerdict(Refusal.UNFIT, APART)
    if not state.follows:
        return CandidateVerdict(
            Refusal.UNFIT, "follows no server; if it was promoted, name it as primary in the configuration"
        )
    if state.unfit:
        return CandidateVerdict(Refusal.UNFIT, state.unfit)
    foreign = find_foreign(state, situation.primary, situation.start)
    if foreign:
        return CandidateVerdict(
            Refusal.UNFIT,
            f"has errant transactions, unknown to the primary: {foreign[:200]}; rebuild the replica (F53)",
        )
    if state.stopped:
        return CandidateVerdict(Refusal.NOT_YET, f"its replication is broken: {state.stopped}")
    return None


def _find_drawback(server: Server, situation: Situation, lag_us: int, *, is_current: bool) -> str:
    bounds, now = situation.bounds, situation.now
    lag_max = bounds.lag_max if is_current else bounds.lag_max / 2
    if now < server.held_until:
        return f"was left or failed a moment ago: {server.held_for}"
    if lag_us > lag_max * 1_000_000:
        return f"lags {lag_us / 1e6:.1f} s, more than {lag_max:g} s"
    if not server.is_primary and now - server.moved_at >= bounds.stuck:
        return f"is stuck: has executed nothing for {bounds.stuck:g} s, unlike the primary"
    return ""


def put_in_order(
    servers: Sequence[Server], verdicts: Sequence[CandidateVerdict], choice: Choice, current: Server | None
) -> list[int]:
    """The places of those that can serve, best first. The current one stays before others of its rank."""
    able = [index for index, verdict in enumerate(verdicts) if isinstance(verdict.grade, Rank)]
    sign = -1 if choice == "slowest" else 1

    def order(index: int) -> tuple[Rank | Refusal, bool, int, int]:
        # Heartbeats come once a second or so; between two, it counts who has executed what others have not
        ahead_of = sum(_is_ahead(servers[index], servers[other]) for other in able)
        lag_us = verdicts[index].lag_us
        return verdicts[index].grade, servers[index] is not current, sign * lag_us, -sign * ahead_of

    return sorted(able, key=order)


def _is_ahead(server: Server, other: Server) -> bool:
    assert server.state is not None
    assert other.state is not None
    return server.state.executed != other.state.executed and server.state.executed.contains(other.state.executed)
