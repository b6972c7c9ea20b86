"""An application's statements by their text: which only read, and which change what later ones mean.

In doubt a statement does. Used by `LoaderConnection` and by the adapters.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final
from weakref import ref

from freshness.errors import SourceUnsuitable

_FLAGS: Final = re.IGNORECASE | re.DOTALL
_COMMENT: Final = r"/\*(?!M?!).*?(?:\*/|\Z)|--(?=[\s\x00-\x1f]|\Z)[^\n]*|#[^\n]*"
_READS: Final = re.compile(
    rf"(?>[\s(]|{_COMMENT})*+(?:SELECT|WITH|SHOW|VALUES?|TABLE|DESC|DESCRIBE|EXPLAIN)\b", _FLAGS
)
_LEAVES: Final = re.compile(r":=|\bINTO\b|\bGET_LOCK\b|\bLAST_INSERT_ID\b(?!\s*\(\s*\))", _FLAGS)

SPACE: Final = rf"(?>\s|{_COMMENT}|/\*M?!\d*|\*/)"
"""Between two words. The server carries out the text of /*! */."""
_CHANGES: Final = re.compile(
    rf"(?>\(|{SPACE})*+(?:SET{SPACE}++STATEMENT\b.*?\bFOR{SPACE}++)?"
    rf"(?:USE|SET(?!{SPACE}++STATEMENT\b)|PREPARE|EXECUTE|CALL|LOCK{SPACE}++TABLES?"
    rf"|CREATE{SPACE}++(?:OR{SPACE}++REPLACE{SPACE}++)?TEMPORARY"
    rf"|BEGIN{SPACE}++NOT|IF|CASE|LOOP|WHILE|REPEAT|FOR)\b",
    _FLAGS,
)
"""A procedure, and the last ones, which are programs in MariaDB, are of any statements."""
_LOCK: Final = re.compile(r"\bGET_LOCK\b", re.IGNORECASE)
_HARMLESS: Final = re.compile(
    r"\s*SET\s+(?:SESSION\s+|LOCAL\s+|@@SESSION\.|@@)?"
    r"(?:@\w+|foreign_key_checks|unique_checks|\w*wait_timeout|net_\w+_timeout|sql_safe_updates|max_execution_time"
    r"|max_statement_time)\s*:?=[^,;]*",
    _FLAGS,
)
"""One assignment, of a variable that no row depends on."""

_HIDDEN: Final = tuple(
    re.compile(rf"{_COMMENT}|`[^`]*(?:`|\Z)|{texts}", re.DOTALL)
    for texts in (r"'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)", r"'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z)")
)
"""Comments and quoted texts, with the backslash as an escape and without it: the text does not say which."""

_SENDS: Final = ("query", "cmd_query", "cmd_query_iter", "cmd_stmt_prepare", "prepare")
_CHOOSES: Final = (
    "select_db",
    "cmd_init_db",
    "set_character_set",
    "set_charset",
    "change_user",
    "cmd_change_user",
    "cmd_reset_connection",
)
"""Methods of drivers that send a text, and that change the session without one."""
_BY_OPTION: Final = re.compile(
    r"SET (?:SESSION TRANSACTION ISOLATION LEVEL (READ UNCOMMITTED|READ COMMITTED|REPEATABLE READ|SERIALIZABLE)"
    r"|@@session\.autocommit = O(?:N|FF))"
)
"""Sent by SQLAlchemy for an option, which it takes back, and by mysql-connector in the place of a method."""

_FROM: Final = re.compile(r"\bFROM\b(?!\s+DUAL\b)", re.IGNORECASE)
_CALL: Final = re.compile(r"([\w.`]+)\s*\(")
_BUILT_IN: Final = re.compile(
    r"(?:select|and|or|not|in|exists|if|ifnull|coalesce|concat|cast|convert|char|count|max|min|sum|now|utc_timestamp"
    r"|current_timestamp|unix_timestamp|version|database|schema|user|current_user|connection_id|last_insert_id"
    r"|row_count|found_rows|uuid|rand|sleep)",
    re.IGNORECASE,
)


def _split(sql: str) -> list[list[str]]:
    """The statements in a text, by each rule of escapes. Some drivers send several at once."""
    if ";" not in sql:
        return [[sql]]
    found = [hidden.sub(" '' ", sql).split(";") for hidden in _HIDDEN]
    return [[part for part in parts if part.strip(" '\t\r\n")] for parts in found]


def is_several(sql: str) -> bool:
    """Whether a text may have several statements, of which only the first is looked at elsewhere."""
    return any(len(parts) > 1 for parts in _split(sql))


def require_read(sql: str) -> None:
    """Raise `SourceUnsuitable` for a statement that does not only read: the session is that of the next read, too."""
    if is_several(sql):
        raise SourceUnsuitable(
            "a read of the cache sent several statements in one text",
            hint="expected one; give a text with a semicolon as a parameter",
        )
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
    if "GET_LOCK" in sql.upper() and _LOCK.search(sql) is not None:
        return True
    return any(_CHANGES.match(part) and not _HARMLESS.fullmatch(part) for parts in _split(sql) for part in parts)


def calls_stored_function(sql: str) -> bool:
    """Whether a SELECT without a table calls a function that is not the server's own: it can write or lock."""
    return not _FROM.search(sql) and any(not _BUILT_IN.fullmatch(name) for name in _CALL.findall(sql))


