"""From the parts of a log to whole transactions: GTID, table maps, rows, statements, commit.

Never joins two transactions and never ends one early: a part without a GTID before it, or a GTID inside an open
transaction, stops the stream (F61). The rows of an XA transaction are logged at PREPARE and reported at COMMIT, when
they become visible under another GTID (F54). Holds no connection and reads no bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from freshness.config.keyspace import SkippedTransaction
from freshness.database.foreignkey import Cascades, Cause
from freshness.database.heartbeat import parse_heartbeat
from freshness.errors import FormatError, StreamStopped
from freshness.position import Position
from freshness.stream.heartbeat import is_beat
from freshness.stream.source import Heartbeat, RowChange, Transaction
from invalidator.binlog.foreignkey import ForeignKeys
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable
from invalidator.binlog.wire.event import GroupStart, LogEvent
from invalidator.mailbox import TRANSACTION_ROWS_MAX
from invalidator.statement import StatementKind, Xid, find_statement_kind, find_xid, tables_changed_by

PIECE_BYTES_MAX: Final = 4 << 20
"""A piece also ends at this many bytes of row events: rows can be large."""

REASONS_MAX: Final = 20
"""Reasons kept for raised tables of one transaction; the tables themselves are all kept."""

XA_ROWS_MAX: Final = 200_000
"""Rows remembered for all prepared XA transactions together; beyond it the tables are remembered, not the rows."""

KEPT_BYTES_MAX: Final = 64 << 20
"""The same for the bytes of their row events, and for one transaction that is held as rows: each can be large."""

XA_TRANSACTIONS_MAX: Final = 10_000
"""Prepared XA transactions remembered; beyond it the oldest is forgotten, and its commit raises all tables."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The database and tables that a source follows. ``skips``: the transactions that an operator lets pass, by
    GTID; ``on_skip`` is called for each that comes."""

    flavor: str
    database: str
    tables: Set[str]
    heartbeat_table: str
    skips: Mapping[Position, SkippedTransaction] = field(default_factory=dict)
    on_skip: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Group:
    start: GroupStart
    in_transaction: bool
    is_xa: bool
    is_skipped: bool = False
    changes: list[RowChange] = field(default_factory=list)
    items: list[bytes] = field(default_factory=list)
    tables_of_items: set[str] = field(default_factory=set)
    raised: set[str] = field(default_factory=set)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    size_bytes: int = 0
    rows_handed_out: int = 0
    # of the statement that is being read:
    announced: set[str] = field(default_factory=set)
    with_rows: set[str] = field(default_factory=set)
    causes: set[Cause] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Changes or items: what is bounded."""
        return len(self.changes) + len(self.items)

    @property
    def tables(self) -> set[str]:
        return self.tables_of_items | {change.table for change in self.changes}

    def raise_tables(self, tables: Set[str], reason: str) -> None:
        names = frozenset(tables)
        if names:
            self.raised |= names
            self.add_reason(reason)

    def add_reason(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason)

    def take(self, *, is_last: bool) -> Transaction:
        """The part of the transaction since the last piece, or all of it."""
        taken = Transaction(
            self.start.position,
            self.start.timestamp_us,
            tuple(self.changes),
            frozenset(self.raised),
            tuple(self.heartbeats),
            tuple(self.reasons),
            self.rows_handed_out,
            is_last,
            self.size_bytes,
            tuple(self.items),
        )
        if not is_last:
            self.rows_handed_out += self.rows
            for part in (self.changes, self.items, self.tables_of_items, self.raised, self.heartbeats):
                part.clear()
            self.reasons.clear()
            self.size_bytes = 0
        return taken


@dataclass(frozen=True, slots=True)
class _Prepared:
    changes: tuple[RowChange, ...]
    raised: frozenset[str]
    items: tuple[bytes, ...]
    size_bytes: int

    @property
    def rows(self) -> int:
        return len(self.changes) + len(self.items)


