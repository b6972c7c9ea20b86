"""Network packets of a replication stream to transactions: which event goes where, and which stops the stream.

An event is handled, known to be harmless, or stops the stream with its number, place and remedy (F27, I8); there
is no fourth way. Holds no connection. Called by the reader thread of ``invalidator.binlog``.
"""

from __future__ import annotations

from collections.abc import Callable

from freshness.errors import StreamStopped
from freshness.position import Position
from invalidator import event as events
from invalidator.event import Event, FormatDescription, GroupStart
from invalidator.rows import RowDecoder
from invalidator.source import Transaction
from invalidator.transaction import TRANSACTION_ROWS_MAX, Cascades, Subject, TransactionAssembler

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
    ) -> None:
        """``rows_max``, ``piece_rows``: see `TransactionAssembler`."""
        self._subject = subject
        self._assembler = TransactionAssembler(
            subject, rows_max=rows_max, piece_rows=piece_rows, find_cascades=find_cascades
        )
        self._rows = RowDecoder(subject.flavor, subject.database, subject.tables | {subject.heartbeat_table})
        self._format = FormatDescription((), False)
        self._sequences: dict[int, int] = {}
        self._position: Position | None = None

    def restart(self, *, has_checksum: bool) -> None:
        """A new connection. ``has_checksum`` holds until the first FORMAT_DESCRIPTION says so itself."""
        self._assembler.restart()
        self._start_file(FormatDescription((), has_checksum))
        self._sequences.clear()
        self._position = None

    def decode(self, packet: bytes) -> Transaction | None:
        """Take one packet; the transaction, or piece of one, that it completed. Raises `StreamStopped`."""
        kind = packet[5] if len(packet) > 5 else 0
        if kind == events.FORMAT_DESCRIPTION:
            # Its own checksum is there in any case.
            self._start_file(events.parse_format_description(packet))
            self._assembler.start_file()
            return None
        if kind in events.HARMLESS or kind == events.ROTATE:
            return None
        return self._handle(events.parse_event(packet, has_checksum=self._format.has_checksum))

    def _start_file(self, description: FormatDescription) -> None:
        self._format = description
        self._rows.start_file(description)

    def _handle(self, event: Event) -> Transaction | None:
        kind = event.kind
        if kind == events.TABLE_MAP:
            self._assembler.announce_table(self._rows.map_table(event))
        elif kind in events.ROW_EVENTS:
            return self._assembler.add_rows(self._rows.read_rows(event), len(event.packet))
        elif kind == events.GTID:
            self._start_group(events.parse_mysql_gtid(event))
        elif kind == events.MARIADB_GTID:
            self._check_sequence(event)
            self._start_group(events.parse_mariadb_gtid(event))
        elif kind == events.XID:
            return self._assembler.commit()
        elif kind == events.QUERY:
            query = events.parse_query(event, self._post_header_length(kind, _QUERY_POST_HEADER))
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
        return StreamStopped(
            f"event {event.kind} ({name}) at {event.log_pos}, after GTID {self._position}, cannot be handled",
            hint=remedy,
        )
