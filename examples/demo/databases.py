"""The demo's database: a primary, and a replica that lags on purpose.

`MysqlPair` is two servers, reached as they are. `VitessShard` is a real Vitess of one shard: writers and readers go
through its vtgate; only the demo itself, and the consumer of the binary log, reach the servers behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from freshness.config.keyspace import GtidFlavor
from freshness.config.server import ServerAddress
from integration.servers import DatabaseServer, Pair, database_pair
from integration.servers.database import SCHEMA

if TYPE_CHECKING:  # needed only with a real Vitess
    from integration.servers.vitess import Vitess

Flavor: TypeAlias = Literal["mariadb", "mysql", "vitess"]

DELAY_SECONDS: Final[dict[Flavor, int]] = {"mariadb": 2, "mysql": 1, "vitess": 1}
"""What is set as the replica's delay: either makes it 1 to 2 s late, since whole seconds are counted, by MariaDB
from the start of the commit's second, by MySQL to its end."""

_OPTIONS: Final = ("--sync-binlog=1",)


@dataclass(slots=True)
class MysqlPair:
    """``pair``: the servers, with the database ``schema``. ``shard``: keys of that section of freshness.toml."""

    flavor: Flavor
    pair: Pair
    schema: str = SCHEMA
    shard: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gtid_flavor(self) -> GtidFlavor:
        return "mariadb" if self.flavor == "mariadb" else "mysql"

    @property
    def primary_url(self) -> str:
        return self.pair.primary.url

    @property
    def replica_urls(self) -> list[str]:
        return [self.pair.replica.url]

    def writing(self) -> dict[str, Any]:
        """What pymysql needs to connect where applications write."""
        return self.server_settings(self.pair.primary)

    def reading(self) -> dict[str, Any]:
        """The same for the server that they read: the replica."""
        return self.server_settings(self.pair.replica)

    def server_settings(self, server: DatabaseServer) -> dict[str, Any]:
        """The same for one of the servers itself."""
        return _settings(ServerAddress("127.0.0.1", server.port, "app", "app", self.schema))

    def delay(self) -> None:
        """The replica lags from now on."""
        self.pair.replica.replicate_from(self.pair.primary, delay_seconds=DELAY_SECONDS[self.flavor])

    def pause_applier(self) -> None:
        """The replica goes on receiving and stops applying."""
        self.pair.replica.execute(
            "STOP SLAVE SQL_THREAD" if self.flavor == "mariadb" else "STOP REPLICA SQL_THREAD"
        )

    def resume_applier(self) -> None:
        self.pair.replica.start_replication()

    def replica_lag_seconds(self) -> float:
        """How much older the replica's newest change is than the primary's, by their own time stamps."""
        newest = [
            server.execute("SELECT MAX(changed_us) FROM customers", database=self.schema)[0][0]
            for server in (self.pair.replica, self.pair.primary)
        ]
        return max(0.0, (int(newest[1]) - int(newest[0])) / 1e6) if newest[0] else 0.0


class VitessShard(MysqlPair):
    """The pair is that of the tablets."""

    def __init__(self, cluster: Vitess) -> None:
        (name,) = cluster.tablets
        self._cluster = cluster
        self._primary, self._replica = cluster.tablets[name]
        gate = f"vitess://127.0.0.1:{cluster.vtgate.grpc_port}/{cluster.keyspace}?tablet_type=replica"
        super().__init__(
            "vitess",
            Pair(self._primary.mysql, self._replica.mysql),
            self._primary.database,
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
        self._replica.delay(DELAY_SECONDS[self.flavor])

    def pause_applier(self) -> None:
        """By a lock: vttablet takes a replica that does not replicate out of service."""
        self._lock = self.pair.replica.connect(user="root")
        with self._lock.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")

    def resume_applier(self) -> None:
        self._lock.close()


@contextmanager
def open_databases(flavor: Flavor) -> Iterator[MysqlPair]:
    """Started, with an empty database; stopped at the end."""
    if flavor == "vitess":
        from integration.servers.vitess import Vitess

        with Vitess(replicas=1, mysql_options=_OPTIONS) as cluster:
            yield VitessShard(cluster)
    else:
        with database_pair(flavor, primary_options=_OPTIONS) as pair:
            yield MysqlPair(flavor, pair)


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
