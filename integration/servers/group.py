"""Private MySQL servers as one group of Group Replication, with a single primary."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from integration.servers.database import SCHEMA
from integration.servers.mysql import MysqlServer
from integration.servers.process import find_free_port

BLOCK: Final = 10
"""Each member takes its numbers from blocks of its own, so a change of the primary leaves a hole."""

_MEMBERS: Final = "SELECT MEMBER_PORT, MEMBER_ROLE, MEMBER_STATE FROM performance_schema.replication_group_members"


@dataclass(frozen=True, slots=True)
class Group:
    members: list[MysqlServer]

    def join(self, member: MysqlServer) -> None:
        """Become a member. Returns when it is in the group; it may still fetch what it lacks."""
        member.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_USER='app', SOURCE_PASSWORD='app'"
            " FOR CHANNEL 'group_replication_recovery'"
        )
        member.execute("START GROUP_REPLICATION")

    def bootstrap(self) -> None:
        first, *others = self.members
        first.execute("SET GLOBAL group_replication_bootstrap_group = ON")
        self.join(first)
        first.execute("SET GLOBAL group_replication_bootstrap_group = OFF")
        first.execute(f"CREATE DATABASE {SCHEMA}")
        for each in others:
            self.join(each)
            each.wait_caught_up(first)

    def promote(self, member: MysqlServer) -> None:
        """A planned switchover."""
        [(identity,)] = member.execute("SELECT @@global.server_uuid")
        member.execute("SELECT group_replication_set_as_primary(%s)", identity)

    def find_primary(self, witness: MysqlServer, previous: MysqlServer | None = None) -> MysqlServer | None:
        """The primary as the witness sees it; None while it sees none but the previous one."""
        ports = {port for port, role, _ in witness.execute(_MEMBERS) if role == "PRIMARY"}
        found = [each for each in self.members if each.port in ports and each is not previous]
        return found[0] if len(found) == 1 else None

    def are_online(self) -> bool:
        """Whether each member sees all of them in the group, and none that still fetches what it lacks."""
        states = [[state for _, _, state in each.execute(_MEMBERS)] for each in self.members]
        return states == [["ONLINE"] * len(self.members)] * len(self.members)


@contextmanager
def group_of_three() -> Iterator[Group]:
    name = uuid.uuid4()
    ports = [find_free_port() for _ in range(3)]
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
    members = [
        MysqlServer(
            server_id=number,
            options=(
                "--plugin-load-add=group_replication.so",
                "--report-host=127.0.0.1",
                "--super-read-only=ON",
                f"--loose-group-replication-group-name={name}",
                f"--loose-group-replication-local-address=127.0.0.1:{port}",
                f"--loose-group-replication-group-seeds={seeds}",
                "--loose-group-replication-start-on-boot=OFF",
                "--loose-group-replication-recovery-get-public-key=ON",
                f"--loose-group-replication-gtid-assignment-block-size={BLOCK}",
                # One that is killed is out after the five seconds that it takes to suspect it.
                "--loose-group-replication-member-expel-timeout=0",
            ),
        )
        for number, port in enumerate(ports, 1)
    ]
    with ExitStack() as stack:
        for each in members:
            stack.callback(each.stop)
            each.launch()
        for each in members:
            each.wait_ready()
        group = Group(members)
        group.bootstrap()
        yield group
