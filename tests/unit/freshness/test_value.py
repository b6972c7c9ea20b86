"""Values made by the thousand: equal, hashable, without room for other fields, and picklable (for Spark)."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from freshness.algorithm.envelope import Tombstone, encode_single_tombstone
from freshness.algorithm.request import Get
from freshness.position import parse_position
from freshness.position.wire import Writer


def test_values_compare_by_their_fields() -> None:
    assert Get(b"k", 30) == Get(b"k", 30) != Get(b"k")
    assert len({Get(b"k", 30), Get(b"k", 30), Get(b"k")}) == 2
    assert replace(Get(b"k"), vivify_ttl_seconds=30) == Get(b"k", 30)
    assert pickle.loads(pickle.dumps(Get(b"k", 30))) == Get(b"k", 30)  # noqa: S301 - our own bytes


def test_a_value_has_slots() -> None:
    with pytest.raises(AttributeError):
        Get(b"k").another = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("flavor", "text"), [("mariadb", "0-1-5"), ("mysql", "11111111-2222-3333-4444-555555555555:1-9:12")]
)
def test_a_single_tombstone_has_the_bytes_of_any_other(flavor: str, text: str) -> None:
    position = parse_position(flavor, text)
    written = Writer(b"\xfa\x01\x03")
    written.u8(1)
    written.short(b"shop/-")
    written.u64(7)
    written.long(position.encode())
    assert encode_single_tombstone("shop/-", 7, position) == written.getvalue()
    assert Tombstone.of("shop/-", 7, position).encode() == written.getvalue()
    assert Tombstone.decode(written.getvalue()) == Tombstone.of("shop/-", 7, position)
