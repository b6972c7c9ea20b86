"""From the events of one shard of a VStream to whole transactions, each with the position that it added.

The shape is BEGIN, FIELD and ROW events, VGTID, COMMIT; or VGTID, then DDL or OTHER. A part that is out of place
stops the stream; rows that cannot be read raise their table. Nothing is delivered before its COMMIT, so that a
transaction which vtgate breaks off and begins again is delivered once. Holds no connection.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from freshness.database.heartbeat import parse_heartbeat
from freshness.errors import FormatError, StreamStopped
from freshness.position import MysqlGtidSet, Position
from freshness.stream.heartbeat import is_beat
from freshness.stream.source import Heartbeat, RowChange, Transaction
from invalidator.mailbox import TRANSACTION_ROWS_MAX
from invalidator.statement import tables_changed_by
from invalidator.vstream.position import ShardProgress, parse_gtid
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.row import TableFields, UnreadableRows, read_changes, read_fields

TRANSACTION_BYTES_MAX: Final = 256 << 20
"""Bytes of row events: a transaction with more, or with more than `TRANSACTION_ROWS_MAX` rows, raises its tables."""

REASONS_MAX: Final = 20
HEARTBEATS_MAX: Final = 1_000
"""Kept of one transaction; the newest ones."""

_NOTHING_TO_DO: Final = frozenset(
    (pb.HEARTBEAT, pb.VERSION, pb.SAVEPOINT, pb.PREVIOUS_GTIDS, pb.ROWS_QUERY)  # known, and without rows
)
_STATEMENTS: Final = frozenset((pb.DDL, pb.OTHER, pb.INSERT, pb.REPLACE, pb.UPDATE, pb.DELETE, pb.SET))
_OF_COPYING: Final = frozenset((pb.LASTPK, pb.COPY_COMPLETED))

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one transaction; beyond them its tables are raised."""

    rows_max: int = TRANSACTION_ROWS_MAX
    bytes_max: int = TRANSACTION_BYTES_MAX


BOUNDS: Final = Bounds()


@dataclass(slots=True)
class _Group:
    """The transaction that is being read. Without ``in_transaction``: a VGTID that waits for its DDL or OTHER.
    ``is_untold``: it has a statement that nobody can see."""

    in_transaction: bool
    timestamp_us: int = 0
    reached: str = ""
    own: MysqlGtidSet | None = None
    own_text: str = ""
    changes: list[RowChange] = field(default_factory=list)
    size_bytes: int = 0
    raised: set[str] = field(default_factory=set)
    heartbeats: deque[Heartbeat] = field(default_factory=lambda: deque(maxlen=HEARTBEATS_MAX))
    reasons: list[str] = field(default_factory=list)
    is_untold: bool = False

    @property
    def is_void(self) -> bool:
        return not (self.changes or self.raised or self.heartbeats or self.reasons)

    def raise_tables(self, tables: Set[str], reason: str) -> None:
        names = frozenset(tables)
        if names:
            self.raised |= names
            self.add_reason(reason)

    def add_reason(self, reason: str) -> None:
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason)


