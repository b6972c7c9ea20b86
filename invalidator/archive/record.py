"""Writes an update stream into the archive: `invalidator record`, and beside a running invalidator.

Never skips: what ends the stream ends the recording, after everything before it was completed; the next one goes on
from the archive's own position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from freshness.algorithm.driver import running_clock
from freshness.config.config import Config
from freshness.errors import ConfigError, FreshnessError
from freshness.keys.keyrange import KeyRange
from freshness.stream.resume import ResumeVector
from invalidator.archive.writer import ArchiveWriter, RotationPolicy, find_resume, make_storage_error
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
RETRY_MIN_SECONDS: Final = 0.5
RETRY_MAX_SECONDS: Final = 10.0
"""A recorder in the invalidator's process tries again after a pause that doubles between these two."""

STOP_SECONDS: Final = 10.0

Report = Callable[[ArchiveWriter, OpenedStream], None]


def get_archive_path(config: Config, out: str | None = None) -> Path:
    """The folder of the archive: ``out``, or the configured one. Raises `ConfigError` without both."""
    if out is not None:
        return Path(out)
    if config.archive.path is None:
        raise ConfigError("where to write the archive?", hint="give --out, or set archive.path")
    return config.path.parent / config.archive.path


def record(
    opener: StreamOpener,
    folder: Path,
    keyspace_name: str | None,
    since: str | None,
    is_stopping: Callable[[], bool],
    report: Report = lambda *_: None,
) -> None:
    """Record until ``is_stopping``. ``since``: only for a new archive; an old one continues at its end. Raises what
    `StreamOpener.open` and `ArchiveWriter` raise, and what ends the stream."""
    config, keyspace = opener.read_config(), opener.get_keyspace(keyspace_name)
    tokens = find_resume(folder, keyspace.name)
    if tokens and since is not None:
        raise ConfigError(
            f"the archive {folder} goes on where it ends, and not at {since!r}",
            hint="leave --since out, or begin another archive with --out",
        )
    start = ResumeVector(keyspace.name, KeyRange(), tokens) if tokens else "now" if since is None else since
    opened = opener.open(StreamQuery(keyspace.name, "-", start, config.archive.tables, minimize_skew=False))
    try:
        policy = RotationPolicy(config.archive.rotate_seconds, config.archive.rotate_mb << 20)
        archive = ArchiveWriter(
            folder,
            keyspace.name,
            opened.finder,
            opened.layouts,
            policy,
            tables=opened.tables,
            clock=running_clock,
            now_us=lambda: time.time_ns() // 1000,
        )
        try:
            try:
                if archive.resume != tokens:
                    raise ConfigError(f"another process has written to the archive {folder}", hint="try again")
                archive.begin(opened.stream.resume.tokens)
                _copy(opened, archive, is_stopping, report)
            except FreshnessError:
                archive.close()
                raise
            archive.close()
        except OSError as error:
            archive.abandon()
            raise make_storage_error(folder, error) from error
    finally:
        opened.stream.close()


def _copy(opened: OpenedStream, archive: ArchiveWriter, is_stopping: Callable[[], bool], report: Report) -> None:
    while not is_stopping():
        opened.follow()
        message = opened.stream.poll(POLL_SECONDS)
        if message is None:
            archive.tick()
        else:
            archive.write(message)
        report(archive, opened)


@dataclass(slots=True)
class ArchiveRecorder:
    """`record` in a thread, for one keyspace: tried again for as long as it takes, since invalidation does not depend
    on it."""

    opener: StreamOpener
    keyspace: str
    last_error: str = ""
    _is_stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"archive {self.keyspace}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        pause_seconds = RETRY_MIN_SECONDS
        while not self._is_stopping.is_set():
            try:
                folder = get_archive_path(self.opener.read_config())
                record(self.opener, folder, self.keyspace, None, self._is_stopping.is_set)
            except FreshnessError as error:
                self.last_error = str(error)
                log.error(
                    "the archive of %s is not written: %s; next try in %.1f s", self.keyspace, error, pause_seconds
                )
                self._is_stopping.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, RETRY_MAX_SECONDS)
