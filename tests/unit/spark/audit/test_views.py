"""Values that were read together: those of one moment are never called torn, and those of no moment are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, NamedTuple

import pyarrow
import pytest

from spark.audit.engine.local import LocalShuffled
from spark.audit.engine.progress import Progress
from spark.audit.engine.step import Told
from spark.audit.job import read_findings, sum_tallies
from spark.audit.model import verdict
from spark.audit.model.finding import Knowledge, Reference, Tally
from spark.audit.model.row import ABSENT, AFTER_ABSENT, BEFORE_ABSENT, CHANGE, HIT, NO_NUMBER, ROW, ReplayRow
from spark.audit.shuffle.views import divide_views, judge_views
from tests.unit.spark.audit.both import to_table
from tests.unit.spark.audit.test_replay import KNOWN, LINEAGE, NODE, READER, RULES, SECOND, WHO, stamps

LAST: Final = 30
GONE: Final = 0
"""The value of a row that is not there."""


class Value(NamedTuple):
    """A hit: the item, its value, the position of its entry, and the second at which it was read."""

    item: int
    value: int
    prefix: int
    at: int


class Judged(NamedTuple):
    torn: set[int]
    unknown: int
    compared: int


def change(item: int, ordinal: int, before: int, after: int) -> ReplayRow:
    flags = ROW | (BEFORE_ABSENT if before == GONE else 0) | (AFTER_ABSENT if after == GONE else 0)
    nothing = (0, NO_NUMBER, NO_NUMBER, ordinal * SECOND, ordinal * SECOND + 1)
    digests = (after or NO_NUMBER, before or NO_NUMBER)
    return ReplayRow(item, 0, CHANGE, 7, ordinal, 3, *nothing, *digests, flags, 0, 0, 0, b"")


def hit(view: int, sequence: int, it: Value) -> ReplayRow:
    times = it.at * SECOND, it.at * SECOND + 1
    digest, flags = it.value or NO_NUMBER, 0 if it.value else ABSENT
    numbers = (NO_NUMBER, NO_NUMBER, 0, NODE, 5, view, *times, digest, NO_NUMBER, flags, WHO, READER, sequence)
    return ReplayRow(it.item, 0, HIT, *numbers, stamps(it.prefix))


def judge(changes: Sequence[ReplayRow], views: Sequence[Sequence[Value]], known: Knowledge = KNOWN) -> Judged:
    """Numbers of the torn ones, found by both engines' steps. A hit has its view's number times 100 as sequence, and
    its place."""
    hits = [
        hit(number, number * 100 + place, value)
        for number, values in enumerate(views, 1)
        for place, value in enumerate(values)
    ]

    def divide(_: int, table: pyarrow.Table) -> Iterator[Told]:
        tally = Tally()
        yield from divide_views(table, RULES, known, 3, tally)

    shuffled = LocalShuffled(Progress(), 1 << 30)
    shuffled.add(0, to_table([*changes, *hits]))
    told = shuffled.regroup("spans", divide).reduce("views", partial(judge_views, known))
    tally = sum_tallies(told)
    found = read_findings(told)
    assert {(each.kind, each.failure, each.clients) for each in found} <= {(verdict.TORN_VIEW, "I11", (READER,))}
    assert sum(tally.unknown.values()) == tally.unknown[WHO, verdict.VIEW_UNKNOWN]
    torn = {each.evidence[1].sequence // 100 for each in found}
    return Judged(torn, tally.unknown[WHO, verdict.VIEW_UNKNOWN], tally.counts["views compared"])


ONE, OTHER = 1, 2
CHANGES: Final = [change(ONE, 5, 50, 51), change(OTHER, 7, 70, 71), change(ONE, 9, 51, 52), change(OTHER, 9, 71, 72)]


@pytest.mark.parametrize(
    ("values", "is_torn"),
    [
        ([Value(ONE, 50, 4, 20), Value(OTHER, 70, 4, 20)], False),
        ([Value(ONE, 51, 5, 20), Value(OTHER, 70, 4, 20)], False),
        ([Value(ONE, 51, 4, 20), Value(OTHER, 71, 4, 20)], False),  # rows that are newer than their positions
        ([Value(ONE, 50, 4, 20), Value(OTHER, 71, 7, 20)], True),
        ([Value(ONE, 52, 9, 20), Value(OTHER, 70, 4, 20)], True),
        ([Value(ONE, 52, 9, 20), Value(OTHER, 71, 8, 20)], True),  # half of a transaction
        ([Value(ONE, 52, 9, 20), Value(OTHER, 72, 9, 20)], False),
        ([Value(ONE, 50, 4, 20), Value(3, 30, 4, 20), Value(OTHER, 72, 9, 20)], True),
        ([Value(ONE, 50, 4, 20), Value(OTHER, 99, 4, 20)], False),  # no row at all: another verdict
        ([Value(ONE, 50, 4, 20)], False),
    ],
)
def test_a_view_is_torn_if_no_moment_had_all_values(values: list[Value], is_torn: bool) -> None:
    assert judge(CHANGES, [values]).torn == ({1} if is_torn else set())


def test_what_shows_it_is_the_change_and_both_hits() -> None:
    values = [Value(OTHER, 72, 9, 20), Value(ONE, 50, 4, 20)]
    shuffled = LocalShuffled(Progress(), 1 << 30)
    shuffled.add(0, to_table([*CHANGES, *(hit(1, place, value) for place, value in enumerate(values, 1))]))
    regrouped = shuffled.regroup("spans", lambda _, table: divide_views(table, RULES, KNOWN, 3, Tally()))
    (found,) = read_findings(regrouped.reduce("views", partial(judge_views, KNOWN)))
    assert found.evidence == (Reference("change", 7, 5, 3), Reference("hit", READER, 2), Reference("hit", READER, 1))
    assert (found.h1, found.node, found.version, found.lineage, found.who) == (ONE, NODE, 5, 7, WHO)


def test_hits_of_two_views_are_not_compared() -> None:
    old, young = Value(ONE, 50, 4, 20), Value(OTHER, 71, 7, 20)
    assert judge(CHANGES, [[old], [young]]) == (set(), 0, 0)
    assert judge(CHANGES, [[old, young]]) == ({1}, 0, 1)


def test_where_the_archive_has_a_gap_nothing_is_proved() -> None:
    """The first row may have been 50 again, in what is missing."""
    values = [Value(ONE, 50, 4, 20), Value(OTHER, 71, 7, 20)]
    late, early = (replace(KNOWN, lineages={7: replace(LINEAGE, breaks=(at,))}) for at in (8, 3))
    assert judge(CHANGES, [values], late) == (set(), 1, 1)
    assert judge(CHANGES, [values], early) == ({1}, 0, 1)


def test_a_statement_on_the_whole_table_leaves_rows_that_nobody_knows() -> None:
    values = [Value(ONE, 50, 4, 20), Value(OTHER, 71, 7, 20)]
    tables = {WHO: ("users",)}
    raised, later = (replace(KNOWN, tables=tables, raises={(7, "users"): [at]}) for at in (6, 25))
    assert judge(CHANGES, [values], raised).torn == set()
    assert judge(CHANGES, [values], later).torn == {1}


def shows(states: Sequence[int], it: Value, moment: int) -> bool:
    """Whether the value can be the row of that moment: the entry has all events in its position."""
    return states[moment] == it.value and len(set(states[moment : it.prefix + 1])) <= 1


@pytest.mark.parametrize("has_repeats", [False, True])
def test_random_views_are_torn_if_no_moment_until_the_read_had_them(has_repeats: bool) -> None:
    """Where rows come back to their values, some torn views are not found, and no other is."""
    found = 0
    for seed in range(150):
        random = Random(seed)
        states = {item: [random.randrange(3)] for item in (1, 2, 3)}
        changes = []
        for ordinal in range(1, LAST + 1):
            for item, log in states.items():
                log.append(log[-1])
                if random.random() < 0.25:
                    log[-1] = random.randrange(3) if has_repeats else 100 * item + ordinal
                    changes.append(change(item, ordinal, log[-2], log[-1]))
        views, expected = [], set()
        for number in range(1, 20):
            moment, values = random.randrange(LAST + 1), []
            at = random.randrange(moment, LAST + 1)
            is_whole = random.random() < 0.5
            for item in random.sample((1, 2, 3), random.choice((2, 3))):
                shown = moment if is_whole else random.randrange(at + 1)
                values.append(Value(item, states[item][shown], random.randrange(shown + 1), at))
            views.append(values)
            if not any(all(shows(states[it.item], it, each) for it in values) for each in range(at + 1)):
                expected.add(number)
            assert not (is_whole and number in expected)
        judged = judge(changes, views)
        assert judged.torn <= expected
        assert judged.unknown == 0
        if not has_repeats:
            assert judged.torn == expected
        found += len(judged.torn)
    assert found > 200
