"""The types of a table's columns, which adapters need beside its rows, each valid as an entry is: by its position.

A statement that changes a table raises its floor in the node records. A reader sees that in the copy of the records
that it has for its hits, so a hit costs no question. Without an open record time decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from appclient.database.shard import ShardDatabase
from freshness.algorithm.view import NodeView
from freshness.errors import SourceUnavailable
from freshness.position import Position
from freshness.position.token import EventToken, covers

AGAIN_SECONDS: Final = 1.0
"""A table's columns are asked for at most once in this time, however often its floor is raised."""

_TYPES: Final = (
    "SELECT column_name AS name, data_type AS type FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = %s"
)


@dataclass(frozen=True, slots=True)
class _Floors:
    """Floors of one lineage: ``common`` of all tables, ``tables`` by table."""

    epoch: int
    common: Position
    tables: Mapping[str, Position] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """``required``: the events that the server was known to show; ``token``: its own. ``floors``: by which it
    was last found valid."""

    types: Mapping[str, str]
    asked_at: float
    required: EventToken | None
    token: EventToken | None
    floors: _Floors | None


class ColumnTypes:
    """The columns of tables, as this process knows them. Safe for threads; ``clock`` counts seconds.
    ``without_record_seconds``: how long it is valid after no open record was seen."""

    def __init__(
        self, shards: Mapping[str, ShardDatabase], clock: Callable[[], float], without_record_seconds: float
    ) -> None:
        self._shards, self._clock, self._without_record_seconds = shards, clock, without_record_seconds
        self._known: dict[tuple[str, str], _Known] = {}
        self._of_nodes: dict[str, dict[str, _Floors]] = {}
        self._floors: dict[str, _Floors] = {}
        self._open_at: dict[str, float] = {}
        self._noting = threading.Lock()

    def note(self, view: NodeView) -> None:
        """Note the floors that a reader has seen."""
        with self._noting:
            for lineage, record in view.records.items():
                if record is None:
                    continue
                if record.is_open and lineage not in view.outdated:
                    self._open_at[lineage] = view.fetched_at
                seen = _Floors(record.epoch, record.floor, record.table_floors)
                of_nodes = self._of_nodes.setdefault(lineage, {})
                if of_nodes.get(record.node) != seen:
                    of_nodes[record.node] = seen
                    self._floors[lineage] = _join(of_nodes.values())

    def find(self, lineage: str, table: str) -> Mapping[str, str]:
        """The type of each column of a table of this shard, as information_schema has it; the same mapping until one
        changes. A TIMESTAMP that became a DATETIME is still called so: a hit of a moment ago has it in UTC. Raises
        what the shard raises, and `SourceUnavailable` for a table that changes all the time."""
        floors, known, now = self._floors.get(lineage), self._known.get((lineage, table)), self._clock()
        if known is not None:
            is_young = now - known.asked_at < AGAIN_SECONDS
            if known.floors is not floors and _shows(known, _required(lineage, table, floors)):
                known.floors = floors
            if known.floors is floors:
                if is_young or self._is_open(lineage, now):
                    return known.types
            elif is_young:
                raise SourceUnavailable(
                    f"the columns of {table} in {lineage} are not known after its last change",
                    hint=f"they are asked for at most once in {AGAIN_SECONDS:g} s",
                )
        required = _required(lineage, table, floors)
        rows, token = self._shards[lineage].snapshot(lambda connection: connection.query(_TYPES, (table,)), required)
        types = {str(row["name"]): str(row["type"]).lower() for row in rows}
        found: Mapping[str, str] = types
        if known is not None:
            for name, kind in types.items():
                if kind == "datetime" and known.types.get(name) == "timestamp":
                    types[name] = "timestamp"
            if types == known.types:
                found = known.types
        self._known[lineage, table] = _Known(found, now, required, token, floors)
        return found

    def _is_open(self, lineage: str, now: float) -> bool:
        """Whether an open record was seen a short time ago: then a change would have raised a floor."""
        return now - self._open_at.get(lineage, float("-inf")) <= self._without_record_seconds


def _join(of_nodes: Iterable[_Floors]) -> _Floors:
    """All floors of the newest epoch."""
    epoch = max(each.epoch for each in of_nodes)
    first, *others = [each for each in of_nodes if each.epoch == epoch]
    for each in others:
        tables = dict(first.tables)
        for table, floor in each.tables.items():
            tables[table] = tables[table].union(floor) if table in tables else floor
        first = replace(first, common=first.common.union(each.common), tables=tables)
    return first


def _required(lineage: str, table: str, floors: _Floors | None) -> EventToken | None:
    """The events that a server must show to be asked for the columns."""
    if floors is None:
        return None
    own = floors.tables.get(table)
    position = floors.common if own is None else floors.common.union(own)
    return EventToken(lineage, lineage, floors.epoch, 0, position)


def _shows(known: _Known, required: EventToken | None) -> bool:
    return (
        required is None or required == known.required or (known.token is not None and covers(known.token, required))
    )
