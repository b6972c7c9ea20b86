"""Collations and codecs: the numbers of both servers, as mysql-replication lists them too."""

from __future__ import annotations

import codecs

import pytest
from pymysqlreplication.constants.CHARSET import charset_by_id

from invalidator.charset import find_charset, find_codec

UTF_BIG_ENDIAN = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf32": "utf-32-be"}


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_the_collations_are_those_of_the_library(flavor: str) -> None:
    for collation in range(2048):
        known = charset_by_id(collation, flavor)
        charset = find_charset(collation, flavor)
        assert charset == ("" if known is None else known.name)
        if known is not None:
            try:
                codec = codecs.lookup(UTF_BIG_ENDIAN.get(known.name, known.encoding)).name
            except LookupError:
                codec = None
            assert find_codec(charset) == codec


@pytest.mark.parametrize(
    ("collation", "charset"),
    [(2048, "utf8mb3"), (2304, "utf8mb4"), (2560, "ucs2"), (2816, "utf16"), (3072, "utf32"), (3327, "utf32"),
     (3328, "")],
)  # fmt: skip
def test_the_uca1400_collations_of_mariadb(collation: int, charset: str) -> None:
    assert find_charset(collation, "mariadb") == charset
    assert find_charset(collation, "mysql") == ""


def test_what_has_no_codec_stays_bytes() -> None:
    assert [find_codec(charset) for charset in ("binary", "swe7", "")] == [None, None, None]
