"""Names and patterns of tables: `MatchedTables` are those of a stream that names no table, or not all.

A pattern has ``*`` for any text and ``?`` for any character. No I/O: the caller reads the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Final

from freshness.stream.heartbeat import HEARTBEAT_TABLE


def is_pattern(name: str) -> bool:
    """Whether it stands for other names than itself."""
    return "*" in name or "?" in name


def to_expression(pattern: str) -> str:
    """A regular expression for whole names, in the syntax that Python's and Go's have in common."""
    return "^" + re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") + "$"


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """Its ``match`` finds the names that one of the patterns stands for."""
    return re.compile("|".join(map(to_expression, patterns)) or "(?!)", re.DOTALL)


class MatchedTables(Set[str]):
    """The tables of a database that patterns stand for, also those that are created later; without the heartbeats'.
    For one thread. Membership needs no schema. Going through the set reads it, by ``read``: a statement that may have
    changed any table concerns the current ones and those that were met before. Raises what ``read`` raises."""

    def __init__(self, patterns: Iterable[str], read: Callable[[], Iterable[str]]) -> None:
        self.patterns: Final = tuple(patterns)
        self._match = compile_patterns(self.patterns).match
        self._read = read
        self._met: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name == HEARTBEAT_TABLE or self._match(name) is None:
            return False
        self._met.add(name)
        return True

    def __iter__(self) -> Iterator[str]:
        self._met.update(name for name in self._read() if name in self)
        return iter(sorted(self._met))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(names)
