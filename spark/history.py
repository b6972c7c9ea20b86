"""Reads recorded history, and refuses files that it cannot be sure to understand.

Spark alone would read a file without a column as nulls, and an empty folder as nothing: both would make a green audit
of nothing. So the footer of every file is looked at first. Called by the mains.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow
from pyarrow import fs, parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from freshness.errors import ConfigError, FormatError
from freshness.history.archive_file import choose_files, parse_name
from freshness.history.columns import ACTIONS_VERSION, CHANGES_VERSION, KIND_KEY, VERSION_KEY
from spark.schema import ACTIONS, CHANGES

_READERS: Final = 16


def read_changes(session: SparkSession, path: str) -> DataFrame:
    """The archive. Raises `ConfigError` where there is none, `FormatError` for a file that will not do."""
    return _read(session, path, "changes", CHANGES_VERSION, CHANGES)


def read_actions(session: SparkSession, path: str) -> DataFrame:
    """The cache history. Raises as `read_changes`."""
    return _read(session, path, "actions", ACTIONS_VERSION, ACTIONS)


def _read(session: SparkSession, path: str, kind: str, version: int, schema: StructType) -> DataFrame:
    try:
        frame = session.read.schema(schema).option("recursiveFileLookup", "true").parquet(path)
        found = frame.inputFiles()
        files = drop_merged(found)
        if len(files) < len(found):
            frame = session.read.schema(schema).parquet(*files)
    except AnalysisException as error:
        raise ConfigError(
            f"{path} cannot be read: {error.getErrorClass()}", hint="is it the right folder?"
        ) from error
    if not files:
        raise ConfigError(f"there is no Parquet file in {path}", hint=f"expected recorded {kind}")
    with ThreadPoolExecutor(_READERS) as pool:
        problems = [
            problem
            for problem in pool.map(lambda file: _check(file, kind, version, schema.names), files)
            if problem
        ]
    if problems:
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise FormatError(problems[0] + rest, hint="an audit without some of its files would prove nothing")
    return frame


def drop_merged(files: Sequence[str]) -> list[str]:
    """Without files of an archive that were merged into a larger one and wait to be deleted (``spark.archive``)."""
    named = {path: file for file in files if parse_name(path := Path(file)) is not None}
    merged = named.keys() - {file.path for file in choose_files(named)}
    return [file for file in files if Path(file) not in merged]


def _check(file: str, kind: str, version: int, columns: Sequence[str]) -> str:
    """The problem of a file, "" for none."""
    filesystem, path = fs.FileSystem.from_uri(file)
    try:
        footer = parquet.read_metadata(path, filesystem=filesystem)
    except (pyarrow.ArrowException, OSError) as error:
        return f"{path} is no whole Parquet file: {error}"
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
