"""The role of a position: what a server has executed, and how two such sets stand to one another.

Containment is the only order (ADR 0001): a read at position T reflects event e iff e is in T. The order is partial.
Two positions of which neither contains the other are UNKNOWN to one another, and UNKNOWN is doubt: it never fills and
always invalidates. Positions never look at clocks.

Implemented by ``freshness.position.mysql`` and ``freshness.position.mariadb``; all other modules import
``freshness.position``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import ClassVar


class Order(Enum):
    """How the first of two positions (or tokens) stands to the second."""

    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    UNKNOWN = "unknown"


class Position(ABC):
    """An immutable, hashable set of executed transactions. Equal sets have equal text and equal bytes. ``flavor`` is
    "mysql" or "mariadb". Positions of two flavors never contain one another and are UNKNOWN to one another (even
    empty ones: it is doubt); `union` and `intersection` of them raise `FlavorMismatch`."""

    __slots__ = ()

    flavor: ClassVar[str]

    @abstractmethod
    def contains(self, other: Position) -> bool:
        """True iff every transaction of ``other`` is in this position. Another flavor: False."""

    @abstractmethod
    def union(self, other: Position) -> Position:
        """The smallest position that contains both. Raises `FlavorMismatch` for another flavor."""

    @abstractmethod
    def union_all(self, others: Iterable[Position]) -> Position:
        """The union with all of them in one step, for the transactions of a batch."""

    @abstractmethod
    def intersection(self, other: Position) -> Position:
        """A position that both contain, as large as is known. Raises `FlavorMismatch` for another flavor."""

    @abstractmethod
    def subtract(self, other: Position) -> Position:
        """A part of this position that has at least what ``other`` lacks, as small as is known. Raises
        `FlavorMismatch` for another flavor."""

    @abstractmethod
    def fill_gaps(self, streamed: Position) -> Position:
        """This position, with the gaps inside it filled where ``streamed`` has the numbers.

        Keeps table floors short. The result lies between this position and its union with ``streamed``: a number that
        was not streamed may never be executed, and then no replica could contain the floor (Group Replication hands
        out blocks of numbers). Raises `FlavorMismatch` for another flavor.
        """

    @abstractmethod
    def by_source(self) -> dict[str, Position]:
        """The parts of this position, by the source that numbered their transactions, in the order of the text. A
        source is a server's UUID, with all its tags (MySQL), or a domain (MariaDB). The parts unite to the whole."""

    @abstractmethod
    def intervals(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """(first, last) of each interval, by ``uuid``, ``uuid:tag`` or domain, rising, in the order of the text."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True iff it holds no transaction. Every position of its flavor contains it."""

    @property
    @abstractmethod
    def interval_count(self) -> int:
        """A measure of its size: intervals (MySQL) or domains (MariaDB)."""

    @abstractmethod
    def encode(self) -> bytes:
        """The compact binary form, which names its version and flavor. See `decode_position`."""

    @abstractmethod
    def __str__(self) -> str:
        """The canonical text, which a server of its flavor accepts."""

    def compare(self, other: Position) -> Order:
        """The order of this position to ``other``: NEWER if it contains it and more. UNKNOWN if neither contains the
        other, and for another flavor.
        """
        above, below = self.contains(other), other.contains(self)
        if above:
            return Order.EQUAL if below else Order.NEWER
        return Order.OLDER if below else Order.UNKNOWN
