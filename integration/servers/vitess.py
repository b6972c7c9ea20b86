"""A private Vitess, the real one, built by ``integration/provision.py vitess``.

`Vitess` is a cluster: etcd, a vttablet and a MySQL of ours for each tablet, a vtgate. Replication, reparents and
reshards are Vitess's own, asked for with vtctldclient. The binary logs are at hand beside the streams. `Vtcombo` is a
whole Vitess in one process before one MySQL, for what needs no second tablet.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.database.connection import Connection, connect
from freshness.errors import SourceUnavailable
from integration.harness import wait_until
from integration.provision import ProvisionFailed, find_vitess, vitess_version
from integration.servers.database import USERS
from integration.servers.mysql import MysqlServer
from integration.servers.process import ServerFailed, ServerProcess, find_free_port, get_program

CELL: Final = "zone1"
VERSION: Final = vitess_version()
CONTROL_SECONDS: Final = 120.0
FAIL_OVER_SECONDS: Final = 5
"""How long vtctld tries to reach each tablet at an emergency, in the background too."""

VITESS_USERS: Final = (
    USERS
    + "".join(
        f"CREATE USER {user}@localhost;\nGRANT ALL ON *.* TO {user}@localhost WITH GRANT OPTION;\n"
        for user in ("vt_dba", "vt_app", "vt_allprivs", "vt_appdebug", "vt_filtered", "vt_monitoring")
    )
    + "CREATE USER vt_repl@'%';\nGRANT REPLICATION SLAVE ON *.* TO vt_repl@'%';\n"
)
"""The names are vttablet's defaults. They have no passwords and log in from this machine alone."""


def get_binary(name: str) -> str:
    """Raises `ServerFailed` with the command that builds it."""
    try:
        return str(find_vitess() / name)
    except ProvisionFailed as error:
        raise ServerFailed(str(error), hint="run: make vitess") from error


def _program(name: str, directory: Path) -> list[str]:
    """A server of Vitess with its data in ``directory``. None of them runs as root."""
    as_another = ["unshare", "--user", "--map-user=1000", "--"] if os.geteuid() == 0 else []
    return [*as_another, "/usr/bin/env", f"VTDATAROOT={directory}", get_binary(name)]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError:
        return False


