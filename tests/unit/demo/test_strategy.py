"""The demo's fence does what a fence can: the row of the table shows its limits, and no error of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pymysql
import pytest

from examples.demo.measurement import Meter, ObjectKey, Request, Write
from examples.demo.strategy import DeletingCache, DeletingWriter, FencedCache, FencedWriter, plain_key

CUSTOMER_7: ObjectKey = ("customer", 7)
PLAIN_7 = plain_key("any", CUSTOMER_7)
READ_7 = Request((CUSTOMER_7,))
WRITE_7 = Write({("customers", 7): 2}, (CUSTOMER_7,), 1.0)
OLD = {"id": 7, "version": 1}


class Node:
    """A node of memcached, as the client shows it."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.items.get(key)

    def gets(self, key: str) -> tuple[bytes | None, bytes]:
        return self.get(key), b"1"

    def set(self, key: str, data: bytes, *, expire: int, noreply: bool) -> None:
        self.items[key] = data

    def add(self, key: str, data: bytes, *, noreply: bool) -> None:
        self.items.setdefault(key, data)

    def incr(self, key: str, value: int, *, noreply: bool) -> int | None:
        if key not in self.items:
            return None
        self.items[key] = b"%d" % (int(self.items[key]) + value)
        return int(self.items[key])

    def delete(self, key: str, *, noreply: bool) -> None:
        self.items.pop(key, None)


def reader_of(
    kind: type[DeletingCache], node: Node, monkeypatch: pytest.MonkeyPatch, *, during: Callable[[], object]
) -> DeletingCache:
    """One whose replica shows the old row. ``during``: called while it is read."""

    def read_rows(_: DeletingCache, keys: Sequence[ObjectKey]) -> dict[ObjectKey, Any]:
        during()
        return dict.fromkeys(keys, OLD)

    monkeypatch.setattr(pymysql, "connect", lambda: None)
    monkeypatch.setattr(kind, "_read_rows", read_rows)
    return kind("any", node, {})


@pytest.mark.parametrize(
    ("kind", "writer", "is_stored"), [(DeletingCache, DeletingWriter, True), (FencedCache, FencedWriter, False)]
)
def test_a_fence_stops_a_reader_that_is_slower_than_a_write(
    kind: type[DeletingCache], writer: type[DeletingWriter], is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    writing = writer("any", node, Meter("any"))
    for _ in range(2):  # the first write finds no generation, the second raises it
        reader = reader_of(kind, node, monkeypatch, during=lambda: writing.after_commit(WRITE_7))
        assert not reader.read(READ_7)[0].is_hit
        assert (PLAIN_7 in node.items) == is_stored
        node.delete(PLAIN_7, noreply=False)


def test_a_fence_does_not_stop_a_reader_of_a_late_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    FencedWriter("any", node, Meter("any")).after_commit(WRITE_7)
    reader = reader_of(FencedCache, node, monkeypatch, during=lambda: None)
    assert [each.is_hit for _ in range(2) for each in reader.read(READ_7)] == [False, True]
    assert reader.read(READ_7)[0].value["version"] == 1
