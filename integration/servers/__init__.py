"""Private database and cache servers on free loopback ports, for tests, the demo and the benchmarks.

They live under a temporary directory, are stopped with SIGKILL, and do not outlive the process that started
them, even if that process is killed. Never the system's own instances, never a fixed port.
"""

from integration.servers.database import DatabaseServer, Flavor, Pair, database_pair
from integration.servers.mariadb import MariadbServer
from integration.servers.memcached import Memcached
from integration.servers.mysql import MysqlServer
from integration.servers.process import ServerFailed, ServerProcess
from integration.servers.redis import Redis

__all__ = [
    "DatabaseServer",
    "Flavor",
    "MariadbServer",
    "Memcached",
    "MysqlServer",
    "Pair",
    "Redis",
    "ServerFailed",
    "ServerProcess",
    "database_pair",
]
