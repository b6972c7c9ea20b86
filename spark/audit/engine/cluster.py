"""The engine that is Spark: for what does not fit one machine.

A row of Spark is the number of a task, or a table as Arrow writes it. Spark schedules tasks, moves and keeps those
bytes, and starts again what was lost; no event becomes a row of the JVM. Works with Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import pyarrow
from pyarrow import fs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshness.errors import ConfigError
from spark.audit.engine.progress import Progress
from spark.audit.engine.step import (
    PieceStep,
    PlannedScan,
    ScanPart,
    ScanStep,
    Tables,
    Told,
    collect,
    read_table,
    use_system_memory,
    write_table,
)
from spark.batch import Batches, BatchFunction
from spark.failure import SPARK_ERRORS, find_failure
from spark.folder import Folder, write_probe
from spark.session import using_session

ROWS_PER_TASK: Final = 1_000_000
TASKS_MIN: Final = 8
TABLES_PER_BATCH: Final = 8
"""Tables that Spark hands to Python at once, unless spark-submit sets another number."""
BLOB_ROWS_MAX: Final = 100_000

_TOLD: Final = "piece int, name string, data binary"
_ARROW: Final = pyarrow.schema([("piece", pyarrow.int32()), ("name", pyarrow.string()), ("data", pyarrow.binary())])


class SparkEngine:
    """Runs steps by ``session``, which its owner stops."""

    def __init__(self, session: SparkSession, progress: Progress | None = None) -> None:
        self._session, self._progress = session, progress or Progress()

    def scan(self, what: str, parts: Sequence[ScanPart], step: ScanStep) -> Tables:
        with self._progress.watch(what, sum(part.rows for part in parts)):
            return _collect(self._run(PlannedScan(parts, step)))

    def shuffle(self, what: str, scans: Sequence[PlannedScan], pieces: int) -> SparkShuffled:
        with self._progress.watch(what, sum(part.rows for scan in scans for part in scan.parts)):
            frames = [self._run(scan) for scan in scans if scan.parts]
            told = frames[0]
            for frame in frames[1:]:
                told = told.unionByName(frame)
            told = told.persist(StorageLevel.DISK_ONLY)
            return SparkShuffled(told, pieces, self._progress)

    def _run(self, scan: PlannedScan) -> DataFrame:
        tasks = _divide(scan.parts)
        numbers = self._session.range(len(tasks)).withColumn("id", F.col("id").cast("int"))
        frame = numbers.repartitionById(max(1, len(tasks)), F.col("id"))
        return frame.mapInArrow(_reader(tasks, scan.step), _TOLD)

    def require_shared(self, folder: Folder) -> None:
        name = f".probe-{uuid4().hex}"
        of, path = folder.name, f"{folder.path}/{name}"

        def write(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
            for batch in batches:
                write_probe(of, path)
                yield batch

        self._session.range(1).coalesce(1).mapInArrow(write, "id long").collect()
        try:
            found = folder.filesystem.get_file_info(path)
            if found.type == fs.FileType.File:
                folder.filesystem.delete_file(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError(f"{folder.name} cannot be read back: {error}") from error
        if found.type != fs.FileType.File:
            raise ConfigError(
                f"what executors write to {folder.name} is not there for this process",
                hint="give a folder that is mounted on all machines, or a URI, as of hdfs: or s3:",
            )


class SparkShuffled:
    """Rows in their pieces, kept on the disks of executors."""

    def __init__(self, told: DataFrame, pieces: int, progress: Progress) -> None:
        self._told, self._pieces, self._progress = told, pieces, progress
        self.told = _collect(told.where(F.col("name").isNotNull()))

    def reduce(self, what: str, step: PieceStep, numbers: Mapping[int, int] | None = None) -> Tables:
        with self._progress.watch(what, 0):
            return _collect(self._run(step, numbers))

    def regroup(self, what: str, step: PieceStep, numbers: Mapping[int, int] | None = None) -> SparkShuffled:
        with self._progress.watch(what, 0):
            told = self._run(step, numbers).persist(StorageLevel.DISK_ONLY)
            return SparkShuffled(told, self._pieces, self._progress)

    def _run(self, step: PieceStep, numbers: Mapping[int, int] | None) -> DataFrame:
        rows, tasks = self._told.where(F.col("piece").isNotNull()), self._pieces
        if numbers is not None:
            # A task without a piece costs tens of milliseconds. Pieces of hot items follow each other
            tasks = len(set(numbers.values()))
            rows = rows.where(F.col("piece").isin(list(numbers)))
            joined: dict[int, list[int]] = {}
            for piece, number in numbers.items():
                if piece != number:
                    joined.setdefault(number, []).append(piece)
            told = F.col("piece")
            for number, pieces in joined.items():
                told = F.when(F.col("piece").isin(pieces), number).otherwise(told)
            rows = rows.withColumn("piece", told.cast("int"))
        return rows.repartitionById(max(1, tasks), F.col("piece")).mapInArrow(_reducer(step), _TOLD)

    def close(self) -> None:
        self._told.unpersist()


@contextmanager
def open_spark(
    progress: Progress, master: str | None = None, session: SparkSession | None = None
) -> Iterator[SparkEngine]:
    """The engine on ``session``, else on one that is opened and stopped. An error of a step is raised as what it was
    before Spark wrapped it."""
    try:
        with using_session(session, "freshness audit", master, TABLES_PER_BATCH) as used:
            yield SparkEngine(used, progress)
    except SPARK_ERRORS as error:
        failure = find_failure(error)
        if failure is None:
            raise
        raise failure from error


def _divide(parts: Sequence[ScanPart]) -> list[list[ScanPart]]:
    """A list for each task: of about as many rows, and not fewer tasks than a few cores can use."""
    total = sum(part.rows for part in parts)
    wanted = max(1, min(ROWS_PER_TASK, total // TASKS_MIN))
    tasks: list[list[ScanPart]] = []
    count = wanted
    for part in parts:
        if count >= wanted:
            tasks.append([])
            count = 0
        tasks[-1].append(part)
        count += part.rows
    return tasks


def _collect(told: DataFrame) -> Tables:
    rows: list[Any] = told.collect()
    return collect((row["name"], read_table(row["data"])) for row in rows)


# -- on the executors ------------------------------------------------------------------------------------


def _reader(tasks: Sequence[Sequence[ScanPart]], step: ScanStep) -> BatchFunction:
    def run(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        use_system_memory()
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        yield from _write_all(step(part for number in numbers for part in tasks[number]))

    return run


def _reducer(step: PieceStep) -> BatchFunction:
    def run(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        use_system_memory()
        pieces: dict[int, list[pyarrow.Table]] = {}
        for batch in batches:
            for number, data in zip(batch.column("piece").to_pylist(), batch.column("data"), strict=True):
                pieces.setdefault(number, []).append(read_table(data.as_buffer()))
        for number, tables in pieces.items():
            yield from _write_all(step(number, pyarrow.concat_tables(tables)))

    return run


def _write_all(told: Iterable[Told]) -> Iterator[pyarrow.RecordBatch]:
    for name, table in told:
        for at in range(0, table.num_rows, BLOB_ROWS_MAX):
            is_piece = isinstance(name, int)
            row = (name if is_piece else None, None if is_piece else name, _write(table.slice(at, BLOB_ROWS_MAX)))
            arrays = [pyarrow.array([cell], field.type) for cell, field in zip(row, _ARROW, strict=True)]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _write(table: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    write_table(table, sink)
    return bytes(sink.getvalue())
