"""Reads of a shard behind a vtgate, as ``appclient.database.shard`` makes them of servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from appclient.connection.query import LoaderConnection, LoaderError, QueryResult, Row, run_loader, unwrap
from appclient.database.atleast import behind, enclosed_by, is_of_the_past
from appclient.database.required import NOTHING_REQUIRED, Required, Servers, giving_way
from appclient.database.servers import DEFAULTS, ServerAccess, close_open
from appclient.database.shard import ShardDatabase
from freshness.algorithm.lookup import ReadServer
from freshness.algorithm.request import LATEST
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection
from freshness.database.vitess import VitessShard, of_primary, on_one_tablet
from freshness.position.token import EventToken, covers, lacks

Result = TypeVar("Result")


class VitessShardDatabase(ShardDatabase):
    """One shard behind a vtgate, read from the tablets of the type that its stream comes from. vtgate chooses a
    tablet for each transaction: see ``freshness.database.vitess``."""

    def __init__(self, flavor: str, shard: Shard, access: ServerAccess = DEFAULTS) -> None:
        super().__init__(flavor, shard, access)
        self._target = VitessShard.of(shard)
        self._of_primary = (
            None if self._target.tablet_type == "primary" else VitessShardDatabase(flavor, of_primary(shard), access)
        )

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        include_event_token: bool = False,
        sent: EventToken | None = None,
        at_least: EventToken | None = None,
    ) -> QueryResult:
        """See `Database.query`. The server is vtgate, which does not say which tablet answered."""
        rows, token = self.snapshot(lambda connection: connection.query(sql, params), at_least)
        return QueryResult.of(rows, token, self._shard.primary, sent=sent, is_token_shown=include_event_token)

    def snapshot(
        self,
        load: Callable[[LoaderConnection], Result],
        at_least: EventToken | None = None,
        required: Required = NOTHING_REQUIRED,
        servers: Servers | None = None,
    ) -> tuple[Result, EventToken | None]:
        """Run ``load`` in one transaction on one tablet, with the token that was read before it. The token is None if
        vtgate changed the tablet. If the tablet is not known to show ``at_least``, ``load`` runs again on the primary
        tablet; if it does not show ``required``, it runs only there."""
        of_primary = self._of_primary

        def read(connection: Connection, _: ServerAddress) -> tuple[Result | LoaderError, EventToken | None] | None:
            opened = LoaderConnection(connection, network=self._access.network)
            with on_one_tablet(connection, self._target) as tablet, enclosed_by(self.lineage, tablet.token, at_least):
                shown = required.token
                is_late = shown is LATEST or lacks(tablet.token, shown)
                if is_late and of_primary is not None and of_primary.is_permitted():
                    return None
                result = run_loader(load, opened)
                if not opened.is_in_step:
                    close_open(connection)
            if not opened.is_reusable:
                close_open(connection)
            return result, tablet.token

        answer = self.run(read)
        if answer is None:
            assert of_primary is not None
            with giving_way(self.lineage):
                return of_primary.snapshot(load, at_least, servers=servers)
            return self.snapshot(load, at_least, servers=servers)
        result, token = answer
        loaded = unwrap(result)
        if servers is not None:
            servers[self.lineage] = self.describe(self._shard.primary)
        if at_least is None or (token is not None and covers(token, at_least)):
            return loaded, token
        if self._of_primary is not None:
            return self._of_primary.snapshot(load, at_least, servers=servers)
        if token is not None and is_of_the_past(at_least, token):
            return loaded, token
        raise behind(self._shard.primary)

    def rows_with_token(
        self,
        table: str,
        condition: str,
        params: Sequence[Any],
        at_least: EventToken | None = None,
        order: str = "",
        required: EventToken | None = None,
        servers: Servers | None = None,
    ) -> tuple[list[Row], EventToken | None]:
        """The rows of a table, and the token that was read before them on the same tablet."""
        sql = f"SELECT * FROM {table} WHERE {condition}{order}"
        wanted = Required(required)
        return self.snapshot(lambda connection: connection.query(sql, params), at_least, wanted, servers)

    def describe(self, address: ServerAddress) -> ReadServer:
        """See `ShardServers.describe`: vtgate, and whether its tablet is the primary one."""
        return replace(super().describe(address), is_primary=self._of_primary is None)

    def read_head(self) -> EventToken:
        """See `ShardDatabase.read_head`; of the primary tablet."""
        _, token = (self._of_primary or self).snapshot(lambda _: None)
        if token is None:
            raise behind(self._shard.primary)
        return token

    def close(self) -> None:
        """See `ShardDatabase.close`."""
        super().close()
        if self._of_primary is not None:
            self._of_primary.close()

    def _connect(self, address: ServerAddress) -> Connection:
        return super()._connect(replace(address, database=self._target.target))

    def _set_up(self, connection: Connection, _: ServerAddress) -> None:
        """Nothing: vtgate chooses the isolation."""
