"""Archive maintenance: merge small files into large ones, delete old ones, and check all of them.

Each folder of a past hour is one task: its files become one (or a few, at `FILE_ROWS_MAX`). A row group of the merged
file holds consecutive transactions, sorted by key, so that the rows of a key lie together and compress well. The
merged file appears complete or not at all; from then on readers skip the files within it
(``freshness.history.archive_file``), and a later run deletes them, when nobody reads them any more. The hour that is
being written is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow
import pyarrow.compute
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from freshness.errors import ConfigError, FormatError, FreshnessError
from freshness.history.archive_file import ArchiveFile, choose_files, format_name, parse_name
from freshness.history.durable import publish
from freshness.history.folder_lock import lock_folder
from freshness.history.footer import ArchiveFooter
from freshness.position import Position, empty_position, parse_position
from freshness.position.token import EventToken
from spark.folder import open_local
from spark.stream.archive_folder import ArchiveFolder

FILE_ROWS_MAX: Final = 2_000_000
"""A merged file is ended by the first input file that reaches this."""

GROUP_ROWS_MAX: Final = 100_000
"""Rows that are sorted by key together; what a reader must hold to have them in order again."""

GRACE_SECONDS: Final = 3600.0
DRAFT: Final = ".merging"
"""Unfinished files end so. Each attempt at a folder has one of its own; the next run removes what is left."""

MAX_TASKS: Final = 1_000
_SORT: Final = [(name, "ascending") for name in ("table", "key_hash", "key", "ordinal", "row")]


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge of one folder. ``inputs``: the files whose rows are in the new files now."""

    folder: str
    inputs: int
    outputs: int
    rows: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The check of one file. ``problem``: "" if it is whole. ``begin``, ``end``: the tokens of its footer."""

    path: str
    transactions: int
    rows: int
    problem: str
    begin: str = ""
    end: str = ""


def merge_folder(archive: str, folder: str) -> Merged:
    """Merge the files of one folder, if there are several. Raises `FormatError`. Several attempts may run at once, on
    executors that do not know each other: each makes the same file."""
    reader, place = ArchiveFolder(archive), Path(folder)
    inputs, outputs, rows, before, after = 0, 0, 0, 0, 0
    for _, group in groupby(_mergeable(place), key=lambda file: file.lineage_hash):
        for part in _split(list(group)):
            path, count = _merge(reader, part)
            inputs, outputs, rows = inputs + len(part), outputs + 1, rows + count
            before += sum(file.path.stat().st_size for file in part)
            after += path.stat().st_size
    return Merged(folder, inputs, outputs, rows, before, after)


def _mergeable(folder: Path) -> list[ArchiveFile]:
    """By lineage and ordinal; marks stay as they are."""
    found = choose_files(folder.glob("changes-*.parquet"))
    return sorted(
        (file for file in found if file.last >= file.first), key=lambda file: (file.lineage_hash, file.first)
    )


def _split(files: Sequence[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Runs of several files without a gap, ended at `FILE_ROWS_MAX`."""
    run: list[ArchiveFile] = []
    rows = 0
    for file in files:
        if run and (file.first != run[-1].last + 1 or rows >= FILE_ROWS_MAX):
            if len(run) > 1:
                yield run
            run, rows = [], 0
        run.append(file)
        rows += parquet.read_metadata(file.path).num_rows
    if len(run) > 1:
        yield run


def _merge(reader: ArchiveFolder, files: Sequence[ArchiveFile]) -> tuple[Path, int]:
    """One file of several, synced before it has its name."""
    footers = [reader.read_footer(str(file.path)) for file in files]
    for previous, footer, file in zip(footers, footers[1:], files[1:], strict=False):
        if not footer.before.position.contains(previous.resume.position) or not previous.resume.position.contains(
            footer.before.position
        ):
            raise FormatError(
                f"{file.path} begins after {footer.before.position}, the file before it ends with "
                f"{previous.resume.position}",
                hint="files of two archives were put together; separate them",
            )
    first, last = files[0], files[-1]
    path = first.path.parent / format_name(first.lineage_hash, first.first, last.last)
    draft = path.parent / f".{path.name}-{uuid4().hex}{DRAFT}"
    schema = parquet.read_schema(first.path)
    in_all = set.intersection(*(set(footer.tables) for footer in footers))
    footer = ArchiveFooter(
        footers[0].keyspace, footers[0].before, footers[-1].resume, tuple(sorted(in_all)), is_sorted_by_key=True
    )
    rows = 0
    with parquet.ParquetWriter(draft, schema.with_metadata({}), compression="zstd") as writer:
        for group in _groups(files, schema):
            rows += group.num_rows
            writer.write_table(sort_by_key(group).cast(schema.with_metadata({})), row_group_size=GROUP_ROWS_MAX * 2)
        writer.add_key_value_metadata(footer.to_metadata())
    publish(draft, path)
    return path, rows


