"""Network packets of a replication stream to transactions: which event goes where, and which stops the stream.

An event is handled, known to be harmless, or stops the stream with its number, place and remedy (F27, I8); there
is no fourth way. Holds no connection. Called by the reader thread of ``invalidator.binlog.source``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from freshness.errors import StreamStopped
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.stream.source import Transaction
from invalidator.binlog.fasttrack import FastTrack, verify
from invalidator.binlog.keys.reader import KeyReader
from invalidator.binlog.rows.decoder import RowDecoder
from invalidator.binlog.transaction import Cascades, Subject, TransactionAssembler
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.compression import (
    PLAIN_KINDS,
    QUERY_COMPRESSED,
    TRANSACTION_PAYLOAD,
    unpack_query,
    unpack_rows,
    unpack_transaction,
)
from invalidator.binlog.wire.event import Event, FormatDescription, GroupStart
from invalidator.mailbox import TRANSACTION_ROWS_MAX

_QUERY_POST_HEADER = 13


class EventDecoder:
    """One for each source. `restart` for each connection."""

    def __init__(
        self,
        subject: Subject,
        *,
        find_cascades: Callable[[], Cascades],
        rows_max: int = TRANSACTION_ROWS_MAX,
        piece_rows: int | None = None,
        definitions: Mapping[str, ObjectDefinition] | None = None,
    ) -> None:
        """``rows_max``, ``piece_rows``: see `TransactionAssembler`. ``definitions``: the objects whose cache items
        are asked for instead of rows (`Transaction.items`)."""
        self._subject = subject
        self._assembler = TransactionAssembler(
            subject, rows_max=rows_max, piece_rows=piece_rows, find_cascades=find_cascades
        )
        self._format = FormatDescription((), False)
        self._sequences: dict[int, int] = {}
        self._position: Position | None = None
        self._rows: RowDecoder | KeyReader
        self._track: FastTrack | None = None
        flavor, database, heartbeats = subject.flavor, subject.database, subject.heartbeat_table
        if definitions is None:
            self._rows = RowDecoder(flavor, database, subject.tables | {heartbeats})
        else:
            self._rows = KeyReader(flavor, database, subject.tables, heartbeats, definitions)
            self._track = FastTrack(
                self._rows,
                self._assembler,
                self._sequences,
                self._decode,
                rows_max if piece_rows is None else min(piece_rows - 1, rows_max),
            )

    def restart(self, *, has_checksum: bool) -> None:
        """A new connection. ``has_checksum`` holds until the first FORMAT_DESCRIPTION says so itself."""
        self._assembler.restart()
        self._start_file(FormatDescription((), has_checksum))
        self._sequences.clear()
        self._position = None
        if self._track is not None:
            self._track.restart()

    def decode(self, packets: Iterable[bytes], found: list[Transaction]) -> None:
        """Append the transactions, or pieces of them, that the packets complete; also those before an error.

        Raises `StreamStopped`.
        """
        if self._track is not None:
            self._track.decode(packets, found)
            return
        for packet in packets:
            verify(packet, has_checksum=self._format.has_checksum)
            self._decode(packet, found)

    def _decode(self, packet: bytes, found: list[Transaction]) -> None:
        """Take one packet that is verified."""
        kind = packet[5] if len(packet) > 5 else 0
        if kind == events.FORMAT_DESCRIPTION:
            # Its own checksum is there in any case.
            self._start_file(events.parse_format_description(packet))
            self._assembler.start_file()
        elif kind not in events.HARMLESS and kind != events.ROTATE:
            event = events.parse_event(packet, has_checksum=self._format.has_checksum)
            if kind == TRANSACTION_PAYLOAD:
                for inner in unpack_transaction(event):
                    self._decode_inner(inner, found)
            else:
                transaction = self._handle(event)
                if transaction is not None:
                    found.append(transaction)

    def _decode_inner(self, packet: bytes, found: list[Transaction]) -> None:
        if packet[5] in (TRANSACTION_PAYLOAD, events.FORMAT_DESCRIPTION):
            raise StreamStopped(f"event {packet[5]} in a TRANSACTION_PAYLOAD after GTID {self._position}")
        self._decode(packet, found)

    def _start_file(self, description: FormatDescription) -> None:
        self._format = description
        self._rows.start_file(description)
        if self._track is not None:
            self._track.has_checksum = description.has_checksum

    def _handle(self, event: Event) -> Transaction | None:
        kind = event.kind
        if kind == events.TABLE_MAP:
            self._assembler.announce_table(self._rows.map_table(event))
        elif kind in events.ROW_EVENTS:
            return self._assembler.add_rows(self._rows.read_rows(event), len(event.packet))
        elif kind in PLAIN_KINDS:
            return self._handle(unpack_rows(event))
        elif kind == events.GTID:
            self._start_group(events.parse_mysql_gtid(event))
        elif kind == events.MARIADB_GTID:
            self._check_sequence(event)
            self._start_group(events.parse_mariadb_gtid(event))
        elif kind == events.XID:
            return self._assembler.commit()
        elif kind in (events.QUERY, QUERY_COMPRESSED):
            head_bytes = self._post_header_length(events.QUERY, _QUERY_POST_HEADER)
            if kind == QUERY_COMPRESSED:
                event = unpack_query(event, head_bytes)
            query = events.parse_query(event, head_bytes)
            return self._assembler.add_query(query.sql, query.default_database)
        elif kind == events.EXECUTE_LOAD_QUERY:
            # LOAD DATA as a statement. Its text lies elsewhere in the event; an unknown statement raises the same.
            return self._assembler.add_query("LOAD DATA", self._subject.database)
        elif kind == events.XA_PREPARE:
            xid, one_phase = events.parse_xa_prepare(event)
            return self._assembler.commit() if one_phase else self._assembler.prepare(xid)
        elif not event.flags & events.IGNORABLE_FLAG:
            raise self._stopped(event)
        return None

    def _start_group(self, start: GroupStart) -> None:
        self._position = start.position
        if self._track is not None:
            self._track.position = start.position
        self._assembler.start_group(start)

    def _check_sequence(self, event: Event) -> None:
        """On MariaDB the numbers of a domain only rise, or two servers write one history (F59)."""
        start = event.packet[event.start : event.start + 12]
        sequence, domain = int.from_bytes(start[:8], "little"), int.from_bytes(start[8:12], "little")
        before = self._sequences.get(domain, 0)
        if sequence <= before:
            raise StreamStopped(
                f"GTID {domain}-{event.server_id}-{sequence} comes after sequence number {before}",
                hint="set gtid_strict_mode=ON, and raise the epoch: this history is not the former one",
            )
        self._sequences[domain] = sequence

    def _post_header_length(self, kind: int, default: int) -> int:
        lengths = self._format.post_header_lengths
        return lengths[kind - 1] if kind <= len(lengths) else default

    def _stopped(self, event: Event) -> StreamStopped:
        name, remedy = events.REMEDIES.get(
            event.kind, ("unknown", "this server is newer than this program; report the event's number")
        )
        position = self._position if self._track is None else self._track.position
        return StreamStopped(
            f"event {event.kind} ({name}) at {event.log_pos}, after GTID {position}, cannot be handled",
            hint=remedy,
        )
