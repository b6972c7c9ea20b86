"""Network packets of a replication stream to transactions: which event goes where, and which stops the stream.

The decoder handles an event, ignores one that it knows to be harmless, or stops the stream with the event's number,
place and remedy (F27, I8). Only the operator can make an exception: the decoder skips a transaction that the
configuration names, up to its commit or to the next transaction, and raises its tables. Holds no connection.
`invalidator.binlog.source` hands it rows directly, and keys through `invalidator.binlog.fasttrack`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol
from zlib import crc32

from freshness.database.foreignkey import Cascades
from freshness.errors import FreshnessError, StreamStopped
from freshness.position import Position
from freshness.stream.source import Transaction
from invalidator.binlog.foreignkey import ForeignKeys
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable
from invalidator.binlog.transaction import Subscription, TransactionAssembler
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.compression import (
    PLAIN_KINDS,
    QUERY_COMPRESSED,
    TRANSACTION_PAYLOAD,
    unpack_query,
    unpack_rows,
    unpack_transaction,
)
from invalidator.binlog.wire.event import FormatDescription, GroupStart, LogEvent
from invalidator.binlog.wire.packets import CHECKSUM_RESIDUE, CHECKSUM_START, check_sum
from invalidator.binlog.wire.tagged import parse_tagged_gtid
from invalidator.mailbox import TRANSACTION_ROWS_MAX

_QUERY_POST_HEADER = 13


_BODY: Final = 20
"""Offset of an event's body in its packet, in bytes."""

_ARTIFICIAL_FLAG: Final = 0x20
_SILENT: Final = events.HARMLESS | {events.ROTATE}

_BEGINNINGS: Final = frozenset(
    (events.FORMAT_DESCRIPTION, events.GTID, events.MARIADB_GTID, events.ANONYMOUS_GTID, events.GTID_TAGGED)
)
"""Events before which a transaction has ended, whatever was in it."""


class RowReader(Protocol):
    """The role of `RowDecoder`, which makes rows, and of `KeyReader`, which makes keys."""

    def start_file(self, description: FormatDescription) -> None: ...
    def map_table(self, event: LogEvent) -> MappedTable: ...
    def read_rows(self, event: LogEvent) -> ChangedRows: ...


def verify(packet: bytes, *, has_checksum: bool) -> None:
    """Raises `StreamStopped` for a wrong checksum. An artificial event, which the server makes up on the way and
    which says nothing, may lack its checksum while the server changes over."""
    kind = packet[5] if len(packet) > _BODY else 0
    if crc32(packet, CHECKSUM_START) == CHECKSUM_RESIDUE:
        return
    if kind == events.FORMAT_DESCRIPTION:
        if packet[-events.CHECKSUM_BYTES - 1] == 1:
            check_sum(packet)
    elif has_checksum and not (kind in _SILENT and packet[18] & _ARTIFICIAL_FLAG):
        check_sum(packet)


