"""Which tables a statement in the binary log may have changed.

It errs on one side only: a statement that it does not recognise, or that could reach a table through a view, a
trigger or a routine, changes all tables. Raising a table too often costs hits; once too rarely poisons the cache
(F21, F22, F26). A name is found anywhere in the text, whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from enum import Enum
from typing import Final, NamedTuple

_COMMENT = re.compile(r"/\*(?!M?!).*?\*/|#[^\n]*|--(?=[\s\x00-\x1f]|$)[^\n]*", re.DOTALL)
_VERSIONED_OPEN: Final = re.compile(r"/\*M?!")
_VERSIONED_WHOLE = re.compile(r"/\*M?!\d{0,6}(?=\D)(.*)\*/[\s;]*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_$]+")
_OTHER_LETTERS: Final = re.compile(r"[^\x00-\x7f]|[@\[\\\]^{|}~]|``")
"""Bytes that may be letters beyond ASCII in the character set of the session, which is not read: the decoder puts
a backslash before a byte that is not UTF-8, and the signs are letters in swe7."""

_IDENTIFIER: Final = r"(`(?:[^`]|``)+`|[\w$]+)"
_NAME: Final = re.compile(rf"\s*(?:{_IDENTIFIER}\s*\.\s*)?{_IDENTIFIER}")
_DEFINES_TABLES: Final = re.compile(
    r"(?:(ALTER|CREATE|DROP|RENAME)\s+(?:OR\s+REPLACE\s+|ONLINE\s+|IGNORE\s+)*TABLES?\b|TRUNCATE\b(?:\s+TABLE\b)?)"
    r"\s*(?:IF\s+(?:NOT\s+)?EXISTS\b)?",
    re.IGNORECASE,
)
_RENAMES: Final = re.compile(r"\bRENAME\s+(?!COLUMN\b|INDEX\b|KEY\b|CONSTRAINT\b)(?:TO\b|AS\b|=)?", re.IGNORECASE)
_NO_NAMES: Final = frozenset(("TO", "WAIT", "NOWAIT", "RESTRICT", "CASCADE"))
_XA = re.compile(r"XA\s+(\w+)\s+X'([0-9A-F]*)'\s*,\s*X'([0-9A-F]*)'\s*,\s*(\d+)", re.IGNORECASE)

_BLANK: Final = "\ufeff \t\r\n\v\f\0;("
_ABOUT_NO_ROWS: Final = frozenset(("GRANT", "REVOKE", "FLUSH", "SAVEPOINT", "RELEASE", "XA"))
_DEFINITION: Final = frozenset(("CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "OPTIMIZE", "REPAIR"))


class StatementKind(Enum):
    """The effect of a statement on the transaction that it stands in."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    XA_BEGIN = "xa begin"
    XA_END = "xa end"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    OTHER = "other"


_EXACT: Final = {"BEGIN": StatementKind.BEGIN, "COMMIT": StatementKind.COMMIT, "ROLLBACK": StatementKind.ROLLBACK}
_XA_KINDS: Final = {
    "START": StatementKind.XA_BEGIN,
    "BEGIN": StatementKind.XA_BEGIN,
    "END": StatementKind.XA_END,
    "PREPARE": StatementKind.XA_END,
    "COMMIT": StatementKind.XA_COMMIT,
    "ROLLBACK": StatementKind.XA_ROLLBACK,
}


def find_statement_kind(sql: str) -> StatementKind:
    """The servers write transaction control themselves, in one form each; anything else is OTHER."""
    exact = _EXACT.get(sql)
    if exact is not None:
        return exact
    if sql.startswith("XA "):
        return _XA_KINDS.get(sql[3:].split(None, 1)[0], StatementKind.OTHER)
    if sql.startswith(("SAVEPOINT ", "ROLLBACK TO ", "RELEASE SAVEPOINT ")):
        return StatementKind.SAVEPOINT
    return StatementKind.OTHER


class Xid(NamedTuple):
    """The name of an XA transaction."""

    global_id: bytes
    branch: bytes
    format_id: int


def find_xid(sql: str) -> Xid | None:
    """The XA transaction that a statement of the log names, None if it cannot be read."""
    match = _XA.match(sql)
    if match is None or len(match[2]) % 2 or len(match[3]) % 2:
        return None
    return Xid(bytes.fromhex(match[2]), bytes.fromhex(match[3]), int(match[4]))


