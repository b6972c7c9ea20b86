"""Reads an archive back as the messages of which it was written, lineage by lineage, in the order of the ordinals.

Nothing is passed over: a transaction that is missing, doubled or cut is a `FormatError` with its file. Memory is
bounded by `PIECE_ROWS_MAX` rows, or a row group of a merged file, however large a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from freshness.errors import FormatError
from freshness.history.archive_file import ArchiveFile, find_files, parse_name, require_no_gap
from freshness.history.footer import ArchiveFooter, parse_footer, read_footer
from freshness.position import parse_position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat, RowChange, Transaction
from freshness.values.json import from_json_row
from invalidator.stream.json_lines import PIECE_ROWS_MAX
from invalidator.stream.message import OpenTransaction, StreamMessage

BATCH_ROWS: Final = 2_000
_COLUMNS: Final = (
    *("shard", "epoch", "ordinal", "row", "rows", "gtid", "timestamp_us"),
    *("op", "table", "before", "after", "detail"),
)


@dataclass(frozen=True, slots=True)
class ArchivedLineage:
    """The files of one lineage, without gaps between them. ``before``: everything before the first of them."""

    keyspace: str
    before: EventToken
    files: tuple[ArchiveFile, ...]

    @property
    def lineage(self) -> str:
        return self.before.lineage

    def messages(self) -> Iterator[StreamMessage]:
        """All transactions, large ones in pieces. Raises `FormatError`."""
        for file in self.files:
            yield from _FileReader(self.keyspace, self.lineage, self.before.position.flavor, file).messages()


def open_archive(path: Path) -> list[ArchivedLineage]:
    """The lineages below a folder (an archive, or a partition of one), or of one file. Raises `FormatError` for an
    empty folder, a file that is missing between two others, and what `read_footer` refuses."""
    one = parse_name(path)
    files = [one] if one is not None and path.is_file() else find_files(path)
    if not files:
        raise FormatError(
            f"{path}: no file of an archive", hint="expected a folder with changes-….parquet files, or one of these"
        )
    opened = []
    by_place: dict[tuple[str, str], list[tuple[ArchiveFile, ArchiveFooter]]] = {}
    for file in files:
        footer = read_footer(file.path)
        by_place.setdefault((footer.keyspace, file.lineage_hash), []).append((file, footer))
    for (keyspace, _), found in sorted(by_place.items()):
        of_lineage = tuple(file for file, _ in found)
        require_no_gap(of_lineage)
        opened.append(ArchivedLineage(keyspace, found[0][1].before, of_lineage))
    return opened


@dataclass(slots=True)
class _FileReader:
    keyspace: str
    lineage: str
    flavor: str
    file: ArchiveFile

    def messages(self) -> Iterator[StreamMessage]:
        ordinal = self.file.first - 1
        for ordinal_of_rows, rows in groupby(self._rows(), key=lambda row: row["ordinal"]):
            if ordinal_of_rows != ordinal + 1:
                raise self._broken(f"transaction {ordinal_of_rows} comes after {ordinal}")
            ordinal += 1
            head = next(rows)
            group, count = OpenTransaction(self._begin(head)), 0
            for row in chain([head], rows):
                count += self._add(group, row)
                if len(group.changes) >= PIECE_ROWS_MAX and count < row["rows"]:
                    yield group.take(is_last=False)
            if count != head["rows"]:
                raise self._broken(f"transaction {ordinal} is not whole")
            yield group.take(is_last=True)
        if ordinal != self.file.last:
            raise self._broken(f"it ends with transaction {ordinal}")

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            with pq.ParquetFile(self.file.path) as parquet:
                for batch in self._batches(parquet):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.file.path}: {error}", hint="restore the file from a copy") from error

    def _batches(self, parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """In the order of the ordinals, which a merged file keeps from row group to row group and not within one."""
        if not parse_footer(self.file.path, parquet.metadata.metadata).is_sorted_by_key:
            yield from parquet.iter_batches(BATCH_ROWS, columns=list(_COLUMNS))
            return
        for number in range(parquet.num_row_groups):
            group = parquet.read_row_group(number, columns=list(_COLUMNS))
            ordered = group.sort_by([("ordinal", "ascending"), ("row", "ascending")])
            yield from ordered.to_batches(BATCH_ROWS)

    def _add(self, group: OpenTransaction, row: Mapping[str, Any]) -> bool:
        """True for a change."""
        op = row["op"]
        if op in ("insert", "update", "delete"):
            if row["row"] <= group.last_row:
                raise self._broken(f"row {row['row']} of transaction {row['ordinal']} is out of order")
            before, after = self._read_image(row["before"]), self._read_image(row["after"])
            group.add(RowChange(row["table"], op, before, after), row["row"])
            return True
        if op == "raise":
            group.raised[row["table"]] = row["detail"] or ""
        elif op == "heartbeat":
            group.heartbeats.append(self._read_heartbeat(row["detail"]))
        elif op != "empty":
            raise self._broken(f"op {op!r} of transaction {row['ordinal']} is not known to this version")
        return False

    def _read_image(self, text: str | None) -> dict[str, Any] | None:
        return from_json_row(cast(Any, self._decode(text)))

    def _read_heartbeat(self, text: str | None) -> Heartbeat:
        try:
            return msgspec.convert(self._decode(text), Heartbeat)
        except msgspec.ValidationError as error:
            raise self._broken(f"a heartbeat: {error}") from error

    def _decode(self, text: str | None) -> object:
        try:
            return None if text is None else msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise self._broken(f"a row that is no JSON: {error}") from error

    def _begin(self, head: Mapping[str, Any]) -> StreamMessage:
        position, timestamp_us = parse_position(self.flavor, head["gtid"]), head["timestamp_us"]
        token = EventToken(self.lineage, head["shard"], head["epoch"], timestamp_us, position)
        transaction = Transaction(position, timestamp_us)
        return StreamMessage(self.keyspace, head["shard"], token, transaction, {}, timestamp_us)

    def _broken(self, problem: str) -> FormatError:
        return FormatError(
            f"{self.file.path}: {problem}", hint="the file was changed after it was written: restore it"
        )
