"""How the value of one key column is spelled in a cache key.

Each kind has a *coarse* spelling (for the item, equal wherever the database is likely to call two values equal)
and a *fine* one (for the identity, different wherever the database may tell two values apart). Both are
printable ASCII without ``:``, ``!`` and ``~``. Everything depends on the value and the column alone, the same in
every Python version: an application and an invalidator that disagree would invalidate nothing.

The database is asked for the value that the fine spelling stands for (`KeyColumn.parse`), and never for the
caller's own: two values of one identity ask one question, in a type that the server compares exactly.

Never rounds, never guesses a type: a value that does not fit raises `FormatError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from unicodedata import ucd_3_2_0
from urllib.parse import quote, unquote

from freshness.errors import ConfigError, FormatError

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
TEXT_LENGTH_MAX: Final = 16_384
"""Characters. An index of InnoDB ends at 3072 bytes; this leaves room for blanks that the database ignores."""
_DECIMAL_DIGITS_MAX: Final = 65
"""No column holds more. Servers take a number with more digits for the largest one."""

_INTEGER_TEXT = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_DATE = r"[0-9]{4}-(?:0[0-9]|1[0-2])-(?:[0-2][0-9]|3[01])"  # months and days 00 too: MySQL stores them
_DATE_TEXT = re.compile(_DATE, re.ASCII)
_DATETIME_TEXT = re.compile(
    rf"({_DATE})(?:[ T]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\.([0-9]{{1,6}}))?)?", re.ASCII
)

_PLAIN_CASELESS = re.compile(
    r"(?:[a-z0-9]+_)?(?:general|unicode|unicode_520|0900|uca1400)(?:_nopad)?(?:_ai|_as)?_ci"
    r"|latin1_swedish(?:_nopad)?_ci",
    re.ASCII,
)


_MANY_TO_ONE: Final = ("cp932_", "tis620_")
"""Character sets in which servers store two characters of Unicode as one: the second can be asked for and never comes
back. U+6661 is U+6659 in cp932; in tis620 each character above U+FFFF is one of its own."""


class ColumnKind(Enum):
    """How the database compares a column. CHAR, VARCHAR, TEXT, ENUM are STRING; BINARY, VARBINARY, BLOB are
    BINARY."""

    INTEGER = "integer"
    STRING = "string"
    BINARY = "binary"
    DECIMAL = "decimal"
    DATE = "date"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key. ``collation`` is of a STRING column ("" where unknown: then nothing is merged in the
    identity and it is not exact); ``length`` in bytes is of a fixed BINARY(n), else 0; ``scale`` of a DECIMAL
    or DATETIME: its digits after the point, None where unknown."""

    name: str
    kind: ColumnKind
    collation: str = ""
    length: int = 0
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.length < 0 or (self.length and self.kind is not ColumnKind.BINARY):
            raise ConfigError(f"key column {self.name}: length {self.length}", hint="only BINARY(n) has one, above 0")

    @property
    def is_exact(self) -> bool:
        """True iff values that are equal for the database always have one spelling here."""
        if self.kind is not ColumnKind.STRING:
            return True
        is_binary = self.collation == "binary" or self.collation.endswith("_bin")
        return is_binary and not self.collation.startswith(_MANY_TO_ONE)

    @property
    def ignores_trailing_blanks(self) -> bool:
        """True iff the collation is PAD SPACE: all but ``binary``, MySQL's 0900 and MariaDB's nopad ones."""
        collation = self.collation
        return bool(collation) and collation != "binary" and "_0900_" not in collation and "nopad" not in collation

    @property
    def ignores_ascii_case(self) -> bool:
        """True iff A equals a, for all of ASCII and whatever stands beside it, for certain. Only collations without a
        language: a Turkish one distinguishes I from i, a Danish one may distinguish aA from aa."""
        return _PLAIN_CASELESS.fullmatch(self.collation) is not None

    def pad(self, value: bytes) -> bytes:
        """The value of a BINARY(n) as the table holds it: the binlog library strips zero bytes at the end. For
        callers that read row images; other columns and longer values come back unchanged."""
        return value.ljust(self.length, b"\0")

    def spell(self, value: object) -> tuple[str, str]:
        """The coarse and the fine spelling. Raises `FormatError` for NULL and for values of another type."""
        if self.kind is ColumnKind.STRING:
            return self._spell_string(value)
        spelled = self._spell_other(value)
        if spelled is None:
            raise self.refusal(value, _EXPECTED[self.kind])
        return spelled, spelled

    def parse(self, fine: str) -> Any:
        """The value with this fine spelling, as a client reads it: int, str, bytes, Decimal, date, datetime.

        A date that Python lacks, such as the zero date, is text. Raises `FormatError` for more digits after the
        point than the column holds: servers round them to look into an index, and find the row of another
        value. Raises another `ValueError`, or `ArithmeticError`, for text that is not a spelling.
        """
        if self.scale is not None and len(fine.partition(".")[2]) > self.scale:
            raise FormatError(
                f"column {self.name} ({self.kind.value}) holds {self.scale} digits after the point",
                hint="no row has a key with more of them",
            )
        match self.kind:
            case ColumnKind.INTEGER:
                return int(fine)
            case ColumnKind.BINARY:
                return bytes.fromhex(fine)
            case ColumnKind.DECIMAL:
                return Decimal(fine)
        text = unquote(fine, errors="strict")
        if self.kind is ColumnKind.STRING:
            return text
        try:
            return (date if self.kind is ColumnKind.DATE else datetime).fromisoformat(text)
        except ValueError:
            return text.replace("T", " ")

    def _spell_string(self, value: object) -> tuple[str, str]:
        if not isinstance(value, str) or len(value) > TEXT_LENGTH_MAX:
            raise self.refusal(value, f"str of at most {TEXT_LENGTH_MAX} characters")
        fine = value.rstrip(" ") if self.ignores_trailing_blanks else value
        if self.ignores_ascii_case and fine.isascii() and fine.isprintable():
            fine = fine.lower()
        try:
            return _escape(fold_text(value)), _escape(fine)
        except UnicodeEncodeError as error:
            raise self.refusal(value, "text without lone surrogates") from error

    def _spell_other(self, value: object) -> str | None:
        """One spelling, or None if the value does not fit the kind."""
        if isinstance(value, (bool, float)):
            return None
        match self.kind:
            case ColumnKind.INTEGER:
                return _spell_integer(value)
            case ColumnKind.BINARY:
                return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else None
            case ColumnKind.DECIMAL:
                return _spell_decimal(value)
            case ColumnKind.DATE:
                return _spell_date(value)
            case _:
                return _spell_datetime(value)

    def refusal(self, value: object, expected: str) -> FormatError:
        """The error for a value that does not fit. It names the type and not the value, which may be private."""
        if value is None:
            return FormatError(
                f"column {self.name} is NULL in a key", hint="a row with NULL there belongs to no object"
            )
        return FormatError(
            f"column {self.name} ({self.kind.value}) got {type(value).__name__}", hint=f"expected {expected}"
        )


