"""Lines on their way from a consumer's thread to the loop that writes to its connection: bounded, and in order.

For ``invalidator.http.consumers``. Never drops a line of a consumer that is still there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Final

CHUNK_BYTES_MAX: Final = 64 << 10


class LineBuffer:
    """`put`, `note` and `end` belong to the thread, the rest to the loop."""

    def __init__(self, bytes_max: int, resume: str | None) -> None:
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._is_ended = False
        self.is_abandoned = False
        self._resume = resume
        self._filled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before the thread starts."""
        self._loop = loop

    # the thread's side

    def put(self, data: bytes, resume: str | None, timeout_seconds: float) -> bool:
        """Wait for room and put lines in, after which ``resume`` holds. False if there was none in time, or the
        consumer is gone. Lines that alone exceed the bound wait for an empty buffer."""
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self.is_abandoned or not self._bytes or self._bytes + len(data) <= self._bytes_max,
                timeout_seconds,
            )
            if self.is_abandoned or not has_room:
                return False
            self._chunks.append(data)
            self._bytes += len(data)
            self._resume = resume
        self._wake()
        return True

    def note(self, resume: str | None) -> None:
        """Nothing came for this consumer, and the stream has moved on."""
        with self._changed:
            self._resume = resume

    def end(self, last: bytes = b"") -> None:
        """No more lines but this one, for which there is always room."""
        with self._changed:
            self._is_ended = True
            if last:
                self._chunks.append(last)
                self._bytes += len(last)
        self._wake()

    def _wake(self) -> None:
        assert self._loop is not None, "attached before the thread starts"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
            self._loop.call_soon_threadsafe(self._filled.set)

    # the loop's side

    async def take(self, timeout_seconds: float) -> bytes | None:
        """Lines of up to `CHUNK_BYTES_MAX`, or one longer; b"" at the end; None if nothing came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while (taken := self._take_now()) is None:
                    await self._filled.wait()  # it may have been set for lines that are taken already
                return taken
        return None

    def _take_now(self) -> bytes | None:
        with self._changed:
            self._filled.clear()
            taken = bytearray()
            while self._chunks and (not taken or len(taken) + len(self._chunks[0]) <= CHUNK_BYTES_MAX):
                taken += self._chunks.popleft()
            self._bytes -= len(taken)
            self._changed.notify_all()
            return bytes(taken) if taken or self._is_ended else None

    def find_resume(self) -> str | None:
        """Where to go on after all that was taken; only right while the buffer is empty."""
        with self._changed:
            return self._resume if not self._chunks else None

    def abandon(self) -> None:
        """The consumer is gone: what is left is dropped, and the thread ends."""
        with self._changed:
            self.is_abandoned = True
            self._changed.notify_all()