class Etcd(ServerProcess):
    technology = "etcd"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self._peer_port = find_free_port()

    def command(self) -> list[str]:
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self._peer_port}"
        return [
            *(get_program("etcd"), "--name", "one", "--data-dir", str(self.directory / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"one={peer}"),
        ]

    def is_ready(self) -> bool:
        return _answers(f"http://{self.address}/health")


class Vtctld(ServerProcess):
    """Carries out what vtctldclient asks for."""

    technology = "vtctld"

    def __init__(self, topology: Sequence[str]) -> None:
        super().__init__()
        self._topology = tuple(topology)

    def prepare(self) -> None:
        self.grpc_port = find_free_port()

    def command(self) -> list[str]:
        return [
            *_program("vtctld", self.directory),
            *self._topology,
            *("--cell", CELL, "--port", str(self.port), "--grpc-port", str(self.grpc_port)),
            *("--bind-address", "127.0.0.1", "--grpc-bind-address", "127.0.0.1"),
            *("--service-map", "grpc-vtctl,grpc-vtctld", "--log-format", "text"),
        ]

    def is_ready(self) -> bool:
        return _answers(f"http://127.0.0.1:{self.port}/debug/health")


class TabletMysql(MysqlServer):
    """As vttablet wants it: its users, and a history that is empty."""

    template = "template-vitess"
    users = VITESS_USERS

    def __init__(self, server_id: int, options: Sequence[str] = ()) -> None:
        wanted = ("--performance-schema=ON", "--relay-log-recovery=1")
        super().__init__(server_id=server_id, options=(*wanted, *options))


class Tablet(ServerProcess):
    """A vttablet and its MySQL, which `kill` leaves alive."""

    technology = "vttablet"

    def __init__(
        self,
        topology: Sequence[str],
        uid: int,
        keyspace: str,
        shard: str,
        mysql_options: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.uid = uid
        self.shard = shard
        self.mysql = TabletMysql(uid, mysql_options)
        self._keyspace = keyspace
        self._topology = tuple(topology)
        self._options = tuple(options)

    @property
    def alias(self) -> str:
        return f"{CELL}-{self.uid:010d}"

    @property
    def database(self) -> str:
        return f"vt_{self._keyspace}"

    def prepare(self) -> None:
        self._grpc_port = find_free_port()
        self.mysql.start()

    def command(self) -> list[str]:
        return [
            *_program("vttablet", self.directory),
            *self._topology,
            *("--tablet-path", self.alias, "--tablet-hostname", "127.0.0.1"),
            *("--init-keyspace", self._keyspace, "--init-shard", self.shard, "--init-tablet-type", "replica"),
            *("--db-socket", str(self.mysql.socket_path), "--db-charset", "utf8mb4"),
            *("--port", str(self.port), "--grpc-port", str(self._grpc_port)),
            *("--bind-address", "127.0.0.1", "--grpc-bind-address", "127.0.0.1"),
            *("--service-map", "grpc-queryservice,grpc-tabletmanager,grpc-updatestream"),
            *("--health-check-interval", "1s", "--queryserver-config-schema-reload-time", "5s"),
            *("--log-format", "text"),
            *self._options,
        ]

    def is_ready(self) -> bool:
        return _answers(f"http://127.0.0.1:{self.port}/debug/vars")

    def delay(self, seconds: int) -> None:
        """Its replica thread applies late from now on, also under another primary."""
        self.mysql.execute("STOP REPLICA SQL_THREAD")
        self.mysql.execute(f"CHANGE REPLICATION SOURCE TO SOURCE_DELAY = {seconds}")
        self.mysql.execute("START REPLICA SQL_THREAD")

    def stop(self) -> None:
        super().stop()
        self.mysql.stop()


class Vtgate(ServerProcess):
    """The real one; `integration.servers.vtgate` has the stand-in."""

    technology = "vtgate"
    product = "Vitess"
    version = VERSION

    def __init__(self, topology: Sequence[str], options: Sequence[str] = ()) -> None:
        super().__init__()
        self._topology = tuple(topology)
        self._options = tuple(options)

    def prepare(self) -> None:
        self.grpc_port, self.mysql_port = find_free_port(), find_free_port()

    def command(self) -> list[str]:
        return [
            *_program("vtgate", self.directory),
            *self._topology,
            *("--cell", CELL, "--cells-to-watch", CELL, "--tablet-types-to-wait", "PRIMARY,REPLICA"),
            *("--port", str(self.port), "--grpc-port", str(self.grpc_port)),
            *("--mysql-server-port", str(self.mysql_port), "--mysql-server-bind-address", "127.0.0.1"),
            *("--bind-address", "127.0.0.1", "--grpc-bind-address", "127.0.0.1"),
            *("--service-map", "grpc-vtgateservice", "--mysql-auth-server-impl", "none"),
            *("--tablet-refresh-interval", "1s", "--log-format", "text", *self._options),
        ]

    def is_ready(self) -> bool:
        return _answers(f"http://127.0.0.1:{self.port}/debug/health")


class Vtcombo(ServerProcess):
    """All of Vitess in one process before one MySQL: the keyspaces ``shop``, of one shard, and ``wide``, of two.

    A replica is the primary here, and all shards have one history.
    """

    technology = "vtcombo"
    product = "Vitess"
    version = VERSION
    keyspace = "shop"

    def prepare(self) -> None:
        self.grpc_port, self._mysql_port = find_free_port(), find_free_port()
        self.mysql = TabletMysql(1)
        self.mysql.start()
        for shard in ("shop_0", "wide_-80", "wide_80-"):
            self.mysql.execute(f"CREATE DATABASE `vt_{shard}`")
        (self.directory / "schema").mkdir()

    def command(self) -> list[str]:
        socket = str(self.mysql.socket_path)
        users = [f"--db-{user}-user" for user in ("app", "dba", "allprivs", "appdebug", "filtered")]
        return [
            *_program("vtcombo", self.directory),
            *("--port", str(self.port), "--grpc-port", str(self.grpc_port)),
            *("--bind-address", "127.0.0.1", "--grpc-bind-address", "127.0.0.1"),
            *("--mysql-server-port", str(self._mysql_port), "--mysql-server-bind-address", "127.0.0.1"),
            *("--mysql-auth-server-impl", "none", "--dbddl-plugin", "vttest"),
            *("--service-map", "grpc-vtgateservice,grpc-vtctl,grpc-vtctld"),
            *("--db-socket", socket, "--db-charset", "utf8mb4", "--mycnf-socket-file", socket),
            *("--mycnf-server-id", "1", "--tablet-hostname", "localhost", "--log-format", "text"),
            *("--schema-dir", str(self.directory / "schema")),
            *(option for user in users for option in (user, "vt_dba")),
            "--proto-topo",
            'cells:"zone1" keyspaces:{name:"shop" shards:{name:"0"} replica_count:2}'
            ' keyspaces:{name:"wide" shards:{name:"-80"} shards:{name:"80-"} replica_count:2}',
        ]

    def is_ready(self) -> bool:
        return _answers(f"http://127.0.0.1:{self.port}/debug/vars")

    def stop(self) -> None:
        super().stop()
        self.mysql.stop()

    def address(self, keyspace: str = "shop", **parts: Any) -> VtgateAddress:
        """The gRPC side."""
        return VtgateAddress("127.0.0.1", keyspace, self.grpc_port, **parts)

    def mysql_address(self, target: str) -> ServerAddress:
        """The MySQL side; ``target``: a keyspace, or one of its shards."""
        return ServerAddress("127.0.0.1", self._mysql_port, "root", "", target)


class Vitess:
    """One keyspace on a cluster of its own. ``tablets``: by shard, each with a primary (elected first) and replicas.

    ``vschema``: the keyspace's, as vtctldclient takes it; empty for one shard.
    """

    def __init__(
        self,
        shards: Sequence[str] = ("0",),
        *,
        keyspace: str = "shop",
        replicas: int = 1,
        vschema: Mapping[str, Any] | None = None,
        mysql_options: Sequence[str] = (),
        vtgate_options: Sequence[str] = (),
        vttablet_options: Sequence[str] = (),
    ) -> None:
        self.keyspace = keyspace
        self.tablets: dict[str, list[Tablet]] = {}
        self._first_shards = tuple(shards)
        self._replicas = replicas
        self._vschema = vschema
        self._mysql_options = tuple(mysql_options)
        self._vtgate_options = tuple(vtgate_options)
        self._vttablet_options = tuple(vttablet_options)
        self._uid = 100
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.etcd = stack.enter_context(Etcd())
            self.topology = (
                *("--topo-implementation", "etcd2", "--topo-global-server-address", self.etcd.address),
                *("--topo-global-root", "/vitess/global"),
            )
            cell = ("--root", f"/vitess/{CELL}", "--server-address", self.etcd.address, CELL)
            self._control("AddCellInfo", *cell, server="internal", options=self.topology)
            self._vtctld = stack.enter_context(Vtctld(self.topology))
            self.control("CreateKeyspace", "--durability-policy=none", self.keyspace)
            stack.callback(self._stop_tablets)
            self.add_shards(self._first_shards)
            if self._vschema is not None:
                self.control("ApplyVSchema", "--vschema", json.dumps(self._vschema), self.keyspace)
            self.vtgate = stack.enter_context(Vtgate(self.topology, self._vtgate_options))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stop_tablets(self) -> None:
        for tablets in self.tablets.values():
            for tablet in tablets:
                tablet.stop()

    def control(self, *arguments: str) -> str:
        """What vtctldclient prints. Raises `ServerFailed` with its words."""
        return self._control(*arguments, server=f"127.0.0.1:{self._vtctld.grpc_port}")

    def _control(self, *arguments: str, server: str, options: Sequence[str] = ()) -> str:
        command = [get_binary("vtctldclient"), "--server", server, *options, *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=CONTROL_SECONDS, cwd=self.etcd.directory
        )
        if result.returncode != 0:
            words = "\n".join((result.stdout + result.stderr).splitlines()[-15:])
            raise ServerFailed(f"vtctldclient {' '.join(arguments)}: {words}")
        return result.stdout

    def add_shards(self, shards: Sequence[str]) -> None:
        """Start their tablets and elect the first of each."""
        for shard in shards:
            self.tablets[shard] = []
            for _ in range(1 + self._replicas):
                tablet = Tablet(
                    *(self.topology, self._uid, self.keyspace, shard, self._mysql_options),
                    options=self._vttablet_options,
                )
                self._uid += 1
                self.tablets[shard].append(tablet)
                tablet.launch()
        for shard in shards:
            for tablet in self.tablets[shard]:
                tablet.wait_ready()
            self.reparent(shard, self.tablets[shard][0])

    def add_keyspace(self, name: str) -> None:
        """Another one, of one shard with a primary, for MoveTables."""
        self.control("CreateKeyspace", "--durability-policy=none", name)
        tablet = Tablet(self.topology, self._uid, name, "0", self._mysql_options)
        self._uid += 1
        self._stack.callback(tablet.stop)
        tablet.launch()
        tablet.wait_ready()
        self.control("PlannedReparentShard", f"{name}/0", "--new-primary", tablet.alias)

    def take_shards(self) -> list[Tablet]:
        """The tablets of all shards, which are the caller's to stop: shards of the same names may follow."""
        taken = [tablet for tablets in self.tablets.values() for tablet in tablets]
        for tablet in taken:
            self._stack.callback(tablet.stop)
        self.tablets = {}
        return taken

    def reparent(self, shard: str, tablet: Tablet) -> None:
        """Make it the primary of its shard: PlannedReparentShard."""
        self.control("PlannedReparentShard", f"{self.keyspace}/{shard}", "--new-primary", tablet.alias)

    def fail_over(self, shard: str, tablet: Tablet) -> None:
        """Make it the primary of its shard whose primary is dead: EmergencyReparentShard.

        Returns when vtctld no longer tries to make the dead one its replica: one that is back by then, and is elected
        again, would be demoted.
        """
        self.control(
            *("EmergencyReparentShard", f"{self.keyspace}/{shard}", "--new-primary", tablet.alias),
            *("--wait-replicas-timeout", f"{FAIL_OVER_SECONDS}s"),
        )
        time.sleep(FAIL_OVER_SECONDS)

    def primary(self, shard: str) -> Tablet:
        """The one that the topology names."""
        found = json.loads(self.control("GetShard", f"{self.keyspace}/{shard}"))["shard"]["primary_alias"]
        return next(tablet for tablet in self.tablets[shard] if tablet.uid == found["uid"])

    def replicas(self, shard: str) -> list[Tablet]:
        primary = self.primary(shard)
        return [tablet for tablet in self.tablets[shard] if tablet is not primary]

    def wait_caught_up(self, shard: str) -> None:
        """Return when all replicas of the shard have what its primary has executed by now."""
        primary = self.primary(shard).mysql
        for tablet in self.replicas(shard):
            tablet.mysql.wait_caught_up(primary)

    def wait_copied(self, workflow: str, *, kind: str = "Reshard", keyspace: str = "") -> None:
        """Return when all streams of a workflow into the keyspace have copied the tables, and follow."""
        job = (kind, "--workflow", workflow, "--target-keyspace", keyspace or self.keyspace)

        def has_copied() -> bool:
            answer = json.loads(self.control(*job, "show", "--format", "json"))
            shards = [shard for each in answer["workflows"] for shard in each["shard_streams"].values()]
            streams = [stream for shard in shards for stream in shard["streams"]]
            return bool(streams) and all(
                stream["state"] == "Running" and not stream.get("copy_states") for stream in streams
            )

        wait_until(has_copied, f"{workflow} has copied", seconds=CONTROL_SECONDS)

    def address(self, **parts: Any) -> VtgateAddress:
        """vtgate's gRPC side."""
        return VtgateAddress("127.0.0.1", self.keyspace, self.vtgate.grpc_port, **parts)

    def mysql_address(self, shard: str = "", *, keyspace: str = "") -> ServerAddress:
        """vtgate's MySQL side. ``shard``: sessions are of this shard's primary, or of ``SHARD@TYPE``."""
        target = f"{keyspace or self.keyspace}:{shard}" if shard else keyspace or self.keyspace
        target += "@primary" if shard and "@" not in shard else ""
        return ServerAddress("127.0.0.1", self.vtgate.mysql_port, "root", "", target)

    def connect(self, shard: str = "", *, keyspace: str = "") -> Connection:
        """A session of vtgate's MySQL side, once a tablet serves it: none does for a moment after an election or a
        switch of traffic, and vtgate then refuses at once."""
        address = self.mysql_address(shard, keyspace=keyspace)
        refused = ""

        def open_session() -> Connection | None:
            nonlocal refused
            try:
                return connect(address, read_timeout_seconds=CONTROL_SECONDS)
            except SourceUnavailable as error:
                refused = str(error)
                return None

        return wait_until(open_session, f"a tablet serves {address.database}", lambda: refused)
