"""The kernel of arrays says of random histories exactly what the judge says of each of their items, row by row."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy
import pytest

from spark.audit.kernel.arrays import search, sort_by
from spark.audit.kernel.judge import judge
from spark.audit.model.finding import Knowledge, Life, Rules, Slices, Tally
from spark.audit.model.row import (
    ABSENT,
    AFTER_ABSENT,
    BEFORE_ABSENT,
    BELOW_FLOOR,
    CHANGE,
    FILL,
    HIT,
    INVALIDATION,
    JUDGED,
    NO_NUMBER,
    ROW,
    SERVED_STALE,
    UNANSWERED,
    PlacedStamp,
    ReplayRow,
)
from spark.audit.model.timeline import (
    BEFORE_ARCHIVE,
    BEYOND_ARCHIVE,
    FRAGMENTED,
    MALFORMED,
    NEVER,
    Lineage,
    Place,
    Run,
    build_chains,
)
from spark.audit.model.verdict import POISONED_FILL
from tests.unit.spark.audit.both import judge_both, to_table
from tests.unit.spark.audit.stamps import pack_stamps

SECOND: Final = 1_000_000
RULES: Final = Rules(
    200 * SECOND,
    clock_error_us=SECOND,
    clock_wrong_us=40 * SECOND,
    missed_after_us=20 * SECOND,
    view_us=2 * SECOND,
    slices=Slices(20 * SECOND, 30 * SECOND, 5),
)
NODES: Final = (11, 12)
LIVES: Final = (21, 22)
WHOS: Final = (31, 32)
TABLES: Final = {31: ("users",), 32: ("users", "orders")}


def test_values_are_found_and_sorted_as_numpy_does_it() -> None:
    random = numpy.random.default_rng(1)
    for count in (0, 1, 2, 500):
        keys = numpy.sort(random.integers(0, 300, 200))
        wanted = random.integers(-5, 305, count)
        assert search(keys, wanted).tolist() == numpy.searchsorted(keys, wanted).tolist()
        assert search(keys, wanted, "right").tolist() == numpy.searchsorted(keys, wanted, "right").tolist()
        first, second, third = (random.integers(0, kinds, count) for kinds in (count // 2 + 1, 3, 2))
        expected = numpy.lexsort((third, second, first))
        assert sort_by(first, second, third).tolist() == expected.tolist()


def lineage_of(number: int, random: Random) -> Lineage:
    first, last = random.choice((1, 5)), 40
    bucket = random.choice((1, 1, 4))
    times = numpy.sort(numpy.array([random.randrange(150 * SECOND) for _ in range(0, last - first + 1, bucket)]))
    runs = [Run("sid", "", first, first, last - first + 1, last - first + 1)]
    breaks = (20,) if random.random() < 0.2 else ()
    return Lineage(f"l{number}", number, "mysql", first, last, build_chains(runs), {1: last}, breaks, bucket, times)


def knowledge_of(random: Random, lineages: dict[int, Lineage]) -> Knowledge:
    lives = {}
    for node in NODES:
        for number in lineages:
            if random.random() < 0.7:
                each = [
                    Life(life, begin, begin + SECOND, random.randrange(0, 20), random.randrange(10, 45), since)
                    for life in LIVES[: random.randrange(1, 3)]
                    for begin in [random.randrange(120 * SECOND)]
                    for since in [begin + Random(begin).choice((0, 0, 30 * SECOND))]
                ]
                lives[node, number] = sorted(each, key=lambda life: life.first_begin_us)
    raises, raise_acks = {}, {}
    if random.random() < 0.3:
        for number in lineages:
            table = random.choice(("users", "orders"))
            ordinals = sorted(random.sample(range(1, 41), random.randrange(1, 4)))
            raises[number, table] = ordinals
            for ordinal in ordinals:
                for node in NODES:
                    if random.random() < 0.5:
                        raise_acks[node, number, random.choice(LIVES), ordinal] = random.randrange(180 * SECOND)
    return Knowledge(
        lineages,
        lives,
        raises,
        raise_acks,
        TABLES,
        {number: random.choice((0, 60 * SECOND)) for number in lineages if random.random() < 0.9},
        {number: random.choice((80 * SECOND, NEVER)) for number in lineages if random.random() < 0.2},
    )


class History:
    """Rows of a few items in any order. Wrong ones are as likely as right ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        random = self.random
        self.is_wide = random.random() < 0.3
        self.has_extras = random.choice((0.0, 0.0, 0.2))
        self.lineages = {number: lineage_of(number, random) for number in (7, 8)[: random.randrange(1, 3)]}
        self.known = knowledge_of(random, self.lineages)
        self.carries = random.random() < 0.4
        self.sequence = 0
        self.rows: list[ReplayRow] = []
        for item in range(random.randrange(1, 6)):
            self.add_item((random.choice((1, item + 1)), item))
        random.shuffle(self.rows)

    def add_item(self, item: tuple[int, int]) -> None:
        random = self.random
        is_row = random.random() < 0.8
        ordinals = {number: sorted(random.sample(range(1, 41), random.randrange(0, 7))) for number in self.lineages}
        state = random.choice((NO_NUMBER, 0, 1))
        for number, those in ordinals.items():
            for ordinal in those:
                for row in range(1 if random.random() < 0.9 else 2):
                    after = random.choice((0, 1, 2, 3, NO_NUMBER))
                    flags = is_row * ROW * (random.random() < 0.95)
                    flags |= random.choice((0, 0, 0, AFTER_ABSENT, BEFORE_ABSENT))
                    columns = {"lineage": number, "ordinal": ordinal, "row": row, "flags": flags}
                    self.add(item, CHANGE, **columns, digest=after, before=state)
                    state = after
        for _ in range(random.randrange(0, 12)):
            number = random.choice(list(ordinals))
            wanted = ordinals[number] or [3]
            if random.random() < 0.1:
                wanted = random.sample(range(1, 41), 3)
            chosen = tuple(sorted(random.sample(wanted, min(len(wanted), random.choice((1, 1, 1, 2))))))
            place = Place(0, chosen) if not self.is_wide or random.random() < 0.05 else Place(chosen[-1])
            place = place._replace(flags=random.choice((0,) * 20 + (MALFORMED, BEFORE_ARCHIVE)))
            stamp = PlacedStamp(number, random.choice(LIVES), place)
            self.add(item, INVALIDATION, stamps=pack_stamps([stamp]), version=random.choice((NO_NUMBER, 5)))
        values = [self.value(ordinals) for _ in range(random.randrange(1, 6))]
        for kind, count in ((FILL, 6), (HIT, 14)):
            for _ in range(random.randrange(0, count)):
                self.add(item, kind, **(random.choice(values) if random.random() < 0.9 else self.value(ordinals)))

    def value(self, ordinals: dict[int, list[int]]) -> dict[str, Any]:
        """An entry: its node, version, positions and digest."""
        random = self.random
        stamps = [self.stamp(number, ordinals) for number in ordinals if random.random() < 0.8]
        digest = random.choice((0, 1, 2, 3, NO_NUMBER))
        return {
            "node": random.choice(NODES),
            "version": random.choice((1, 2, 3, NO_NUMBER)),
            "stamps": pack_stamps(stamps),
            "digest": digest,
            "flags": random.choice((0, 0, 0, ABSENT)),
        }

    def stamp(self, number: int, ordinals: dict[int, list[int]]) -> PlacedStamp:
        random = self.random
        prefix = random.choice((random.randrange(0, 41), 40, random.choice(ordinals[number] or [9])))
        extras: tuple[int, ...] = ()
        if random.random() < self.has_extras:
            extras = tuple(sorted(random.sample(range(prefix + 1, 46), random.randrange(1, 5))))
        flags = random.choice((0,) * 30 + (MALFORMED, BEFORE_ARCHIVE, FRAGMENTED, BEYOND_ARCHIVE))
        return PlacedStamp(number, random.choice(LIVES), Place(prefix, extras, flags))

    def add(self, item: tuple[int, int], kind: int, **columns: Any) -> None:
        random = self.random
        self.sequence += 1
        begin_us = random.choice((random.randrange(190), random.randrange(190), random.randrange(260))) * SECOND
        end_us = begin_us + random.choice((0, 1000, SECOND)) - 50 * SECOND * (random.random() < 0.02)
        flags = columns.pop("flags", 0)
        if kind == FILL:
            flags |= random.choice((0,) * 10 + (BELOW_FLOOR, UNANSWERED))
        elif kind == HIT:
            flags |= random.choice((0,) * 10 + (SERVED_STALE,))
        if self.carries and random.random() < 0.4:
            flags |= JUDGED
        held: dict[str, Any] = dict.fromkeys(ReplayRow._fields, NO_NUMBER)
        held |= {"h1": item[0], "h2": item[1], "kind": kind, "row": 0, "node": random.choice(NODES), "flags": flags}
        held |= {"begin_us": begin_us, "end_us": end_us, "who": random.choice(WHOS), "stamps": b""}
        held |= {"client": random.choice((51, 52)), "sequence": self.sequence}
        if kind == FILL:
            held["observed"] = random.choice((NO_NUMBER, 1, 4))
        self.rows.append(ReplayRow(**{**held, **columns}))