def tables_changed_by(sql: str, database: str, default_database: str, tables: Set[str]) -> frozenset[str]:
    """The tables, of those asked for, whose rows the statement may have changed. Never too few. ``default_database``
    is the one that the statement ran in; ``tables`` are bare names in ``database``."""
    whole = _VERSIONED_WHOLE.fullmatch(sql.strip())
    if whole is not None and "*/" not in whole[1] and not _VERSIONED_OPEN.search(whole[1]):
        # One versioned comment and nothing else: its content was executed, or nothing was.
        return tables_changed_by(whole[1], database, default_database, tables)
    text = _strip_leading_comments(sql)
    first = _find_first_word(text)
    if first in _ABOUT_NO_ROWS or text.rstrip(" ;") in _EXACT or text.startswith("ROLLBACK TO "):
        return frozenset()
    if first not in _DEFINITION and first not in ("SET", "ANALYZE"):
        return frozenset(tables)
    words = [word.upper() for word in _WORD.findall(_COMMENT.sub(" ", text))]
    # Whether a versioned comment was executed is not known here, so it may hide or turn any other word.
    has_versioned = _VERSIONED_OPEN.search(text) is not None
    if not has_versioned and _is_about_no_rows(words):
        return frozenset()
    if first not in _DEFINITION:
        return frozenset(tables)
    return _tables_defined_by(text, words, database, default_database, tables, has_versioned)


def _is_about_no_rows(words: list[str]) -> bool:
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first == "ANALYZE":  # MariaDB's ANALYZE UPDATE … executes the statement
        return second in ("TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG")
    if first == "SET":  # MariaDB's SET STATEMENT … FOR DELETE … executes one, too
        return second in ("PASSWORD", "ROLE") or words[1:3] == ["DEFAULT", "ROLE"]
    return first in ("CREATE", "ALTER", "DROP", "RENAME") and second in ("USER", "ROLE")


def _tables_defined_by(
    sql: str, words: list[str], database: str, default_database: str, tables: Set[str], has_versioned: bool
) -> frozenset[str]:
    is_named = _make_search(sql, has_versioned=has_versioned)
    if words[0] == "CREATE" and (has_versioned or _creates_table(words)) and {"SELECT", "WITH"} & set(words):
        # With row format the rows of CREATE … SELECT come as row events and the SELECT is not in the log. Here it
        # ran as a statement, and a function in it can have written to any table.
        return frozenset(tables)
    names_database = is_named(database)
    if names_database and {"DATABASE", "SCHEMA"} & set(words[1:6]):
        return frozenset(tables)
    if not names_database and default_database.casefold() != database.casefold():
        return frozenset()
    found = {table for table in tables if is_named(table)}
    # Where patterns name the tables, one that is there no longer is known by the statement alone.
    named = {
        name
        for of, name in _names_in(sql)
        if (of or default_database).casefold() == database.casefold() and name in tables
    }
    return frozenset(found | named)


def _make_search(sql: str, *, has_versioned: bool) -> Callable[[str], bool]:
    """Whether the text may have a name, in quotes or not. Behind the number of a versioned comment a name has no
    begin."""
    folded = sql.casefold()
    words = frozenset(_PLAIN_NAME.findall(folded))
    has_other_letters = _OTHER_LETTERS.search(sql) is not None

    def is_named(name: str) -> bool:
        if not name.isascii():
            return has_other_letters
        name = name.casefold()
        if _PLAIN_NAME.fullmatch(name) and not has_versioned:
            return name in words
        # Some character sets spell its other signs in several ways
        return not sql.isascii() or any(
            each in folded for each in (name, name.replace("`", "``"), name.replace('"', '""'))
        )

    return is_named


def _names_in(sql: str) -> list[tuple[str, str]]:
    """The tables that a definition names, each with its database or ""; an ALTER its table, and new names of it."""
    text = _COMMENT.sub(" ", sql)
    match = _DEFINES_TABLES.match(text)
    if match is None:
        return []
    kind, rest = (match[1] or "").upper(), text[match.end() :]
    if kind in ("ALTER", "CREATE"):
        parts = _RENAMES.split(rest) if kind == "ALTER" else [rest]
        names = [name for part in parts if (name := _NAME.match(part)) is not None]
    else:
        names = [name for name in _NAME.finditer(rest) if name[2].upper() not in _NO_NAMES]
    return [(_unquote(name[1] or ""), _unquote(name[2])) for name in names]


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _creates_table(words: list[str]) -> bool:
    rest = [word for word in words[1:5] if word not in ("OR", "REPLACE", "TEMPORARY")]
    return rest[:1] == ["TABLE"]


def _strip_leading_comments(sql: str) -> str:
    text = sql.lstrip(_BLANK)
    while (comment := _COMMENT.match(text)) is not None:
        text = text[comment.end() :].lstrip(_BLANK)
    return text


def _find_first_word(text: str) -> str:
    match = _WORD.match(text)
    return match[0].upper() if match is not None else ""
