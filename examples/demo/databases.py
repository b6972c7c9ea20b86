"""The demo's database: a primary, and a replica that lags on purpose, or none.

`MysqlServers` are reached as they are, `Proxied` ones through HAProxy. One member of a `Cluster` is the primary, and
another is read. `VitessShard` is a real Vitess of one shard: writers and readers go through its vtgate; only the demo
itself, and the consumer of the binary log, reach the servers behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from freshness.config.keyspace import GtidFlavor
from freshness.config.server import ServerAddress
from integration.harness import repeating
from integration.servers import DatabaseServer, Pair, database_pair
from integration.servers.database import SCHEMA, SEMISYNCHRONOUS, make_database
from integration.servers.galera import galera_of_three
from integration.servers.group import group_of_three
from integration.servers.haproxy import Haproxy

if TYPE_CHECKING:  # needed only with a real Vitess
    from integration.servers.vitess import Vitess

Flavor: TypeAlias = Literal["mariadb", "mysql", "vitess"]
Topology: TypeAlias = Literal["galera", "group", "haproxy", "semisync"]

DELAY_SECONDS: Final[dict[Flavor, int]] = {"mariadb": 2, "mysql": 1, "vitess": 1}
"""What is set as the replica's delay: either makes it 1 to 2 s late, since whole seconds are counted, by MariaDB
from the start of the commit's second, by MySQL to its end."""

LOCKED_SECONDS: Final = 1
APPLIES_SECONDS: Final = 0.2
"""How long the member of a cluster stands still, and applies, in turn."""

_OPTIONS: Final = ("--sync-binlog=1",)


@dataclass(slots=True)
class MysqlServers:
    """With the database ``schema``. ``shard``: keys of that section of freshness.toml."""

    flavor: Flavor
    primary: DatabaseServer
    replica: DatabaseServer | None
    schema: str = SCHEMA
    shard: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gtid_flavor(self) -> GtidFlavor:
        return "mariadb" if self.flavor == "mariadb" else "mysql"

    @property
    def primary_url(self) -> str:
        return self.primary.url

    @property
    def replica_urls(self) -> list[str]:
        return [self.replica.url] if self.replica else []

    @property
    def delay_seconds(self) -> int:
        return DELAY_SECONDS[self.flavor] if self.replica else 0

    def writing(self) -> dict[str, Any]:
        """What pymysql needs to connect where applications write."""
        return self.server_settings(self.primary)

    def reading(self) -> dict[str, Any]:
        """The same for the server that they read: the replica if there is one."""
        return self.server_settings(self.replica or self.primary)

    def server_settings(self, server: DatabaseServer) -> dict[str, Any]:
        """The same for one of the servers itself."""
        return _settings(ServerAddress("127.0.0.1", server.port, "app", "app", self.schema))

    def delay(self) -> None:
        """The replica lags from now on."""
        if self.replica:
            self.replica.replicate_from(self.primary, delay_seconds=self.delay_seconds)

    def wait_caught_up(self) -> None:
        if self.replica:
            self.replica.wait_caught_up(self.primary)

    def pause_applier(self) -> None:
        """The replica goes on receiving and stops applying."""
        if self.replica:
            self.replica.stop_applying()

    def resume_applier(self) -> None:
        if self.replica:
            self.replica.start_replication()

    def replica_lag_seconds(self) -> float | None:
        """How much older the replica's newest change is than the primary's, by their own time stamps. None without
        a replica."""
        if self.replica is None:
            return None
        newest = [
            server.execute("SELECT MAX(changed_us) FROM customers", database=self.schema)[0][0]
            for server in (self.replica, self.primary)
        ]
        return max(0.0, (int(newest[1]) - int(newest[0])) / 1e6) if newest[0] else 0.0


class Proxied(MysqlServers):
    """Applications write, and the invalidator looks for the primary, through HAProxy in TCP mode."""

    def __init__(self, pair: Pair, proxy: Haproxy) -> None:
        super().__init__(pair.primary.flavor, pair.primary, pair.replica)
        self._proxy = proxy

    @property
    def primary_url(self) -> str:
        return self.primary.url.replace(f":{self.primary.port}/", f":{self._proxy.port}/")

    def writing(self) -> dict[str, Any]:
        return super().writing() | {"port": self._proxy.port}


