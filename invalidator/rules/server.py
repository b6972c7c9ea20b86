"""A database server as the rules see it: its variables, its version, the service that it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from freshness.config.settings import ServerAddress
from freshness.database.connection import Connection, read_rows
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule
from invalidator.rules.service import AMAZON, ServiceName, find_service, read_retention, set_variable


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """``variables``: the global ones by lower-case name; one that the server does not have reads as "".
    ``retention_hours``: for how long Amazon keeps binary logs, 0 for as briefly as it can; None elsewhere."""

    address: ServerAddress
    flavor: str
    variables: dict[str, str]
    retention_hours: int | None = None

    @classmethod
    def look(cls, connection: Connection, address: ServerAddress, flavor: str) -> ServerFacts:
        """Raises what pymysql raises."""
        rows = read_rows(connection, "SHOW GLOBAL VARIABLES")
        variables = {str(name).lower(): str(value) for name, value in rows}
        hours = None
        if find_service(variables, address.host) in AMAZON:
            hours = read_retention(read_rows(connection, "CALL mysql.rds_show_configuration"))
        return cls(address, flavor, variables, hours)

    def __getitem__(self, name: str) -> str:
        return self.variables.get(name, "")

    def is_on(self, name: str) -> bool:
        return self[name].upper() in ("ON", "1")

    def number(self, name: str) -> int:
        """0 where it is none."""
        text = self[name].partition(".")[0]
        return int(text) if text.isdecimal() else 0

    @property
    def where(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    @property
    def service(self) -> ServiceName:
        return find_service(self.variables, self.address.host)

    @property
    def version(self) -> tuple[int, ...]:
        match = re.match(r"[0-9.]+", self["version"])
        return tuple(int(part) for part in match[0].strip(".").split(".")) if match else ()

    def find(self, rule: Rule, message: str, hint: str = "", *statements: str) -> CheckFinding:
        """``hint``: else the rule's remedy."""
        return CheckFinding(rule, f"{self.where}: {message}", hint or rule.remedy, self.where, statements)

    def setting(self, rule: Rule, name: str, value: str, why: str = "", *, but: str = "") -> CheckFinding:
        """A finding that setting a variable mends. ``why``: what its value means; ``but``: what else is to be known."""
        mending = set_variable(self.service, self.flavor, name, value)
        hint = f"{mending.hint}; {but}" if but else mending.hint
        message = f"{name} is {self[name]}{f': {why}' if why else ''}"
        return self.find(rule, message, hint, *mending.statements)