class TransactionAssembler:
    """One for each stream. Prepared XA transactions outlive `restart`."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        rows_max: int = TRANSACTION_ROWS_MAX,
        piece_rows: int | None = None,
        find_cascades: Callable[[], Cascades] = dict,
    ) -> None:
        """``piece_rows``: approximate size of the pieces in which a transaction is handed out, in rows; without it, a
        transaction of more than ``rows_max`` rows raises its tables. ``find_cascades`` reads the foreign keys as they
        are now."""
        assert piece_rows is None or piece_rows > 0
        self._subscription = subscription
        self.foreign_keys = ForeignKeys(subscription.flavor, find_cascades)
        self._rows_max = rows_max
        self._piece_rows = piece_rows
        self._group: _Group | None = None
        self._prepared: dict[Xid, _Prepared] = {}
        self._prepared_rows = 0
        self._prepared_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is being read."""
        return self._group is None

    @property
    def is_skipping(self) -> bool:
        """Whether the transaction that is being read is one to let pass: only `commit` may follow."""
        return self._group is not None and self._group.is_skipped

    @property
    def open_gtid(self) -> Position | None:
        """The GTID of the transaction that is being read."""
        return None if self._group is None else self._group.start.position

    def restart(self) -> None:
        """A new connection: what was half read comes again. Raises what ``find_cascades`` raises."""
        self._group = None
        self.foreign_keys.restart()

    def start_file(self) -> None:
        """A new log file. A transaction never spans two: an open one was cut off by a crash and never committed. Its
        number may be given again, so its position must not be reported (F29)."""
        if self._group is not None:
            _log.warning("transaction %s was cut off by the end of its log file", self._group.start.position)
        self._group = None

    def start_group(self, start: GroupStart) -> None:
        if self._group is not None:
            raise StreamStopped(
                f"transaction {start.position} starts inside {self._group.start.position}",
                hint="an event that ends a transaction was not understood; report it with the server's version",
            )
        self._group = _Group(start, start.in_transaction, start.is_xa)
        skip = self._subscription.skips.get(start.position)
        if skip is not None:
            self._skip(self._group, skip)

    def _skip(self, group: _Group, skip: SkippedTransaction) -> None:
        """Raise, by the operator's word, all that a transaction can have changed which is not read."""
        group.is_skipped = True
        # It may have prepared or ended any XA transaction: a commit of one that is not known raises all tables.
        self._prepared.clear()
        self._prepared_rows = self._prepared_bytes = 0
        self.foreign_keys.read_new()
        named = frozenset(skip.tables) or self._subscription.tables
        reached = self.foreign_keys.find_reached_from({self._subscription.database: named})
        group.raise_tables(named | reached, f"the transaction is skipped by the configuration: {skip.reason}")
        _log.warning(
            "transaction %s is skipped by the configuration, and %s invalidated as a whole: %s",
            group.start.position,
            ", ".join(sorted(group.raised)),
            skip.reason,
        )
        self._subscription.on_skip()

    def announce_table(self, table: MappedTable) -> None:
        if table.wanted and table.name != self._subscription.heartbeat_table:
            self._current("a table map").announced.add(table.name)

    def add_rows(self, rows: ChangedRows, size_bytes: int = 0, event: LogEvent | None = None) -> Transaction | None:
        """Add one row event, with its size in the log; return a piece if pieces are asked for and one is full.
        ``event``: the row event, if it can be read again."""
        group = self._current("a row event")
        group.causes |= self.foreign_keys.find_causes(rows, event)
        if rows.table is not None and rows.table.wanted:
            self._add_wanted(group, rows, rows.table.name)
        if rows.ends_statement:
            self._end_statement(group)
        if group.rows:
            group.size_bytes += size_bytes
        is_held = group.is_xa or (group.changes and self._piece_rows is None)
        if is_held and group.size_bytes > KEPT_BYTES_MAX:
            self._drop_rows(group, f"more than {KEPT_BYTES_MAX} bytes in one transaction")
        if self._piece_rows is None or group.is_xa:
            return None
        if group.rows < self._piece_rows and group.size_bytes < PIECE_BYTES_MAX:
            return None
        return group.take(is_last=False)

    def add_query(self, sql: str, default_database: str) -> Transaction | None:
        """Add a statement; return the transaction if the statement ended it."""
        group = self._current(f"the statement {sql[:60]!r}")
        kind = find_statement_kind(sql)
        if kind in (StatementKind.BEGIN, StatementKind.XA_BEGIN):
            group.in_transaction = True
            group.is_xa = group.is_xa or kind is StatementKind.XA_BEGIN
            return None
        if kind in (StatementKind.COMMIT, StatementKind.ROLLBACK):
            # Rows in front of a ROLLBACK are of tables that cannot roll back.
            return self.commit()
        if kind is StatementKind.XA_COMMIT:
            self._commit_prepared(group, sql)
        elif kind is StatementKind.XA_ROLLBACK:
            self._forget_prepared(find_xid(sql))
        elif kind is StatementKind.OTHER:
            self._add_statement(group, sql, default_database)
        elif group.in_transaction:
            return None
        return None if group.in_transaction else self.commit()

    def commit(self) -> Transaction:
        return self._end_group().take(is_last=True)

    def prepare(self, xid: Xid) -> Transaction:
        """XA PREPARE: its rows are remembered for the commit, if there is one. Nobody can read them before."""
        group = self._end_group()
        self._remember_prepared(xid, group)
        return Transaction(group.start.position, group.start.timestamp_us)

    def _end_group(self) -> _Group:
        group = self._current("a commit")
        self._end_statement(group)
        self._group = None
        return group

    def _remember_prepared(self, xid: Xid, group: _Group) -> None:
        self._forget_prepared(xid)
        if self._prepared_rows + group.rows > XA_ROWS_MAX or self._prepared_bytes + group.size_bytes > KEPT_BYTES_MAX:
            self._drop_rows(group, "too many rows in all prepared XA transactions")
        if len(self._prepared) >= XA_TRANSACTIONS_MAX:
            self._forget_prepared(next(iter(self._prepared)))
        prepared = _Prepared(tuple(group.changes), frozenset(group.raised), tuple(group.items), group.size_bytes)
        self._prepared[xid] = prepared
        self._prepared_rows += prepared.rows
        self._prepared_bytes += prepared.size_bytes

    def _current(self, what: str) -> _Group:
        if self._group is None:
            raise StreamStopped(
                f"{what} came without a GTID before it",
                hint="the stream was joined inside a transaction, or gtid_mode is off: resume from a GTID position",
            )
        return self._group

    def _add_wanted(self, group: _Group, rows: ChangedRows, table: str) -> None:
        group.with_rows.add(table)
        if table == self._subscription.heartbeat_table:
            self._add_heartbeats(group, rows)
        elif rows.problem:
            group.raise_tables({table}, rows.problem)
        elif (self._piece_rows is None or group.is_xa) and group.rows + len(
            rows.changes if rows.items is None else rows.items
        ) > self._rows_max:
            reason = f"more than {self._rows_max} rows in one transaction"
            self._drop_rows(group, reason)
            group.raise_tables({table}, reason)
        elif rows.items is not None:
            group.items += rows.items
            group.tables_of_items.add(table)
        elif not rows.changes and not rows.is_past:
            group.raise_tables({table}, f"a row event of {table} without rows")
        else:
            group.changes.extend(rows.changes)

    def _drop_rows(self, group: _Group, reason: str) -> None:
        group.raise_tables(group.tables, reason)
        for part in (group.changes, group.items, group.tables_of_items):
            part.clear()
        group.size_bytes = 0

    def _add_heartbeats(self, group: _Group, rows: ChangedRows) -> None:
        if rows.problem:
            group.add_reason(rows.problem)
        for change in rows.changes:
            if change.after is None:
                continue
            row = {**(change.before or {}), **change.after}
            if not is_beat(row.get("id")):
                continue
            try:
                group.heartbeats.append(parse_heartbeat(row))
            except FormatError as error:
                group.add_reason(str(error))

    def _end_statement(self, group: _Group) -> None:
        """Raise the children of foreign keys whose rows changed without being logged (F23)."""
        if group.causes:
            reached = self.foreign_keys.find_reached(group.causes, group.announced, group.with_rows)
            group.raise_tables(reached, f"a foreign key may have changed {sorted(reached)}")
        group.announced.clear()
        group.with_rows.clear()
        group.causes.clear()

    def _add_statement(self, group: _Group, sql: str, default_database: str) -> None:
        subscription = self._subscription
        tables = tables_changed_by(sql, subscription.database, default_database, subscription.tables)
        group.raise_tables(tables, f"statement: {' '.join(sql[:120].split())}")
        reached = self.foreign_keys.find_reached_by(sql, default_database)
        group.raise_tables(reached, f"foreign keys may have reached {sorted(reached)} before a statement")

    def _commit_prepared(self, group: _Group, sql: str) -> None:
        xid = find_xid(sql)
        prepared = None if xid is None else self._prepared.get(xid)
        if prepared is None:
            group.raise_tables(self._subscription.tables, f"commit of an unknown XA transaction: {sql[:120]}")
            return
        group.changes.extend(prepared.changes)
        group.items.extend(prepared.items)
        group.size_bytes += prepared.size_bytes
        group.raise_tables(prepared.raised, "tables raised by the XA transaction at its PREPARE")
        self._forget_prepared(xid)

    def _forget_prepared(self, xid: Xid | None) -> None:
        prepared = None if xid is None else self._prepared.pop(xid, None)
        if prepared is not None:
            self._prepared_rows -= prepared.rows
            self._prepared_bytes -= prepared.size_bytes
