"""The executor's part of the sink: rows of the update stream become invalidations on the cache nodes.

Nothing here is acknowledged: the task reports what was sent, and which nodes took it, to the driver, whose
``spark.sink.keeper`` alone writes records. Sent twice, by a second attempt or a second task, it does no harm. A node
that fails is left alone for the rest of the part and named; the others go on. `Sender` is procedures, which
``spark.sink.sink`` runs with real nodes and the simulator with its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from freshness.algorithm.applier import Permit
from freshness.algorithm.gather import gather
from freshness.algorithm.invalidate import Target, invalidate, shorten
from freshness.algorithm.request import Procedure
from freshness.config.access import NodeAccess
from freshness.errors import FormatError, FreshnessError
from freshness.keys.placement import Placement
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, empty_position, parse_position
from freshness.stream.source import Heartbeat, Operation, RowChange, Transaction
from freshness.values.json import from_json_row

ITEMS_HELD_MAX: Final = 8_000
"""Items that wait for all nodes before they are sent."""

CHANGES: Final[Mapping[str, Operation]] = {"insert": "insert", "update": "update", "delete": "delete"}
COLUMNS: Final = (
    *("keyspace", "lineage", "epoch", "ordinal", "row", "gtid", "timestamp_us"),
    *("op", "table", "before", "after", "detail"),
)
"""The columns that the sink reads; others may be there."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The settings of an executor: no addresses of databases, and no passwords of theirs. ``flavors`` by lineage;
    ``definitions`` by keyspace and name. ``previous``: nodes of each ring that is served beside that of ``nodes``."""

    namespace: str
    access: NodeAccess
    nodes: tuple[str, ...]
    flavors: Mapping[str, str]
    definitions: Mapping[str, Mapping[str, ObjectDefinition]]
    previous: tuple[tuple[str, ...], ...] = ()

    @property
    def all_nodes(self) -> Collection[str]:
        return dict.fromkeys([*self.nodes, *chain.from_iterable(self.previous)])


@dataclass(frozen=True, slots=True)
class Ticket:
    """The driver's permission to send one micro-batch. ``permits``: by lineage."""

    number: int
    permits: Mapping[str, Permit]


@dataclass(slots=True)
class Part:
    """The part of one lineage that one task has sent. ``ordinals``: ranges [first, last] of the transactions.
    ``before``: everything before it, None without a row that says so. ``failed``: why, by node."""

    lineage: str
    before: Position | None = None
    first: int = 0
    streamed: Position | None = None
    ordinals: list[list[int]] = field(default_factory=list)
    raised: dict[str, Position] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    items: int = 0


