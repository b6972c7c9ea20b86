"""A folder that a job reads or writes, with one meaning for everything that opens it.

Spark opens folders by Hadoop's file systems, and takes a path without a scheme for one of the cluster's own file
system. So the jobs open their folders by Arrow, on executors too, and a path becomes an absolute one at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow
from pyarrow import fs

from freshness.errors import ConfigError
from freshness.history import durable

S3: Final = {"s3", "s3a", "s3n"}
"""One store: Arrow calls it s3, and Hadoop s3a."""

_HINT: Final = "give a folder that is mounted on all machines, or a URI that Arrow knows, as hdfs:, gs: or s3:"


@dataclass(frozen=True, slots=True)
class Folder:
    """``name``: name for `open_folder` in any process, and for people. ``path``: the same folder in
    ``filesystem``."""

    name: str
    filesystem: fs.FileSystem
    path: str


def open_folder(text: str) -> Folder:
    """The folder that a user named; it need not be there. Raises `ConfigError` for a URI that Arrow cannot open."""
    path = find_local(text)
    if path is not None:
        return Folder(str(path), fs.LocalFileSystem(), str(path))
    try:
        filesystem, inside = fs.FileSystem.from_uri(_spell(text))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{text} cannot be opened: {error}", hint=_HINT) from error
    return Folder(text, filesystem, inside)


def open_local(text: str) -> Path:
    """The absolute path of a folder on a local or mounted file system. Raises `ConfigError` for any other."""
    path = find_local(text)
    if path is None:
        raise ConfigError(
            f"{text} is not on a local or mounted file system", hint="mount it on all machines, or copy it there"
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


def _spell(uri: str) -> str:
    """The URI as Arrow knows it."""
    scheme, rest = uri.split(":", 1)
    return f"s3:{rest}" if scheme in S3 else uri


def make_folder(folder: Folder, path: str) -> None:
    """Make a folder in it, of that path."""
    if isinstance(folder.filesystem, fs.LocalFileSystem):
        durable.make_folder(Path(path))
    else:
        folder.filesystem.create_dir(path)


def publish(folder: Folder, draft: str, path: str) -> None:
    """Give a complete file its name, when all that is beside it is on the disk. Others than a local file system keep
    what was closed."""
    if isinstance(folder.filesystem, fs.LocalFileSystem):
        durable.sync_tree(Path(path).parent)
        durable.publish(Path(draft), Path(path))
    else:
        folder.filesystem.move(draft, path)


def require_writable(folder: Folder) -> None:
    """Write a file there and delete it. Raises `ConfigError`."""
    path = f"{folder.path}/.probe-{uuid4().hex}"
    write_probe(folder.name, path)
    folder.filesystem.delete_file(path)


def write_probe(folder: str, path: str) -> None:
    """Make the folder, and write an empty file of that path there. Raises `ConfigError`."""
    filesystem = open_folder(folder).filesystem
    try:
        filesystem.create_dir(path.rpartition("/")[0])
        filesystem.open_output_stream(path).close()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{folder} cannot be written to: {error}", hint=_HINT) from error
