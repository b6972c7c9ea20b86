"""Private MariaDB servers as one cluster of Galera.

Debian's mariadb-server depends on all that it takes: galera-4, and rsync and lsof for state transfers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import pymysql

from freshness.position import parse_position
from integration.servers.database import SCHEMA
from integration.servers.mariadb import MariadbServer
from integration.servers.process import POLL_SECONDS, find_free_port

DOMAIN: Final = 7
"""Of all commits of the cluster, whichever node took them."""

_RSYNC_OF_ROOT: Final = """\
rsync() {
  if [ "$1" = --daemon ]; then shift; exec /usr/bin/rsync --daemon --dparam=uid=0 --dparam=gid=0 "$@"; fi
  command rsync "$@"
}
"""
"""For the script of state transfer, which runs rsync as a daemon: that of root would write as nobody, and cannot."""


class GaleraNode(MariadbServer):
    """All nodes have one server id, since a GTID is the same on each of them."""

    technology = "galera"

    def __init__(self, *, local_domain: int, options: Sequence[str] = ()) -> None:
        super().__init__(server_id=1)
        self.group_port, self._transfer_port = find_free_port(), find_free_port()
        receiver = find_free_port()
        provider = f"base_host=127.0.0.1;base_port={self.group_port}"
        provider += f";gmcast.listen_addr=tcp://127.0.0.1:{self.group_port};ist.recv_addr=127.0.0.1:{receiver}"
        provider += ";gcache.size=16M"
        self._cluster_address = "gcomm://"
        self.add_options(
            "--wsrep-on=ON",
            "--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
            f"--wsrep-provider-options={provider}",
            "--wsrep-gtid-mode=ON",
            f"--wsrep-gtid-domain-id={DOMAIN}",
            f"--gtid-domain-id={local_domain}",
            "--wsrep-node-address=127.0.0.1",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self._transfer_port}",
            "--innodb-autoinc-lock-mode=2",
            *options,
        )

    def command(self) -> list[str]:
        command = [*super().command(), f"--wsrep-cluster-address={self._cluster_address}"]
        if os.geteuid() != 0:
            return command
        functions = self.directory / "rsync.bash"
        functions.write_text(_RSYNC_OF_ROOT)
        return ["env", f"BASH_ENV={functions}", *command]

    def join(self, members: Sequence[GaleraNode]) -> None:
        """Become a member of the cluster of these nodes at the next start; of none, its first node."""
        self._cluster_address = "gcomm://" + ",".join(f"127.0.0.1:{each.group_port}" for each in members)

    def is_ready(self) -> bool:
        try:
            states = self.status("wsrep_ready"), self.status("wsrep_local_state_comment")
            return super().is_ready() and states == ("ON", "Synced")
        except pymysql.Error:  # it refuses statements while it joins
            return False

    def _wait_executed(self, position: str, timeout_seconds: float) -> bool:
        """What it has in its log; `MASTER_GTID_WAIT` waits for replication alone."""
        wanted, deadline = parse_position("mariadb", position), time.monotonic() + timeout_seconds
        while not parse_position("mariadb", self.executed()).contains(wanted) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return time.monotonic() < deadline

    def status(self, name: str) -> str:
        return "".join(str(value) for _, value in self.execute("SHOW GLOBAL STATUS LIKE %s", name))


@dataclass(frozen=True, slots=True)
class GaleraCluster:
    nodes: list[GaleraNode]

    def make_primary(self, primary: GaleraNode) -> None:
        """The others are read-only, as all nodes are when they start."""
        for each in self.nodes:
            if each is not primary:
                each.set_read_only(1)
        primary.set_read_only(0)
        self.nodes.sort(key=lambda each: each is not primary)


@contextmanager
def galera_of_three() -> Iterator[GaleraCluster]:
    """The first node is the primary, with the empty schema ``shop``."""
    options = "--read-only=1", "--wsrep-slave-threads=4"
    nodes = [GaleraNode(local_domain=10 + number, options=options) for number in range(3)]
    with ExitStack() as stack:
        for number, each in enumerate(nodes):
            stack.callback(each.stop)
            each.join(nodes[:number])
            each.start()
        cluster = GaleraCluster(nodes)
        with nodes[0].connect(user="root") as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {SCHEMA}")
            # Else app, as whom heartbeats are written, is above read_only.
            cursor.execute("REVOKE READ_ONLY ADMIN ON *.* FROM app@'%'")
        cluster.make_primary(nodes[0])
        for each in nodes:
            each.join([other for other in nodes if other is not each])
            each.wait_ready()  # a donor is in step again only after its joiner
            each.wait_caught_up(nodes[0])
        yield cluster
