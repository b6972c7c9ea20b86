"""Recording on a disk that is full: what is complete stays, the rest comes again, and nobody waits for a lock."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import pytest

from freshness.config.config import Config
from freshness.config.keyspace import Keyspace
from freshness.errors import ConfigError, StorageUnavailable
from freshness.history.archive_file import UNFINISHED
from freshness.keys.keyrange import KeyRange
from freshness.objects.keyfinder import KeyFinder
from freshness.stream.resume import ResumeVector
from freshness.stream.source import RowChange
from invalidator.archive.reader import open_archive
from invalidator.archive.record import record
from invalidator.archive.writer import make_storage_error
from invalidator.binlog.rows.layout import Layout
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.message import StreamMessage
from invalidator.stream.query import StreamQuery
from tests.unit.invalidator.archive.archive_world import CONFIG, make_config, make_registry, message, start

ROW_BYTES: Final = 20_000
FULL_BYTES: Final = 100_000
COLUMNS: Final = frozenset(("id", "v"))
NAMES: Final = {"customers": Layout(("id",), COLUMNS, COLUMNS)}


def insert(number: int) -> StreamMessage:
    """A row that no compression makes smaller than half."""
    row = {"id": number, "v": os.urandom(ROW_BYTES // 2).hex()}
    return message(number, RowChange("customers", "insert", None, row))


def piece(number: int, first_row: int, *, is_last: bool = False) -> StreamMessage:
    """A part of a huge transaction."""
    [change] = insert(number).transaction.changes
    return message(number, change, first_row=first_row, is_last=is_last, row_numbers=(first_row,))


@dataclass
class Upstream:
    """Opens streams of one log, and says when the end of it was read."""

    config: Config
    log: list[StreamMessage]
    left: list[StreamMessage] = field(default_factory=list)
    tokens: Any = None

    @property
    def finder(self) -> KeyFinder:
        return KeyFinder(make_registry(self.config))

    @property
    def layouts(self) -> LayoutBook:
        return LayoutBook(lambda _: NAMES)

    @property
    def stream(self) -> Upstream:
        return self

    @property
    def resume(self) -> ResumeVector:
        return ResumeVector("shop", KeyRange(), self.tokens)

    @property
    def tables(self) -> tuple[str, ...]:
        return ("customers",)

    def read_config(self) -> Config:
        return self.config

    def get_keyspace(self, _: str | None) -> Keyspace:
        return self.config.keyspaces["shop"]

    def open(self, query: StreamQuery) -> Upstream:
        self.tokens = query.since.tokens if isinstance(query.since, ResumeVector) else start(0)
        has = self.tokens["shop/-"].position
        self.left = [each for each in self.log if not has.contains(each.token.position)]
        return self

    def follow(self) -> None:
        pass

    def poll(self, _: float) -> StreamMessage | None:
        return self.left.pop(0) if self.left else None

    def close(self) -> None:
        pass

    def record(self, folder: Path) -> None:
        record(cast(Any, self), folder, None, None, lambda: not self.left)


@contextmanager
def full_disk(bytes_max: int = FULL_BYTES) -> Iterator[None]:
    """No file can become longer: the kernel refuses the write, as on a full disk, with another number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def find_unfinished(folder: Path) -> list[Path]:
    return list(folder.rglob(f".*{UNFINISHED}"))


def numbers(folder: Path) -> list[str]:
    return [
        str(each.token.position) for lineage in open_archive(folder) for each in lineage.messages() if each.is_last
    ]


def few() -> list[StreamMessage]:
    """They are held in memory until the end."""
    return [insert(number) for number in range(4, 20)]


def many() -> list[StreamMessage]:
    """More than one file of the smallest size."""
    return [insert(number) for number in range(4, 120)]


def huge() -> list[StreamMessage]:
    """One transaction in pieces, which wait in a file of their own."""
    pieces = [piece(4, row) for row in range(60)]
    return [*pieces, piece(4, 60, is_last=True), insert(5)]


@pytest.mark.parametrize("later", [few, many, huge])
def test_a_full_disk_ends_the_recording_and_costs_nothing(
    later: Callable[[], list[StreamMessage]], tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    upstream = Upstream(make_config(tmp_path, f"{CONFIG}[archive]\nrotate_mb = 1\n"), [])
    upstream.log = [insert(number) for number in range(1, 4)]
    upstream.record(folder)
    upstream.log += later()
    for _ in range(2):
        with full_disk(), pytest.raises(StorageUnavailable, match="File too large") as refused:
            upstream.record(folder)
        assert (refused.value.exit_code, refused.value.is_retryable) == (3, True)
        assert find_unfinished(folder) == [], "what is not complete takes up no room"
    upstream.record(folder)
    assert numbers(folder) == [str(each.token.position) for each in upstream.log if each.is_last]


def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    upstream = Upstream(make_config(tmp_path), few())
    with full_disk(0), pytest.raises(StorageUnavailable):
        upstream.record(folder)
    upstream.record(folder)
    assert numbers(folder) == [str(each.token.position) for each in upstream.log]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageUnavailable),
        (errno.EDQUOT, StorageUnavailable),
        (errno.EIO, StorageUnavailable),
        (errno.EACCES, ConfigError),
        (errno.EROFS, ConfigError),
        (errno.ENOTDIR, ConfigError),
    ],
)
def test_which_failures_of_a_folder_time_can_mend(number: int, kind: type[Exception]) -> None:
    error = make_storage_error(Path("archive"), OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert str(error).startswith(f"the archive archive cannot be written: {os.strerror(number)}")