_EXPECTED: Final = {
    ColumnKind.INTEGER: "int of at most 64 bits, or its decimal text; no bool, no float",
    ColumnKind.BINARY: "bytes",
    ColumnKind.DECIMAL: f"Decimal, int or decimal text of at most {_DECIMAL_DIGITS_MAX} digits; no float",
    ColumnKind.DATE: "date (no datetime) or text as in 2026-01-31",
    ColumnKind.DATETIME: "datetime without a time zone (convert it to the session's first), or text as in "
    "2026-01-31 23:59:59.5",
}


def fold_text(text: str) -> str:
    """The coarse form of text: without case, accents, control characters and blanks at the end."""
    if text.isascii() and text.isprintable():
        return text.lower().rstrip(" ")
    return "".join(map(_fold_character, text)).rstrip(" ")


@lru_cache(maxsize=65_536)
def _fold_character(character: str) -> str:
    """Compatibility decomposition, case folding, no marks, for one character.

    By the tables of Unicode 3.2, which every Python carries: those of the running Python grow with its version,
    and two processes must agree. Later characters stay as they are. One by one, because the order of marks, which
    depends on their neighbours, does not matter once they are dropped.
    """
    if ucd_3_2_0.category(character) == "Cn":
        return character
    folded = ucd_3_2_0.normalize("NFKD", character).casefold()
    # Marks are dropped after the second decomposition, since case folding brings some of its own.
    return "".join(c for c in ucd_3_2_0.normalize("NFKD", folded) if ucd_3_2_0.category(c) not in _IGNORED)


_IGNORED: Final = frozenset(("Mn", "Me", "Cc", "Cf"))


def _escape(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _spell_integer(value: object) -> str | None:
    if isinstance(value, str) and _INTEGER_TEXT.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or not INTEGER_MIN <= value <= INTEGER_MAX:
        return None
    return str(int(value))


def _spell_decimal(value: object) -> str | None:
    """Plain digits without zeros that mean nothing. By hand: Decimal.normalize rounds to the context."""
    is_text = isinstance(value, str) and len(value) <= 2 * _DECIMAL_DIGITS_MAX and _DECIMAL_TEXT.fullmatch(value)
    if is_text or (isinstance(value, int) and abs(value) < 10**_DECIMAL_DIGITS_MAX):
        value = Decimal(value)  # type: ignore[arg-type]
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) > _DECIMAL_DIGITS_MAX or abs(exponent) > _DECIMAL_DIGITS_MAX:
        return None
    text = "".join(map(str, digits)) + "0" * exponent
    whole, fraction = (text[:exponent], text[exponent:].rjust(-exponent, "0")) if exponent < 0 else (text, "")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    if len(whole) + len(fraction) > _DECIMAL_DIGITS_MAX:
        return None
    plain = f"{whole}.{fraction}" if fraction else whole
    return f"-{plain}" if sign and plain != "0" else plain


def _spell_date(value: object) -> str | None:
    if isinstance(value, str):
        return value if _DATE_TEXT.fullmatch(value) else None
    return value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else None


def _spell_datetime(value: object) -> str | None:
    """A date alone is its midnight, as it is for the database."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return None
        value = value.isoformat()
    elif isinstance(value, date):
        value = value.isoformat()
    match = _DATETIME_TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    fraction = (match[3] or "").rstrip("0")
    plain = f"{match[1]}T{match[2] or '00:00:00'}"
    return _escape(f"{plain}.{fraction}" if fraction else plain)
