"""Recorded history as files of Parquet: which files there are, and parts of them that a step reads at once.

A file that cannot be understood is refused before anything is judged, since an audit without some of its files would
prove nothing: the footer of every file is looked at first. Steps read columns of a part by Arrow, on one machine and
on a cluster alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import fs, parquet

from freshness.errors import ConfigError, FormatError
from freshness.history import columns as history
from freshness.history.archive_file import UNFINISHED, choose_files, parse_name
from freshness.history.arrow import make_schema
from freshness.history.columns import KIND_KEY, VERSION_KEY
from spark.audit.engine.step import Engine, ScanPart, Told
from spark.audit.input.window import ALL, SEVERAL, Footer, Window
from spark.audit.model.schema import to_table
from spark.folder import Folder, open_folder

CHANGES: Final = make_schema(history.CHANGES, "changes", history.CHANGES_VERSION).remove_metadata()
ACTIONS: Final = make_schema(history.ACTIONS, "actions", history.ACTIONS_VERSION).remove_metadata()
ROWS_PER_PART: Final = 250_000
_FEW_VALUES: Final = (*("client", "action", "outcome", "object", "node"), *("tables", "lineages", "epochs", "lives"))
ROWS_PER_BATCH_MAX: Final = 131_072
ROWS_PER_BATCH_MIN: Final = 50_000
"""Smaller pieces of a part become one."""

_READERS: Final = 16
_FILES_PER_TASK: Final = 64
_FOOTER: Final = pyarrow.schema(
    [
        ("path", pyarrow.string()),
        ("problem", pyarrow.string()),
        ("rows", pyarrow.list_(pyarrow.int64())),
        ("client", pyarrow.string()),
        ("sequence", pyarrow.int64()),
        ("first_us", pyarrow.int64()),
        ("last_us", pyarrow.int64()),
    ]
)


class FileRows(NamedTuple):
    """Row groups of a file. ``folder``: name for `open_folder`; ``path``: path in the folder's file system."""

    folder: str
    path: str
    groups: tuple[int, ...]


class FileNames(NamedTuple):
    """A part of a listing: files of a folder, of which nothing is known yet."""

    folder: str
    paths: tuple[str, ...]

    @property
    def rows(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows that are read at once, of one file or of several small ones. ``first``: number of them to read from each
    file, None for all."""

    pieces: tuple[FileRows, ...]
    rows: int
    schema: pyarrow.Schema
    first: int | None = None

    def take_first(self, rows: int) -> RowPart:
        """About the first rows alone, at little cost."""
        piece = self.pieces[0]
        return RowPart((piece._replace(groups=piece.groups[:1]),), min(rows, self.rows), self.schema, rows)

    def read_batches(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Columns in the types of the schema. Small files are put together in one batch, and texts with few values
        of others are dictionaries. Raises `FormatError` for a file that is not there any more, or broken."""
        are_small = self.rows < len(self.pieces) * ROWS_PER_BATCH_MIN
        schema = self._schema_of(columns, () if are_small else _FEW_VALUES)
        batches = chain.from_iterable(_read(piece, schema, self.first) for piece in self.pieces)
        if are_small:
            table = pyarrow.Table.from_batches(batches, schema).combine_chunks()
            yield from table.to_batches(ROWS_PER_BATCH_MAX)
        else:
            yield from batches

    def _schema_of(self, columns: Sequence[str], encoded: Collection[str]) -> pyarrow.Schema:
        fields = (self.schema.field(name).with_nullable(True) for name in columns)
        return pyarrow.schema([it.with_type(_encode(it.type)) if it.name in encoded else it for it in fields])


def _encode(kind: pyarrow.DataType) -> pyarrow.DataType:
    """A type of texts, or of lists of texts, with a dictionary."""
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_encode(kind.value_type))
    return pyarrow.dictionary(pyarrow.int32(), kind)


def _is_encoded(kind: pyarrow.DataType) -> bool:
    return isinstance(kind.value_type if pyarrow.types.is_list(kind) else kind, pyarrow.DictionaryType)


