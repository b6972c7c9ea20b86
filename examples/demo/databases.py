"""The demo's database: a primary, and a replica that lags on purpose, or none.

`MysqlServers` are reached as they are. `VitessShard` is a real Vitess of one shard: writers and readers go
through its vtgate; only the demo itself, and the consumer of the binary log, reach the servers behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from freshness.config.keyspace import GtidFlavor
from freshness.config.server import ServerAddress
from integration.servers import DatabaseServer, database_pair
from integration.servers.database import SCHEMA, make_database

if TYPE_CHECKING:  # needed only with a real Vitess
    from integration.servers.vitess import Vitess

Flavor: TypeAlias = Literal["mariadb", "mysql", "vitess"]

DELAY_SECONDS: Final[dict[Flavor, int]] = {"mariadb": 2, "mysql": 1, "vitess": 1}
"""What is set as the replica's delay: either makes it 1 to 2 s late, since whole seconds are counted, by MariaDB
from the start of the commit's second, by MySQL to its end."""

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
        self._lock: Any = None

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
        self._lock = self._tablet.mysql.connect(user="root")
        with self._lock.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")

    def resume_applier(self) -> None:
        self._lock.close()


@contextmanager
def open_databases(flavor: Flavor, *, has_replica: bool) -> Iterator[MysqlServers]:
    """Started, with an empty database; stopped at the end."""
    if flavor == "vitess":
        from integration.servers.vitess import Vitess

        with Vitess(replicas=1, mysql_options=_OPTIONS) as cluster:
            yield VitessShard(cluster)
    elif has_replica:
        with database_pair(flavor, primary_options=_OPTIONS) as pair:
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
