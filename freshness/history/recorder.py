"""The recorder of cache history: a witness that writes Parquet files beside the work, for the audit.

Actions go into a bounded buffer; a thread turns them into rows and files. Actions that do not fit are counted in the
files as ``dropped``, so that an audit knows that they are missing. A file appears complete or not at all. After a
fork each process records under a name of its own. Opened by the composition roots of ``appclient`` and
``invalidator`` where ``history.path`` is set; needs the extra ``history``.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from freshness import __version__
from freshness.algorithm.witness import Action
from freshness.errors import FormatError
from freshness.history.archive_file import UNFINISHED
from freshness.history.arrow import make_schema
from freshness.history.columns import ACTIONS, ACTIONS_VERSION
from freshness.history.durable import make_folder, publish, sync
from freshness.values.codec import DIGEST_BYTES, decode_value, row_digest
from freshness.values.compression import unpack

log = logging.getLogger(__name__)

KIND: Final = "actions"
BUFFERED_MAX: Final = 100_000
"""Actions that wait to be written. Further actions are dropped and counted (I6)."""

FILE_ROWS_MAX: Final = 500_000
WRITE_SECONDS: Final = 0.5
STOP_SECONDS: Final = 10.0
SAMPLE_SPACE: Final = 1 << 32

SCHEMA: Final = make_schema(ACTIONS, KIND, ACTIONS_VERSION)


def hash_item(item: bytes) -> int:
    """The signed 64-bit hash by which items are sampled and joined."""
    return int.from_bytes(hashlib.blake2b(item, digest_size=8).digest(), "big", signed=True)


class Recorder:
    """``sample``: the share of items recorded, from 0 to 1. Safe for several threads. See
    `freshness.algorithm.witness`. It begins with its first action, and again after `close` and in a forked process,
    each time as a new client. ``on_drop`` is called with the number of dropped actions; it must return soon."""

    def __init__(
        self,
        folder: Path,
        *,
        sample: float = 1.0,
        rotate_seconds: float = 60.0,
        on_drop: Callable[[int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._on_drop = on_drop or (lambda _: None)
        self._sample = round(sample * SAMPLE_SPACE)
        self._rotate_seconds = rotate_seconds
        self._process = 0
        self._session: _Session | None = None
        atexit.register(self.close)

    def wants(self, item: bytes) -> bool:
        return hash_item(item) % SAMPLE_SPACE < self._sample

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def tell(self, action: Action) -> None:
        if self._process != os.getpid():
            # Forked: the parent has the thread and the file, and may have held the lock
            self._process, self._lock, self._session = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._session is None:
                self._session = _Session(self._folder, self._rotate_seconds, self._on_drop)
            self._session.add(action)

    def close(self) -> None:
        """Write what waits, and end the file. Takes `STOP_SECONDS` at most."""
        if self._process != os.getpid():
            return
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()


class _Session:
    """One client in the history: a buffer, a thread, and its files."""

    def __init__(self, folder: Path, rotate_seconds: float, on_drop: Callable[[int], None]) -> None:
        self._folder = folder
        self._on_drop = on_drop
        self._rotate_seconds = rotate_seconds
        name = f"{socket.gethostname()[:40]}.{secrets.token_hex(4)}"
        self._client = f"{name}/{os.getpid()}/{__version__}"
        self._prefix = f"actions-{name}-{os.getpid()}"
        self._lock = threading.Lock()
        self._waiting: deque[Action] = deque()
        self._dropped = 0
        self._has_failed = False
        self._sequence = 0
        self._files = 0
        self._unfinished = 0
        """Actions that are in no finished file; of the thread alone."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def add(self, action: Action) -> None:
        with self._lock:
            if len(self._waiting) < BUFFERED_MAX and not self._has_failed:
                self._waiting.append(action)
            else:
                self._dropped += 1
                self._on_drop(1)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            file = self._open()
            while not self._stopping.wait(WRITE_SECONDS):
                file = self._write(file)
            self._write(file).finish()
        except (OSError, pa.ArrowException):
            # The work goes on. The history ends here, without the actions that waited: an audit sees it cut off
            log.exception("history is not recorded any more in %s", self._folder)
            with self._lock:
                self._has_failed = True
                self._on_drop(self._unfinished + len(self._waiting))
                self._waiting.clear()

    def _open(self) -> _OpenFile:
        self._files += 1
        return _OpenFile(self._folder / f"{self._prefix}-{self._files:08d}.parquet")

    def _write(self, file: _OpenFile) -> _OpenFile:
        """Write what waits; the file for all that comes later."""
        with self._lock:
            actions, self._waiting = self._waiting, deque()
            dropped, self._dropped = self._dropped, 0
        self._unfinished += len(actions)
        rows = [self._row(action) for action in actions]
        if dropped:
            rows.append(self._dropped_row(dropped))
        if rows:
            file.add(rows)
        if not file.rows or (file.rows < FILE_ROWS_MAX and file.age_seconds() < self._rotate_seconds):
            return file
        following = self._open()  # at every moment one is unfinished, which shows that the client was killed
        file.finish()
        self._unfinished = 0
        return following

    def _row(self, action: Action) -> tuple[Any, ...]:
        self._sequence += 1
        lineages = list(action.traces)
        traces = list(action.traces.values())
        return (
            self._client,
            self._sequence,
            action.kind,
            action.outcome,
            action.object_name,
            list(action.tables),
            action.item,
            None if action.item is None else hash_item(action.item),
            action.node,
            lineages,
            [str(trace.epoch) for trace in traces],
            [trace.life for trace in traces],
            ["" if trace.position is None else str(trace.position) for trace in traces],
            ["" if trace.floor is None else str(trace.floor) for trace in traces],
            _digest(action.payload),
            action.is_absent,
            _int64(action.version),
            _int64(action.observed),
            action.begin_us,
            action.end_us,
            1,
        )

    def _dropped_row(self, count: int) -> tuple[Any, ...]:
        self._sequence += 1
        now = time.time_ns() // 1000
        nothing: list[Any] = []
        head = (self._client, self._sequence, "dropped", "dropped", None, nothing, None, None, None)
        return (*head, nothing, nothing, nothing, nothing, nothing, None, False, None, None, now, now, count)


def _digest(payload: bytes | None) -> bytes | None:
    """The digest of a row, which equals the archive's digest of the same row; of any other value, of its encoding,
    compressed or not. None, too, if it cannot be unpacked."""
    if payload is None:
        return None
    try:
        payload = unpack(payload)
    except FormatError:
        return None
    alone = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
    try:
        value = decode_value(payload)
    except FormatError:
        return alone
    return (row_digest(value) if isinstance(value, dict) else None) or alone


def _int64(version: int) -> int | None:
    """A version as the node counts it, without the number of the connection above it."""
    return version & 0x7FFF_FFFF_FFFF_FFFF or None


class _OpenFile:
    """A file that is being written, under a name that nobody reads."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._path = path
        self._draft = path.with_name(path.name + UNFINISHED)
        self._writer = pq.ParquetWriter(self._draft, SCHEMA, compression="zstd")
        sync(path.parent)
        self._begun = time.monotonic()
        self.rows = 0

    def age_seconds(self) -> float:
        return time.monotonic() - self._begun

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        columns = list(zip(*rows, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self.rows += len(columns[0])

    def finish(self) -> None:
        """Give it its name; remove one without rows."""
        self._writer.close()
        if self.rows:
            publish(self._draft, self._path)
        else:
            self._draft.unlink()