class ShardAssembler:
    """One for each shard of an open stream. ``position``: the start and everything delivered since."""

    def __init__(
        self, keyspace: str, shard: str, start: Position, tables: Set[str], heartbeat_table: str, bounds: Bounds
    ) -> None:
        self.journal: pb.Journal | None = None
        self._keyspace = keyspace
        self._shard = shard
        self._tables = tables
        self._heartbeat_table = heartbeat_table
        self._bounds = bounds
        self._progress = ShardProgress(start)
        self._fields: dict[str, TableFields] = {}
        self._group: _Group | None = None

    @property
    def position(self) -> Position:
        return self._progress.position

    def add(self, event: pb.VEvent) -> list[Transaction]:
        """Take one event of this shard; what it completed. Raises `StreamStopped`. After a journal of resharding (see
        ``journal``) nothing is delivered any more."""
        kind = event.type
        if kind in _NOTHING_TO_DO:
            return []
        if self.journal is not None:
            if kind in (pb.ROW, pb.DDL):
                raise self._stopped("rows came after the journal that ends the shard")
            return []
        done = []
        if kind not in _STATEMENTS and self._group is not None and not self._group.in_transaction:
            done = self._finish(self._group)  # a VGTID alone
        if kind == pb.BEGIN:
            self._begin(event)
        elif kind == pb.FIELD:
            self._fields[self._name_of(event.field_event.table_name)] = read_fields(event.field_event)
        elif kind == pb.ROW:
            self._add_rows(self._current(event, "a ROW"), event.row_event)
        elif kind == pb.VGTID:
            self._reach(event)
        elif kind == pb.COMMIT:
            done += self._finish(self._current(event, "a COMMIT"))
        elif kind == pb.ROLLBACK:
            # Rows in front of it are of tables that cannot roll back.
            done += self._finish(self._group) if self._group is not None else []
        elif kind in _STATEMENTS:
            done += self._add_statement(event)
        elif kind == pb.JOURNAL:
            self._end_shard(event.journal)
        elif kind in _OF_COPYING:
            raise self._stopped("vtgate copies tables, which was not asked for")
        else:
            raise self._stopped(f"an event of type {kind}, which is not known here")
        return done

    def _begin(self, event: pb.VEvent) -> None:
        if self._group is not None:
            if self._group.reached:
                raise self._stopped("a transaction begins where the COMMIT of the last one is missing")
            # A tablet was lost inside a transaction that came in pieces. It comes again from its first row.
            _log.warning("shard %s/%s: vtgate begins a transaction again", self._keyspace, self._shard)
        self._group = _Group(True)
        self._note(self._group, event)

    def _current(self, event: pb.VEvent, what: str) -> _Group:
        if self._group is None:
            raise self._stopped(f"{what} came without BEGIN")
        self._note(self._group, event)
        return self._group

    def _note(self, group: _Group, event: pb.VEvent) -> None:
        if event.timestamp > 0:
            group.timestamp_us = event.timestamp * 1_000_000
        if event.event_gtid and event.event_gtid != group.own_text:
            own = parse_gtid(event.event_gtid, f"a GTID of shard {self._shard}")
            group.own = own if group.own is None else group.own.union(own)
            group.own_text = event.event_gtid

    def _name_of(self, table: str) -> str:
        """Without the keyspace, which older versions put before it whatever is asked."""
        return table.removeprefix(f"{self._keyspace}.")

    def _add_rows(self, group: _Group, event: pb.RowEvent) -> None:
        table = self._name_of(event.table_name)
        is_heartbeat = table == self._heartbeat_table
        if not is_heartbeat and (table not in self._tables or table in group.raised):
            return
        fields = self._fields.get(table)
        try:
            if fields is None:
                raise UnreadableRows("a ROW came without FIELD")
            changes = read_changes(table, fields, event)
        except UnreadableRows as error:
            reason = f"rows of {table} in shard {self._shard} cannot be read: {error}"
            if is_heartbeat:
                group.add_reason(reason)
            else:
                group.raise_tables(frozenset((table,)), reason)
            return
        if is_heartbeat:
            self._add_heartbeats(group, changes)
            return
        group.changes += changes
        group.size_bytes += event.ByteSize()
        if len(group.changes) > self._bounds.rows_max or group.size_bytes > self._bounds.bytes_max:
            group.raise_tables(
                frozenset(change.table for change in group.changes),
                f"more than {self._bounds.rows_max} rows or {self._bounds.bytes_max} bytes in one transaction",
            )
            group.changes.clear()
            group.size_bytes = 0

    def _add_heartbeats(self, group: _Group, changes: list[RowChange]) -> None:
        for change in changes:
            row = {**(change.before or {}), **(change.after or {})}
            instance = row.get("id")
            if isinstance(instance, bytes):  # the column has a binary collation, which some versions call bytes
                row["id"] = instance.decode("ascii", "replace")
            if change.after is None or not is_beat(row.get("id")):
                continue
            try:
                group.heartbeats.append(parse_heartbeat(row))
            except FormatError as error:
                group.add_reason(str(error))

    def _reach(self, event: pb.VEvent) -> None:
        group = self._group
        if group is None:
            group = self._group = _Group(False)
        self._note(group, event)
        group.reached = self._find_position(event.vgtid)

    def _find_position(self, vgtid: pb.VGtid) -> str:
        """This shard's entry; the order of the entries means nothing."""
        for entry in vgtid.shard_gtids:
            if entry.shard == self._shard and entry.keyspace in (self._keyspace, ""):
                if entry.table_p_ks:
                    raise self._stopped("vtgate copies tables, which was not asked for")
                return str(entry.gtid)
        raise self._stopped(
            f"a VGTID without this shard, but with {[entry.shard for entry in vgtid.shard_gtids][:20]}"
        )

    def _add_statement(self, event: pb.VEvent) -> list[Transaction]:
        """DDL, and what is known of others. vttablet sends OTHER without text for statements like GRANT, but also for
        DDL whose main table is not ours: `ALTER TABLE x RENAME TO ours`, `EXCHANGE PARTITION … WITH TABLE ours`."""
        sql = event.statement or event.dml
        kind = pb.VEventType.Name(event.type)
        if self._group is None:
            raise self._stopped(f"{kind} came without a position: {sql[:120]}")
        group = self._group
        self._note(group, event)
        if sql or event.type != pb.OTHER:
            # The name of the database behind the keyspace is not known: the keyspace stands for both.
            tables = tables_changed_by(sql, self._keyspace, self._keyspace, self._tables) if sql else self._tables
            group.raise_tables(tables, f"{kind}: {' '.join(sql[:120].split())}")
        else:
            group.is_untold = True
        return [] if group.in_transaction else self._finish(group)

    def _finish(self, group: _Group) -> list[Transaction]:
        """The transaction; before it, one without rows for what vtgate passed over silently."""
        self._group = None
        own = group.own
        if group.reached:
            added = self._progress.find_added(group.reached, f"the position of shard {self._shard}")
            if added is None:
                raise self._stopped(f"the position that follows lacks some of it: {group.reached[:200]!r}")
        elif own is not None:
            added = own.subtract(self.position)
        elif group.is_void:  # BEGIN, COMMIT and no VGTID: of a transaction that is none
            return []
        else:
            raise self._stopped("a transaction with rows came without its position (VGTID)")
        if added.is_empty and group.is_void:
            return []
        if group.is_untold:
            group.raise_tables(self._tables, "OTHER: a statement whose text vttablet keeps back")
        position = added if own is None else own
        if position.is_empty:
            raise self._stopped("a transaction with rows did not move the position (VGTID)")
        if not self.position.union(added).contains(position):
            raise self._stopped(f"the position that follows lacks the transaction's own GTID {position}")
        passed_over = added.subtract(position)
        self._progress.advance(added, group.reached)
        done = [] if passed_over.is_empty else [Transaction(passed_over, group.timestamp_us)]
        transaction = Transaction(
            position,
            group.timestamp_us,
            tuple(group.changes),
            frozenset(group.raised),
            tuple(group.heartbeats),
            tuple(group.reasons),
            size_bytes=group.size_bytes,
        )
        return [*done, transaction]

    def _end_shard(self, journal: pb.Journal) -> None:
        """The journal's own transaction stays undelivered: a stream that is opened again must meet it again."""
        group = self._group
        if journal.migration_type == pb.TABLES:
            moved = sorted(self._tables & {self._name_of(table) for table in journal.tables})
            if moved:
                raise self._stopped(f"tables {moved} were moved to another keyspace")
            return
        if not any(each.shard == self._shard and each.keyspace == self._keyspace for each in journal.participants):
            _log.info("shard %s/%s: a journal of other shards", self._keyspace, self._shard)
            return
        if group is not None and not group.is_void:
            raise self._stopped("a journal came inside a transaction that has rows")
        self._group = None
        self.journal = journal

    def _stopped(self, what: str) -> StreamStopped:
        return StreamStopped(
            f"shard {self._keyspace}/{self._shard}: {what} (after {str(self.position)[:200]!r})",
            hint="nothing is skipped; report it with the version of Vitess, and open the stream again",
        )
