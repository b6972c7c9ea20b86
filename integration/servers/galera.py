"""Private MariaDB servers as one cluster of Galera."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import pymysql

from integration.servers.database import SCHEMA
from integration.servers.mariadb import MariadbServer
from integration.servers.process import find_free_port

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
            return super().is_ready() and self.status("wsrep_ready") == "ON"
        except pymysql.Error:  # it refuses statements while it joins
            return False

    def status(self, name: str) -> str:
        return "".join(str(value) for _, value in self.execute("SHOW GLOBAL STATUS LIKE %s", name))


@dataclass(frozen=True, slots=True)
class GaleraCluster:
    nodes: list[GaleraNode]


@contextmanager
def galera_of_three(*options: str) -> Iterator[GaleraCluster]:
    nodes = [GaleraNode(local_domain=10 + number, options=options) for number in range(3)]
    with ExitStack() as stack:
        for number, each in enumerate(nodes):
            stack.callback(each.stop)
            each.join(nodes[:number])
            each.start()
        nodes[0].execute(f"CREATE DATABASE {SCHEMA}")
        for each in nodes:
            each.join([other for other in nodes if other is not each])
        yield GaleraCluster(nodes)
