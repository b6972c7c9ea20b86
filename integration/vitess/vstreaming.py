"""A VStream source on a stand-in for vtgate, for the tests of what it makes of scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import FreshnessError
from freshness.position import MysqlGtidSet, Position
from freshness.stream.source import Transaction
from integration.servers.vtgate import KEYSPACE, SHARD, UUID, Vtgate, fields, inserted, rows
from invalidator.vstream.source import VStream, VStreamSource

TABLES: Mapping[str, Sequence[str]] = {"customers": (), "orders": ()}
ARRIVES_SECONDS = 120.0
FIELDS = fields("customers")
ROW_5 = rows("customers", inserted("5", "Ann"))
Code = grpc.StatusCode


def up_to(last: int) -> Position:
    return MysqlGtidSet.parse(f"{UUID}:1-{last}")


def number(which: int) -> Position:
    return MysqlGtidSet.of(UUID, which)


def address_of(vtgate: Vtgate, **parts: Any) -> VtgateAddress:
    return VtgateAddress("127.0.0.1", KEYSPACE, vtgate.port, **parts)


def wait_until(ask: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + ARRIVES_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)
    return answer


def take(source: VStreamSource | VStream, count: int) -> list[Any]:
    """The next ``count`` transactions. A stream without them fails the test instead of hanging it."""
    taken: list[Any] = []
    deadline = time.monotonic() + ARRIVES_SECONDS
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} arrived"
        taken += source.poll(0.2, count - len(taken))
    return taken


def read_to_end(source: VStreamSource | VStream) -> tuple[list[Any], FreshnessError]:
    """What comes before the error that ends the stream, and the error."""
    taken: list[Any] = []
    deadline = time.monotonic() + ARRIVES_SECONDS
    while time.monotonic() < deadline:
        try:
            taken += source.poll(0.2, 100)
        except FreshnessError as error:
            return taken, error
    raise AssertionError(f"the stream did not end; it brought {taken[-3:]}")


@contextmanager
def source_of(
    vtgate: Vtgate, *, start: int = 10, parts: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[VStreamSource]:
    source = VStreamSource(address_of(vtgate, **(parts or {})), SHARD, TABLES, **options)
    source.open(up_to(start))
    try:
        yield source
    finally:
        source.close()


def play(*steps: Any, **options: Any) -> tuple[list[Transaction], FreshnessError]:
    """What one stream with this script brings, and the error at its end."""
    with Vtgate(steps) as vtgate, source_of(vtgate, **options) as source:
        return read_to_end(source)


def wait_until_full(source: VStreamSource, count: int) -> None:
    reader = source._stream._reader
    assert reader is not None
    mailbox = reader.mailbox
    wait_until(lambda: len(mailbox._waiting) == count, "the mailbox is full")
