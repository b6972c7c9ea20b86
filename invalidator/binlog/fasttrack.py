"""The decoder of a source that wants keys: transactions of the usual form in one loop, the rest as in general.

Theory of operation. Most transactions are a GTID, on MySQL a BEGIN, then table map and rows, and a commit.
``invalidator.binlog.decoder``, the general way, makes an object of each of their events and asks several others about
it. The track reads only the bytes that matter, in place in the packets, on two levels:

1. `_take_usual` takes whole transactions of one row event whose packets are all here. It looks at the kinds of the
   packets side by side, then at checksums, table, keys and GTID. Until all of that is done nothing has been changed,
   so it can stop before any transaction.
2. `_take` takes packet after packet, by a table of steps from (stage, kind of packet). It holds the packets of a
   transaction until the commit.

The track hands a packet to the general way, together with all packets that it holds of the transaction, if the packet
has no step or its step returns False (an unknown table, a problem, a foreign key with unlogged cascades, too many
rows or bytes). The general way then keeps the stream until its transaction ends. So the track decides nothing that
the general way does not decide, and both give the same transactions, which the tests compare.

The track writes the general decoder's position and sequence numbers for the transactions that it decodes itself, and
reads its checksum setting; the general decoder knows nothing of the track. For keys alone: rows always take the
general way.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from freshness.database.foreignkey import Cascades
from freshness.objects.registry import ObjectDefinition
from freshness.position import MariadbPosition, MysqlGtidSet, Position
from freshness.stream.source import Transaction, keyed_transaction
from invalidator.binlog.decoder import EventDecoder, RowReader, verify
from invalidator.binlog.keys.reader import KeyedTable, KeyReader
from invalidator.binlog.rows.decoder import RowDecoder
from invalidator.binlog.rows.layout import FindPeriod
from invalidator.binlog.transaction import Subscription
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.packets import CHECKSUM_RESIDUE, CHECKSUM_START
from invalidator.binlog.wire.rowevent import CASCADES_LOGGED, STATEMENT_END
from invalidator.mailbox import TRANSACTION_ROWS_MAX

HELD_PACKETS_MAX: Final = 64
HELD_BYTES_MAX: Final = 1 << 20
"""The bounds of one transaction. A larger one goes the general way, which can hand it out in pieces."""

SOURCES_KEPT_MAX: Final = 1024
"""Texts of MySQL server UUIDs that are kept."""

_BODY: Final = 20
"""Offset of an event's body in its packet, in bytes."""

_QUERY_HEAD: Final = 13
_USUAL_PACKETS: Final = {"mysql": 5, "mariadb": 4}
"""Packets of a transaction of one row event."""
_BEGIN: Final = b"BEGIN"
_ROWS: Final = frozenset((23, 24, 25, 30, 31, 32))
_INSERTS: Final = (23, 30)

_u4 = struct.Struct("<I").unpack_from
_u8 = struct.Struct("<Q").unpack_from
_mariadb_gtid = struct.Struct("<QIB").unpack_from

_IDLE, _BEGUN, _BETWEEN, _IN_ROWS, _GENERAL = range(5)
"""The stages, by the packet that came last: nothing, a GTID of MySQL, the begin or the end of a statement, a table
map or rows that do not end their statement; or the general way has the transaction."""


