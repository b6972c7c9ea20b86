"""The start of a merged stream, new or resumed: the one that a consumer asks for, as the position of each shard.

A shard whose lineage is not in a resume vector goes on from those that it continues (GTIDs kept), or else
from a time: the least of the vector, less a margin; that repeats and never skips. No I/O: times are looked up by
``invalidator.stream.update_stream``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from freshness.config.keyspace import Shard
from freshness.errors import ConfigError, FormatError
from freshness.keys.keyrange import KeyRange
from freshness.position import MysqlGtidSet, Position, empty_position
from freshness.position.token import TEXT_PREFIX as TOKEN_PREFIX
from freshness.position.token import EventToken
from freshness.stream.resume import TEXT_PREFIX, Moment, ResumeVector, parse_moment

Start: TypeAlias = Literal["now"] | Moment | Mapping[str, Position]
"""The start of a stream: at the head of each primary, at a time (µs since 1970), after an event, after everything
that a vector has, or at a position for each lineage."""


def parse_start(text: str) -> Start:
    """``now``, a resume text, an event token, or a time as ISO 8601 with its zone. Raises `FormatError`."""
    if text.strip() == "now":
        return "now"
    moment = parse_moment(text)
    if moment is None:
        raise FormatError(
            f"start {text.strip()[:60]!r}",
            hint=f'expected "now", {TEXT_PREFIX}…, {TOKEN_PREFIX}…, or a time such as 2026-01-31T12:00:00Z',
        )
    return moment


def parse_past(text: str, *, now_us: int, rewind_seconds: float) -> int:
    """A time that has been, or that of an event token, or the earliest of a resume text; less ``rewind_seconds``. In
    µs since 1970. Raises `FormatError`."""
    start = parse_start(text)
    if isinstance(start, EventToken):
        start = start.timestamp_us
    elif isinstance(start, ResumeVector):
        start = start.min_timestamp_us
    if not isinstance(start, int) or not 0 < start <= now_us:
        raise FormatError(
            f"start {text[:60]!r} is no time that has been",
            hint="expected a time such as 2026-01-31T12:00:00Z, or a token or resume text of the update stream",
        )
    return max(0, start - round(rewind_seconds * 1_000_000))


@dataclass(frozen=True, slots=True)
class ShardStart:
    """The start of one shard. Without a position: at the time, or without one at the head. ``epoch``: epoch of the
    history that the position was taken from; None if that is unknown."""

    position: Position | None = None
    timestamp_us: int | None = None
    epoch: int | None = None


def plan_start(start: Start, shard: Shard, flavor: str, keyspace: str, key_range: KeyRange) -> ShardStart:
    """The start of the shard. Raises `ConfigError` if ``start`` does not fit it."""
    if start == "now":
        return ShardStart()
    if isinstance(start, int):
        return ShardStart(timestamp_us=start)
    if isinstance(start, EventToken):
        if start.lineage == shard.lineage and _is_lone(start.position):
            _require_flavor(start.position, flavor)
            return ShardStart(timestamp_us=start.timestamp_us, epoch=start.epoch)
        start = ResumeVector(keyspace, key_range, {start.lineage: start})
    if not isinstance(start, ResumeVector):
        return ShardStart(_plan_position(start, shard, flavor))
    if start.refresh is not None:
        raise ConfigError(
            "the start has the place of a refresh, which would be lost here",
            hint="open the stream with its refresh, or begin at an event token",
        )
    if start.keyspace != keyspace or not start.key_range.contains_range(key_range):
        raise ConfigError(
            f"the start is of keyspace {start.keyspace}, key range {start.key_range},"
            f" wanted is {keyspace}, {key_range}",
            hint="start at a time, or with a resume text of a stream that had all of this key range",
        )
    if not start.tokens:
        raise ConfigError("the start names no lineage", hint='start at a time, or at "now"')
    token = start.tokens.get(shard.lineage)
    if token is not None:
        _require_flavor(token.position, flavor)
        return ShardStart(token.position, token.timestamp_us, token.epoch)
    continued = [start.tokens[lineage] for lineage in shard.continues if lineage in start.tokens]
    if continued and len(continued) == len(shard.continues):
        position = join_positions(flavor, [token.position for token in continued])
        return ShardStart(position, min(token.timestamp_us for token in continued))
    return ShardStart(timestamp_us=start.min_timestamp_us)


def _is_lone(position: Position) -> bool:
    """Whether it is one transaction of MySQL, without those before it: a server would take all others for missing."""
    if not isinstance(position, MysqlGtidSet):
        return False
    numbers = [interval for intervals in position.intervals().values() for interval in intervals]
    return len(numbers) == 1 and numbers[0][0] == numbers[0][1] > 1


def _plan_position(positions: Mapping[str, Position], shard: Shard, flavor: str) -> Position:
    known = [positions[lineage] for lineage in shard.continues if lineage in positions]
    if shard.lineage in positions:
        known = [positions[shard.lineage]]
    elif len(known) < max(1, len(shard.continues)):
        raise ConfigError(
            f"the start positions do not name lineage {shard.lineage}",
            hint="give a position for each lineage, or start at a time",
        )
    return join_positions(flavor, known)


def join_positions(flavor: str, positions: Iterable[Position]) -> Position:
    """Where to go on in a log that holds what all these streams delivered. A transaction that one of the sources
    executed first comes from one stream alone: the union. A source that several of the streams name is their common
    past, and what only some of them delivered of it must come again for the others: the intersection."""
    by_source: dict[str, Position] = {}
    for position in positions:
        _require_flavor(position, flavor)
        for source, part in position.by_source().items():
            by_source[source] = by_source[source].intersection(part) if source in by_source else part
    joined = empty_position(flavor)
    for part in by_source.values():
        joined = joined.union(part)
    return joined


def _require_flavor(position: Position, flavor: str) -> None:
    if position.flavor != flavor:
        raise ConfigError(
            f"the start has a {position.flavor} position, the keyspace is {flavor}",
            hint="take the start from a stream of this keyspace",
        )
