"""The archive's files as the Spark jobs read them: listed, checked by their footers, and read in pieces.

Any file system that Arrow knows: a local path, or a URI such as ``s3://bucket/archive``. Every file is looked at
before a row of it is believed; what is missing between two files, cut, or of another version is a `FormatError` that
names the file. Knows nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.dataset
from pyarrow import fs

from freshness.errors import ConfigError, FormatError, HistoryPurged
from freshness.history.archive_file import ArchiveFile, choose_files, require_no_gap
from freshness.history.columns import CHANGES
from freshness.history.footer import ArchiveFooter, read_footer
from freshness.position.token import EventToken
from spark.batch import BATCH_ROWS
from spark.folder import find_local, open_folder

FOOTERS_KEPT_MAX: Final = 100_000
"""Footers that a reader remembers; beyond it they are read again (I6)."""

_RESTORE: Final = "a complete file never is: was it cut by a full disk or a copy? restore it, or move it away"


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Transactions of one file: those with ordinals above ``after`` and up to ``last``."""

    path: str
    after: int
    last: int


@dataclass(frozen=True, slots=True)
class ArchivedShard:
    """The files of one lineage, without gaps between them. ``begin``: everything before the first."""

    keyspace: str
    begin: EventToken
    files: tuple[ArchiveFile, ...]

    @property
    def lineage(self) -> str:
        return self.begin.lineage

    @property
    def first(self) -> int:
        return self.files[0].first

    @property
    def last(self) -> int:
        return max(file.last for file in self.files)

    def spans(self, after: int, last: int) -> list[FileSpan]:
        """The files that hold these transactions. Raises `HistoryPurged` if some were deleted."""
        if after + 1 < self.first:
            raise HistoryPurged(
                f"the archive of {self.lineage} begins with transaction {self.first}, wanted is {after + 1}",
                hint="old files were deleted: start over from the archive's beginning or from a snapshot",
            )
        return [
            FileSpan(str(file.path), max(after, file.first - 1), min(last, file.last))
            for file in self.files
            if file.last > after and file.first <= last and file.last >= file.first
        ]


@dataclass(slots=True)
class ArchiveFolder:
    """A folder of archive files. Pickled to executors, without what it remembers."""

    path: str
    _footers: dict[str, ArchiveFooter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A relative path is relative to this process, also on an executor."""
        self.path = str(find_local(self.path) or self.path)

    def __getstate__(self) -> tuple[str]:
        return (self.path,)

    def __setstate__(self, state: tuple[str]) -> None:
        self.path, self._footers = state[0], {}

    def locate(self) -> tuple[fs.FileSystem, str]:
        """Raises `ConfigError` for a URI that Arrow cannot open."""
        folder = open_folder(self.path)
        return folder.filesystem, folder.path

    def list_shards(self, keyspace: str | None = None) -> list[ArchivedShard]:
        """All lineages, of one keyspace or of all. Raises `ConfigError` if the folder has no file, `FormatError` for
        a gap and for a file that will not do."""
        filesystem, root = self.locate()
        try:
            infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError(
                f"the archive {self.path} cannot be read: {error}", hint="is it the right folder?"
            ) from error
        files = choose_files(Path(info.path) for info in infos if info.type == fs.FileType.File)
        by_lineage: dict[tuple[str, str], list[ArchiveFile]] = {}
        for file in files:
            by_lineage.setdefault((file.keyspace, file.lineage_hash), []).append(file)
        shards = [self._open(of_lineage) for _, of_lineage in sorted(by_lineage.items())]
        chosen = [shard for shard in shards if keyspace is None or shard.keyspace == keyspace]
        if not chosen:
            names = sorted({shard.keyspace for shard in shards})
            raise ConfigError(
                f"there is no file of an archive in {self.path}"
                if not shards
                else f"the archive {self.path} has nothing of keyspace {keyspace!r}",
                hint=f"it has {', '.join(names)}" if names else "expected what `invalidator record` writes",
            )
        return chosen

    def _open(self, files: Sequence[ArchiveFile]) -> ArchivedShard:
        require_no_gap(files)
        footer = self.read_footer(str(files[0].path))
        return ArchivedShard(footer.keyspace, footer.before, tuple(files))

    def read_footer(self, path: str) -> ArchiveFooter:
        """As `freshness.history.footer.read_footer`, once for each file."""
        known = self._footers.get(path)
        if known is not None:
            return known
        if len(self._footers) >= FOOTERS_KEPT_MAX:
            self._footers.clear()
        footer = self._footers[path] = read_footer(path, self.locate()[0])
        return footer

    def require_tables(self, paths: Iterable[str], tables: Collection[str]) -> None:
        """Raises `ConfigError` for a file that does not have the changes of all these tables."""
        for path in paths if tables else ():
            footer = self.read_footer(path)
            lacking = [table for table in tables if not footer.carries(table)]
            if lacking:
                raise ConfigError(
                    f"{path} has no changes of table {', '.join(lacking)}, but of {', '.join(footer.tables)}",
                    hint="record it (archive.tables), and begin after that: what was changed before is in no file",
                )

    def read(
        self, keyspace: str, lineage: str, span: FileSpan, columns: Sequence[str], condition: Any = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Rows of the span, in no order that could be relied on. ``condition``: an expression of Arrow. A file that
        was merged into another since it was listed is looked for again. Raises `FormatError`."""
        try:
            yield from self._read_file(span, columns, condition)
        except FileNotFoundError:
            shard = next(
                (each for each in self.list_shards(keyspace) if each.lineage == lineage and each.last >= span.last),
                None,
            )
            if shard is None:
                raise HistoryPurged(
                    f"{span.path} is gone, and no other file of {lineage} has its transactions",
                    hint="it was deleted while the job ran: run it again with what is left",
                ) from None
            for other in shard.spans(span.after, span.last):
                yield from self._read_file(other, columns, condition)

    def _read_file(self, span: FileSpan, columns: Sequence[str], condition: Any) -> Iterator[pyarrow.RecordBatch]:
        filesystem, _ = self.locate()
        filesystem.open_input_file(span.path).close()  # FileNotFoundError, whatever the file system
        self.read_footer(span.path)
        ordinal = pyarrow.dataset.field("ordinal")
        wanted = (ordinal > span.after) & (ordinal <= span.last)
        if condition is not None:
            wanted &= condition
        try:
            source = pyarrow.dataset.dataset(span.path, format="parquet", filesystem=filesystem)
            missing = [name for name in columns if name not in source.schema.names]
            if missing:
                raise FormatError(f"{span.path} lacks the column {missing[0]}", hint=_RESTORE)
            scanner = source.scanner(columns=list(columns), filter=wanted, batch_size=BATCH_ROWS, use_threads=False)
            yield from (batch for batch in scanner.to_batches() if batch.num_rows)
        except FileNotFoundError:
            raise
        except (pyarrow.ArrowException, OSError) as error:
            raise FormatError(f"{span.path}: {error}", hint=_RESTORE) from error


ALL_COLUMNS: Final = tuple(column.name for column in CHANGES)
