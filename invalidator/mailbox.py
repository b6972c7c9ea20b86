"""Transactions on their way from a source's reader thread to the caller: bounded, in order, and errors come last.

Used by ``invalidator.binlog.source`` and ``invalidator.vstream.source``. Never drops anything: a full mailbox makes
the reader wait, and with it the server.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from freshness.errors import FreshnessError
from freshness.stream.source import Transaction

TRANSACTION_ROWS_MAX: Final = 200_000
"""A transaction that changes more rows of the tables asked for raises these tables instead of listing the rows."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The transactions in a mailbox, their rows, and the bytes of their row events, at most. A single transaction may
    have more; then it is alone there."""

    transactions: int = 5_000
    rows: int = 100_000
    size_bytes: int = 64 << 20


QUEUE_BOUNDS: Final = QueueBounds()

Mail = TypeVar("Mail")


def measure(transactions: Sequence[Transaction]) -> tuple[int, int]:
    """The rows of transactions, and the bytes of their events."""
    rows = size_bytes = 0
    for transaction in transactions:
        rows += len(transaction.changes) + len(transaction.items)
        size_bytes += transaction.size_bytes
    return rows, size_bytes


class Mailbox(Generic[Mail]):
    """Bounded by the number of transactions and by their rows and bytes, which ``measure`` counts for several
    together. `put` and `fail` belong to the reader, `take` to the caller, `close` to either."""

    def __init__(
        self, measure: Callable[[Sequence[Mail]], tuple[int, int]], bounds: QueueBounds = QUEUE_BOUNDS
    ) -> None:
        self._measure = measure
        self._bounds = bounds
        self._waiting: deque[Mail] = deque()
        self._rows = 0
        self._bytes = 0
        self._error: FreshnessError | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, mails: Sequence[Mail]) -> bool:
        """Wait for room and put them in, one by one if there is not enough for all together. False when nobody will
        take them any more."""
        with self._changed:
            if not self._put_at_once(mails):
                for mail in mails:
                    while not self._put_at_once((mail,)):
                        # The caller may take earlier ones during the wait.
                        self._changed.notify_all()
                        self._changed.wait()
            self._changed.notify_all()
            return not self._is_closed

    def _put_at_once(self, mails: Sequence[Mail]) -> bool:
        """False if they do not fit. One larger than the bounds goes in alone; a closed mailbox keeps nothing."""
        if self._is_closed:
            return True
        rows, size_bytes = self._measure(mails)
        has_room = (
            len(self._waiting) + len(mails) <= self._bounds.transactions
            and self._rows + rows <= self._bounds.rows
            and self._bytes + size_bytes <= self._bounds.size_bytes
        )
        if not has_room and (self._waiting or len(mails) != 1):
            return False
        self._waiting += mails
        self._rows += rows
        self._bytes += size_bytes
        return True

    def fail(self, error: FreshnessError) -> None:
        """Make `take` raise this error as soon as everything before it was taken."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing will be taken any more: a waiting `put` returns."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def take(self, timeout_seconds: float, transactions_max: int) -> list[Mail]:
        """The next ones, at most that many; waits for the first one only. Raises what `fail` was given."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._waiting and self._error is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return []
                self._changed.wait(remaining)
            if not self._waiting and self._error is not None:
                # A new exception each time: one that is raised again keeps growing its traceback.
                raise copy.copy(self._error) from self._error
            if len(self._waiting) <= transactions_max:
                taken = list(self._waiting)
                self._waiting.clear()
                self._rows = self._bytes = 0
            else:
                taken = [self._waiting.popleft() for _ in range(transactions_max)]
                rows, size_bytes = self._measure(taken)
                self._rows -= rows
                self._bytes -= size_bytes
            self._changed.notify_all()
            return taken
