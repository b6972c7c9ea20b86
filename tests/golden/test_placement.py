"""Placements that must never change: every process of every version must place a key on the same node (F10).

A change here moves keys of running caches. It takes a new algorithm name in ``freshness.keys.placement``, so that the
ring version changes with it, an ADR, and a line in the CHANGELOG.
"""

from __future__ import annotations

import pytest

from freshness.keys.placement import Placement

NODES = ("127.0.0.1:11211", "127.0.0.1:11212", "cache-3.example:11211")


@pytest.mark.parametrize(
    ("key", "place"),
    [
        (b"", 2),
        (b"shop:customer:1", 2),
        (b"shop:customer:2", 1),
        (b"shop:customer:42", 0),
        (b"shop:customer:-7", 0),
        (b"shop:profile:1%3A2:abc", 0),
        (b"shop:name:m%C3%BCller", 1),
        (b"x" * 199 + b"~" + b"0" * 40, 0),
    ],
)
def test_keys_stay_where_they_are(key: bytes, place: int) -> None:
    assert Placement(NODES, "shop").node_for(key) == NODES[place]


def test_ring_versions_stay() -> None:
    assert Placement(NODES, "shop").ring_version == 0x4A73F2E5
    assert Placement(NODES[:1]).ring_version == 0x94A50FAA
