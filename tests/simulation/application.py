"""The application's reads of the database: the production `Database` and its loaders on simulated servers.

They block. So each reader has a greenlet, which stands still before each of its statements until the world takes that
reader's next step: anything can happen between two statements, and no two greenlets ever run at once.

The address of the replicas is that of a proxy: a session begins on any of them, now and then on the primary. It can
be moved to another server between two statements, but not within a transaction. It can be lost at any of them, and be
closed while nobody uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pymysql
from greenlet import getcurrent, greenlet

from appclient.connection.query import LoaderConnection
from appclient.database.database import Database
from appclient.database.servers import ServerAccess
from appclient.database.shard import ShardDatabase
from appclient.reading.loader import ObjectLoader, in_groups, load_together, name_of
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.config.keyspace import Keyspace
from freshness.config.keyspace import Shard as Topology
from freshness.config.server import ServerAddress
from freshness.position.token import EventToken
from tests.schedules.session import Session
from tests.simulation.database import Server, Shard
from tests.simulation.keykind import NUMBERS

if TYPE_CHECKING:
    from tests.simulation.world import World

SESSION_FAULTS: Final = ("move_session", "cut_session")
SESSION_FAULT_SHARE: Final = 0.1
"""The share of the statements that suffer a fault, if one is possible."""

PRIMARY_SHARE: Final = 0.2
CLOSED_SHARE: Final = 0.4
"""How many sessions were closed, or are of another server, when they are used again."""


class Turns:
    """Work in a greenlet of its own, which runs from one `pause` to the next, and only while `step` waits for it."""

    def __init__(self) -> None:
        self._greenlet: greenlet | None = None
        self._result: Any = None
        self._error: Exception | None = None

    def begin(self, work: Callable[[], Any]) -> None:
        assert self._greenlet is None, "one thing at a time"
        self._greenlet = greenlet(work)

    def step(self) -> bool:
        """Whether the work has ended."""
        assert self._greenlet is not None
        try:
            self._result, self._error = self._greenlet.switch(), None
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            self._error = error
        if not self._greenlet.dead:
            return False
        self._greenlet = None
        return True

    def result(self) -> Any:
        """What the work returned, or raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def pause(self) -> None:
        """Called by the work, also while it cleans up."""
        own = getcurrent()
        assert own.parent is not None
        own.parent.switch()

    def end(self) -> None:
        """The work stops at its current statement."""
        while self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.throw()
        self._greenlet = None


