"""The session in which rows for the cache are read: one value is cached for all, so it must not depend on who reads.

Everything in a session that decides which rows a SELECT finds, and what they hold, is set before the read. The
statements that return token and rows verify those that would poison an entry. docs/application.md has the table.
Used by ``appclient`` for its own connections and for those of the application's pools.
"""

from __future__ import annotations

from typing import Final

from freshness.database.connection import UNCUT
from freshness.stream.heartbeat import SERVER_NAME

_MODE: Final = (
    "CONCAT(REPLACE(REPLACE(REPLACE(@@GLOBAL.sql_mode, 'NO_BACKSLASH_ESCAPES', ''), 'EMPTY_STRING_IS_NULL', ''), "
    "'PAD_CHAR_TO_FULL_LENGTH', ''), IF(LOCATE('NO_BACKSLASH_ESCAPES', @@SESSION.sql_mode), "
    "',NO_BACKSLASH_ESCAPES', ''))"
)
"""The server's, without what changes values. Its escapes stay those that the driver knows of."""

_COMMON: Final = {
    "time_zone": "'+00:00'",
    "autocommit": "1",
    "sql_mode": _MODE,
    "sql_select_limit": str(UNCUT),
    "sql_auto_is_null": "0",
    "character_set_connection": "'utf8mb4'",
    "max_sort_length": "@@GLOBAL.max_sort_length",
    "group_concat_max_len": "@@GLOBAL.group_concat_max_len",
    "div_precision_increment": "@@GLOBAL.div_precision_increment",
    "default_week_format": "@@GLOBAL.default_week_format",
    "lc_time_names": "@@GLOBAL.lc_time_names",
}

ISOLATION: Final = {"mysql": "transaction_isolation", "mariadb": "tx_isolation"}
"""The variable with a session's isolation, by flavor."""

_READ_ONLY: Final = {"mysql": "transaction_read_only", "mariadb": "tx_read_only"}

VARIABLES: Final = {
    "mysql": {
        **_COMMON,
        ISOLATION["mysql"]: "'REPEATABLE-READ'",
        _READ_ONLY["mysql"]: "1",
        "max_execution_time": "{milliseconds:.0f}",
    },
    "mariadb": {
        **_COMMON,
        ISOLATION["mariadb"]: "'REPEATABLE-READ'",
        _READ_ONLY["mariadb"]: "1",
        "max_statement_time": "{seconds:.3f}",
    },
}
"""The session variables that a read needs, and their values. With autocommit the token's snapshot ends before the
rows' begins."""

_NOT_RESTORED_BY_ITS_NAME: Final = {"character_set_connection": "collation_connection"}
"""To set a character set chooses its default collation."""

_VERIFIED: Final = ("time_zone", "sql_select_limit", "sql_auto_is_null", "character_set_connection")
_CHARACTER_SETS: Final = " AND ".join(f"@@SESSION.character_set_{of} = 'utf8mb4'" for of in ("client", "results"))
_DATABASE: Final = "@freshness_database"
_CHOSEN: Final = f"{_DATABASE} = DATABASE()"
CHOSEN_SQL: Final = f"SET {_CHOSEN}"
"""Has the present database verified from now on."""
_MODES: Final = " AND ".join(
    f"LOCATE('{name}', @@SESSION.sql_mode) = 0" for name in ("PAD_CHAR_TO_FULL_LENGTH", "EMPTY_STRING_IS_NULL")
)


def _find_name(flavor: str) -> str:
    variables = VARIABLES[flavor]
    verified = (*_VERIFIED, ISOLATION[flavor], _READ_ONLY[flavor])
    equal = " AND ".join(f"@@SESSION.{name} = {variables[name]}" for name in verified)
    present = "" if flavor == "mysql" else " AND @@SESSION.system_versioning_asof = 'DEFAULT'"
    is_set_up = f"{equal} AND {_CHARACTER_SETS} AND {_MODES}{present} AND DATABASE() = {_DATABASE}"
    return f"IF({is_set_up}, {SERVER_NAME[flavor]}, NULL)"


NAME_IN_SESSION: Final = {flavor: _find_name(flavor) for flavor in VARIABLES}
"""The server's name for itself, by flavor; NULL if this very statement runs in a session that is not set up: a
stored function has changed it, or a proxy has chosen another one."""

_CREATED: Final = {"mysql": "Com_create_table", "mariadb": "Com_create_temporary_table"}
CREATED_SQL: Final = {flavor: f"SHOW SESSION STATUS LIKE '{name}'" for flavor, name in _CREATED.items()}
"""Returns a name and how many temporary tables the session has created, by flavor. MySQL counts all tables. No server
shows, without a privilege, which ones are left; what resets the session drops them and counts from 0."""


def set_up_sql(flavor: str, timeout_seconds: float, database: str | None) -> str:
    """One statement that sets the variables of a read. ``timeout_seconds``: bound of each statement, in seconds.
    ``database``: the one that a session of this library has, also after `reset_session`; None for a session of the
    application, whose values `put_back_sql` restores."""
    values = {"milliseconds": timeout_seconds * 1000, "seconds": timeout_seconds}
    new = [f"SESSION {name} = {value.format(**values)}" for name, value in VARIABLES[flavor].items()]
    if database is None:
        kept = [f"@freshness_{name} = @@SESSION.{name}" for name in _kept(flavor)]
        return "SET " + ", ".join([*kept, *new, _CHOSEN])
    return "SET " + ", ".join(["NAMES utf8mb4", *new, f"{_DATABASE} = _utf8mb4 x'{database.encode().hex()}'"])


def put_back_sql(flavor: str) -> str:
    """The session's variables as they were before `set_up_sql`."""
    return "SET " + ", ".join(f"SESSION {name} = @freshness_{name}" for name in _kept(flavor))


def use_sql(database: str) -> str:
    """The statement that chooses a database. It takes no parameters."""
    return f"USE `{database.replace('`', '``')}`"


def _kept(flavor: str) -> list[str]:
    return [_NOT_RESTORED_BY_ITS_NAME.get(name, name) for name in VARIABLES[flavor]]