class FastTrack:
    """One for each source that wants keys. ``general``: the decoder that takes all other packets. It owns the
    position, the sequence numbers and the log's format, and never calls back. ``items_max``: largest number of items
    in one transaction. ``skips``: transactions for the general way."""

    def __init__(
        self, general: EventDecoder, keys: KeyReader, items_max: int, skips: Container[Position] = ()
    ) -> None:
        self._general = general
        self._keys = keys
        self._items_max = items_max
        self._sequences = general.sequences
        self._sources: dict[bytes, str] = {}
        self._foreign_keys = general.foreign_keys
        is_mysql = keys.flavor == "mysql"
        self._is_mariadb = not is_mysql
        self._gtid_kind = events.GTID if is_mysql else events.MARIADB_GTID
        self._read_any_gtid = self._read_mysql_gtid if is_mysql else self._read_mariadb_gtid
        self._skips = skips
        self._read_gtid = self._read_unless_skipped if skips else self._read_any_gtid
        self._usual_packets = _USUAL_PACKETS[keys.flavor]
        self._steps: dict[tuple[int, int], Callable[[bytes], bool]] = {
            (_IDLE, self._gtid_kind): self._take_gtid,
            (_BEGUN, events.QUERY): self._take_begin,
            (_BETWEEN, events.TABLE_MAP): self._take_table,
            **{(_IN_ROWS, kind): self._take_rows for kind in _ROWS},
            (_BETWEEN, events.XID): self._commit,
        }
        self._found: list[Transaction] = []
        self._held: list[bytes] = []
        self._start: tuple[Position, int] | None = None
        self._sequence: tuple[int, int] | None = None
        self._table: KeyedTable | None = None
        self._table_id = b""
        self._reset()

    def restart(self, *, has_checksum: bool) -> None:
        self._general.restart(has_checksum=has_checksum)
        self._reset()

    def decode(self, packets: Iterable[bytes], found: list[Transaction]) -> None:
        """Append the transactions that the packets complete, also those before an error. Raises `StreamStopped`."""
        self._found = found
        packets = packets if isinstance(packets, list) else list(packets)
        place, count = 0, len(packets)
        while place < count:
            # Most of what comes is this.
            after = self._take_usual(packets, place) if self._stage == _IDLE else place
            if after == place:
                self._take(packets[place])
                after += 1
            place = after

    def _take(self, packet: bytes) -> None:
        verify(packet, has_checksum=self._general.trailer_bytes > 0)
        if len(packet) < _BODY or _u4(packet, 10)[0] != len(packet) - 1:
            self._leave(packet)
            return
        step = self._steps.get((self._stage, packet[5]))
        if step is not None and step(packet):
            self._held.append(packet)
        elif packet[5] not in events.HARMLESS:
            self._leave(packet)

    def _reset(self) -> None:
        self._stage = _IDLE
        self._items: list[bytes] = []
        self._held_bytes = self._rows_bytes = 0

    def _leave(self, packet: bytes) -> None:
        """Hand what is held and this packet to the general way, until the transaction ends."""
        # While idle, what is held was committed.
        held = [packet] if self._stage == _IDLE else [*self._held, packet]
        self._held.clear()
        self._stage = _GENERAL
        for each in held:
            self._general.decode_packet(each, self._found)
        if self._general.is_idle:
            self._reset()

    def _take_usual(self, packets: Sequence[bytes], place: int) -> int:
        """Transactions of one row event, one behind the other, without holding anything. The place behind them: of
        the first packet of what is another transaction or anything else, with which nothing has happened yet."""
        count, trailer, kind_of_gtid = self._usual_packets, self._general.trailer_bytes, self._gtid_kind
        last = len(packets) - count
        body = head = b""
        table: KeyedTable | None = None
        while place <= last:
            gtid, commit = packets[place], packets[place + count - 1]
            table_map, rows = packets[place + count - 3], packets[place + count - 2]
            # MariaDB has no BEGIN, and this is the GTID again.
            begin = packets[place + count - 4]
            try:
                is_usual = (
                    commit[5] == events.XID
                    and rows[5] in _ROWS
                    and table_map[5] == events.TABLE_MAP
                    and gtid[5] == kind_of_gtid
                    and rows[_BODY + 6] & STATEMENT_END
                    and len(rows) <= HELD_BYTES_MAX
                    and (begin is gtid or self._is_begin(begin))
                )
            except IndexError:
                break
            if not (is_usual and self._are_whole(gtid, begin, table_map, rows, commit)):
                break
            if table is None or table_map[_BODY : len(table_map) - trailer] != body:
                body = table_map[_BODY : len(table_map) - trailer]
                table, head = self._find_table(body), body[:6]
                if table is None:
                    break
            if not rows.startswith(head, _BODY):
                break
            items = self._read_items(table, rows)
            if items is None or len(items) > self._items_max:
                break
            start = self._read_gtid(gtid)
            if start is None:
                break
            self._finish(start[0], start[1], items, len(rows))
            place += count
        return place

    def _are_whole(self, gtid: bytes, begin: bytes, table_map: bytes, rows: bytes, commit: bytes) -> bool:
        """Whether all packets have the right checksum, or the right length if the log has no checksums."""
        if self._general.trailer_bytes:
            return (
                crc32(gtid, CHECKSUM_START)
                == crc32(table_map, CHECKSUM_START)
                == crc32(rows, CHECKSUM_START)
                == crc32(commit, CHECKSUM_START)
                == CHECKSUM_RESIDUE
            ) and (begin is gtid or crc32(begin, CHECKSUM_START) == CHECKSUM_RESIDUE)
        return all(_u4(each, 10)[0] == len(each) - 1 for each in (gtid, begin, table_map, rows, commit))

    def _take_gtid(self, packet: bytes) -> bool:
        start = self._read_gtid(packet)
        if start is None:
            return False
        self._start = start
        self._stage = _BETWEEN if packet[5] == events.MARIADB_GTID else _BEGUN
        self._held.clear()
        return True

    def _read_unless_skipped(self, packet: bytes) -> tuple[Position, int] | None:
        start = self._read_any_gtid(packet)
        return None if start is None or start[0] in self._skips else start

    def _read_mariadb_gtid(self, packet: bytes) -> tuple[Position, int] | None:
        if len(packet) - self._general.trailer_bytes < _BODY + 13:
            return None
        sequence, domain, flags = _mariadb_gtid(packet, _BODY)
        if flags & 1 or sequence <= self._sequences.get(domain, 0):
            return None
        self._sequence = (domain, sequence)
        return MariadbPosition.of(domain, _u4(packet, 6)[0], sequence), _u4(packet, 1)[0] * 1_000_000

    def _read_mysql_gtid(self, packet: bytes) -> tuple[Position, int] | None:
        # See `invalidator.binlog.wire.event.parse_mysql_gtid`.
        if len(packet) - self._general.trailer_bytes < _BODY + 49:
            return None
        source = self._sources.get(packet[21:37])
        if source is None:
            if len(self._sources) >= SOURCES_KEPT_MAX:
                self._sources.clear()
            source = self._sources[packet[21:37]] = str(uuid.UUID(bytes=packet[21:37]))
        timestamp_us = _u8(packet, 61)[0] >> 8  # seven bytes
        if timestamp_us >> 55:
            if len(packet) - self._general.trailer_bytes < _BODY + 56:
                return None
            timestamp_us = int.from_bytes(packet[69:76], "little")
        return MysqlGtidSet.of(source, _u8(packet, 37)[0]), timestamp_us

    def _is_begin(self, packet: bytes) -> bool:
        """Whether it is the statement BEGIN and nothing else."""
        if len(packet) < _BODY + _QUERY_HEAD or packet[5] != events.QUERY:
            return False
        text = _BODY + _QUERY_HEAD + packet[_BODY + 8] + (packet[_BODY + 11] | packet[_BODY + 12] << 8) + 1
        return packet[text : len(packet) - self._general.trailer_bytes] == _BEGIN

    def _take_begin(self, packet: bytes) -> bool:
        if not self._is_begin(packet):
            return False
        self._stage = _BETWEEN
        return True

    def _find_table(self, body: bytes) -> KeyedTable | None:
        """The table of a table map's body, if it is known and the track may read its rows."""
        table = self._keys.find_table(body)
        if table is None or table.problem:
            return None
        # Other rows may change, too, and MariaDB logs none of them.
        return None if self._is_mariadb and table.wanted and self._foreign_keys.cascades else table

    def _read_items(self, table: KeyedTable, packet: bytes) -> list[bytes] | None:
        logs_all = packet[_BODY + 6] & CASCADES_LOGGED or packet[5] in _INSERTS
        if not logs_all and self._foreign_keys.is_parent(table.database, table.name):
            return None
        plan = table.plan
        if plan is None:
            return []
        kind, start = packet[5], _BODY + 8
        length = plan.head_bytes.get(kind, 0)
        code = plan.heads.get((kind, packet[start : start + length]))
        if code is None:
            return None
        try:
            return code.read(packet, start + length, len(packet) - self._general.trailer_bytes)
        except Exception:  # noqa: BLE001 - the general way says what is wrong, and raises the table
            return None

    def _take_table(self, packet: bytes) -> bool:
        table = self._find_table(packet[_BODY : len(packet) - self._general.trailer_bytes])
        if table is None or len(self._held) > HELD_PACKETS_MAX:
            return False
        self._table, self._table_id, self._stage = table, packet[_BODY : _BODY + 6], _IN_ROWS
        return True

    def _take_rows(self, packet: bytes) -> bool:
        table = self._table
        if table is None or packet[_BODY : _BODY + 6] != self._table_id or len(packet) < _BODY + 8:
            return False
        self._held_bytes += len(packet)
        if self._held_bytes > HELD_BYTES_MAX or len(self._held) > HELD_PACKETS_MAX:
            return False
        items = self._read_items(table, packet)
        if items is None or len(items) + len(self._items) > self._items_max:
            return False
        self._items += items
        if self._items:
            self._rows_bytes += len(packet)
        if packet[_BODY + 6] & STATEMENT_END:
            self._stage = _BETWEEN
        return True

    def _commit(self, _: bytes) -> bool:
        assert self._start is not None
        self._finish(*self._start, self._items, self._rows_bytes)
        self._reset()
        return True

    def _finish(self, position: Position, timestamp_us: int, items: list[bytes], rows_bytes: int) -> None:
        if self._sequence is not None:
            domain, sequence = self._sequence
            self._sequences[domain] = sequence
            self._sequence = None
        self._general.position = position
        self._found.append(keyed_transaction(position, timestamp_us, tuple(items), rows_bytes if items else 0))


def make_decoder(
    subscription: Subscription,
    *,
    find_cascades: Callable[[], Cascades],
    rows_max: int = TRANSACTION_ROWS_MAX,
    piece_rows: int | None = None,
    definitions: Mapping[str, ObjectDefinition] | None = None,
    find_period: FindPeriod = lambda *_: None,
) -> EventDecoder | FastTrack:
    """The decoder of a source. ``definitions``: the objects whose cache items are asked for instead of rows
    (`Transaction.items`); without them it makes rows. The rest: see `EventDecoder`."""
    flavor, database, heartbeats = subscription.flavor, subscription.database, subscription.heartbeat_table

    def make_general(rows: RowReader) -> EventDecoder:
        return EventDecoder(subscription, rows, find_cascades=find_cascades, rows_max=rows_max, piece_rows=piece_rows)

    if definitions is None:
        return make_general(RowDecoder(flavor, database, subscription.tables, heartbeats, find_period))
    keys = KeyReader(flavor, database, subscription.tables, heartbeats, definitions)
    items_max = rows_max if piece_rows is None else min(piece_rows - 1, rows_max)
    return FastTrack(make_general(keys), keys, items_max, subscription.skips)