@dataclass(slots=True)
class Sender:
    """Sends rows of one task. ``parts`` is what it has done, by lineage."""

    plan: SinkPlan
    ticket: Ticket
    parts: dict[str, Part] = field(default_factory=dict)
    _held: dict[tuple[str, str], dict[bytes, None]] = field(default_factory=dict)
    _count: int = 0
    _finders: dict[str, KeyFinder] = field(default_factory=dict)
    _placements: Sequence[Placement] = field(init=False)
    _last: tuple[str, str, Position] | None = None
    _transaction: tuple[str, int, str] | None = None

    def __post_init__(self) -> None:
        rings = self.plan.nodes, *self.plan.previous
        self._placements = [Placement(nodes, self.plan.namespace) for nodes in rings]

    def take(self, rows: Iterable[Mapping[str, Any]]) -> Procedure[None]:
        """Send what the rows change, a bounded number of items at a time; the last of them with `flush`. Raises
        `FormatError` for a row that is none of the update stream's."""
        for row in rows:
            lineage = row["lineage"]
            if lineage not in self.plan.flavors:
                raise FormatError(
                    f"a change of {lineage}, which is not configured",
                    hint=f"the configuration has {', '.join(self.plan.flavors)}",
                )
            part = self.parts.get(lineage)
            if part is None:
                part = self.parts[lineage] = Part(lineage)
            self._take(part, row)
            if self._count >= ITEMS_HELD_MAX:
                yield from self.flush()

    def _take(self, part: Part, row: Mapping[str, Any]) -> None:
        position, op = self._parse(part.lineage, row["gtid"]), row["op"]
        nothing = empty_position(self.plan.flavors[part.lineage])
        if op == "begin":
            if part.before is None or row["ordinal"] < part.first:
                part.before, part.first = position, row["ordinal"]
            part.streamed = (part.streamed or nothing).union(position)
            return
        # The first row of a transaction has its position. The row that ends a partition has another one.
        transaction = part.lineage, row["ordinal"], row["gtid"]
        if transaction != self._transaction:
            self._transaction = transaction
            part.streamed = (part.streamed or nothing).union(position)
            _add_ordinal(part.ordinals, row["ordinal"])
        if op == "heartbeat":
            beat = Heartbeat(**json.loads(row["detail"]))
            held = part.heartbeats.get(beat.instance)
            if held is None or held.sequence < beat.sequence:
                part.heartbeats[beat.instance] = beat
        elif op != "empty":
            self._find(part, row, position)

    def _find(self, part: Part, row: Mapping[str, Any], position: Position) -> None:
        table, op = row["table"], row["op"]
        if op == "raise":
            reasons = (row["detail"],) if row["detail"] else ()
            transaction = Transaction(
                position, row["timestamp_us"], raised_tables=frozenset((table,)), reasons=reasons
            )
        elif op in CHANGES:
            before, after = (_decode(row[name]) for name in ("before", "after"))
            change = RowChange(table, CHANGES[op], before, after)
            transaction = Transaction(position, row["timestamp_us"], (change,))
        else:
            raise FormatError(
                f"op {op!r} of transaction {row['gtid']} is not known to this version",
                hint="a newer program wrote it: upgrade this one",
            )
        items, raised = self._finder(row["keyspace"]).find(transaction)
        for item in items:
            for placement in self._placements:
                of_node = self._held.setdefault((part.lineage, placement.node_for(item)), {})
                self._count += item not in of_node
                of_node[item] = None
        part.items += len(items)
        for name, reason in raised.items():
            at = part.raised.get(name)
            part.raised[name] = position if at is None else at.union(position)
            part.reasons[name] = reason

    def flush(self) -> Procedure[None]:
        """Send what waits, to all nodes side by side."""
        procedures, places = [], []
        for (lineage, node), items in self._held.items():
            part, permit = self.parts[lineage], self.ticket.permits.get(lineage)
            target = None if permit is None else permit.targets.get(node)
            if target is None or node in part.failed:
                continue  # not joined: it begins a new life before it counts again
            assert part.streamed is not None, "rows were taken"
            procedures.append(_send(node, items, target, part.streamed))
            places.append((part, node))
        self._held, self._count = {}, 0
        results = yield from gather(procedures)
        for (part, node), result in zip(places, results, strict=True):
            if isinstance(result, FreshnessError):
                part.failed[node] = str(result)

    def _parse(self, lineage: str, text: str) -> Position:
        if self._last is None or self._last[:2] != (lineage, text):
            self._last = lineage, text, parse_position(self.plan.flavors[lineage], text)
        return self._last[2]

    def _finder(self, keyspace: str) -> KeyFinder:
        if keyspace not in self._finders:
            self._finders[keyspace] = KeyFinder(self.plan.definitions.get(keyspace, {}))
        return self._finders[keyspace]


def _send(node: str, items: Collection[bytes], target: Target, streamed: Position) -> Procedure[None]:
    stripes = yield from invalidate(node, items, target, streamed)
    yield from shorten(node, stripes, target, streamed)


def _decode(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else from_json_row(json.loads(text))
    except ValueError as error:
        raise FormatError(f"a row that is no JSON: {error}", hint="was the archive changed?") from error


def _add_ordinal(ranges: list[list[int]], ordinal: int) -> None:
    """Rows mostly come in order: the last range grows."""
    if ranges and ranges[-1][0] <= ordinal <= ranges[-1][1] + 1:
        ranges[-1][1] = max(ranges[-1][1], ordinal)
    else:
        ranges.append([ordinal, ordinal])


def join_ranges(ranges: Iterable[list[int]]) -> list[list[int]]:
    """Put together, in order."""
    joined: list[list[int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined
