"""Vitess's sharding functions, by name and byte for byte: from a column's value to a keyspace id.

A row lives on the shard whose key range (`freshness.keys.keyrange`) contains its keyspace id. The application library
asks with the values of a key, the readers of the log with those of a row image; one row must give one id on both
sides, so a value has one form: an int (of any integer column), text, bytes, or a Decimal without fraction, which is
its int. A caller converts the text of an integer column to an int first, and pads a BINARY(n) from a log first
(`KeyColumn.pad`).

Never guesses: a value whose id may differ from Vitess's raises `FormatError`, since a wrong id is a wrong shard.
Needs the extra ``sharding``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final
from unicodedata import ucd_3_2_0

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from freshness.errors import ConfigError, FormatError

SIGNED_MIN: Final = -(1 << 63)
UNSIGNED_MAX: Final = (1 << 64) - 1
_DIGITS_MAX: Final = 20
"""Decimal digits of the largest 64-bit number."""

_NULL_KEY: Final = Cipher(TripleDES(bytes(24)), modes.ECB())
"""Three times the same key is plain DES. It hides nothing and is not meant to: it is a bijection that spreads."""

# Text to the weights that ``unicode_loose_*`` hash: neither case nor accents count. Vitess takes the sort key of Go's
# x/text for English at its loosest strength. Go keeps the tables of the root collation of CLDR 23: two bytes for each
# primary weight, none for a mark. Here are the Latin letters with all their accents, digits, and the usual signs and
# blanks. Other text is refused: it would need all of the tables. None depends on the version of the running Python.
# The middle dot is missing on purpose: after an l it has no weight of its own.
# fmt: off
_CHARACTERS: Final = {
    "0100": "\t", "0101": "\n", "0102": "\v", "0103": "\f", "0104": "\r", "0109": " \xa0", "010B": "_",
    "010D": "-", "0113": "\u2010", "0115": "\u2013", "0116": "\u2014", "0120": ",", "0131": ";",
    "0136": ":", "015D": "!", "015E": "¡", "0162": "?", "0163": "¿", "0172": ".", "017201720172": "…",
    "01E9": "'", "01EA": "‘", "01EB": "’", "01EC": "‚", "01EE": "‹", "01EF": "›", "01F0": "\"", "01F1": "“",
    "01F2": "”", "01F3": "„", "01F8": "«", "01F9": "»", "01FA": "(", "01FB": ")", "01FC": "[", "01FD": "]",
    "01FE": "{", "01FF": "}", "0267": "§", "0269": "¶", "026B": "@", "026C": "*", "0271": "/", "0272": "\\",
    "0273": "&", "0275": "#", "0276": "%", "0278": "‰", "027C": "†", "027D": "‡", "0281": "•", "030F": "`",
    "0310": "´", "0312": "^", "0313": "¯", "0316": "¨", "0319": "¸", "0382": "°", "040C": "©", "040D": "®",
    "049C": "+", "049D": "±", "049E": "÷", "049F": "×", "04A0": "<", "04A1": "=", "04A2": ">", "04A3": "¬",
    "04A4": "|", "04A5": "¦", "04A6": "~", "13ED": "¤", "13EE": "¢", "13EF": "$", "13F0": "£", "13F1": "¥",
    "1407": "€", "14E6": "0", "14E7": "1¹", "14E704AC14E8": "½", "14E704AC14EA": "¼", "14E8": "2²",
    "14E9": "3³", "14E904AC14EA": "¾", "14EA": "4", "14EB": "5", "14EC": "6", "14ED": "7", "14EE": "8",
    "14EF": "9", "15EF": "Aaª", "15EF164C": "Ææ", "1605": "Bb", "161D": "Cc", "1631": "DdÐðĐđ",
    "164C": "Ee", "1684": "Ff", "1691": "Gg", "16B4": "HhĦħ", "16CD": "Ii", "16CD16E6": "Ĳĳ", "16D1": "ı",
    "16E6": "Jj", "16FF": "Kk", "1711": "LlŁł", "1741": "Mm", "174F": "Nn", "176D": "Ŋŋ", "1771": "OoºØø",
    "1771164C": "Œœ", "1796": "Pp", "17AB": "Qq", "17B9": "ĸ", "17BD": "Rr", "17F3": "Ssſ", "17F317F3": "ß",
    "1816": "Tt", "18161741": "™", "181B": "Ŧŧ", "1836": "Uu", "185F": "Vv", "1871": "Ww", "187B": "Xx",
    "1880": "Yy", "1895": "Zz", "18C4": "Þþ", "18EF174F": "ŉ", "193B": "µ",
}
# fmt: on
_WEIGHTS: Final = {
    **dict.fromkeys(map(chr, range(0x300, 0x363)), b""),
    **{each: bytes.fromhex(weights) for weights, group in _CHARACTERS.items() for each in group},
}


def weigh_loosely(text: str) -> bytes:
    """The primary weights of the text without the spaces at its end. Raises `FormatError` for unknown characters."""
    try:
        return b"".join(_WEIGHTS[each] for each in ucd_3_2_0.normalize("NFD", text.rstrip(" ")))
    except KeyError as error:
        raise FormatError(
            f"sharding: no known weight of the character U+{ord(error.args[0]):04X}",
            hint="unicode_loose_* is known for Latin letters, digits and usual signs; xxhash takes any text",
        ) from error


def keyspace_id(function: str, value: object) -> bytes:
    """The keyspace id of a value, 8 bytes long for ``hash``, ``xxhash``, ``numeric`` and ``reverse_bits``. Raises
    `ConfigError` for an unknown function or a missing package, `FormatError` for a value that it does not take: NULL,
    float, bool, a Decimal with a fraction, a number beyond 64 bits, text it cannot weigh."""
    try:
        compute = FUNCTIONS[function]
    except KeyError:
        raise ConfigError(
            f"sharding function {function[:60]!r}", hint=f"expected one of {', '.join(sorted(FUNCTIONS))}"
        ) from None
    return compute(value)


def _hash(value: object) -> bytes:
    """DES of the big-endian number with the key of zeros. A negative int counts as its two's complement."""
    number = _to_number(value, "hash", lowest=SIGNED_MIN)
    return _NULL_KEY.encryptor().update((number & UNSIGNED_MAX).to_bytes(8, "big"))


