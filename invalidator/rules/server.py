"""A database server as the rules see it: the facts that were asked of it, gathered in one look.

A fact that the account may not ask for is None, and no rule concludes anything from that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pymysql

from freshness.config.server import ServerAddress
from freshness.database.cluster import is_galera
from freshness.database.connection import Connection, identity_of, read_rows, read_variables
from invalidator.replica.server import ServerState, find_log_filters, read_heartbeats, read_replication, read_state
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule
from invalidator.rules.service import AMAZON, ServiceName, find_service, read_retention, set_variable

Answer = TypeVar("Answer")

_SEMISYNCHRONOUS: Final = "SHOW GLOBAL STATUS LIKE 'rpl_semi_sync_%_status'"
"""Whether commits wait for a replica now: OFF after one did so in vain."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """``variables``: global variables by lower-case name, and whether semi-synchronous replication is in force; one
    that the server does not have reads as "".
    ``retention_hours``: time for which Amazon keeps binary logs, in hours, 0 for as briefly as it can; None
    elsewhere. ``grants``: lines of SHOW GRANTS. ``replication``: a row for each server that it follows.
    ``log_filters``: filters of its own log. ``topologies``: number in force by namespace, None without a heartbeat
    table. ``clock_ahead_seconds``: certain lead of its clock over this machine's, in seconds, below 0 if behind.
    """

    address: ServerAddress
    flavor: str
    variables: Mapping[str, str]
    retention_hours: int | None = None
    grants: tuple[str, ...] = ()
    replication: tuple[Mapping[str, str], ...] | None = None
    log_filters: tuple[str, ...] | None = None
    state: ServerState | None = None
    topologies: Mapping[str, int] | None = None
    clock_ahead_seconds: float = 0.0

    @classmethod
    def look(cls, connection: Connection, address: ServerAddress, flavor: str) -> ServerFacts:
        """Raises what pymysql raises."""
        variables = read_variables(connection)
        variables.update({str(name).lower(): str(value) for name, value in read_rows(connection, _SEMISYNCHRONOUS)})
        facts = cls(address, flavor, variables)
        if facts.is_mariadb != (flavor == "mariadb"):
            return facts  # it would not understand the rest
        hours = None
        if facts.service in AMAZON:
            hours = _ask(lambda: read_retention(read_rows(connection, "CALL mysql.rds_show_configuration")))
        replication = _ask(lambda: read_replication(connection, flavor, variables))
        filters = _ask(lambda: find_log_filters(connection))
        return replace(
            facts,
            retention_hours=hours,
            grants=tuple(str(row[0]) for row in read_rows(connection, "SHOW GRANTS")),
            replication=None if replication is None else tuple(replication),
            log_filters=None if filters is None else tuple(filters),
            state=_ask(lambda: read_state(connection, flavor, variables)),
            topologies=_ask(
                lambda: read_heartbeats(connection, "watermark", "MAX(sequence)", "id LIKE '=%' GROUP BY watermark")
            ),
            clock_ahead_seconds=_read_clock(connection),
        )

    def __getitem__(self, name: str) -> str:
        return self.variables.get(name, "")

    def is_on(self, name: str) -> bool:
        return self[name].upper() in ("ON", "1")

    @property
    def where(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self["version"].lower()

    @property
    def is_read_only(self) -> bool:
        """Whether to all accounts without a privilege for it. `read_only` has more than two values on MariaDB 12."""
        return self["read_only"].upper() not in ("", "0", "OFF")

    @property
    def identity(self) -> str:
        """The same for two addresses of one server, "" if the server does not report it."""
        return identity_of(self.flavor, self.variables)

    @property
    def heartbeat_domain(self) -> str:
        """The domain of MariaDB in which heartbeats are written here."""
        return self["wsrep_gtid_domain_id" if is_galera(self.variables) else "gtid_domain_id"]

    @property
    def service(self) -> ServiceName:
        return find_service(self.variables, self.address.host)

    @property
    def version(self) -> tuple[int, ...]:
        match = re.match(r"[0-9.]+", self["version"])
        return tuple(int(part) for part in match[0].strip(".").split(".")) if match else ()

    def is_version(self, beginning: tuple[int, ...]) -> bool:
        return self.version[: len(beginning)] == beginning

    def find(self, rule: Rule, message: str, hint: str = "", *statements: str) -> CheckFinding:
        """``hint``: else the rule's remedy."""
        return CheckFinding(rule, f"{self.where}: {message}", hint, self.where, statements)

    def setting(self, rule: Rule, name: str, value: str, why: str = "", *, but: str = "") -> CheckFinding:
        """A finding that setting a variable mends. ``why``: meaning of its value; ``but``: addition to the hint."""
        mending = set_variable(self.service, self.flavor, name, value)
        hint = f"{mending.hint}; {but}" if but else mending.hint
        message = f"{name} is {self[name]}{f': {why}' if why else ''}"
        return self.find(rule, message, hint, *mending.statements)


def _ask(question: Callable[[], Answer]) -> Answer | None:
    """None if the account may not ask."""
    try:
        return question()
    except pymysql.OperationalError:
        return None


def _read_clock(connection: Connection) -> float:
    before = time.time()
    [(shown,)] = read_rows(connection, "SELECT UNIX_TIMESTAMP(SYSDATE(6))")
    return ahead_of(float(shown), before, time.time())


def ahead_of(shown: float, before: float, after: float, *, step: float = 0.0) -> float:
    """By how much a clock is ahead for sure that showed this between two looks at our own, below 0 for behind. All in
    seconds; ``step``: how coarse it is."""
    if shown > after:
        return shown - after
    return min(0.0, shown + step - before)
