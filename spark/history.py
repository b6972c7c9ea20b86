"""Reads recorded history, and refuses files that it cannot be sure to understand.

Spark alone would read a file without a column as nulls, and an empty folder as nothing: both would make a green audit
of nothing. So the footer of every file is looked at first. Called by the mains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow
from pyarrow import parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from freshness.errors import ConfigError, FormatError
from freshness.history.archive_file import choose_files, parse_name
from freshness.history.columns import ACTIONS_VERSION, CHANGES_VERSION, KIND_KEY, VERSION_KEY
from spark.batch import Batches
from spark.failure import SPARK_ERRORS
from spark.folder import open_file, open_folder, tell
from spark.schema import ACTIONS, CHANGES

_READERS: Final = 16
_FILES_PER_TASK: Final = 64


def read_changes(session: SparkSession, path: str) -> DataFrame:
    """The archive. Raises `ConfigError` where there is none, `FormatError` for a file that will not do."""
    return _read(session, path, "changes", CHANGES_VERSION, CHANGES)


def read_actions(session: SparkSession, path: str) -> DataFrame:
    """The cache history. Raises as `read_changes`."""
    return _read(session, path, "actions", ACTIONS_VERSION, ACTIONS)


def _read(session: SparkSession, path: str, kind: str, version: int, schema: StructType) -> DataFrame:
    folder = open_folder(path)
    try:
        frame = session.read.schema(schema).option("recursiveFileLookup", "true").parquet(folder.uri)
        found = frame.inputFiles()
        files = drop_merged(found)
        if len(files) < len(found):
            frame = session.read.schema(schema).parquet(*map(unquote, files))
    except AnalysisException as error:
        raise ConfigError(
            f"{path} cannot be read: {error.getErrorClass()}", hint="is it the right folder?"
        ) from error
    except SPARK_ERRORS as error:
        raise ConfigError(
            f"Spark cannot read {folder.uri}: {tell(error)}",
            hint="give Spark the package of that file system, or a folder that is mounted on all machines",
        ) from error
    if not files:
        raise ConfigError(f"there is no Parquet file in {path}", hint=f"expected recorded {kind}")
    problems = _find_problems(session, files, kind, version, schema.names)
    if problems:
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise FormatError(problems[0] + rest, hint="an audit without some of its files would prove nothing")
    return frame


def _find_problems(
    session: SparkSession, files: Sequence[str], kind: str, version: int, columns: Sequence[str]
) -> list[str]:
    """The faults of the footers. Executors read them: they must see the files, too."""

    def find(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        with ThreadPoolExecutor(_READERS) as pool:
            for batch in batches:
                told = pool.map(
                    lambda file: _check(file, kind, version, columns), batch.column(0).to_pylist()
                )
                problems = pyarrow.array([each for each in told if each], pyarrow.string())
                yield pyarrow.RecordBatch.from_arrays([problems], ["problem"])

    frame = session.createDataFrame([(file,) for file in files], "file string")
    checked = frame.repartition(-(-len(files) // _FILES_PER_TASK)).mapInArrow(find, "problem string")
    return sorted(row["problem"] for row in checked.collect())


def drop_merged(files: Sequence[str]) -> list[str]:
    """Without files of an archive that were merged into a larger one and wait to be deleted (``spark.archive``)."""
    named = {path: file for file in files if parse_name(path := Path(file)) is not None}
    merged = named.keys() - {file.path for file in choose_files(named)}
    return [file for file in files if Path(file) not in merged]


def _check(file: str, kind: str, version: int, columns: Sequence[str]) -> str:
    """The problem of a file, "" for none."""
    try:
        filesystem, path = open_file(file)
        footer = parquet.read_metadata(path, filesystem=filesystem)
    except FileNotFoundError:
        return f"{file} is not there for an executor of Spark: is it mounted on all machines?"
    except (pyarrow.ArrowException, OSError) as error:
        return f"{file} is no whole Parquet file: {error}"
    metadata = footer.metadata or {}
    is_kind, is_version = (metadata.get(key.encode(), b"").decode() for key in (KIND_KEY, VERSION_KEY))
    if is_kind != kind:
        return f"{path} holds {is_kind or 'something that is not named'}, where {kind} were expected"
    if is_version != str(version):
        return (
            f"{path} has version {is_version or 'unknown'} of recorded {kind}, this program reads {version}"
        )
    found = footer.schema.to_arrow_schema().names
    missing = [name for name in columns if name not in found]
    return f"{path} lacks the column {missing[0]}" if missing else ""