class EventDecoder:
    """One for each source. `restart` for each connection. ``position``: the GTID that came last. ``sequences``: the
    highest number of each MariaDB domain. A caller that decodes transactions itself
    (``invalidator.binlog.fasttrack``) keeps both up to date."""

    def __init__(
        self,
        subscription: Subscription,
        rows: RowReader,
        *,
        find_cascades: Callable[[], Cascades],
        rows_max: int = TRANSACTION_ROWS_MAX,
        piece_rows: int | None = None,
    ) -> None:
        """``rows_max``, ``piece_rows``: see `TransactionAssembler`."""
        self._subscription = subscription
        self._rows = rows
        self._assembler = TransactionAssembler(
            subscription, rows_max=rows_max, piece_rows=piece_rows, find_cascades=find_cascades
        )
        self._format = FormatDescription((), False)
        self.trailer_bytes = 0
        self.sequences: dict[int, int] = {}
        self._sequence_before: dict[int, int] = {}
        self.position: Position | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is being read."""
        return self._assembler.is_idle

    @property
    def foreign_keys(self) -> ForeignKeys:
        return self._assembler.foreign_keys

    def restart(self, *, has_checksum: bool) -> None:
        """A new connection. ``has_checksum`` holds until the first FORMAT_DESCRIPTION says so itself."""
        self._assembler.restart()
        self._start_file(FormatDescription((), has_checksum))
        self.sequences.clear()
        self.position = None

    def decode(self, packets: Iterable[bytes], found: list[Transaction]) -> None:
        """Append the transactions, or pieces of them, that the packets complete; also those before an error. Raises
        `StreamStopped`."""
        for packet in packets:
            verify(packet, has_checksum=self._format.has_checksum)
            self.decode_packet(packet, found)

    def decode_packet(self, packet: bytes, found: list[Transaction]) -> None:
        """Take one packet that is verified. See `decode`."""
        try:
            self._take(packet, found)
        except StreamStopped as error:
            raise self._stopped_inside(error.message, error.hint) from error
        except FreshnessError:
            raise
        except Exception as error:
            raise self._stopped_inside(
                f"an event could not be decoded: {error!r}", "report it with the server's version"
            ) from error

    def _take(self, packet: bytes, found: list[Transaction]) -> None:
        kind = packet[5] if len(packet) > 5 else 0
        if self._assembler.is_skipping and kind != events.XID:
            if kind not in _BEGINNINGS:
                return
            found.append(self._assembler.commit())
        if kind == events.FORMAT_DESCRIPTION:
            # Its own checksum is there in any case.
            if not self._assembler.is_idle:
                # A crash cut it off: its number may be given again (F29).
                self.sequences.update(self._sequence_before)
            self._start_file(events.parse_format_description(packet))
            self._assembler.start_file()
        elif kind not in _SILENT:
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
            raise StreamStopped(f"event {packet[5]} in a TRANSACTION_PAYLOAD after GTID {self.position}")
        self._take(packet, found)

    def _start_file(self, description: FormatDescription) -> None:
        self._format = description
        self.trailer_bytes = events.CHECKSUM_BYTES if description.has_checksum else 0
        self._rows.start_file(description)

    def _handle(self, event: LogEvent) -> Transaction | None:
        kind = event.kind
        if kind == events.TABLE_MAP:
            self._assembler.announce_table(self._rows.map_table(event))
        elif kind in events.ROW_EVENTS:
            return self._assembler.add_rows(self._rows.read_rows(event), len(event.packet), event)
        elif kind in PLAIN_KINDS:
            return self._handle(unpack_rows(event))
        elif kind == events.GTID:
            self._start_group(events.parse_mysql_gtid(event))
        elif kind == events.GTID_TAGGED:
            self._start_group(parse_tagged_gtid(event))
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
            return self._assembler.add_query("LOAD DATA", self._subscription.database)
        elif kind == events.XA_PREPARE:
            xid, one_phase = events.parse_xa_prepare(event)
            return self._assembler.commit() if one_phase else self._assembler.prepare(xid)
        elif not event.flags & events.IGNORABLE_FLAG:
            raise self._stopped(event)
        return None

    def _start_group(self, start: GroupStart) -> None:
        self.position = start.position
        self._assembler.start_group(start)

    def _check_sequence(self, event: LogEvent) -> None:
        """On MariaDB the numbers of a domain only rise, or two servers write one history (F59)."""
        start = event.packet[event.start : event.start + 12]
        sequence, domain = int.from_bytes(start[:8], "little"), int.from_bytes(start[8:12], "little")
        before = self.sequences.get(domain, 0)
        if sequence <= before:
            raise StreamStopped(
                f"GTID {domain}-{event.server_id}-{sequence} comes after sequence number {before}",
                hint="set gtid_strict_mode=ON, and raise the epoch: this history is not the previous one",
            )
        self._sequence_before = {domain: before}
        self.sequences[domain] = sequence

    def _post_header_length(self, kind: int, default: int) -> int:
        lengths = self._format.post_header_lengths
        return lengths[kind - 1] if kind <= len(lengths) else default

    def _stopped_inside(self, message: str, hint: str) -> StreamStopped:
        """The error, with the operator's way past it if the transaction is known."""
        gtid = self._assembler.open_gtid
        if gtid is None:
            return StreamStopped(message, hint=hint)
        return StreamStopped(
            f"transaction {gtid}: {message}",
            hint=f'{hint}; or let it pass: add {{ gtid = "{gtid}", reason = "..." }} to the shard\'s skip in '
            "freshness.toml, and its tables are invalidated as a whole (docs/operations.md)",
        )

    def _stopped(self, event: LogEvent) -> StreamStopped:
        name, remedy = events.REMEDIES.get(
            event.kind, ("unknown", "this server is newer than this program; report the event's number")
        )
        return StreamStopped(
            f"event {event.kind} ({name}) at {event.log_pos}, after GTID {self.position}, cannot be handled",
            hint=remedy,
        )