class Application:
    """One reader's own connections to the databases."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.turns = Turns()
        topologies = {
            shard.lineage: Topology(
                primary=ServerAddress(f"{shard.lineage} primary"),
                replicas=(ServerAddress(f"{shard.lineage} proxy"),),
                lineage=shard.lineage,
            )
            for shard in world.shards
        }
        flavor = world.options.flavor
        self._database = Database(Keyspace(name="sim", flavor=flavor, shards=tuple(topologies.values())))
        for shard in world.shards:
            self._database.shards[shard.lineage] = ShardDatabase(
                flavor,
                topologies[shard.lineage],
                ServerAccess(clock=lambda: world.now, open_connection=self._opener(shard)),
            )
        self._loaders = {
            name: ObjectLoader(definition, self._database, _loader_of(definition.policy.tables))
            for name, definition in world.definitions.items()
        }

    def _opener(self, shard: Shard) -> Callable[..., Any]:
        def connect(address: ServerAddress, **_: Any) -> SimulatedSession:
            return SimulatedSession(self._world, self.turns, shard, is_primary=address.host.endswith("primary"))

        return connect

    def load(
        self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken], *, is_together: bool = False
    ) -> list[Loaded]:
        """As the library does: object by object, in the order of the lookups."""
        if is_together:
            loaded = load_together(self._loaders, lookups, at_least)
        else:
            loaded = in_groups(lookups, name_of, lambda its: self._loaders[name_of(its[0])].load(its, at_least))
        return list(map(_in_versions, loaded))


def _loader_of(tables: Sequence[str]) -> Callable[[LoaderConnection, int], list[int]]:
    def load(database: LoaderConnection, key: int) -> list[int]:
        """The versions of the rows, shard by shard."""
        rows = [database.query(f"SELECT * FROM {table} WHERE id = %s", (key,)) for table in tables]
        return [row["version"] for of_shard in zip(*rows, strict=True) for row in of_shard]

    return load


def _in_versions(loaded: Loaded) -> Loaded:
    """With a value as the checker knows it."""
    value = loaded.value
    if value is None:
        return loaded
    return replace(loaded, value=(value["version"],) if isinstance(value, dict) else tuple(value))


class SimulatedSession(Session):
    """A session on one of a shard's servers, or behind the proxy. ``place``: the replica's index; None: primary."""

    def __init__(self, world: World, turns: Turns, shard: Shard, *, is_primary: bool) -> None:
        super().__init__(self._reach)
        self._world, self._turns, self._shard = world, turns, shard
        self._is_behind_proxy = not is_primary
        self._last = ""  # what the statement before was about
        self._is_in_transaction = False
        self._server = self._choose()

    def _choose(self) -> Server:
        """Not the primary where fills from replicas are to be seen (I5)."""
        chance = self._world.random
        if not self._is_behind_proxy or (not self._world.calm and chance.random() < PRIMARY_SHARE):
            return self._shard.primary
        return chance.choice(self._shard.replicas)

    def _reach(self, kind: str) -> Server:
        world = self._world
        if kind == "set":
            return self._server
        if kind == "reset":
            self._last, self._is_in_transaction = kind, False
            return self._server
        self._turns.pause()
        was_idle = kind in ("token", "start") and self._last in ("rows", "reset")
        self._last = kind
        if was_idle and world.random.random() < CLOSED_SHARE:
            raise pymysql.err.OperationalError(2006, "server has gone away")
        if self._server not in (self._shard.primary, *self._shard.replicas):
            raise pymysql.err.OperationalError(2013, "Lost connection: the server was set up anew")
        fault = self._draw_fault()
        if fault == "cut_session":
            world.note(f"  a session on {self._server.name} is cut before {kind}")
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")
        if fault == "move_session":
            self._server = self._choose()
            world.note(f"  a session is moved to {self._server.name} before {kind}")
        self._is_in_transaction |= kind == "start"
        if world.trace is not None:
            world.note(f"  {self._server.name} is asked for {kind}; it shows {self._server.executed}")
        return self._server

    def _draw_fault(self) -> str | None:
        world = self._world
        if world.calm or not world.session_faults or world.random.random() >= SESSION_FAULT_SHARE:
            return None
        kind = world.random.choice(world.session_faults)
        if kind == "move_session" and (self._is_in_transaction or not self._is_behind_proxy):
            return None
        return world.count(kind)

    def find_rows(self, shown: Any, table: str, keys: Sequence[Any], *, is_named: bool) -> list[tuple[Any, ...]]:
        """Finds keys that the database takes for equal. A row whose version is 0 does not exist for an object of one
        row with an exact key that is not a number. All other rows have always existed."""
        world, kind = self._world, self._world.kind
        has_absent = is_named and world.options.key_kind != NUMBERS and kind.column.is_exact
        found = []
        for row in dict.fromkeys(row for key in keys for row in kind.find(key)):
            stored, version = kind.stored[row], shown.version((table, row))
            if version or not has_absent:
                found.append((kind.column.pad(stored) if isinstance(stored, bytes) else stored, version))
        return found if is_named or len(keys) > 1 else found[:1]

    def lock(self, table: str, keys: Sequence[Any]) -> None:
        """A commit that is in the log and not shown yet still holds its rows."""
        shown = len(self._shard.primary.applied)
        wanted = {(table, row) for key in keys for row in self._world.kind.find(key)}
        if any(not wanted.isdisjoint(commit.rows) for commit in self._shard.log[shown:]):
            raise pymysql.err.OperationalError(1205, "Lock wait timeout exceeded; try restarting transaction")

    def variable(self, server: Any, name: str) -> str:
        if self._world.bug != "timestamps first" or not server.applied:
            return super().variable(server, name)
        # Who compares by time takes everything with an earlier timestamp for contained (F3, F4).
        newest = max(commit.transaction.timestamp_us for commit in server.applied)
        earlier = [c.position for c in self._shard.log if c.transaction.timestamp_us < newest]
        return str(server.executed.union_all(earlier))
