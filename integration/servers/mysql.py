"""A private MySQL server, the real one, unpacked by ``integration/provision.py mysql`` beside the system.

It runs through the dynamic loader and the libraries it was unpacked with, so it needs none of the system's. An older
one takes its place on request.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from integration.provision import ProvisionFailed, find_mysql, find_older, mysql_command, older_command
from integration.servers.database import USERS, DatabaseServer
from integration.servers.process import ServerFailed

OLDER: Final = "FRESHNESS_OLDER_MYSQL"
"""An environment variable; if it is set, `MysqlServer` is the MySQL 8.0 of ``integration/provision.py older``."""


@dataclass(frozen=True, slots=True)
class Installation:
    """``directory``: the folder for a template. ``program``: mysqld with its paths. ``is_older``: older than 8.0.22,
    which renamed the statements of replication."""

    directory: Path
    program: list[str]
    is_older: bool

    @property
    def small_redo_log(self) -> str:
        """The default of 100 MB is what makes a copy of the data directory slow."""
        return "--innodb-log-file-size=4M" if self.is_older else "--innodb-redo-log-capacity=8M"

    def word(self, text: str) -> str:
        """A statement or an option in the words of this version."""
        if not self.is_older:
            return text
        text = text.replace("CHANGE REPLICATION SOURCE", "CHANGE MASTER")
        text = re.sub(r"\bREPLICA\b", "SLAVE", re.sub(r"\b(GET_)?SOURCE_", r"\1MASTER_", text))
        return re.sub(r"^--(log|skip)-replica-", r"--\1-slave-", text)


@functools.cache
def get_mysql() -> Installation:
    """The unpacked MySQL, looked for once; raises `ServerFailed` with the command to run if it is missing."""
    is_older = bool(os.environ.get(OLDER))
    try:
        if is_older:
            directory = find_older()
            return Installation(directory, older_command(directory), is_older)
        unpacked = find_mysql()
    except ProvisionFailed as error:
        step = "older" if is_older else "mysql"
        raise ServerFailed(str(error), hint=f"run: python3 integration/provision.py {step}") from error
    return Installation(unpacked.directory, mysql_command(unpacked), is_older)


class MysqlServer(DatabaseServer):
    flavor = "mysql"
    technology = "mysql"
    product = "MySQL"
    template = "template"
    """The folder that every data directory is a copy of."""
    users = USERS

    def _program(self) -> list[str]:
        as_user = ["--user=root"] if os.geteuid() == 0 else []
        return [*get_mysql().program, *as_user]

    def command(self) -> list[str]:
        mysql = get_mysql()
        return [mysql.word(option) for option in self._command(mysql.small_redo_log)]

    def _command(self, small_redo_log: str) -> list[str]:
        return [
            *self._program(),
            f"--datadir={self.data_directory}",
            # A server that starts removes temporary tables from its folder, whosever they are.
            f"--tmpdir={self.directory}",
            f"--socket={self.socket_path}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--mysqlx=OFF",
            # By default a folder under /var that only an installed package makes.
            "--secure-file-priv=",
            f"--server-id={self.server_id}",
            "--log-bin=bin",
            "--binlog-row-image=FULL",
            "--binlog-row-metadata=FULL",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--log-replica-updates=1",
            "--skip-name-resolve",
            "--skip-replica-start",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=32M",
            small_redo_log,
            "--innodb-flush-log-at-trx-commit=2",
            *self._options,
        ]

    def _template_directory(self) -> Path:
        return get_mysql().directory / self.template

    def prepare(self) -> None:
        # The template outlives this process, and another one may be making it.
        with (get_mysql().directory / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().prepare()

    def _make_template(self, directory: Path) -> None:
        users = directory.parent / "users.sql"
        # Statements of an init file must each be on a line of their own.
        users.write_text(self.users)
        initialize = [*self._program(), "--initialize-insecure", f"--datadir={directory}", f"--init-file={users}"]
        result = subprocess.run(
            [*initialize, get_mysql().small_redo_log], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise ServerFailed(f"mysqld --initialize-insecure failed:\n{result.stdout}{result.stderr}")
        # It names the server; every copy makes its own.
        (directory / "auto.cnf").unlink(missing_ok=True)

    def execute(self, sql: str, *arguments: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        return super().execute(get_mysql().word(sql), *arguments, database=database)

    def replicate_from(self, primary: DatabaseServer, *, delay_seconds: int = 0) -> None:
        self.stop_replication()
        self.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=%s, SOURCE_USER='app',"
            " SOURCE_PASSWORD='app', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_DELAY=%s,"
            " SOURCE_CONNECT_RETRY=1, SOURCE_RETRY_COUNT=86400",
            primary.port,
            delay_seconds,
        )
        self.start_replication()

    def stop_replication(self) -> None:
        self.execute("STOP REPLICA")

    def stop_applying(self) -> None:
        self.execute("STOP REPLICA SQL_THREAD")

    def start_replication(self) -> None:
        self.execute("START REPLICA")

    def add_source(self, name: str, primary: DatabaseServer) -> None:
        self.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=%s, SOURCE_USER='app',"
            " SOURCE_PASSWORD='app', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1,"
            " SOURCE_CONNECT_RETRY=1, SOURCE_RETRY_COUNT=86400 FOR CHANNEL %s",
            primary.port,
            name,
        )
        self.execute("START REPLICA FOR CHANNEL %s", name)

    def remove_sources(self) -> None:
        self.execute("STOP REPLICA")
        self.execute("RESET REPLICA ALL")

    def executed(self) -> str:
        [(position,)] = self.execute("SELECT @@global.gtid_executed")
        return str(position)

    def _wait_executed(self, position: str, timeout_seconds: float) -> bool:
        [(result,)] = self.execute("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", position, timeout_seconds)
        return bool(result == 0)

    def replication_status(self) -> dict[str, Any]:
        return self._find_status_row(get_mysql().word("SHOW REPLICA STATUS"))
