"""A folder that a job reads or writes, with one meaning for everything that opens it.

Spark opens folders by Hadoop's file systems, and takes a path without a scheme for one of the cluster's own file
system. Python opens them by Arrow's, and takes it for one of this machine. So a path becomes a ``file:`` URI before
either has it, and a URI is accepted where both know its scheme. Called by ``spark.history`` and by the jobs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyarrow import fs
from pyspark.sql import SparkSession

from freshness.errors import ConfigError
from spark.failure import SPARK_ERRORS

S3: Final = {"s3", "s3a", "s3n"}
"""One store: Arrow calls it s3, and Hadoop s3a."""

_HINT: Final = (
    "give a folder that is mounted on all machines, or a URI that Spark and Arrow know, as hdfs: or s3a:"
)


@dataclass(frozen=True, slots=True)
class Folder:
    """``uri``: for Spark. ``path``: the same folder in Arrow's ``filesystem``."""

    uri: str
    filesystem: fs.FileSystem
    path: str


def open_folder(text: str) -> Folder:
    """The folder that a user named; it need not be there. Raises `ConfigError` for a URI that Arrow cannot open."""
    path = find_local(text)
    if path is not None:
        return Folder(f"file://{path}", fs.LocalFileSystem(), str(path))
    try:
        filesystem, inside = fs.FileSystem.from_uri(spell(text, "s3"))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{text} cannot be opened: {error}", hint=_HINT) from error
    return Folder(spell(text, "s3a"), filesystem, inside)


def open_local(text: str) -> Path:
    """The absolute path of a folder on a local or mounted file system. Raises `ConfigError` for any other."""
    path = find_local(text)
    if path is None:
        raise ConfigError(
            f"{text} is not on a local or mounted file system",
            hint="mount it on all machines, or copy it there",
        )
    return path


def find_local(text: str) -> Path | None:
    """The absolute path, also of a ``file:`` URI; None for a URI of another file system. Raises `ConfigError`."""
    if text.startswith("file:"):
        parts = urlsplit(text)
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"{text} names no folder", hint="expected file:///FOLDER, with three slashes")
        return Path(os.path.abspath(unquote(parts.path)))
    return None if "://" in text else Path(os.path.abspath(text))


def open_file(uri: str) -> tuple[fs.FileSystem, str]:
    """A file as Spark names it, for Arrow."""
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(spell(uri, "s3"))
    return found


def spell(uri: str, s3: str) -> str:
    """The URI, with the scheme that Arrow ("s3") or Hadoop ("s3a") has for S3."""
    scheme, rest = uri.split(":", 1)
    return f"{s3}:{rest}" if scheme in S3 else uri


def require_shared(session: SparkSession, folder: Folder) -> None:
    """Raises `ConfigError` unless this process sees what Spark's executors write there. Leaves nothing behind."""
    name = f".probe-{uuid4().hex}"
    try:
        session.range(1).coalesce(1).write.parquet(f"{folder.uri}/{name}")
    except SPARK_ERRORS as error:
        raise ConfigError(f"Spark cannot write to {folder.uri}: {tell(error)}", hint=_HINT) from error
    try:
        found = folder.filesystem.get_file_info(
            fs.FileSelector(f"{folder.path}/{name}", allow_not_found=True)
        )
        if found:
            folder.filesystem.delete_dir(f"{folder.path}/{name}")
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{folder.uri} cannot be read back: {error}", hint=_HINT) from error
    if not any(info.base_name.startswith("part-") for info in found):
        raise ConfigError(f"what Spark writes to {folder.uri} is not there for this process", hint=_HINT)


def tell(error: Exception) -> str:
    """The first line of an error of Spark's."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(text).splitlines()[0]
