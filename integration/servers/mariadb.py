"""A private MariaDB server from the system's packages, set up as the invalidator wants it: row format, full
images, full metadata, strict GTIDs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.servers.database import USERS, DatabaseServer
from integration.servers.process import ServerFailed, get_program, ready_servers, run_directory


def _as_user() -> list[str]:
    # mariadbd refuses to run as root unless told to; the data are private and the port is on loopback.
    return ["--user=root"] if os.geteuid() == 0 else []


class MariadbServer(DatabaseServer):
    flavor = "mariadb"
    technology = "mariadb"
    product = "MariaDB"

    def __init__(
        self,
        directory: Path | None = None,
        *,
        server_id: int = 1,
        options: Sequence[str] = (),
        gtid_strict_mode: bool = True,
    ) -> None:
        super().__init__(directory, server_id=server_id, options=options)
        self._gtid_strict_mode = gtid_strict_mode

    def command(self) -> list[str]:
        return [
            get_program("mariadbd"),
            "--no-defaults",
            *_as_user(),
            f"--datadir={self.data_directory}",
            # A server that starts removes temporary tables from its folder, whosever they are.
            f"--tmpdir={self.directory}",
            f"--socket={self.socket_path}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--server-id={self.server_id}",
            "--log-bin=bin",
            "--binlog-format=ROW",
            "--binlog-row-image=FULL",
            "--binlog-row-metadata=FULL",
            "--log-slave-updates=1",
            f"--gtid-strict-mode={int(self._gtid_strict_mode)}",
            "--skip-name-resolve",
            "--skip-slave-start",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=4M",
            "--innodb-flush-log-at-trx-commit=2",
            *self._options,
        ]

    def _template_directory(self) -> Path:
        return run_directory() / "template-mariadb"

    def _make_template(self, directory: Path) -> None:
        users = run_directory() / "users.sql"
        # The bootstrap server runs without the grant tables until they are loaded.
        users.write_text(f"FLUSH PRIVILEGES;\n{USERS}")
        install = [get_program("mariadb-install-db"), "--no-defaults", "--auth-root-authentication-method=normal"]
        install += ["--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=4M", *_as_user()]
        install += [f"--extra-file={users}", f"--datadir={directory}"]
        temporary = run_directory() / "template-tmp"
        temporary.mkdir(exist_ok=True)
        try:
            environment = {**os.environ, "TMPDIR": str(temporary)}
            subprocess.run(install, check=True, capture_output=True, text=True, env=environment)
        except subprocess.CalledProcessError as error:
            raise ServerFailed(f"mariadb-install-db failed:\n{error.stdout}{error.stderr}") from error

    def replicate_from(self, primary: DatabaseServer, *, delay_seconds: int = 0) -> None:
        self.stop_replication()
        self.execute(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%s, MASTER_USER='app',"
            " MASTER_PASSWORD='app', MASTER_USE_GTID=slave_pos, MASTER_DELAY=%s, MASTER_CONNECT_RETRY=1",
            primary.port,
            delay_seconds,
        )
        self.start_replication()

    def stop_replication(self) -> None:
        self.execute("STOP SLAVE")

    def stop_applying(self) -> None:
        self.execute("STOP SLAVE SQL_THREAD")

    def start_replication(self) -> None:
        self.execute("START SLAVE")

    def add_source(self, name: str, primary: DatabaseServer) -> None:
        self.execute(
            "CHANGE MASTER %s TO MASTER_HOST='127.0.0.1', MASTER_PORT=%s, MASTER_USER='app',"
            " MASTER_PASSWORD='app', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
            name,
            primary.port,
        )
        self.execute("START SLAVE %s", name)

    def remove_sources(self) -> None:
        self.execute("STOP ALL SLAVES")
        for name, *_ in self.execute("SHOW ALL SLAVES STATUS"):
            self.execute("RESET SLAVE %s ALL", name)

    def executed(self) -> str:
        [(position,)] = self.execute("SELECT @@global.gtid_binlog_pos")
        return str(position)

    def _wait_executed(self, position: str, timeout_seconds: float) -> bool:
        [(result,)] = self.execute("SELECT MASTER_GTID_WAIT(%s, %s)", position, timeout_seconds)
        return bool(result == 0)

    def replication_status(self) -> dict[str, Any]:
        return self._find_status_row("SHOW ALL SLAVES STATUS")

    @contextmanager
    def commits_waiting(self) -> Iterator[None]:
        """In here a commit is logged, and waits for a semi-synchronous replica before it is shown."""
        for name, value in (("wait_point", "'AFTER_SYNC'"), ("wait_no_slave", "ON"), ("timeout", "3600000")):
            self.execute(f"SET GLOBAL rpl_semi_sync_master_{name} = {value}")
        ready_servers.add(("semi-synchronous replication", f"{self.product} {self.version}"))
        with self.setting("rpl_semi_sync_master_enabled", "ON"):
            yield
