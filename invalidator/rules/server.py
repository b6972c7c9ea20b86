"""A database server as the rules see it: its variables, its version, the service that it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from freshness.config.settings import ServerAddress
from freshness.database.connection import Connection, read_rows
from invalidator.rules.finding import Finding, Severity
from invalidator.rules.service import ServiceName, find_service, set_variable


@dataclass(frozen=True, slots=True)
class Server:
    """``variables``: the global ones by lower-case name; one that the server does not have reads as ""."""

    address: ServerAddress
    flavor: str
    variables: dict[str, str]

    @classmethod
    def look(cls, connection: Connection, address: ServerAddress, flavor: str) -> Server:
        """Raises what pymysql raises."""
        rows = read_rows(connection, "SHOW GLOBAL VARIABLES")
        return cls(address, flavor, {str(name).lower(): str(value) for name, value in rows})

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

    def error(self, code: str, message: str, hint: str, *statements: str) -> Finding:
        return self._find("error", code, message, hint, *statements)

    def warning(self, code: str, message: str, hint: str, *statements: str) -> Finding:
        return self._find("warning", code, message, hint, *statements)

    def note(self, code: str, message: str, hint: str, *statements: str) -> Finding:
        return self._find("note", code, message, hint, *statements)

    def setting(
        self, severity: Severity, code: str, message: str, name: str, value: str, *, but: str = ""
    ) -> Finding:
        """What setting a variable mends. ``but``: what else is to be known of it."""
        mending = set_variable(self.service, self.flavor, name, value)
        hint = f"{mending.hint}; {but}" if but else mending.hint
        return self._find(severity, code, message, hint, *mending.statements)

    def _find(self, severity: Severity, code: str, message: str, hint: str, *statements: str) -> Finding:
        return Finding(severity, code, f"{self.where}: {message}", hint, self.where, statements)
