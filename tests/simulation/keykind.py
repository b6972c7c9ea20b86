"""The keys of a world: how rows spell them, how readers do, and which of them the database takes for equal.

In most worlds keys are numbers, which have one spelling. In the others the production loader
(`ObjectLoader`) asks a database that compares as servers do, whatever the product thinks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from freshness.keys.keycolumn import ColumnKind, KeyColumn

NUMBERS: Final = "numbers"
"""The keys of most worlds."""


@dataclass(frozen=True, slots=True)
class KeyKind:
    """``stored``: the key of each row, as a row image has it. ``spellings``: the keys that readers use, by row.
    ``normalize``: gives equal results for two keys, asked or stored, exactly if the database takes them for equal."""

    column: KeyColumn
    stored: tuple[Any, ...]
    spellings: tuple[tuple[Any, ...], ...]
    normalize: Callable[[Any], Any]

    def number(self, stored: object) -> int:
        """The row whose image has this key."""
        return self.stored.index(stored)

    def find(self, asked: object) -> list[int]:
        """The rows of ``WHERE key = asked``. A number that is asked for as text is compared as floating point."""
        if self.column.kind is ColumnKind.DECIMAL and isinstance(asked, str):
            return [row for row, stored in enumerate(self.stored) if float(stored) == float(asked)]
        wanted = self.normalize(asked)
        return [row for row, stored in enumerate(self.stored) if self.normalize(stored) == wanted]


def _as_moment(value: Any) -> datetime:
    return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)


def _loose(text: str) -> str:
    """As utf8mb4_general_ci has it."""
    return text.lower().translate({ord("ß"): "s", ord("é"): "e"}).rstrip(" ")


def _close(number: int) -> tuple[str, str, Decimal]:
    """Three spellings of a number. As floating point all of them are equal."""
    exact = 2**60 + number
    return f"{exact}.50", f"+0{exact}.5", Decimal(f"{exact}.500")


_KEY: Final = "id"
KINDS: Final[Mapping[str, KeyKind]] = {
    NUMBERS: KeyKind(KeyColumn(_KEY, ColumnKind.INTEGER), (0, 1, 2), ((0,), (1,), (2,)), int),
    "decimals": KeyKind(
        KeyColumn(_KEY, ColumnKind.DECIMAL, scale=2),
        tuple(Decimal(f"{2**60 + number}.50") for number in range(3)),
        (_close(0), _close(1), _close(2)),
        Decimal,
    ),
    "moments": KeyKind(
        KeyColumn(_KEY, ColumnKind.DATETIME, scale=3),
        ("2026-01-31 10:00:00.500", "2026-01-31 00:00:00.000", "2026-01-31 10:00:00.501"),
        (
            ("2026-01-31 10:00:00.5", datetime(2026, 1, 31, 10, 0, 0, 500_000)),  # noqa: DTZ001
            ("2026-01-31", date(2026, 1, 31), "2026-01-31T00:00:00.0"),
            ("2026-01-31T10:00:00.501", "2026-01-31 10:00:00.501000"),
        ),
        _as_moment,
    ),
    "bytes": KeyKind(
        KeyColumn(_KEY, ColumnKind.BINARY, length=3),
        (b"a", b"A", b"a\xff"),  # the log leaves out zeros at the end
        ((b"a\0\0", bytearray(b"a\0\0")), (b"A\0\0", memoryview(b"A\0\0")), (b"a\xff\0", bytearray(b"a\xff\0"))),
        lambda value: bytes(value).ljust(3, b"\0"),
    ),
    "padded text": KeyKind(
        KeyColumn(_KEY, ColumnKind.STRING, "utf8mb4_bin"),
        ("a", "b ", "é"),
        (("a", "a ", "a   "), ("b", "b  "), ("é ", "é")),
        lambda text: text.rstrip(" "),
    ),
    "loose text": KeyKind(
        KeyColumn(_KEY, ColumnKind.STRING, "utf8mb4_general_ci"),
        ("ß", "Bé", "c "),
        (("ß", "s", "S "), ("bé", "BE", "be  "), ("C", "c", "c ")),
        _loose,
    ),
}
"""By name. A row of "loose text" has spellings whose items differ, as the servers' collations have."""
