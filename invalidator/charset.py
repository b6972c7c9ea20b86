"""Collation numbers of the servers to character sets, and character sets to Python's codecs.

Both kinds of source name a column's text by the number of its collation. No I/O.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

_COMMON: Final = """
armscii8 32 64, ascii 11 65, big5 1 84, binary 63, cp1250 26 34 44 66 99, cp1251 14 23 50-52, cp1256 57 67,
cp1257 29 58-59, cp850 4 80, cp852 40 81, cp866 36 68, cp932 95-96, dec8 3 69, eucjpms 97-98, euckr 19 85,
gb2312 24 86, gbk 28 87, geostd8 92-93, greek 25 70, hebrew 16 71, hp8 6 72, keybcs2 37 73, koi8r 7 74, koi8u 22 75,
latin1 5 8 15 31 47-49 94, latin2 2 9 21 27 77, latin5 30 78, latin7 20 41-42 79, macce 38 43, macroman 39 53,
sjis 13 88, swe7 10 82, tis620 18 89, ucs2 35 90 128-151 159, ujis 12 91, utf16 54-55 101-124, utf16le 56 62,
utf32 60-61 160-183, utf8mb3 33 83 192-215 223, utf8mb4 45-46 224-247"""
_MYSQL: Final = """
gb18030 248-250, utf8mb3 76, utf8mb4 255-271 273-275 277-294 296-298 300 303-323"""
_MARIADB: Final = """
armscii8 1056 1088, ascii 1035 1089, big5 1025 1108, cp1250 1050 1090, cp1251 1074-1075, cp1256 1081 1091,
cp1257 1082-1083, cp850 1028 1104, cp852 1064 1105, cp866 1060 1092, cp932 1119-1120, dec8 1027 1093,
eucjpms 1121-1122, euckr 1043 1109, gb2312 1048 1110, gbk 1052 1111, geostd8 1116-1117, greek 1049 1094,
hebrew 1040 1095, hp8 1030 1096, keybcs2 1061 1097, koi8r 1031 1098, koi8u 1046 1099, latin1 1032 1071,
latin2 1033 1101, latin5 1054 1102, latin7 1065 1103, macce 1062 1067, macroman 1063 1077, sjis 1037 1112,
swe7 1034 1106, tis620 1042 1113, ucs2 640-642 1059 1114 1152 1174, ujis 1036 1115,
utf16 672-674 1078-1079 1125 1147, utf16le 1080 1086, utf32 736-738 1084-1085 1184 1206,
utf8mb3 576-578 1057 1107 1216 1238, utf8mb4 608-610 1069-1070 1248 1270"""
"""As in information_schema.collations of both servers."""

_UCA1400: Final = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_UCA1400_NUMBERS: Final = range(2048, 2048 + 256 * len(_UCA1400))
"""MariaDB's uca1400 collations: 256 numbers for each of these character sets."""

_CODECS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    # Without a byte order in the name, Python would take this machine's.
    **dict.fromkeys(("ucs2", "utf16"), "utf-16-be"),
    "utf32": "utf-32-be",
    "latin1": "cp1252",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
}


def _numbers(table: str) -> Iterator[tuple[int, str]]:
    for entry in table.split(","):
        charset, *ranges = entry.split()
        for each in ranges:
            first, _, last = each.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield number, charset


_CHARSETS: Final[Mapping[str, Mapping[int, str]]] = {
    "mysql": dict((*_numbers(_COMMON), *_numbers(_MYSQL))),
    "mariadb": dict((*_numbers(_COMMON), *_numbers(_MARIADB))),
}


_EXACT: Final = frozenset(("utf8mb3", "utf8mb4", "ascii", "latin1", "ucs2", "utf16", "utf16le", "utf32"))


def is_exact(charset: str) -> bool:
    """Whether Python decodes all of it as the server does. In the others only ASCII is certain to be."""
    return charset in _EXACT


def find_charset(collation: int, flavor: str) -> str:
    """The name of the character set; "" for a collation that is not known."""
    if flavor == "mariadb" and collation in _UCA1400_NUMBERS:
        return _UCA1400[(collation - _UCA1400_NUMBERS.start) >> 8]
    return _CHARSETS[flavor].get(collation, "")


@lru_cache(maxsize=64)
def find_codec(charset: str) -> str | None:
    """Python's codec for the text of rows; None for ``binary``, and for a character set that Python lacks. For some
    characters Python's table and the server's differ: ``invalidator.binlog.wire.fieldvalue`` has the server's, for
    keys."""
    codec = _CODECS.get(charset, charset)
    try:
        return codecs.lookup(codec).name if codec else None
    except LookupError:
        return None