class SessionWatch:
    """Notes how the session of a driver's connection is changed, by anybody: the application's own cursors, the
    driver's methods, and handlers of a pool send by the same methods of the connection.

    pymysql, mysqlclient, mysql-connector, aiomysql, asyncmy. A connection of another driver counts as changed.
    """

    __slots__ = ("_is_connector", "changes", "is_changed", "is_serializable")

    def __init__(self, raw: Any) -> None:
        self.changes = 0
        """How often it was changed."""
        self.is_changed = False
        self.is_serializable = False
        self._is_connector = hasattr(raw, "cmd_query")
        if not self._is_connector and not hasattr(raw, "query"):
            self._note_change()
        for names, note in ((_SENDS, self.note), (_CHOOSES, self._note_change)):
            for name in names:
                if hasattr(raw, name):
                    self._wrap(raw, name, note)

    def _wrap(self, raw: Any, name: str, note: Any) -> None:
        """The connection does not hold itself: one that nobody closes ends at once, and not with the next search for
        garbage."""
        its, of_class = getattr(raw, "__dict__", {}).get(name), getattr(type(raw), name, None)
        try:
            if its is None and of_class is not None:
                method: Any = partial(_call, ref(raw), of_class)
            else:
                method = getattr(raw, name)
            setattr(raw, name, partial(_noted, method, note))
        except (AttributeError, TypeError):  # it cannot be watched
            self._note_change()

    @property
    def is_special(self) -> bool:
        """Whether its statements mean other rows than those of other sessions, or lock what they read."""
        return self.is_changed or self.is_serializable

    def note(self, sql: Any = "", *_: Any, **__: Any) -> None:
        """A statement is sent."""
        text = sql if isinstance(sql, str) else bytes(sql).decode("latin-1")
        option = _BY_OPTION.fullmatch(text)
        if option is not None and option[1] is not None:
            self.is_serializable = option[1] == "SERIALIZABLE"
        elif not (option is not None and self._is_connector) and changes_session(text):
            self._note_change()

    def _note_change(self, *_: Any, **__: Any) -> None:
        self.is_changed = True
        self.changes += 1


def _call(raw: Any, function: Any, *arguments: Any, **options: Any) -> Any:
    return function(raw(), *arguments, **options)


def _noted(method: Any, note: Any, *arguments: Any, **options: Any) -> Any:
    note(*arguments, **options)
    return method(*arguments, **options)
