"""`Database`: uncached reads of a keyspace, in one shard or in snapshots of several, and the tokens of commits.

How a shard is read: ``appclient.database.shard``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from appclient.connection.commits import read_committed
from appclient.connection.pool import nested_reads
from appclient.connection.query import (
    DATABASE_ERRORS,
    LoaderConnection,
    LoaderError,
    Params,
    QueryResult,
    describe_problem,
    run_loader,
    unwrap,
)
from appclient.connection.statement import require_read
from appclient.database.atleast import AtLeast, behind, demand_commits, enclosed_by
from appclient.database.required import NOTHING_REQUIRED, Required, Servers
from appclient.database.servers import DEFAULTS, ServerAccess
from appclient.database.shard import ShardDatabase, ShardSnapshot
from appclient.database.vitess_shard import VitessShardDatabase
from freshness.algorithm.request import NO_TOKENS
from freshness.config.keyspace import Keyspace
from freshness.errors import ConfigError, FlavorMismatch, FormatError
from freshness.position import parse_position
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

Result = TypeVar("Result")


class Database:
    """Uncached reads of one keyspace that say how fresh they are. Safe for threads. ``access``: its time-outs are
    those of the keyspace."""

    def __init__(self, keyspace: Keyspace, access: ServerAccess = DEFAULTS) -> None:
        self.keyspace = keyspace
        self._network = access.network
        kind = VitessShardDatabase if keyspace.flavor == "vitess" else ShardDatabase
        its = replace(
            access,
            timeout_seconds=keyspace.query_timeout_seconds,
            wait_seconds=keyspace.at_least_wait_ms / 1000,
            miss_wait_seconds=keyspace.miss_wait_ms / 1000,
        )
        self.shards = {shard.lineage: kind(keyspace.gtid_flavor, shard, its) for shard in keyspace.shards}
        """All shards by lineage, the shards that do not serve among them."""

    def query(
        self,
        sql: str,
        params: Params = None,
        *,
        shard: str | None = None,
        include_event_token: bool = False,
        compare_event_token: EventToken | str | None = None,
        at_least: AtLeast = None,
    ) -> QueryResult:
        """The rows of ``sql``, one SELECT, from a replica. Never cached; the options say how fresh the rows are.

        ``params``: values for its placeholders. ``include_event_token``: the result has a token that says how fresh
        its rows are. ``compare_event_token``: the result says whether its rows contain all that this token names.
        ``shard``: the name of the shard; it may be left out if there is one. ``at_least``: the rows have these
        commits, see `commit_token`; the read goes to a replica that has them, or to the primary.

        Raises `SourceUnavailable` when no server answers or none shows the commits, its `QueryTimedOut` when the
        statement takes longer than ``query_timeout_seconds``, `SourceUnsuitable` for a statement that is wrong,
        writes, or lacks a privilege, and `FormatError` for a token that does not parse or is of another flavor.
        """
        require_read(sql)
        sent = self._parse(compare_event_token)
        database = self.find_shard(shard)
        return database.query(
            sql,
            params,
            include_event_token=include_event_token,
            sent=sent,
            at_least=demand_commits(at_least, [self.keyspace]).get(database.lineage),
        )

    def commit_token(self, connection: Any, *, shard: str | None = None) -> CommitToken | None:
        """The commits of the application's own connection, for ``at_least``; None if it has committed nothing.

        ``connection``: to the primary, of any driver of PEP 249, without an open transaction. ``shard``: the shard
        that the connection writes to; it may be left out if there is one. A `GtidConnection` is asked without a
        statement, any other one with one; the epoch is read on a connection of this library, at most once a second.

        Raises `ConfigError` if a transaction is open and behind vtgate, which reports no commit, `SourceUnavailable`
        and `SourceUnsuitable` if no server returns the epoch. Errors of the connection come out as they are.
        """
        database = self.find_shard(shard)
        if self.keyspace.flavor == "vitess":
            raise ConfigError(
                f"keyspace {self.keyspace.name} is behind vtgate, which does not tell what a session has committed",
                hint="after the commit, CommitToken.of event tokens that were read on the primary tablets",
            )
        epoch = database.find_epoch()
        position = read_committed(connection, self.keyspace.gtid_flavor)
        return None if position is None else CommitToken.of([database.make_token(epoch, position)])

    def commit_token_of(self, gtids: str, *, shard: str | None = None) -> CommitToken | None:
        """The same for ``gtids`` that the application read after its commit, as an asynchronous driver demands:
        ``@@last_gtid`` (MariaDB) or ``@@global.gtid_executed`` (MySQL). Raises `FormatError` for another text, and as
        `commit_token` if no server returns the epoch."""
        database = self.find_shard(shard)
        position = parse_position(self.keyspace.gtid_flavor, gtids)
        return None if position.is_empty else CommitToken.of([database.make_token(database.find_epoch(), position)])

    def find_shard(self, name: str | None) -> ShardDatabase:
        """The serving shard of that name; without a name, the only one."""
        serving = self.keyspace.serving_shards
        found = [each for each in serving if name == each.name or (name is None and len(serving) == 1)]
        if not found:
            problem = "needs the name of a shard" if name is None else f"has no serving shard {name!r}"
            known = ", ".join(repr(each.name) for each in serving)
            raise ConfigError(f"keyspace {self.keyspace.name} {problem}", hint=f"expected one of {known}")
        return self.shards[found[0].lineage]

    def snapshot(
        self,
        lineages: Sequence[str],
        load: Callable[[LoaderConnection], Result],
        at_least: Mapping[str, EventToken] = NO_TOKENS,
        required: Mapping[str, Required] = MappingProxyType({}),
        servers: Servers | None = None,
    ) -> tuple[Result, list[EventToken | None]]:
        """Run ``load`` in one snapshot of each of these shards, with the tokens that were read before them.
        ``at_least``: commits that the snapshot has, by lineage; ``required`` and ``servers``: see
        `ShardDatabase.run_showing`. Raises `SourceUnavailable` if no server shows the commits."""
        if len(lineages) == 1:
            only = lineages[0]
            shard = self.shards[only]
            result, token = shard.snapshot(load, at_least.get(only), required.get(only, NOTHING_REQUIRED), servers)
            return result, [token]
        if self.keyspace.flavor == "vitess":
            return self._nested_snapshot(lineages, load, at_least, required, servers, ())
        begun: list[tuple[ShardDatabase, ShardSnapshot]] = []
        ended: LoaderConnection | None = None
        try:
            for lineage in lineages:
                shard = self.shards[lineage]
                asked, wanted = at_least.get(lineage), required.get(lineage, NOTHING_REQUIRED)
                begun.append((shard, shard.begin_snapshot(asked, wanted, servers)))
            opened = LoaderConnection(*(snapshot.connection for _, snapshot in begun), network=self._network)
            try:
                with ExitStack() as stack:
                    stack.enter_context(nested_reads())
                    for shard, snapshot in begun:
                        asked = at_least.get(shard.lineage)
                        enclosing = stack.enter_context(enclosed_by(shard.lineage, snapshot.token, asked))
                    loaded = run_loader(load, opened)
            except DATABASE_ERRORS as error:
                raise describe_problem(error, begun[0][1].address, "reading several shards") from error
            ended = opened
        finally:
            tokens = [shard.end_snapshot(snapshot, ended) for shard, snapshot in begun]
        tokens = [*map(enclosing.bound, tokens)]  # the innermost knows of all parts
        value = unwrap(loaded)
        for (shard, snapshot), token in zip(begun, tokens, strict=True):
            if token is None and shard.lineage in at_least:
                raise behind(snapshot.address)
        return value, tokens

    def _nested_snapshot(
        self,
        lineages: Sequence[str],
        load: Callable[[LoaderConnection], Result],
        at_least: Mapping[str, EventToken],
        required: Mapping[str, Required],
        servers: Servers | None,
        begun: tuple[LoaderConnection, ...],
    ) -> tuple[Result, list[EventToken | None]]:
        """The same, and asks the server for its name after ``load``, too: one shard's read inside another's."""
        first, *others = lineages

        def inside(connection: LoaderConnection) -> tuple[Result | LoaderError, list[EventToken | None]]:
            opened = (*begun, connection)
            if others:
                return self._nested_snapshot(others, load, at_least, required, servers, opened)
            joined = LoaderConnection.join(opened, self._network)
            try:
                return run_loader(load, joined), []
            except Exception as error:
                connection.failure = error
                raise

        (result, tokens), token = self.shards[first].snapshot(
            inside, at_least.get(first), required.get(first, NOTHING_REQUIRED), servers
        )
        return unwrap(result), [token, *tokens]

    def _parse(self, token: EventToken | str | None) -> EventToken | None:
        if token == "None":
            raise FormatError(
                "compare_event_token got the text of None: the read that it is from had no token",
                hint="no invalidator has prepared that server, or a proxy asked two; send a token or None itself",
            )
        parsed = EventToken.parse(token) if isinstance(token, str) else token
        if parsed is not None and parsed.position.flavor != self.keyspace.gtid_flavor:
            raise FlavorMismatch(
                f"a token of {parsed.position.flavor} was sent to keyspace {self.keyspace.name}, "
                f"which has those of {self.keyspace.gtid_flavor}",
                hint="tokens are good only in the keyspace they come from",
            )
        return parsed

    def close(self) -> None:
        """Close the idle connections. The next read opens them again."""
        for shard in self.shards.values():
            shard.close()
