"""Files of the archive by their names: the transactions of each, and the files that count.

Written by ``invalidator.archive.writer``, merged by ``spark.archive``, read by both sides. No I/O but for
`find_files`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from freshness.errors import FormatError

UNFINISHED: Final = ".unfinished"
_NAME: Final = re.compile(r"changes-([0-9a-f]{8})-(\d{16})-(\d{16})\.parquet")
_KEYSPACE: Final = re.compile(r"keyspace=(.*)")


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A complete file, by its name: the ordinals of its first and last transaction. A file with ``last`` < ``first``
    has no transaction. It marks the begin of a lineage's archive."""

    path: Path
    lineage_hash: str
    first: int
    last: int

    @property
    def keyspace(self) -> str:
        """As the folder is called; "" for a file outside of one."""
        return next((match[1] for match in map(_KEYSPACE.fullmatch, self.path.parts) if match), "")

    def is_within(self, other: ArchiveFile) -> bool:
        """A mark is within nothing."""
        return (
            self.first <= self.last
            and (self.first, self.last) != (other.first, other.last)
            and other.first <= self.first
            and self.last <= other.last
        )


def parse_name(path: Path) -> ArchiveFile | None:
    """None for a file that is not of the archive."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else ArchiveFile(path, match[1], int(match[2]), int(match[3]))


def format_name(lineage_hash: str, first: int, last: int) -> str:
    """The inverse of `parse_name`."""
    return f"changes-{lineage_hash}-{first:016d}-{last:016d}.parquet"


def find_files(folder: Path) -> list[ArchiveFile]:
    """All files below the folder that count, of each lineage in the order of the ordinals."""
    return choose_files(folder.rglob("changes-*.parquet"))


def choose_files(paths: Iterable[Path]) -> list[ArchiveFile]:
    """The files of ``paths`` that count, of each lineage in the order of the ordinals. A file whose transactions all
    lie within a larger one was merged into that and waits to be deleted: it does not count."""
    found = [file for file in map(parse_name, paths) if file is not None]
    found.sort(key=lambda file: (file.keyspace, file.lineage_hash, file.first, -file.last))
    kept: list[ArchiveFile] = []
    widest: ArchiveFile | None = None
    for file in found:
        is_same = widest is not None and (widest.keyspace, widest.lineage_hash) == (file.keyspace, file.lineage_hash)
        if widest is not None and is_same and file.is_within(widest):
            continue
        kept.append(file)
        if file.first <= file.last:
            widest = file
    return sorted(kept, key=lambda file: (file.lineage_hash, file.last, file.first))


def require_no_gap(files: Sequence[ArchiveFile]) -> None:
    """Raises `FormatError` unless each file of a lineage begins with the transaction after the previous file."""
    for previous, file in pairwise(files):
        if file.first != previous.last + 1:
            raise FormatError(
                f"{file.path} begins with transaction {file.first}, the file before it ends with {previous.last}",
                hint="a file between them is missing, or there twice: restore it, or begin after the gap",
            )


def hash_lineage(lineage: str) -> str:
    """A digest of a lineage for file names, which cannot hold all characters of a lineage."""
    return f"{zlib.crc32(lineage.encode()):08x}"
