"""The footer of an archive file: its keyspace, and the two positions between which its transactions lie.

Every writer of archive files makes the Parquet metadata with `ArchiveFooter.to_metadata`; every reader decodes and
checks it here, before it believes a row. Used by ``invalidator.archive``, ``spark.stream.archive_folder`` and
``spark.archive``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from freshness.errors import FormatError
from freshness.history.columns import CHANGES_VERSION, KIND_KEY, VERSION_KEY
from freshness.position.token import EventToken
from freshness.stream.tables import compile_patterns

KIND: Final = "changes"

_KEYSPACE_KEY: Final = "freshness.keyspace"
_SHARD_KEY: Final = "freshness.shard"
_BEFORE_KEY: Final = "freshness.before"
_RESUME_KEY: Final = "freshness.resume"
_TABLES_KEY: Final = "freshness.tables"
_ORDER_KEY: Final = "freshness.order"
_SORTED_BY_KEY: Final = "keys"


@dataclass(frozen=True, slots=True)
class ArchiveFooter:
    """``before``: everything of the lineage before the file's first transaction; ``resume``: up to and with its last.

    ``tables``: names and patterns of those whose changes it has, all of them; a table that appeared later is not in
    older files. ``is_sorted_by_key``: a merged file, whose row groups follow one another, and each of which is sorted
    by key.
    """

    keyspace: str
    before: EventToken
    resume: EventToken
    tables: tuple[str, ...]
    is_sorted_by_key: bool = False

    def carries(self, table: str) -> bool:
        return compile_patterns(self.tables).match(table) is not None

    def to_metadata(self) -> dict[str, str]:
        metadata = {
            KIND_KEY: KIND,
            VERSION_KEY: str(CHANGES_VERSION),
            _KEYSPACE_KEY: self.keyspace,
            _SHARD_KEY: self.before.shard,
            _BEFORE_KEY: str(self.before),
            _RESUME_KEY: str(self.resume),
            _TABLES_KEY: json.dumps(self.tables),
        }
        return metadata | {_ORDER_KEY: _SORTED_BY_KEY} if self.is_sorted_by_key else metadata


def read_footer(path: Path | str, filesystem: fs.FileSystem | None = None) -> ArchiveFooter:
    """The footer of a file, local or of a file system of Arrow's. Raises `FormatError` for a file that is not whole,
    and as `parse_footer`."""
    try:
        metadata = pq.read_metadata(path, filesystem=filesystem).metadata
    except (pa.ArrowException, OSError) as error:
        raise FormatError(
            f"{path}: not readable as Parquet: {error}",
            hint="a complete file never is: was it cut by a full disk or a copy? restore it, or move it away",
        ) from error
    return parse_footer(path, metadata)


def parse_footer(path: Path | str, metadata: Mapping[bytes, bytes] | None) -> ArchiveFooter:
    """The footer in the metadata of the file. Raises `FormatError` for a file of another kind or version, and for one
    whose positions are missing or do not parse."""
    known = metadata or {}
    kind, version, keyspace, before, resume, tables, order = (
        known.get(key.encode(), b"").decode("utf-8", "replace")
        for key in (KIND_KEY, VERSION_KEY, _KEYSPACE_KEY, _BEFORE_KEY, _RESUME_KEY, _TABLES_KEY, _ORDER_KEY)
    )
    if kind != KIND or version != str(CHANGES_VERSION):
        raise FormatError(
            f"{path}: kind {kind!r} version {version!r}",
            hint=f"expected kind {KIND!r} version {CHANGES_VERSION}; files of a newer version need a newer program",
        )
    if not keyspace or not before or not resume:
        raise FormatError(f"{path}: its metadata names no position", hint="was it written by another program?")
    try:
        return ArchiveFooter(
            keyspace, EventToken.parse(before), EventToken.parse(resume), _parse_tables(tables), bool(order)
        )
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}", hint=error.hint) from error


def _parse_tables(text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError("its metadata names no tables", hint="record into another folder, from now on")
    return tuple(names)