def _read(piece: FileRows, schema: pyarrow.Schema, first: int | None = None) -> Iterator[pyarrow.RecordBatch]:
    few = {field.name for field in schema if _is_encoded(field.type)}
    filesystem = _open(piece.folder)
    try:
        footer = parquet.read_metadata(piece.path, filesystem=filesystem)
        columns = map(footer.schema.column, range(footer.num_columns))
        with parquet.ParquetFile(
            piece.path,
            metadata=footer,
            filesystem=filesystem,
            pre_buffer=first is None,
            read_dictionary=[it.path for it in columns if it.path.partition(".")[0] in few],
        ) as file:
            size = ROWS_PER_BATCH_MAX if first is None else first
            batches = file.iter_batches(size, list(piece.groups), schema.names, use_threads=False)
            for batch in islice(batches, None if first is None else 1):
                yield batch.select(schema.names).cast(schema)
    except (pyarrow.ArrowException, OSError) as error:
        raise FormatError(f"{piece.path} cannot be read any more: {error}", hint="audit again") from error


@lru_cache
def _open(folder: str) -> fs.FileSystem:
    return open_folder(folder).filesystem


@dataclass(frozen=True, slots=True)
class RecordedFiles:
    """Recorded changes or actions. ``rows``: number of them. ``unfinished``: names of files that were not finished:
    their writers go on, or were killed."""

    parts: tuple[RowPart, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def open_changes(engine: Engine, path: str, window: Window = ALL) -> RecordedFiles:
    """The archive, as far as the window needs it. Raises `ConfigError` if there is none, `FormatError` for a file
    that will not do."""
    folder = open_folder(path)
    files = window.choose_changes(_list_recording(folder, "changes"))
    footers = _read_footers(engine, folder, files, "changes", history.CHANGES_VERSION, CHANGES)
    return _open_recording(folder, footers, "changes", CHANGES)


def open_actions(engine: Engine, path: str, window: Window = ALL) -> RecordedFiles:
    """The cache history, as far as the window needs it. Raises as `open_changes`."""
    folder = open_folder(path)
    files = _list_recording(folder, "actions")
    unfinished = [file for file in files if file.endswith(UNFINISHED)]
    whole = sorted({*files}.difference(unfinished))
    if not whole:
        raise ConfigError(f"{folder.name} has unfinished files alone", hint="stop their writers")
    footers = _read_footers(engine, folder, whole, "actions", history.ACTIONS_VERSION, ACTIONS)
    found = _open_recording(folder, window.choose_actions(footers), "actions", ACTIONS)
    unknown = window.choose_unfinished(unfinished, footers)
    return replace(found, unfinished=tuple(Path(file).name for file in unknown))


def _list_recording(folder: Folder, kind: str) -> list[str]:
    files = drop_merged(sorted(info.path for info in list_files(folder)))
    if not files:
        raise ConfigError(f"there is no Parquet file in {folder.name}", hint=f"expected recorded {kind}")
    return files


def _read_footers(
    engine: Engine, folder: Folder, files: Sequence[str], kind: str, version: int, schema: pyarrow.Schema
) -> list[Footer]:
    names = [
        FileNames(folder.name, tuple(files[at : at + _FILES_PER_TASK]))
        for at in range(0, len(files), _FILES_PER_TASK)
    ]
    checker = _FooterCheck(kind, version, tuple(schema.names))
    rows = engine.scan(f"footers of {kind}", names, checker)["footers"].to_pylist() if names else []
    footers = sorted(Footer(**row) for row in rows)
    problems = [footer.problem for footer in footers if footer.problem]
    if problems:
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise FormatError(problems[0] + rest, hint="an audit without some of its files would prove nothing")
    return footers


def _open_recording(folder: Folder, footers: Sequence[Footer], kind: str, schema: pyarrow.Schema) -> RecordedFiles:
    if not footers:
        raise ConfigError(
            f"no file in {folder.name} is of the time from --from to --to", hint=f"expected recorded {kind}"
        )
    rows = {footer.path: footer.rows for footer in footers}
    return RecordedFiles(tuple(make_parts(folder, rows, schema)))


def list_files(folder: Folder) -> list[fs.FileInfo]:
    """The files below a folder, without hidden ones, as Spark lists them. Raises `ConfigError` if the folder cannot
    be read."""
    try:
        infos = folder.filesystem.get_file_info(fs.FileSelector(folder.path, recursive=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{folder.name} cannot be read: {error}", hint="is it the right folder?") from error
    files = (info for info in infos if info.type == fs.FileType.File)
    return [info for info in files if not _is_hidden(info.path.removeprefix(folder.path))]


def _is_hidden(path: str) -> bool:
    return any(name[0] in "._" for name in path.split("/") if name)


def drop_merged(files: Sequence[str]) -> list[str]:
    """Without files of an archive that were merged into a larger one and wait to be deleted (``spark.archive``)."""
    named = {path: file for file in files if parse_name(path := Path(file)) is not None}
    merged = named.keys() - {file.path for file in choose_files(named)}
    return [file for file in files if Path(file) not in merged]


def make_parts(folder: Folder, files: Mapping[str, Sequence[int]], schema: pyarrow.Schema) -> Iterator[RowPart]:
    """Parts of about `ROWS_PER_PART`. ``files``: by path, the rows of each row group."""
    held: list[FileRows] = []
    count = 0
    for path, rows in files.items():
        groups: list[int] = []
        for group, more in enumerate(rows):
            groups.append(group)
            count += more
            if count >= ROWS_PER_PART:
                yield RowPart((*held, FileRows(folder.name, path, tuple(groups))), count, schema)
                held, groups, count = [], [], 0
        if groups:
            held.append(FileRows(folder.name, path, tuple(groups)))
    if held:
        yield RowPart(tuple(held), count, schema)


def read_parts(parts: Iterable[ScanPart], columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """The rows of each part, without empty ones."""
    for part in parts:
        assert isinstance(part, RowPart)
        yield from (batch for batch in part.read_batches(columns) if batch.num_rows)


@dataclass(frozen=True, slots=True)
class _FooterCheck:
    """A step that reads footers. Executors must see the files, too."""

    kind: str
    version: int
    columns: Sequence[str]

    def __call__(self, parts: Iterable[ScanPart]) -> Iterator[Told]:
        with ThreadPoolExecutor(_READERS) as pool:
            for part in parts:
                assert isinstance(part, FileNames)
                found = pool.map(partial(self._check, _open(part.folder)), part.paths)
                yield "footers", to_table(found, _FOOTER)

    def _check(self, filesystem: fs.FileSystem, path: str) -> Footer:
        try:
            footer = parquet.read_metadata(path, filesystem=filesystem)
        except FileNotFoundError:
            return Footer(path, f"{path} is not there for the process that reads it: is it mounted on all machines?")
        except (pyarrow.ArrowException, OSError) as error:
            return Footer(path, f"{path} is no whole Parquet file: {error}")
        problem = self._find_problem(path, footer)
        return Footer(path, problem) if problem else _read_footer(path, footer)

    def _find_problem(self, path: str, footer: parquet.FileMetaData) -> str:
        metadata = footer.metadata or {}
        kind, version = (metadata.get(key.encode(), b"").decode() for key in (KIND_KEY, VERSION_KEY))
        if kind != self.kind:
            return f"{path} holds {kind or 'something that is not named'}, where {self.kind} were expected"
        if version != str(self.version):
            told = version or "unknown"
            return f"{path} has version {told} of recorded {kind}, this program reads {self.version}"
        found = footer.schema.to_arrow_schema().names
        missing = [name for name in self.columns if name not in found]
        return f"{path} lacks the column {missing[0]}" if missing else ""


def _read_footer(path: str, footer: parquet.FileMetaData) -> Footer:
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    rows = [group.num_rows for group in groups]
    held: dict[str, list[Any]] = {name: [] for name in ("client", "sequence", "begin_us", "end_us")}
    for column in (group.column(at) for group in groups for at in range(footer.num_columns)):
        held.get(column.path_in_schema, []).append(column.statistics)
    if not all(held.values()) or any(it is None or not it.has_min_max for its in held.values() for it in its):
        return Footer(path, "", rows)
    clients = {name for it in held["client"] for name in (it.min, it.max)}
    first_us, last_us = min(it.min for it in held["begin_us"]), max(it.max for it in held["end_us"])
    client = clients.pop() if len(clients) == 1 else SEVERAL
    return Footer(path, "", rows, client, min(it.min for it in held["sequence"]), first_us, last_us)


def open_rows(folder: Folder, files: Mapping[str, Sequence[int]], schema: pyarrow.Schema) -> RecordedFiles:
    """Files that a previous audit saved."""
    return RecordedFiles(tuple(make_parts(folder, files, schema)))
