"""The report of each action to a witness: every part in its own place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from freshness.algorithm.envelope import Coverage, Filled, NodeRecord, Stamp
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import MISSING, Cas, Item, Refused, Reply, Stored
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.witness import (
    Action,
    Attempt,
    Trace,
    tell_fill,
    tell_hit,
    tell_invalidations,
    tell_publication,
    tell_refusal,
)
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken

LINEAGE: Final = "shop/-"
LIFE: Final = b"LIFELIFE"
ITEM: Final = b"shop:customer:1"
POLICY: Final = ObjectPolicy("customer", 5, ("customers",), (LINEAGE,), 60)
LOOKUP: Final = Lookup(POLICY, "n1", ITEM, b"1", (1,))


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{numbers}")


RECORD: Final = NodeRecord(
    LINEAGE, LIFE, b"TENURE..", True, 3, 7, 0, 0, "n1", 8, progress=at("1-10"), floor=at("1-5")
)
TOKEN: Final = EventToken(LINEAGE, "-", 3, 0, at("1-9"))
TRACE: Final = Trace(3, LIFE, at("1-9"), at("1-5"))


@dataclass
class Seen:
    """A witness whose clock says 20."""

    is_wanted: bool = True
    actions: list[Action] = field(default_factory=list)

    def wants(self, _: bytes) -> bool:
        return self.is_wanted

    def now_us(self) -> int:
        return 20

    def tell(self, action: Action) -> None:
        self.actions.append(action)


def entry(value: bytes | None) -> bytes:
    return Filled((Stamp(LINEAGE, LIFE, 3, at("1-9")),), b"1", value).encode()


@pytest.mark.parametrize(
    ("reply", "outcome", "kind", "version"),
    [
        (Stored(42), ReadOutcome.FILLED, "fill", 42),
        (None, ReadOutcome.NODE_DOWN, "fill", 0),  # it may have been stored
        (MISSING, ReadOutcome.LOST_RACE, "refusal", 0),
        (Refused("too large"), ReadOutcome.TOO_LARGE, "refusal", 0),
    ],
)
@pytest.mark.parametrize("value", [b"row", None])
def test_a_fill(reply: Reply | None, outcome: ReadOutcome, kind: str, version: int, value: bytes | None) -> None:
    seen = Seen()
    attempt = Attempt(value, Cas(ITEM, entry(value), 41, 60), reply, 10)
    tell_fill(seen, LOOKUP, outcome, {LINEAGE: RECORD}, {LINEAGE: TOKEN}, attempt)
    (action,) = seen.actions
    assert (action.kind, action.outcome) == (kind, outcome.name)
    assert (action.node, action.begin_us, action.end_us) == ("n1", 10, 20)
    assert (action.item, action.object_name, action.tables) == (ITEM, "customer", ("customers",))
    assert action.traces == {LINEAGE: TRACE}
    assert (action.payload, action.is_absent) == (value, value is None)
    assert (action.version, action.observed) == (version, 41)


@pytest.mark.parametrize("value", [b"row", None])
def test_a_hit(value: bytes | None) -> None:
    seen = Seen()
    tell_hit(seen, LOOKUP, ReadOutcome.STALE_SERVED, Item(entry(value), 41, 9), value, 10)
    (action,) = seen.actions
    assert (action.kind, action.outcome) == ("hit", "STALE_SERVED")
    assert (action.node, action.begin_us, action.end_us) == ("n1", 10, 20)
    assert (action.item, action.object_name, action.tables) == (ITEM, "customer", ("customers",))
    assert action.traces == {LINEAGE: Trace(3, LIFE, at("1-9"))}
    assert (action.payload, action.is_absent) == (value, value is None)
    assert (action.version, action.observed) == (41, 0)


def test_a_hit_of_a_view() -> None:
    seen = Seen()
    tell_hit(seen, LOOKUP, ReadOutcome.HIT, Item(entry(b"row"), 41, 9), b"row", 10, 7)
    assert [(action.version, action.observed) for action in seen.actions] == [(41, 7)]


def test_a_refusal() -> None:
    seen = Seen()
    tell_refusal(seen, LOOKUP, ReadOutcome.STRIPE, Loaded("row", {LINEAGE: TOKEN}))
    assert seen.actions == [
        Action(
            "refusal", "STRIPE", "n1", 20, 20, ITEM, "customer", ("customers",), {LINEAGE: Trace(3, b"", at("1-9"))}
        )
    ]


def test_invalidations_and_a_publication() -> None:
    seen = Seen()
    tell_invalidations(seen, "n1", RECORD, {ITEM: at("9"), b"other": at("10")}, 10)
    tell_publication(seen, "n1", RECORD, 11)
    assert seen.actions == [
        Action("invalidation", "stored", "n1", 10, 20, ITEM, traces={LINEAGE: Trace(3, LIFE, at("9"))}),
        Action("invalidation", "stored", "n1", 10, 20, b"other", traces={LINEAGE: Trace(3, LIFE, at("10"))}),
        Action("publish", "stored", "n1", 11, 20, traces={LINEAGE: Trace(3, LIFE, at("1-10"), at("1-5"))}),
    ]


def test_a_publication_has_all_starts_and_says_whether_something_leaves() -> None:
    objects = {"customer": Coverage(5, at("1-5")), "order": Coverage(6, at("1-6"))}
    served = replace(RECORD, objects=objects)
    moved = replace(served, starts={8: at("1-7"), 9: at("1-4")})
    for record, floor, outcome in (
        (served, at("1-6"), "stored"),
        (moved, at("1-7"), "stored"),
        (replace(moved, is_settling=True), at("1-7"), "settling"),
    ):
        seen = Seen()
        tell_publication(seen, "n1", record, 11)
        assert [(action.traces[LINEAGE].floor, action.outcome) for action in seen.actions] == [(floor, outcome)]


def test_items_out_of_the_sample_are_not_told() -> None:
    seen = Seen(is_wanted=False)
    attempt = Attempt(b"row", Cas(ITEM, entry(b"row"), 41, 60), Stored(42), 10)
    tell_fill(seen, LOOKUP, ReadOutcome.FILLED, {LINEAGE: RECORD}, {LINEAGE: TOKEN}, attempt)
    tell_hit(seen, LOOKUP, ReadOutcome.HIT, Item(entry(b"row"), 41, 9), b"row", 10)
    tell_refusal(seen, LOOKUP, ReadOutcome.STRIPE, Loaded("row", {LINEAGE: TOKEN}))
    tell_invalidations(seen, "n1", RECORD, {ITEM: at("9")}, 10)
    assert seen.actions == []
