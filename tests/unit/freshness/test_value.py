"""Values made by the thousand: equal, hashable, without room for other fields, and picklable (for Spark)."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from freshness.algorithm.request import Get


def test_values_compare_by_their_fields() -> None:
    assert Get(b"k", 30) == Get(b"k", 30) != Get(b"k")
    assert len({Get(b"k", 30), Get(b"k", 30), Get(b"k")}) == 2
    assert replace(Get(b"k"), vivify_ttl_seconds=30) == Get(b"k", 30)
    assert pickle.loads(pickle.dumps(Get(b"k", 30))) == Get(b"k", 30)  # noqa: S301 - our own bytes


def test_a_value_has_slots() -> None:
    with pytest.raises(AttributeError):
        Get(b"k").another = 1  # type: ignore[attr-defined]