class Cluster(MysqlServers):
    """Of Galera or Group Replication, neither of which can delay a member: locks hold up what it applies."""

    def __init__(self, members: Sequence[DatabaseServer], stack: ExitStack) -> None:
        primary, self._member, _ = members
        super().__init__(primary.flavor, primary, self._member, shard={"adopt_promotions": True})
        self._stack, self._turn = stack, Lock()

    @property
    def delay_seconds(self) -> int:
        return LOCKED_SECONDS

    def delay(self) -> None:
        self._stack.enter_context(repeating(self._lag))

    def _lag(self) -> None:
        with self._turn, locked_tables(self._member):
            time.sleep(LOCKED_SECONDS)
        time.sleep(APPLIES_SECONDS)

    def pause_applier(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._turn)
            stack.enter_context(locked_tables(self._member))
            self._pause = stack.pop_all()

    def resume_applier(self) -> None:
        self._pause.close()


class VitessShard(MysqlServers):
    """The servers are those of the tablets."""

    def __init__(self, cluster: Vitess) -> None:
        (name,) = cluster.tablets
        self._cluster = cluster
        primary, self._tablet = cluster.tablets[name]
        gate = f"vitess://127.0.0.1:{cluster.vtgate.grpc_port}/{cluster.keyspace}?tablet_type=replica"
        super().__init__(
            "vitess",
            primary.mysql,
            self._tablet.mysql,
            primary.database,
            {"name": name, "lineage": f"{SCHEMA}/-", "vtgate": gate},
        )
        self._pause = ExitStack()

    @property
    def primary_url(self) -> str:
        return f"mysql://app@127.0.0.1:{self._cluster.vtgate.mysql_port}/{self._cluster.keyspace}"

    @property
    def replica_urls(self) -> list[str]:
        return []

    def writing(self) -> dict[str, Any]:
        return _settings(self._cluster.mysql_address(f"{self.shard['name']}@primary"))

    def reading(self) -> dict[str, Any]:
        return _settings(self._cluster.mysql_address(f"{self.shard['name']}@replica"))

    def delay(self) -> None:
        self._tablet.delay(DELAY_SECONDS[self.flavor])

    def pause_applier(self) -> None:
        """By a lock: vttablet takes a replica that does not replicate out of service."""
        self._pause.enter_context(locked_tables(self._tablet.mysql))

    def resume_applier(self) -> None:
        self._pause.close()


@contextmanager
def locked_tables(server: DatabaseServer) -> Iterator[None]:
    """Nothing is applied there during the block."""
    with closing(server.connect(user="root")) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        yield


@contextmanager
def open_databases(flavor: Flavor, *, has_replica: bool, topology: Topology | None = None) -> Iterator[MysqlServers]:
    """Started, with an empty database; stopped at the end."""
    if flavor == "vitess":
        from integration.servers.vitess import Vitess

        with Vitess(replicas=1, mysql_options=_OPTIONS) as cluster:
            yield VitessShard(cluster)
    elif topology == "galera":
        with galera_of_three() as cluster, ExitStack() as stack:
            yield Cluster(cluster.nodes, stack)
    elif topology == "group":
        with group_of_three() as group, ExitStack() as stack:
            for each in group.members:  # else a member that lags holds up the primary
                each.execute("SET GLOBAL group_replication_flow_control_mode = DISABLED")
            yield Cluster(group.members, stack)
    elif has_replica:
        settings = SEMISYNCHRONOUS[flavor] if topology == "semisync" else ()
        with (
            database_pair(flavor, primary_options=(*_OPTIONS, *settings), replica_options=settings) as pair,
            ExitStack() as stack,
        ):
            if topology == "haproxy":
                yield Proxied(pair, stack.enter_context(Haproxy([pair.primary, pair.replica])))
            else:
                yield MysqlServers(flavor, pair.primary, pair.replica)
    else:
        with make_database(flavor, server_id=1, options=_OPTIONS) as primary:
            primary.execute(f"CREATE DATABASE {SCHEMA}")
            yield MysqlServers(flavor, primary, None)


def _settings(address: ServerAddress) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "database": address.database,
        "autocommit": True,
        "connect_timeout": 5,
        "read_timeout": 10,
        "write_timeout": 10,
        "ssl_disabled": True,
    }