def _groups(files: Sequence[ArchiveFile], schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """Rows in the order of the ordinals, in tables of `GROUP_ROWS_MAX` and a row group more at most."""
    held: list[pyarrow.Table] = []
    count = 0
    for file in files:
        with parquet.ParquetFile(file.path) as source:
            for number in range(source.num_row_groups):
                group = source.read_row_group(number).cast(schema)
                held.append(group)
                count += group.num_rows
                if count >= GROUP_ROWS_MAX:
                    yield pyarrow.concat_tables(held)
                    held, count = [], 0
    if held:
        yield pyarrow.concat_tables(held)


def sort_by_key(table: pyarrow.Table) -> pyarrow.Table:
    """By table and key's hash; rows without a key first."""
    keys = table.column("key").to_pylist()
    hashes = pyarrow.array([None if key is None else _hash(key) for key in keys], pyarrow.uint32())
    sorted_table: pyarrow.Table = table.append_column("key_hash", hashes).sort_by(_SORT).drop_columns(["key_hash"])
    return sorted_table


def _hash(key: str) -> int:
    from zlib import crc32

    return crc32(key.encode())


def check_file(archive: str, path: str) -> Checked:
    """Check that a file holds what its name and its footer say: every ordinal once, whole transactions, and the
    positions of all of them between its two."""
    file = parse_name(Path(path))
    assert file is not None, "listed by its name"
    try:
        footer = ArchiveFolder(archive).read_footer(path)
        flavor = footer.resume.position.flavor
        table = parquet.read_table(path, columns=["ordinal", "row", "rows", "gtid"])
    except (FreshnessError, pyarrow.ArrowException, OSError) as error:
        return Checked(path, 0, 0, str(error))
    rows = table.num_rows
    grouped = table.append_column("is_change", pyarrow.compute.greater_equal(table.column("row"), 0)).group_by(
        ["ordinal", "gtid", "rows"]
    )
    found = grouped.aggregate([("is_change", "sum")]).sort_by("ordinal").to_pylist()
    problem = _find_problem(file, [each["ordinal"] for each in found])
    position: Position = empty_position(flavor)
    for each in found:
        if not problem and each["is_change_sum"] != each["rows"]:
            problem = f"transaction {each['ordinal']} has {each['is_change_sum']} of {each['rows']} rows"
        own = parse_position(flavor, each["gtid"])
        if not problem and not footer.resume.position.contains(own):
            problem = f"transaction {each['ordinal']}, {each['gtid']}, is not in the position at its end"
        position = position.union(own)
    if not problem and not position.union(footer.before.position).contains(footer.resume.position):
        lacking = f"{footer.before.position} and its transactions do not make {footer.resume.position}"
        problem = f"transactions are missing: {lacking}"
    return Checked(path, len(found), rows, problem, footer.before.format(), footer.resume.format())


def _find_problem(file: ArchiveFile, ordinals: Sequence[int]) -> str:
    if file.last < file.first:
        return "it is a mark and holds transactions" if ordinals else ""
    if not ordinals or ordinals[0] != file.first or ordinals[-1] != file.last:
        return f"its name says {file.first} to {file.last}, it holds {ordinals[:1]} to {ordinals[-1:]}"
    for previous, ordinal in pairwise(ordinals):
        if ordinal != previous + 1:
            return f"transaction {ordinal} comes after {previous}"
    return ""


def check_borders(files: Iterable[tuple[ArchiveFile, Checked]]) -> list[Checked]:
    """Problems between whole files: each must begin at the end of the previous one, in ordinals and in positions."""
    problems = []
    for (previous, checked), (file, found) in pairwise(files):
        if (previous.keyspace, previous.lineage_hash) != (file.keyspace, file.lineage_hash):
            continue
        end, begin = EventToken.parse(checked.end).position, EventToken.parse(found.begin).position
        problem = ""
        if file.first != previous.last + 1:
            problem = f"it begins with {file.first}, the one before ends with {previous.last}"
        elif not begin.contains(end) or not end.contains(begin):
            problem = f"it begins after {begin}, the one before ends with {end}"
        if problem:
            problems.append(Checked(str(file.path), 0, 0, problem))
    return problems


def list_local(archive: str) -> list[Path]:
    """All files, also those that were merged. Raises `ConfigError` for none, and for a folder that is not local."""
    paths = sorted(open_local(archive).rglob("changes-*.parquet"))
    if not paths:
        raise ConfigError(
            f"there is no file of an archive in {archive}", hint="expected what `invalidator record` writes"
        )
    return paths


def find_past_folders(paths: Iterable[Path]) -> list[Path]:
    """Folders of hours, without the newest of each shard: that one is being written."""
    by_shard: dict[Path, set[Path]] = {}
    for path in paths:
        by_shard.setdefault(path.parent.parent, set()).add(path.parent)
    return sorted(folder for folders in by_shard.values() for folder in sorted(folders)[:-1])


def delete_merged(paths: Sequence[Path], grace_seconds: float, now: float) -> int:
    """Delete files that lie within a larger one which has been there for the grace."""
    kept = choose_files(paths)
    names = {file.path for file in kept}
    count = 0
    for path in paths:
        file = parse_name(path)
        if path in names or file is None:
            continue
        larger = next(
            other
            for other in kept
            if (other.keyspace, other.lineage_hash) == (file.keyspace, file.lineage_hash) and file.is_within(other)
        )
        if now - larger.path.stat().st_mtime >= grace_seconds:
            path.unlink()
            count += 1
    return count


def delete_old(paths: Sequence[Path], keep_days: float, now: float) -> int:
    """Delete from the front of each lineage what was completed or merged so long ago; never the newest file."""
    count = 0
    everything = [file for file in map(parse_name, paths) if file is not None]
    for _, group in groupby(choose_files(paths), key=lambda file: (file.lineage_hash, file.keyspace)):
        for file in list(group)[:-1]:
            if now - file.path.stat().st_mtime < keep_days * 86_400:
                break
            # With what was merged into it: else that would count again.
            for each in everything:
                same = (each.keyspace, each.lineage_hash) == (file.keyspace, file.lineage_hash)
                if same and each.last <= file.last and each.path.exists():
                    each.path.unlink()
                    count += 1
    return count


def find_holes(position: Position) -> list[str]:
    """Sources whose numbers are not one range: rightly so where blocks of numbers are handed out (Group Replication),
    else transactions that were never streamed."""
    return [str(part) for part in position.by_source().values() if part.interval_count > 1]


_MERGED_SCHEMA: Final = StructType(
    [StructField("folder", StringType()), *(StructField(name, LongType()) for name in list(Merged.__slots__)[1:])]
)
_CHECKED_SCHEMA: Final = StructType(
    [
        StructField("path", StringType()),
        StructField("transactions", LongType()),
        StructField("rows", LongType()),
        *(StructField(name, StringType()) for name in ("problem", "begin", "end")),
    ]
)
_TOLD: Final = ("path", "transactions", "rows", "problem")


def compact(
    session: SparkSession,
    archive: str,
    *,
    keep_days: float | None = None,
    grace_seconds: float = GRACE_SECONDS,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Check, merge, delete. Nothing is merged or deleted if the check finds a problem."""
    folder = open_local(archive)
    with lock_folder(folder, ".merging.lock", "merged"):
        return _compact(session, str(folder), keep_days, grace_seconds, clock)


def remove_drafts(archive: Path) -> None:
    """Remove what killed runs have left. The caller holds the folder's lock."""
    for left in archive.rglob(f".*{DRAFT}"):
        left.unlink()


def _compact(
    session: SparkSession, archive: str, keep_days: float | None, grace_seconds: float, clock: Callable[[], float]
) -> dict[str, Any]:
    paths = list_local(archive)
    problems = check(session, archive, paths)
    if problems:
        return _result(archive, problems)
    remove_drafts(Path(archive))
    folders = [str(folder) for folder in find_past_folders(paths)]
    merged = _run(session, folders, lambda folder: merge_folder(archive, folder), _MERGED_SCHEMA, Merged)
    now = clock()
    deleted = delete_merged(list_local(archive), grace_seconds, now)
    if keep_days is not None:
        deleted += delete_old(list_local(archive), keep_days, now)
    return _result(archive, [], [each for each in merged if each.outputs], deleted)


def check_archive(session: SparkSession, archive: str) -> dict[str, Any]:
    """Check alone, with a result like that of `compact`."""
    return _result(archive, check(session, archive, list_local(archive)))


def _result(
    archive: str, problems: Sequence[Checked], merged: Sequence[Merged] = (), deleted: int = 0
) -> dict[str, Any]:
    holes: dict[str, list[str]] = {}
    if not problems:
        folder = ArchiveFolder(archive)
        for shard in folder.list_shards():
            found = find_holes(folder.read_footer(str(shard.files[-1].path)).resume.position)
            holes |= {shard.lineage: found} if found else {}
    return {
        "problems": [{name: getattr(each, name) for name in _TOLD} for each in problems],
        "holes": holes,
        "merged": [asdict(each) for each in merged],
        "deleted": deleted,
    }


def check(session: SparkSession, archive: str, paths: Sequence[Path]) -> list[Checked]:
    """Problems of the files that no larger one replaces. Each file is a task."""
    files = choose_files(paths)
    names = [str(file.path) for file in files]
    checked = _run(session, names, lambda path: check_file(archive, path), _CHECKED_SCHEMA, Checked)
    broken = [each for each in checked if each.problem]
    by_path = {each.path: each for each in checked}
    return broken or check_borders((file, by_path[str(file.path)]) for file in sorted(files, key=_place))


def _place(file: ArchiveFile) -> tuple[str, str, int, int]:
    return file.keyspace, file.lineage_hash, file.first, file.last


def _run(
    session: SparkSession, names: Sequence[str], act: Callable[[str], Any], schema: StructType, kind: type
) -> list[Any]:
    """``act`` on each name, on the executors."""
    if not names:
        return []

    def work(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            done = [asdict(act(name)) for name in batch.column("name").to_pylist()]
            yield pyarrow.RecordBatch.from_pylist(done)

    frame = session.createDataFrame([(name,) for name in names], "name string")
    rows = frame.repartition(min(len(names), MAX_TASKS)).mapInArrow(work, schema).collect()
    return sorted((kind(**row.asDict()) for row in rows), key=lambda each: str(asdict(each)))
