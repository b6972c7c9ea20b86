"""The role of a witness, which records each action on the cache while it is done, and the actions.

Off by default: without a witness the procedures do no work for it. A witness never fails, never blocks and never
changes a procedure; it counts the actions that it cannot take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from freshness.algorithm.envelope import Filled, NodeRecord
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import Cas, Item, Reply, Stored, Version
from freshness.algorithm.rule import ReadOutcome
from freshness.position import Position
from freshness.position.token import EventToken

ActionKind: TypeAlias = Literal["fill", "hit", "refusal", "invalidation", "publish"]


@dataclass(frozen=True, slots=True)
class Trace:
    """The state of one lineage at an action. ``life``: life of the node, empty if unknown; ``floor``: floor at a
    fill."""

    epoch: int
    life: bytes = b""
    position: Position | None = None
    floor: Position | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One action on the cache. ``payload``: the encoded value that was filled or served.

    It is None for "no such row", where ``is_absent``, and for actions without a value. ``version``, ``observed``: see
    `freshness.history.columns.ACTIONS`; 0 if unknown.
    """

    kind: ActionKind
    outcome: str
    node: str
    begin_us: int
    end_us: int
    item: bytes | None = None
    object_name: str | None = None
    tables: Sequence[str] = ()
    traces: Mapping[str, Trace] = field(default_factory=dict)
    payload: bytes | None = None
    is_absent: bool = False
    version: Version = 0
    observed: Version = 0


class Witness(Protocol):
    """Used by one thread or several, as the procedures that call it are."""

    def wants(self, item: bytes) -> bool:
        """Whether this item is in the sample. Either all actions on an item are, or none."""

    def now_us(self) -> int:
        """The wall clock, in microseconds."""

    def tell(self, action: Action) -> None:
        """Record an action. Returns at once and never raises."""


def tell_hit(
    witness: Witness,
    lookup: Lookup,
    outcome: ReadOutcome,
    item: Item,
    payload: bytes | None,
    sent_us: int,
    view: int = 0,
) -> None:
    """An entry was served, with this value. ``view``: number of the values of one moment that it belongs to."""
    if not witness.wants(lookup.item):
        return
    stamps = Filled.decode(item.value).stamps
    traces = {stamp.lineage: Trace(stamp.epoch, stamp.life, stamp.position) for stamp in stamps}
    action = Action(
        "hit",
        outcome.name,
        lookup.node,
        sent_us,
        witness.now_us(),
        lookup.item,
        lookup.policy.name,
        lookup.policy.tables,
        traces,
        payload,
        payload is None,
        item.version,
        view,
    )
    witness.tell(action)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A fill that was sent. ``payload``: the encoded value. ``reply``: None if the node did not answer."""

    payload: bytes | None
    cas: Cas
    reply: Reply | None
    sent_us: int


def tell_fill(
    witness: Witness,
    lookup: Lookup,
    outcome: ReadOutcome,
    records: Mapping[str, NodeRecord | None],
    tokens: Mapping[str, EventToken],
    attempt: Attempt,
) -> None:
    """A value was stored, or perhaps stored if the node did not answer, or refused by the node."""
    if not witness.wants(lookup.item):
        return
    traces = {}
    for lineage, token in tokens.items():
        record = records.get(lineage)
        traces[lineage] = Trace(
            token.epoch,
            b"" if record is None else record.life,
            token.position,
            None if record is None else record.floor,
        )
    reply = attempt.reply
    action = Action(
        "fill" if reply is None or isinstance(reply, Stored) else "refusal",
        outcome.name,
        lookup.node,
        attempt.sent_us,
        witness.now_us(),
        lookup.item,
        lookup.policy.name,
        lookup.policy.tables,
        traces,
        attempt.payload,
        attempt.payload is None,
        reply.version if isinstance(reply, Stored) else 0,
        attempt.cas.version,
    )
    witness.tell(action)


def tell_refusal(witness: Witness, lookup: Lookup, outcome: ReadOutcome, row: Loaded) -> None:
    """A value was read from the database and must not be stored."""
    if not witness.wants(lookup.item):
        return
    now_us = witness.now_us()
    traces = {lineage: Trace(token.epoch, position=token.position) for lineage, token in row.tokens.items()}
    action = Action(
        "refusal",
        outcome.name,
        lookup.node,
        now_us,
        now_us,
        lookup.item,
        lookup.policy.name,
        lookup.policy.tables,
        traces,
    )
    witness.tell(action)


def tell_invalidations(
    witness: Witness, node: str, record: NodeRecord, keys: Mapping[bytes, Position], sent_us: int
) -> None:
    """The node has acknowledged these appends and deletes."""
    now_us = witness.now_us()
    for item, position in keys.items():
        if witness.wants(item):
            traces = {record.lineage: Trace(record.epoch, record.life, position)}
            witness.tell(Action("invalidation", "stored", node, sent_us, now_us, item=item, traces=traces))


def tell_publication(witness: Witness, node: str, record: NodeRecord, sent_us: int) -> None:
    """The node's record says that all of this progress is acknowledged. The floor contains all starts: every later
    event of a key that the record serves is sent to the node."""
    starts = [*record.starts.values(), *(coverage.start for coverage in record.objects.values())]
    floor = record.floor.union_all(starts)
    traces = {record.lineage: Trace(record.epoch, record.life, record.progress, floor)}
    outcome = "settling" if record.is_settling else "stored"
    witness.tell(Action("publish", outcome, node, sent_us, witness.now_us(), traces=traces))
