"""An application's statements by their text: which only read, and which change what later ones mean.

In doubt a statement does. Used by `LoaderConnection` and by the adapters.
"""

from __future__ import annotations

import re
from typing import Final

from freshness.errors import SourceUnsuitable

_START: Final = r"(?:[\s(]|/\*(?!!|M!).*?\*/|--\s[^\n]*\n|#[^\n]*\n)*"
_FLAGS: Final = re.IGNORECASE | re.DOTALL

_READS: Final = re.compile(_START + r"(?:SELECT|WITH|SHOW|VALUES?|TABLE|DESC|DESCRIBE|EXPLAIN)\b", _FLAGS)
_LEAVES: Final = re.compile(r":=|\bINTO\s+@|\b(?:GET_LOCK|LAST_INSERT_ID)\s*\(\s*[^\s)]", _FLAGS)

_CHANGES: Final = re.compile(
    _START + r"(?:USE|SET(?!\s+STATEMENT)|PREPARE|LOCK\s+TABLES?|CREATE\s+(?:OR\s+REPLACE\s+)?TEMPORARY)\b",
    _FLAGS,
)
_TAKES_LOCK: Final = re.compile(r"\bGET_LOCK\s*\(", re.IGNORECASE)
_HARMLESS: Final = re.compile(
    r"\s*SET\s+(?:SESSION\s+|LOCAL\s+|@@SESSION\.|@@)?"
    r"(?:@\w+|foreign_key_checks|unique_checks|\w*wait_timeout|net_\w+_timeout|sql_safe_updates|max_execution_time"
    r"|max_statement_time)\s*:?=[^,;]*",
    _FLAGS,
)
"""One assignment, of a variable that no row depends on."""

_FROM: Final = re.compile(r"\bFROM\b", re.IGNORECASE)
_CALL: Final = re.compile(r"([\w.`]+)\s*\(")
_BUILT_IN: Final = re.compile(
    r"(?:select|and|or|not|in|exists|if|ifnull|coalesce|concat|cast|convert|char|count|max|min|sum|now|utc_timestamp"
    r"|current_timestamp|unix_timestamp|version|database|schema|user|current_user|connection_id|last_insert_id"
    r"|row_count|found_rows|uuid|rand|sleep)",
    re.IGNORECASE,
)


def require_read(sql: str) -> None:
    """Raise `SourceUnsuitable` for a statement that does not only read: the session is that of the next read, too."""
    if not _READS.match(sql):
        raise SourceUnsuitable(
            f"a read of the cache sent {sql.split(maxsplit=1)[0][:20] if sql.strip() else 'an empty statement'}",
            hint="expected SELECT, WITH, VALUES, TABLE, SHOW or EXPLAIN; use a connection of your own for the rest",
        )


def leaves_state(sql: str) -> bool:
    """Whether the session holds a user variable or a lock after a SELECT."""
    return _LEAVES.search(sql) is not None


def changes_session(sql: str) -> bool:
    """Whether later statements of the session may mean other rows, or are to be read under a lock."""
    # Every statement of an application comes by here, and most are long: upper() is much quicker than a pattern.
    takes_lock = "GET_LOCK" in sql.upper() and _TAKES_LOCK.search(sql) is not None
    return (takes_lock or _CHANGES.match(sql) is not None) and _HARMLESS.fullmatch(sql) is None


def calls_stored_function(sql: str) -> bool:
    """Whether a SELECT without a table calls a function that is not the server's own: it can write or lock."""
    return not _FROM.search(sql) and any(not _BUILT_IN.fullmatch(name) for name in _CALL.findall(sql))
