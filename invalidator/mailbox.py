"""What is on its way from a source's reader thread to the caller: bounded, in order, and errors come last.

Used by ``invalidator.vstream``. Never drops anything: a full mailbox makes the reader
wait, and with it the server.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from freshness.errors import FreshnessError

TRANSACTIONS_QUEUED_MAX: Final = 5_000
ROWS_QUEUED_MAX: Final = 100_000
BYTES_QUEUED_MAX: Final = 64 << 20
"""Rows in a mailbox, and bytes of their row events. A single transaction may have more; then it is alone there."""

Mail = TypeVar("Mail")


class Mailbox(Generic[Mail]):
    """Bounded by the number of transactions and by their rows and bytes, which ``measure`` tells.

    `put` and `fail` belong to the reader, `take` to the caller, `close` to either.
    """

    def __init__(
        self,
        measure: Callable[[Mail], tuple[int, int]],
        transactions_max: int = TRANSACTIONS_QUEUED_MAX,
        rows_max: int = ROWS_QUEUED_MAX,
        bytes_max: int = BYTES_QUEUED_MAX,
    ) -> None:
        self._measure = measure
        self._transactions_max = transactions_max
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._waiting: deque[Mail] = deque()
        self._rows = 0
        self._bytes = 0
        self._error: FreshnessError | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, mail: Mail) -> bool:
        """Wait for room and put it in. False when nobody will take it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(mail))
            if self._is_closed:
                return False
            self._waiting.append(mail)
            self._count(mail, 1)
            self._changed.notify_all()
            return True

    def fail(self, error: FreshnessError) -> None:
        """What `take` raises when everything before it was taken."""
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
            taken = [self._waiting.popleft() for _ in range(min(transactions_max, len(self._waiting)))]
            for mail in taken:
                self._count(mail, -1)
            self._changed.notify_all()
            return taken

    def _count(self, mail: Mail, sign: int) -> None:
        rows, size_bytes = self._measure(mail)
        self._rows += sign * rows
        self._bytes += sign * size_bytes

    def _has_room(self, mail: Mail) -> bool:
        rows, size_bytes = self._measure(mail)
        return not self._waiting or (
            len(self._waiting) < self._transactions_max
            and self._rows + rows <= self._rows_max
            and self._bytes + size_bytes <= self._bytes_max
        )