FUNCTIONS: Final[Mapping[str, Callable[[object], bytes]]] = {
    "binary": lambda value: _to_bytes(value, "binary"),
    "binary_md5": lambda value: _md5(_to_bytes(value, "binary_md5")),
    "hash": _hash,
    "numeric": lambda value: _to_number(value, "numeric").to_bytes(8, "big"),
    "reverse_bits": lambda value: int(f"{_to_number(value, 'reverse_bits'):064b}"[::-1], 2).to_bytes(8, "big"),
    "unicode_loose_md5": lambda value: _md5(weigh_loosely(_to_text(value, "unicode_loose_md5"))),
    "unicode_loose_xxhash": lambda value: _xxh64(weigh_loosely(_to_text(value, "unicode_loose_xxhash"))),
    "xxhash": lambda value: _xxh64(_to_bytes(value, "xxhash")),
}


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _xxh64(data: bytes) -> bytes:
    try:
        import xxhash
    except ImportError as error:
        raise ConfigError("the package xxhash is missing", hint="pip install 'freshness[sharding]'") from error
    # Vitess stores the number in little-endian order, unlike the canonical digest of the package.
    return xxhash.xxh64_intdigest(data).to_bytes(8, "little")


def _to_number(value: object, function: str, *, lowest: int = 0) -> int:
    """A number of 64 bits. Text may not be negative: only a signed column is, and it gives an int."""
    value = _without_decimal(value, function)
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("latin-1")
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX):
            raise _refusal(value, function, "an int, or text of decimal digits only")
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refusal(value, function, "an int, or text of decimal digits only")
    if not lowest <= value <= UNSIGNED_MAX:
        raise FormatError(
            f"sharding function {function}: number out of range", hint=f"expected {lowest} to {UNSIGNED_MAX}"
        )
    return value


def _to_bytes(value: object, function: str) -> bytes:
    """The value as MySQL sends it in a text result: decimal digits of a number, UTF-8 of text."""
    value = _without_decimal(value, function)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not SIGNED_MIN <= value <= UNSIGNED_MAX:
            raise FormatError(
                f"sharding function {function}: number out of range", hint=f"expected {SIGNED_MIN} to {UNSIGNED_MAX}"
            )
        return str(int(value)).encode()
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise _refusal(value, function, "text without lone surrogates") from error
    raise _refusal(value, function, "an int, str, bytes, or Decimal without fraction")


def _to_text(value: object, function: str) -> str:
    try:
        return _to_bytes(value, function).decode()
    except UnicodeDecodeError as error:
        raise _refusal(value, function, "text, or its UTF-8 bytes") from error


def _without_decimal(value: object, function: str) -> object:
    """A Decimal of scale 0 as its int. Not every caller gives a Decimal the scale of its column, so others are
    refused."""
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite() or value.as_tuple().exponent != 0:
        raise _refusal(value, function, "a Decimal without fraction: of a column DECIMAL(n, 0)")
    return int(value)


def _refusal(value: object, function: str, expected: str) -> FormatError:
    """The error names the type and not the value, which may be private."""
    got = "NULL" if value is None else type(value).__name__
    return FormatError(f"sharding function {function} got {got}", hint=f"expected {expected}")