@pytest.mark.parametrize("hundred", range(20))
def test_arrays_say_what_the_judge_says(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history = History(seed)
        rules = RULES if seed % 3 else replace(RULES, from_us=100 * SECOND)
        found, expected = judge_both(to_table(history.rows), rules, history.known)
        assert found == expected, seed


def test_an_item_that_is_told_by_prefixes_alone_is_judged_by_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first prefix covers one change, but is not a single transaction beside the others."""
    history = History(0)
    history.rows, history.carries = [], False
    (number, *_) = history.lineages
    for ordinal in (10, 20, 30):
        history.add((1, 1), CHANGE, lineage=number, ordinal=ordinal, flags=ROW, digest=ordinal)
        stamps = pack_stamps([PlacedStamp(number, LIVES[0], Place(ordinal))])
        history.add((1, 1), INVALIDATION, stamps=stamps, node=NODES[0])
    monkeypatch.delattr("spark.audit.kernel.judge.replay")
    tally = Tally()
    assert list(judge(to_table(history.rows), RULES, history.known, tally)) == []
    assert tally.counts["items changed and recorded"] == 1


@pytest.mark.parametrize("is_wide", [False, True])
def test_of_acknowledgements_at_one_time_the_judge_and_the_arrays_name_the_same(is_wide: bool) -> None:
    history = History(0)
    history.rows, history.carries = [], False
    (number, *_) = history.lineages
    times = {"begin_us": 100 * SECOND, "end_us": 100 * SECOND, "node": NODES[0]}
    for ordinal in (10, 20):
        history.add((1, 1), CHANGE, lineage=number, ordinal=ordinal, flags=ROW, digest=ordinal)
        place = Place(ordinal) if is_wide else Place(0, (ordinal,))
        stamps = pack_stamps([PlacedStamp(number, LIVES[0], place)])
        history.add((1, 1), INVALIDATION, stamps=stamps, **times)
    stamps = pack_stamps([PlacedStamp(number, LIVES[0], Place(5))])
    late = {**times, "begin_us": 150 * SECOND, "end_us": 150 * SECOND}
    history.add((1, 1), FILL, stamps=stamps, version=1, digest=3, **late)
    history.rows[-1] = history.rows[-1]._replace(flags=0)
    found, expected = judge_both(to_table(history.rows), RULES, history.known)
    assert any(POISONED_FILL in text for text in found["results"])
    assert found == expected
