"""A session of the application on a scripted server: as much of a pymysql connection as ``appclient`` uses.

It understands the statements of a shard of the library and of loaders that read rows by their key. Each statement
is answered by the server that `Session.reach` names for it, so a proxy can send two statements to two servers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Self

import pymysql
from pymysql.cursors import DictCursor

from appclient.database.atleast import COMMITTED
from freshness.stream.heartbeat import HEARTBEAT_TABLE

COLUMNS: Final = ("id", "version")
"""Of every table."""

_NAMED: Final = re.compile(r"SELECT (?P<name>.+?) AS (?P<question>question_\w+)(?:, (?P<rest>.+))?")
_TABLE: Final = re.compile(r"(?:LEFT JOIN|SELECT \* FROM) `?(\w+)`?")


class Server(Protocol):
    """What a server shows. ``name``: its own."""

    name: str

    def variable(self, name: str) -> str:
        """A global variable, such as ``@@global.gtid_executed``."""

    def heartbeats(self) -> Sequence[tuple[str, int, str, int]]:
        """(id, epoch, watermark, min_us) of each row of the heartbeat table."""

    def version(self, row: tuple[str, int]) -> int:
        """Of the row (table, key)."""

    def freeze(self) -> Server:
        """The server as a snapshot taken at this moment shows it."""


def kind_of(sql: str) -> str:
    """What a statement is about: "set", "start", "rollback", "token", "server" or "rows"."""
    verb = sql.split(None, 1)[0].lower()
    if verb != "select":
        return verb
    if f"FROM {HEARTBEAT_TABLE}" in sql:
        return "token"
    return "rows" if _TABLE.search(sql) else "server"


class Session:
    """``reach`` is given the kind of each statement; it may raise what pymysql would. ``engine``: engine of all
    tables."""

    engine = "InnoDB"

    def __init__(self, reach: Callable[[str], Server]) -> None:
        self.reach = reach
        self.open = True
        self._snapshot: tuple[Server, Server] | None = None

    def cursor(self, kind: type | None = None) -> Cursor:
        return Cursor(self, kind is DictCursor)

    def close(self) -> None:
        assert self.open, "closed twice"
        self.open = False

    def _execute_command(self, *_: object) -> None:
        """A reset of the session: the only command beside statements."""
        self.reach("reset")
        self._snapshot = None

    def _read_ok_packet(self) -> None:
        """There is one."""

    def answer(self, sql: str, keys: Sequence[int]) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of the columns, and the rows."""
        if not self.open:
            raise pymysql.err.InterfaceError(0, "")
        kind = kind_of(sql)
        server = self.reach(kind)
        match kind:
            case "start":
                self._snapshot = server, server.freeze()
            case "rollback":
                self._snapshot = None
        if not sql.startswith("SELECT"):
            return [], []
        shown = server
        if self._snapshot is not None and self._snapshot[0] is server:
            shown = self._snapshot[1]  # another server knows nothing of the transaction
        named = _NAMED.fullmatch(sql)
        names, rows = self._select(kind, sql, named, server, shown, keys)
        if named is None:
            return names, rows
        name = named["name"].strip("'") if named["name"].startswith("'") else server.name
        if kind == "rows":
            # computed when the row is sent, whatever a snapshot shows
            until = self.variable(server, _bound_of(sql))
            rows = [(until, *row) for row in rows or [(None,) * len(names)]]
            names = ["until", *names]
        return [named["question"], *names], [(name, *row) for row in rows]

    def variable(self, server: Server, name: str) -> str:
        return server.variable(name)

    def _select(
        self, kind: str, sql: str, named: re.Match[str] | None, server: Server, shown: Server, keys: Sequence[int]
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        if kind == "server":
            rest = "" if named is None else named["rest"] or ""
            if rest == COMMITTED:
                return ["committed"], [(self.variable(server, "@@global.gtid_current_pos"),)]
            if "information_schema" in rest:
                count = len(keys) if self.engine == "InnoDB" else 0
                log_end = self.variable(server, rest.split(", ")[1])
                return ["is_read_only", "position", "count"], [(0, log_end, count)]
            if "gtid_owned" in rest or "log_slave_updates" in rest:
                return ["until"], [(self.variable(server, _bound_of(rest)),)]
            return (["waited"], [("0",)]) if rest else ([], [()])
        if kind == "token":
            assert named is not None
            variable = self.variable(server, named["rest"].partition(",")[0])
            return ["position", "id", "epoch", "watermark", "min_us"], [
                (variable, *beat) for beat in shown.heartbeats()
            ]
        found = _TABLE.search(sql)
        assert found is not None
        if sql.endswith("NOWAIT"):
            self.lock(found[1], keys)
        return list(COLUMNS), self.find_rows(shown, found[1], keys, is_named=named is not None)

    def lock(self, table: str, keys: Sequence[Any]) -> None:
        """Raise what pymysql would if a writer holds one of these rows."""

    def find_rows(self, shown: Server, table: str, keys: Sequence[Any], *, is_named: bool) -> list[tuple[Any, ...]]:
        """The rows with these keys. ``is_named``: the statement asks for the server's name, too."""
        return [(key, shown.version((table, key))) for key in keys]


def _bound_of(sql: str) -> str:
    """The variable that `until_sql` shows: no server here shows what it does not say that it has executed."""
    return "@@global.gtid_executed" if "gtid_owned" in sql else "@@global.gtid_binlog_pos"


class Cursor:
    def __init__(self, session: Session, has_dicts: bool) -> None:
        self._session, self._has_dicts = session, has_dicts
        self._rows: list[tuple[Any, ...]] = []
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str, params: Sequence[int] | None = None) -> None:
        self._names, self._rows = self._session.answer(sql, params or ())

    @property
    def description(self) -> list[tuple[str]]:
        return [(name,) for name in self._names]

    def fetchall(self) -> list[Any]:
        if self._has_dicts:
            return [dict(zip(self._names, row, strict=True)) for row in self._rows]
        return self._rows
