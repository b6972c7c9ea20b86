"""Reads that must have certain commits: which server is known to show them (I9, docs/read-your-writes.md).

A replica is asked for its own token, which is read anyway. If that lacks a commit, the replica may wait a moment;
then the primary is read. It shows each commit that has returned. Used by the database and its shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from freshness.algorithm.request import NO_TOKENS
from freshness.config.keyspace import Keyspace
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError, SourceUnavailable
from freshness.position import Position, parse_position
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

AtLeast: TypeAlias = CommitToken | str | None
"""A commit token, its text, or nothing: the application's own demand."""

WAIT_SHARE: Final = 0.8
"""A replica waits no longer than this share of a statement's own bound, which would end the wait with an error."""

_WAITS: Final = {
    "mysql": "WAIT_FOR_EXECUTED_GTID_SET(%s, {seconds:.3f})",
    # In vain on a server that follows nobody, as a node of Galera
    "mariadb": "CASE WHEN @@global.gtid_slave_pos <> '' THEN MASTER_GTID_WAIT(%s, {seconds:.3f}) END",
}

COMMITTED: Final = (
    "CASE WHEN @@global.read_only NOT LIKE '0' AND @@global.read_only NOT LIKE 'OFF' AND (SELECT VARIABLE_VALUE"
    " FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME = 'wsrep_on') = 'ON'"
    " THEN '' ELSE @@global.gtid_current_pos END"
)
"""On MariaDB: what the server has applied as a replica, and what its own sessions have written to its log.

The log is ahead of the engine. A commit that has returned is visible all the same, and so is all before it in its
domain. On a node of Galera the sessions of all nodes count as its own: nothing, unless it is the writable one.
"""


@dataclass(slots=True)
class Enclosing:
    """A value that is being built. ``has_parts``: True once something in it was read past its snapshot."""

    tokens: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS)
    around: Enclosing | None = None
    has_parts: bool = False

    def note_part(self) -> None:
        """A part of this value, and of each around it, is read by a read of its own."""
        self.has_parts = True
        if self.around is not None:
            self.around.note_part()

    def bound(self, token: EventToken | None) -> EventToken | None:
        """The token of this value, without an upper bound if a part of it may be beyond."""
        return replace(token, until=None) if token is not None and self.has_parts else token


_ENCLOSING: Final[ContextVar[Enclosing | None]] = ContextVar("enclosing", default=None)


@contextmanager
def enclosed_by(
    lineage: str, token: EventToken | None = None, at_least: EventToken | None = None
) -> Iterator[Enclosing]:
    """Reads of a shard in here are parts of a value that was read at ``token``, so they have its commits (F18), and
    those that were asked of the value. The value is invalidated by what comes after its token alone. A part that
    lacks an earlier change would stay old: a node that is behind may still have it as a hit."""
    around = _ENCLOSING.get()
    before = NO_TOKENS if around is None else around.tokens
    asked = [each for each in (before.get(lineage), token, at_least) if each is not None]
    enclosing = Enclosing({**before, lineage: _join(lineage, asked)} if asked else before, around)
    reset = _ENCLOSING.set(enclosing)
    try:
        yield enclosing
    finally:
        _ENCLOSING.reset(reset)


def is_enclosed() -> bool:
    """Whether a read has the demands of a value around it."""
    return _ENCLOSING.get() is not None


def _join(lineage: str, asked: Sequence[EventToken]) -> EventToken:
    """The union of the commits. A token of another lineage or an older epoch is returned alone: the read then goes
    to the primary, which has all that is left."""
    joined = asked[0]
    for each in asked[1:]:
        if each.lineage != lineage or joined.lineage != lineage:
            joined = joined if joined.lineage != lineage else each
        elif each.epoch != joined.epoch:
            joined = min(joined, each, key=lambda token: token.epoch)
        else:
            joined = replace(joined, position=joined.position.union(each.position))
    return joined


class Behind(SourceUnavailable):
    """A server is not known to show the commits. Its connection is in order, and another server may show them."""


def behind(address: ServerAddress) -> Behind:
    """The error of a server that is not known to show the commits."""
    return Behind(
        f"{address.host}:{address.port} is not known to show the commits that at_least names",
        hint="a failover lost them, or this address is not the primary's; what is left is read without at_least",
    )


def demand_commits(at_least: AtLeast, keyspaces: Iterable[Keyspace]) -> Mapping[str, EventToken]:
    """The commits that are asked of each lineage that serves, by the caller and by the value around this read.

    A token of a lineage that does not serve, or not any more, is asked of all lineages that can have its rows now:
    those of its keyspace, or of all if it is unknown. Nothing compares with it, so the primaries are read.
    Raises `FormatError` for a text that does not parse, `ConfigError` for anything but a commit token.
    """
    around = _ENCLOSING.get()
    enclosing = NO_TOKENS
    if around is not None:
        around.note_part()
        enclosing = around.tokens
    if at_least is None:
        return enclosing
    token = CommitToken.parse(at_least) if isinstance(at_least, str) else at_least
    if not isinstance(token, CommitToken):
        raise ConfigError(
            f"at_least got {type(at_least).__name__}", hint="expected a CommitToken, or its text; see commit_token"
        )
    keyspaces = list(keyspaces)
    serving = {shard.lineage for keyspace in keyspaces for shard in keyspace.serving_shards}
    asked = {each.lineage: each for each in token.tokens if each.lineage in serving}
    for each in token.tokens:
        if each.lineage not in serving:
            owners = [k for k in keyspaces if any(shard.lineage == each.lineage for shard in k.shards)]
            for keyspace in owners or keyspaces:
                asked.update((shard.lineage, each) for shard in keyspace.serving_shards)
    joined = {lineage: _join(lineage, [enclosing.get(lineage, each), each]) for lineage, each in asked.items()}
    return {**enclosing, **joined}


def is_of_the_past(asked: EventToken, shown: EventToken) -> bool:
    """Whether the commits belong to another history than the server's present one: an older epoch, topology or
    flavor. The primary has all that is left of it."""
    return (
        asked.lineage != shown.lineage or asked.position.flavor != shown.position.flavor or asked.epoch < shown.epoch
    )


def wait_sql(flavor: str, first_column: str, seconds: float) -> str:
    """The statement that waits until a replica has the position that is its only parameter."""
    return f"SELECT {first_column}, {_WAITS[flavor].format(seconds=seconds)}"


def parse_committed(text: object) -> Position:
    """The answer to `COMMITTED`. Raises `FormatError`."""
    return parse_position("mariadb", str(text or ""))
