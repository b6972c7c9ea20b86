"""A shard as the simulator has it: a primary's log, what the primary shows, and replicas that lag.

Rows have versions: the number of the last commit that changed them. Numbers always grow, also after a failover
that loses commits, so that "older" needs no clock and no GTID to be judged: the checkers compare numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from freshness.position import MariadbPosition, MysqlGtidSet, Position, empty_position
from freshness.stream.heartbeat import EPOCH_ROW
from freshness.stream.source import Heartbeat, RowChange, Transaction

Row = tuple[str, int]
"""(table, key)"""


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """One transaction of the log. ``rows``: the rows that it changed, also by replacing a whole table. ``versions``:
    the versions of rows that were copied from another shard and keep them."""

    number: int
    position: Position
    prefix: Position
    rows: tuple[Row, ...]
    transaction: Transaction
    at: float
    versions: Mapping[Row, int] | None = None
    domain: int = 0
    watermark: str = ""
    """Of the heartbeat that it writes."""

    def version(self, row: Row) -> int:
        return self.number if self.versions is None else self.versions[row]


@dataclass(slots=True, eq=False)
class Server:
    """What a server shows: its executed set, and the version of each row in it.

    ``log``: the log of a primary, which is ahead of its rows. ``applied_as_replica``: everything that a MariaDB
    primary applied before its promotion. ``late_domain``: a MariaDB domain that it does not apply for now.
    """

    name: str
    executed: Position
    epoch: int
    applied: list[Commit] = field(default_factory=list)
    versions: dict[Row, int] = field(default_factory=dict)
    is_out_of_order: bool = False
    is_stopped: bool = False
    is_errant: bool = False
    """It has what nobody else has, which on MariaDB its numbers do not show: it stands until it is rebuilt."""
    complete: int = 0  # how many commits of the log are applied without a gap
    beats: dict[str, tuple[int, str]] = field(default_factory=dict)
    log: list[Commit] | None = None
    applied_as_replica: Position | None = None
    late_domain: int | None = None

    def variable(self, name: str) -> str:
        """A global variable, as SQL names it."""
        position: Position | None = None
        match name:
            case "@@global.gtid_executed":
                position = self.executed
            case "@@global.gtid_slave_pos":
                position = self.applied_as_replica if self.log is not None else self.executed
            case "@@global.gtid_current_pos" if self.log is not None:
                logged = self.log[-1].prefix if self.log else self.executed
                previous = self.applied_as_replica
                position = logged if previous is None else logged.union(previous)
            case "@@global.gtid_binlog_pos":
                position = self.log[-1].prefix if self.log else self.executed
        return "" if position is None else str(position)

    def heartbeats(self) -> list[tuple[str, int, str, int]]:
        """The heartbeat table: (id, epoch, watermark, min_us)."""
        beats = [(instance, epoch, watermark, 0) for instance, (epoch, watermark) in self.beats.items()]
        return [(EPOCH_ROW, self.epoch, "", 0), *beats]

    def freeze(self) -> Server:
        return Server(self.name, self.executed, self.epoch, versions=dict(self.versions), beats=dict(self.beats))

    def apply(self, commit: Commit) -> None:
        self.executed = self.executed.union(commit.position)
        self.applied.append(commit)
        for row in commit.rows:
            self.versions[row] = max(self.versions.get(row, 0), commit.version(row))
        for beat in commit.transaction.heartbeats:
            if beat.instance == EPOCH_ROW:
                self.epoch = max(self.epoch, beat.epoch)
            else:
                self.beats[beat.instance] = beat.epoch, commit.watermark

    def version(self, row: Row) -> int:
        return self.versions.get(row, 0)


@dataclass(slots=True, eq=False)
class Shard:
    """One lineage. ``log`` is what the invalidator streams; the primary shows ``primary.applied`` of it (F2).

    ``find_row``: from the key in an image to the row's number.
    """

    lineage: str
    tables: tuple[str, ...]
    keys: int
    replicas: list[Server]
    primary: Server
    flavor: str = "mysql"
    sid_number: int = 1
    epoch: int = 1
    number: int = 0
    find_row: Callable[[Any], int] = int
    topology: int = 1
    """The number in the heartbeat table."""
    doubtful: int = 0
    """Primaries up to this number had commits that a later one lacks."""
    domains: int = 1
    """Of MariaDB: a row is changed in the domain of its key, heartbeats are written in the first one."""
    log: list[Commit] = field(default_factory=list)
    by_row: dict[Row, list[Commit]] = field(default_factory=dict)

    @classmethod
    def create(
        cls, lineage: str, tables: tuple[str, ...], keys: int, replicas: int, flavor: str = "mysql", domains: int = 1
    ) -> Shard:
        nothing = empty_position(flavor)
        servers = [Server(f"{lineage} replica {i}", nothing, 1) for i in range(replicas)]
        primary = Server(f"{lineage} primary", nothing, 1)
        shard = cls(lineage, tables, keys, servers, primary, flavor, domains=domains)
        primary.log = shard.log
        return shard

    @property
    def sid(self) -> str:
        return f"00000000-0000-0000-0000-{self.sid_number:012d}"

    @property
    def identity(self) -> str:
        """Of the present primary."""
        return f"{self.lineage} {self.sid_number}"

    def is_succession_lossless(self, previous: str) -> bool:
        return int(previous.removeprefix(f"{self.lineage} ")) > self.doubtful

    @property
    def logged(self) -> Position:
        return self.log[-1].prefix if self.log else self.nothing

    @property
    def nothing(self) -> Position:
        return empty_position(self.flavor)

    def can_stream_from(self, start: Position) -> bool:
        """Whether a primary of this history would accept the position (F28, F59)."""
        if self.flavor == "mysql":
            return self.logged.contains(start)
        positions = [commit.position for commit in self.log]
        return all(part in positions for part in start.by_source().values())

    @property
    def head(self) -> Position:
        """All that the primary has executed, as it says itself: on MariaDB more than what it shows."""
        executed = self.primary.executed
        return executed if self.flavor == "mysql" else self.logged.union(executed)

    def _next_position(self, domain: int) -> Position:
        if self.flavor == "mysql":
            return MysqlGtidSet.of(self.sid, self.number)
        # Lost numbers are given out again, by another server.
        sequence = sum(commit.domain == domain for commit in self.log) + 1
        return MariadbPosition.of(domain, self.sid_number, sequence)

    # -- writing ------------------------------------------------------------------------------------------

    def write(
        self,
        at: float,
        changes: tuple[RowChange, ...] = (),
        raised: frozenset[str] = frozenset(),
        heartbeats: tuple[Heartbeat, ...] = (),
        *,
        began: float | None = None,
        gap: int = 0,
        versions: Mapping[Row, int] | None = None,
        watermark: str = "",
    ) -> Commit:
        """Append to the log. Nobody sees it in a SELECT before `show`.

        ``began``: when its statement began, which is its timestamp (F3). ``gap``: numbers that nobody ever
        executes, as Group Replication leaves them.
        """
        self.number += 1 + gap
        rows: dict[Row, None] = {}
        for change in changes:
            for image in (change.before, change.after):
                if image is not None:
                    rows[change.table, self.find_row(image["id"])] = None
        for table in sorted(raised):
            rows.update(dict.fromkeys((table, key) for key in range(self.keys)))
        domain = next(iter(rows))[1] % self.domains if rows else 0
        position = self._next_position(domain)
        timestamp_us = int((at if began is None else began) * 1e6)
        changes = tuple(self._with_version(change, versions) for change in changes)
        transaction = Transaction(position, timestamp_us, changes, raised, heartbeats)
        commit = Commit(
            self.number,
            position,
            self.logged.union(position),
            tuple(rows),
            transaction,
            at,
            versions,
            domain,
            watermark,
        )
        self.log.append(commit)
        for row in commit.rows:
            self.by_row.setdefault(row, []).append(commit)
        return commit

    def _with_version(self, change: RowChange, versions: Mapping[Row, int] | None) -> RowChange:
        """The log holds the row as it is after the change."""
        if change.after is None:
            return change
        row = change.table, self.find_row(change.after["id"])
        version = self.number if versions is None else versions[row]
        return replace(change, after={**change.after, "version": version})

    def show(self) -> bool:
        """The primary's engine commit of the next logged transaction."""
        shown = len(self.primary.applied)
        if shown == len(self.log):
            return False
        self.primary.apply(self.log[shown])
        return True

    def show_all(self) -> None:
        while self.show():
            pass

    # -- replicas ------------------------------------------------------------------------------------------

    def replicate(self, replica: Server, until: float, ahead: int = 0) -> bool:
        """Apply one commit that is older than ``until``: the next one, or with parallel appliers one of the
        following on other rows (F56)."""
        if replica.is_stopped:
            return False
        if not replica.is_out_of_order and replica.late_domain is None:
            if replica.complete == len(self.log) or self.log[replica.complete].at > until:
                return False
            chosen = self.log[replica.complete]
        else:
            waiting = [
                commit
                for commit in self.log[replica.complete :]
                if commit.at <= until
                and commit.domain != replica.late_domain
                and not replica.executed.contains(commit.position)
            ]
            if not waiting:
                return False
            chosen = waiting[0]
            before = set(chosen.rows)
            for candidate in waiting[1 : 1 + ahead] if replica.is_out_of_order else ():
                if not before.intersection(candidate.rows) and not candidate.transaction.heartbeats:
                    chosen = candidate
                before.update(candidate.rows)
        replica.apply(chosen)
        while replica.complete < len(self.log) and replica.executed.contains(self.log[replica.complete].position):
            replica.complete += 1
        return True

    # -- failover ------------------------------------------------------------------------------------------

    def fail_over(self, kept: int) -> None:
        """A new primary that has only the first ``kept`` commits of the log; it writes under a new UUID."""
        lost = self.log[kept:]
        self.doubtful = self.sid_number if lost else self.doubtful
        self.log = self.log[:kept]
        for commit in lost:
            for row in commit.rows:
                self.by_row[row].remove(commit)
        self.sid_number += 1
        self.primary = self._rebuilt(self.primary.name, len(self.log))
        self.primary.log, self.primary.applied_as_replica = self.log, self.primary.executed
        for replica in self.replicas:
            replica.complete = min(replica.complete, len(self.log))
            if any(replica.executed.contains(commit.position) for commit in lost):
                replica.is_stopped = replica.is_errant = True

    def rebuild(self, place: int) -> None:
        """A replica is rebuilt from the primary."""
        old = self.replicas[place]
        self.replicas[place] = self._rebuilt(old.name, len(self.primary.applied))
        self.replicas[place].is_out_of_order = old.is_out_of_order

    def _rebuilt(self, name: str, count: int) -> Server:
        server = Server(name, self.nothing, 1)
        for commit in self.log[:count]:
            server.apply(commit)
        server.complete = count
        return server

    def raise_epoch(self, at: float) -> int:
        self.epoch += 1
        self.write(at, heartbeats=(Heartbeat(EPOCH_ROW, 0, 0, 0, self.epoch),))
        self.show_all()
        return self.epoch
