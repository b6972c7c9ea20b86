"""The history of a run, for the audit: what the database changed and what each of the caches did.

Each strategy gets an archive of the update stream, which names its keys, and a history of its cache, in a folder of
its own: ``FOLDER/STRATEGY/archive`` and ``…/history``. Event tokens are recorded by the library itself. For the
others this module is the witness, since no library of theirs knows a position: it reads one before the rows and one
after them, and notes what was stored. If the two differ, a row could be younger than the first position, and
all are
read again. Otherwise it only watches; neither strategy does anything else because of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from examples.demo.measurement import CUSTOMER, ObjectKey, Write
from examples.demo.strategy import plain_key
from freshness.algorithm.witness import Action, Trace
from freshness.history.recorder import Recorder
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.heartbeat import parse_token, token_sql
from freshness.values.codec import encode_value
from integration.servers import ServerFailed
from integration.servers.program import PythonProgram
from invalidator.archive.writer import find_resume

TABLES: Final[Mapping[str, tuple[str, ...]]] = {CUSTOMER: ("customers",), "profile": ("customers", "orders")}
RESTARTS_MAX: Final = 20
READS_MAX: Final = 20

Rows = TypeVar("Rows")


@dataclass(slots=True)
class Witness:
    """Writes down what one of the plain strategies does. ``find_node``: the node of a key. For several
    threads."""

    namespace: str
    flavor: str
    lineage: str
    recorder: Recorder
    find_node: Callable[[str], str]
    _stored: dict[tuple[str, int], tuple[EventToken, bytes]] = field(default_factory=dict)
    _acknowledged: dict[int, tuple[Write, Mapping[ObjectKey, float]]] = field(default_factory=dict)
    _committed: dict[int, tuple[Write, Position]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now_us(self) -> int:
        return self.recorder.now_us()

    def read_with_token(self, connection: Any, read: Callable[[], Rows]) -> tuple[EventToken | None, Rows]:
        """Rows, and what the server showed while they were read, no more, no less; None if it never stands still."""
        before = self._read_token(connection)
        for _ in range(READS_MAX):
            rows = read()
            after = self._read_token(connection)
            if after.position == before.position:
                return before, rows
            before = after
        return None, rows

    def _read_token(self, connection: Any) -> EventToken:
        with connection.cursor() as cursor:
            cursor.execute(token_sql(self.flavor))
            token = parse_token(self.flavor, self.lineage, "-", [tuple(row) for row in cursor.fetchall()])
        assert token is not None, "the invalidator has made its table"
        return token

    def filled(self, key: ObjectKey, plain: str, value: Any, token: EventToken, version: int, begin_us: int) -> None:
        """A value was set. ``version``: 0 if another value has already replaced it."""
        payload = encode_value(value)
        if version:
            with self._lock:
                self._stored[plain, version] = token, payload
        self._tell(key, plain, "fill", "FILLED", token, payload, version, begin_us)

    def hit(self, key: ObjectKey, plain: str, version: int, begin_us: int) -> None:
        with self._lock:
            stored = self._stored.get((plain, version))
        if stored is not None:  # else its fill is still being recorded
            self._tell(key, plain, "hit", "HIT", *stored, version, begin_us)

    def acknowledged(self, write: Write, times: Mapping[ObjectKey, float]) -> None:
        """When each object of a write was deleted, by the monotonic clock."""
        with self._lock:
            committed = self._committed.pop(id(write), None)
            if committed is None:
                self._acknowledged[id(write)] = write, times
        if committed is not None:
            self._invalidated(committed[1], times)

    def committed(self, write: Write, position: Position) -> None:
        """The position of a write is known. It may be acknowledged before."""
        with self._lock:
            acknowledged = self._acknowledged.pop(id(write), None)
            if acknowledged is None:
                self._committed[id(write)] = write, position
        if acknowledged is not None:
            self._invalidated(position, acknowledged[1])

    def _invalidated(self, position: Position, times: Mapping[ObjectKey, float]) -> None:
        for key, at in times.items():
            at_us = self.now_us() - round((time.monotonic() - at) * 1e6)
            plain = plain_key(self.namespace, key)
            action = Action(
                "invalidation",
                "stored",
                self.find_node(plain),
                at_us,
                at_us,
                plain.encode(),
                traces={self.lineage: Trace(1, position=position)},
            )
            self.recorder.tell(action)

    def _tell(
        self,
        key: ObjectKey,
        plain: str,
        kind: Any,
        outcome: str,
        token: EventToken,
        payload: bytes,
        version: int,
        begin_us: int,
    ) -> None:
        action = Action(
            kind,
            outcome,
            self.find_node(plain),
            begin_us,
            self.now_us(),
            plain.encode(),
            key[0],
            TABLES[key[0]],
            {self.lineage: Trace(token.epoch, position=token.position)},
            payload,
            False,
            version,
        )
        self.recorder.tell(action)


class ArchiveProcess(PythonProgram):
    """``invalidator record`` for the keys of one namespace."""

    technology = "archive"

    def __init__(self, config_path: Path, folder: Path) -> None:
        super().__init__("-m", "invalidator.cli", "record", "--config", str(config_path), "--out", str(folder))
        self.folder = folder

    def is_ready(self) -> bool:
        """Whether the archive has recorded its start."""
        return bool(self.folder.is_dir() and find_resume(self.folder, "shop"))

    def finish(self, head: Position, lineage: str) -> None:
        """End it when the archive has everything up to ``head``. A restarted process resumes at its last
        position."""
        for _ in range(RESTARTS_MAX):
            self.terminate()
            if find_resume(self.folder, "shop")[lineage].position.contains(head):
                return
            self.start()
            time.sleep(0.5)
        raise ServerFailed(f"the archive {self.folder} does not get to {head}:\n{self.log_tail()}")


def with_namespace(path: Path, namespace: str) -> Path:
    """A copy of a configuration file, for the keys of another namespace."""
    copy = path.with_name(f"{namespace}.toml")
    copy.write_text(path.read_text().replace('namespace = "event_tokens"', f'namespace = "{namespace}"'))
    return copy
