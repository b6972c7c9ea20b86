"""Bytes and text that stay readable: positions and tokens live in caches, archives, cookies and checkpoints.

A change of these takes a new version byte, and the old ones must go on being read.
"""

from __future__ import annotations

import pytest

from freshness.position import decode_position, parse_position
from freshness.position.token import EventToken

CASES = [
    (
        "mysql",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:300:tag:7",
        "11023e11fa4771ca11e19e33c80aa942956200020004a502003e11fa4771ca11e19e33c80aa942956203746167010600",
        "ft1.AQRzaG9wAy04MAPA1P2_toKRAxECPhH6R3HKEeGeM8gKqUKVYgACAASlAgA-EfpHccoR4Z4zyAqpQpViA3RhZwEGAA",
    ),
    ("mysql", "", "1100", "ft1.AQRzaG9wAy04MAPA1P2_toKRAxEA"),
    (
        "mariadb",
        "0-1-100,0-2-100,3-1-70000",
        "1202006301010002efa2040001",
        "ft1.AQRzaG9wAy04MAPA1P2_toKRAxICAGMBAQAC76IEAAE",
    ),
    ("mariadb", "", "1200", "ft1.AQRzaG9wAy04MAPA1P2_toKRAxIA"),
]


@pytest.mark.parametrize(("flavor", "text", "encoded", "token_text"), CASES)
def test_positions_and_tokens_are_written_and_read_as_ever(
    flavor: str, text: str, encoded: str, token_text: str
) -> None:
    position = parse_position(flavor, text)
    assert str(position) == text
    assert position.encode().hex() == encoded
    assert decode_position(bytes.fromhex(encoded)) == position
    token = EventToken("shop", "-80", 3, 1_763_700_000_123_456, position)
    assert token.format() == token_text
    assert EventToken.parse(token_text) == token


def test_the_layout_of_a_token() -> None:
    token = EventToken("shop", "-80", 3, 1_763_700_000_123_456, parse_position("mariadb", "0-1-100"))
    version, lineage, shard, epoch, timestamp = (
        "01",
        "04" + b"shop".hex(),
        "03" + b"-80".hex(),
        "03",
        "c0d4fdbfb6829103",
    )
    flavor, domains, domain, sequence, more_servers, server = "12", "01", "00", "63", "00", "01"
    assert token.encode().hex() == "".join(
        (version, lineage, shard, epoch, timestamp, flavor, domains, domain, sequence, more_servers, server)
    )
