"""The audit without Spark: the order of positions, the proofs in one item's rows, and the report of the result."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy
import pytest

from freshness.errors import FormatError
from freshness.position import MysqlGtidSet, Position
from spark.audit.judge import itemlog
from spark.audit.judge.replay import replay
from spark.audit.kernel.judge import judge
from spark.audit.model import timeline, verdict
from spark.audit.model.finding import Finding, Knowledge, Life, PoisonedHits, Rules, Tally
from spark.audit.model.row import (
    ABSENT,
    AFTER_ABSENT,
    BELOW_FLOOR,
    CHANGE,
    FILL,
    HIT,
    INVALIDATION,
    NO_NUMBER,
    ROW,
    SERVED_STALE,
    UNANSWERED,
    PlacedStamp,
    ReplayRow,
)
from spark.audit.model.timeline import NEVER, Lineage, Place, Run, build_chains, find_holes
from spark.audit.report.summary import Share
from tests.unit.spark.audit.both import judge_both, to_table
from tests.unit.spark.audit.stamps import pack_stamps

SID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER: Final = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
SECOND: Final = 1_000_000
DOCS: Final = Path(__file__).resolve().parents[4] / "docs"


def lineage_of(*runs: Run, flavor: str = "mysql", second: int = SECOND) -> Lineage:
    """A lineage with one commit a second."""
    first, last = min(run.ordinal for run in runs), max(run.last_ordinal for run in runs)
    times = numpy.arange(first, last + 1, dtype=numpy.int64) * second
    return Lineage("shop/-", 7, flavor, first, last, build_chains(runs), {1: last}, (), 1, times)


def run_of(number: int, ordinal: int, length: int, source: str = SID, server: str = "") -> Run:
    return Run(source, server, number, ordinal, length, length)


# -- positions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{SID}:1-5", Place(5)),
        (f"{SID}:1-20", Place(20)),
        (f"{SID}:1-21", Place(20, (), timeline.BEYOND_ARCHIVE)),
        (f"{SID}:1-5:8", Place(5, (8,))),
        (f"{SID}:8-9", Place(0, (8, 9))),
        ("", Place(0)),
        (f"{SID}:1-5,{OTHER}:1", Place(5, (), timeline.BEYOND_ARCHIVE)),
        (f"{OTHER}:1-5", Place(0, (), timeline.NO_ARCHIVE)),
        ("nonsense", Place(0, (), timeline.MALFORMED)),
    ],
)
def test_positions_stand_where_the_archive_has_them(text: str, place: Place) -> None:
    assert lineage_of(run_of(1, 1, 20)).place(1, text) == place


def test_a_position_of_an_epoch_that_the_archive_lacks_is_not_placed() -> None:
    assert lineage_of(run_of(1, 1, 20)).place(2, f"{SID}:1-5").flags == timeline.NO_ARCHIVE


def test_a_position_of_a_previous_epoch_holds_nothing_of_a_later_one() -> None:
    lineage = replace(lineage_of(run_of(1, 1, 20)), epoch_ends={1: 10, 2: 20})
    assert lineage.place(1, f"{SID}:1-15") == Place(10)
    assert lineage.place(1, f"{SID}:1-5:8-15") == Place(5, (8, 9, 10))
    assert lineage.place(2, f"{SID}:1-15") == Place(15)


def test_an_archive_that_begins_late_knows_nothing_of_what_was_before() -> None:
    lineage = lineage_of(run_of(101, 1, 20))
    assert lineage.place(1, f"{SID}:1-105") == Place(5)
    assert lineage.place(1, f"{SID}:1-99") == Place(0, (), timeline.BEFORE_ARCHIVE)


def test_mariadb_positions_name_their_end_and_another_server_made_another_history() -> None:
    lineage = lineage_of(run_of(1, 1, 20, "0", "1"), flavor="mariadb")
    assert lineage.place(1, "0-1-5") == Place(5)
    assert lineage.place(1, "0-2-5") == Place(4)
    assert lineage.place(1, "0-1-30") == Place(20, (), timeline.BEYOND_ARCHIVE)


def test_numbers_that_were_never_streamed_are_no_gap_in_a_prefix() -> None:
    lineage = lineage_of(run_of(1, 1, 5), run_of(9, 6, 5))
    assert lineage.place(1, f"{SID}:1-5:9-10") == Place(7)
    assert find_holes([run_of(1, 1, 5), run_of(9, 6, 5)]) == [(SID, 6, 8, 5)]


def test_numbers_that_the_archive_lost_are_its_own_gap() -> None:
    assert find_holes([run_of(1, 1, 5), run_of(9, 9, 5)]) == []


def test_places_agree_with_the_sets_themselves() -> None:
    """Against `Position.contains`, on archives in any order, with gaps and two sources."""
    random = Random("places")
    for _ in range(300):
        numbers = [(source, n) for source in (SID, OTHER) for n in range(1, 9) if random.random() < 0.8]
        if random.random() < 0.5:
            random.shuffle(numbers)
        runs = [run_of(number, at, 1, source) for at, (source, number) in enumerate(numbers, 1)]
        lineage = lineage_of(*runs)
        position: Position = MysqlGtidSet()
        for source, number in random.sample(numbers, random.randrange(1, len(numbers) + 1)):
            position = position.union(MysqlGtidSet.of(source, number))
        place = lineage.place(1, str(position))
        assert not place.flags & timeline.UNKNOWN_FLAGS or place == Place(0, (), timeline.BEFORE_ARCHIVE)
        held = [
            at for at, (source, number) in enumerate(numbers, 1) if position.contains(MysqlGtidSet.of(source, number))
        ]
        assert [at for at in range(1, len(numbers) + 1) if place.contains(at)] == held


def test_a_clock_set_back_does_not_make_later_commits_earlier() -> None:
    lineage = lineage_of(run_of(1, 1, 20))
    assert lineage.lifted(10, 3 * SECOND) == 9 * SECOND
    assert lineage.lifted(10, 30 * SECOND) == 30 * SECOND


# -- one item --------------------------------------------------------------------------------------------

LINEAGE: Final = lineage_of(run_of(1, 1, 1000))
NODE, LIFE, READER, WRITER, WHO = 11, 12, 13, 14, 15
RULES: Final = Rules(10_000 * SECOND)
KNOWN: Final = Knowledge({7: LINEAGE}, history_from_us={7: 0}, lives={(NODE, 7): [Life(LIFE, 0, 0, 0, 1000, 0)]})


def stamps(prefix: int, *extras: int, flags: int = 0, life: int = LIFE) -> bytes:
    return pack_stamps([PlacedStamp(7, life, Place(prefix, extras, flags))])


def row(kind: int, begin: float, **columns: Any) -> ReplayRow:
    begin_us = int(begin * SECOND)
    missing = dict.fromkeys(("lineage", "ordinal", "version", "observed", "before"), NO_NUMBER)
    held = {"h1": 1, "h2": 1, "kind": kind, "row": 0, "node": NODE, "digest": 100, "flags": 0, "who": WHO}
    held |= {"begin_us": begin_us, "end_us": begin_us + 1000, "client": READER, "sequence": 1}
    return ReplayRow(**{**missing, **held, "stamps": b"", **columns})


def change(ordinal: int, after: int, before: int = NO_NUMBER, flags: int = ROW) -> ReplayRow:
    return row(CHANGE, ordinal, lineage=7, ordinal=ordinal, digest=after, before=before, flags=flags)


def invalidation(begin: float, ordinal: int, **columns: Any) -> ReplayRow:
    return row(INVALIDATION, begin, **{"stamps": stamps(0, ordinal), "client": WRITER, **columns})


def fill(begin: float, prefix: int, version: int, observed: int, **columns: Any) -> ReplayRow:
    return row(FILL, begin, **{"version": version, "observed": observed, "stamps": stamps(prefix), **columns})


def hit(begin: float, prefix: int, version: int, **columns: Any) -> ReplayRow:
    return row(HIT, begin, **{"version": version, "stamps": stamps(prefix), **columns})


def found(*rows: ReplayRow, known: Knowledge = KNOWN, tally: Tally | None = None) -> list[tuple[str, str, int]]:
    """What the kernel finds. The judge of all rows says the same."""
    table = to_table(rows)
    by_arrays, by_rows = judge_both(table, RULES, known)
    assert by_arrays == by_rows
    results = judge(table, RULES, known, tally or Tally())
    return [(each.kind, each.failure, each.count) for each in results if isinstance(each, Finding)]


def test_a_fill_within_the_clocks_error_is_not_called_poisoned() -> None:
    rows = (change(10, 101, 100), invalidation(11, 10))
    assert found(*rows, fill(11.4, 9, version=60, observed=55)) == []
    assert found(*rows, fill(11.7, 9, version=60, observed=55)) == [("poisoned_fill", "F5", 1)]


def test_a_poisoned_fill_is_named_by_what_should_have_refused_it() -> None:
    """Nothing did in a blind store; the floor did if the reader saw one that it lacks; the stripe in any other."""
    rows = (change(10, 101, 100), invalidation(11, 10))
    for observed, flags, failure in (
        (NO_NUMBER, 0, "F1"),
        (55, 0, "F5"),
        (55, BELOW_FLOOR, "F16"),
        (NO_NUMBER, BELOW_FLOOR, "F16"),
    ):
        poisoned = fill(5000, 9, version=60, observed=observed, flags=flags)
        assert found(*rows, poisoned) == [("poisoned_fill", failure, 1)]


@pytest.mark.parametrize("observed", [NO_NUMBER, 55])
def test_a_fill_below_its_floor_is_wrong_also_where_it_lacks_no_change(observed: int) -> None:
    below = fill(5, 9, version=60, observed=observed, flags=BELOW_FLOOR)
    assert found(below) == [(verdict.FILL_BELOW_FLOOR, "F16", 1)]


def test_a_poisoned_fill_rests_on_the_clocks_of_the_reader_and_of_the_invalidator() -> None:
    rows = (change(10, 101, 100), invalidation(11, 10), fill(20, 9, version=60, observed=55))
    [finding] = replay(rows, RULES, KNOWN, Tally())
    assert isinstance(finding, Finding)
    assert finding.clients == (READER, WRITER)


def test_an_invalidation_in_another_life_binds_nobody() -> None:
    rows = (change(10, 101, 100), invalidation(11, 10))
    assert found(*rows, fill(20, 9, version=60, observed=55, stamps=stamps(9, life=99))) == []


def test_a_position_out_of_order_holds_what_it_holds() -> None:
    """It has the second change and not the first, and only the second one was acknowledged."""
    rows = (change(10, 101, 100), change(12, 102, 101), invalidation(13, 12))
    holding = fill(20, 9, version=60, observed=55, stamps=stamps(9, 12), digest=102)
    assert ("poisoned_fill", "F5", 1) not in found(*rows, holding)
    lacking = fill(20, 9, version=60, observed=55, stamps=stamps(9, 11))
    assert ("poisoned_fill", "F5", 1) in found(*rows, lacking)


def test_a_hit_out_of_order_is_as_old_as_the_first_change_that_it_lacks() -> None:
    in_order, out_of_order = Tally(), Tally()
    for tally, place in ((in_order, stamps(10)), (out_of_order, stamps(9, 10))):
        entry: dict[str, Any] = {"stamps": place, "digest": 101}
        hits = [hit(at, 10, 60, **entry) for at in (11, 12.2)]
        rows = (change(10, 101, 100), change(12, 102, 101), fill(10.5, 10, 60, 55, **entry))
        assert found(*rows, *hits, known=replace(KNOWN, lives={}), tally=tally) == []
    assert out_of_order.hits == in_order.hits
    assert (in_order.hits[WHO][0], sum(in_order.hits[WHO])) == (1, 2)


def test_an_invalidation_whose_position_names_its_end_covers_all_before_it() -> None:
    """As MariaDB's do."""
    tally = Tally()
    rows = (change(8, 100, 99), change(10, 101, 100), invalidation(11, 0, stamps=stamps(10)))
    assert found(*rows, fill(20, 7, version=60, observed=55), tally=tally) == [("poisoned_fill", "F5", 1)]
    assert tally.counts["changes invalidated"] == 2


def test_a_row_may_be_newer_than_its_token_and_not_older() -> None:
    rows = (change(10, 101, 100), invalidation(10.1, 10), change(12, 102, 101), invalidation(12.1, 12))
    assert found(*rows, fill(12.2, 11, version=60, observed=55, digest=102)) == []
    assert found(*rows, fill(11.2, 11, version=60, observed=55, digest=102)) == [("digest_mismatch", "F46", 1)]
    assert found(*rows, fill(11.5, 11, version=60, observed=55, digest=100)) == [("digest_mismatch", "F2", 1)]
    assert found(*rows, fill(11.5, 11, version=60, observed=55, digest=101)) == []
    assert found(*rows, fill(12.5, 12, version=60, observed=55, digest=101)) == [("digest_mismatch", "F2", 1)]


def test_a_deleted_row_is_absent() -> None:
    rows = (change(10, NO_NUMBER, 100, flags=ROW | AFTER_ABSENT), invalidation(10.1, 10))
    absent = {"digest": NO_NUMBER, "flags": ABSENT}
    assert found(*rows, fill(11, 10, version=60, observed=55, **absent)) == []
    assert found(*rows, fill(11, 10, version=60, observed=55, digest=100)) == [("digest_mismatch", "F2", 1)]


def test_a_composite_is_not_compared_with_a_row() -> None:
    tally = Tally()
    assert found(change(10, 101, 100, flags=0), invalidation(10.1, 10), fill(11, 10, 60, 55), tally=tally) == []
    assert tally.counts["values not comparable"] == 1
    assert tally.counts["values compared"] == 0


def test_stale_hits_count_from_the_acknowledgement_and_lag_from_the_commit() -> None:
    tally = Tally()
    rows = (change(10, 101, 100), invalidation(13, 10), fill(5, 5, 60, 55))
    hits = [hit(at, 5, 60) for at in (9, 12, 13.2, 15, 20)]
    assert found(*rows, *hits, tally=tally) == [("stale_hit", "F11", 2)]
    assert tally.hits[WHO][:6] == [1, 0, 0, 0, 4, 0]


def test_a_hit_that_is_poison_counts_once_and_by_the_clocks_that_it_rests_on() -> None:
    tally = Tally()
    rows = (change(10, 101, 100), invalidation(13, 10), fill(5, 5, 60, 55))
    hits = hit(9, 5, 60), hit(12, 5, 60, digest=7), hit(15, 5, 60), hit(20, 5, 60, digest=7)
    both = [("stale_hit", "F11", 2), ("thin_air_hit", "F45", 2)]
    assert sorted(found(*rows, *hits, tally=tally)) == both
    assert tally.poison == {
        (WHO, WRITER): PoisonedHits(15 * SECOND, 15 * SECOND + 1000, [1]),
        (WHO, 0): PoisonedHits(12 * SECOND, 20 * SECOND + 1000, [2]),
    }


@pytest.mark.parametrize("first_us", [14 * SECOND, 1000 * SECOND])
def test_a_hit_in_a_life_that_has_ended_is_not_called_stale_too(first_us: int) -> None:
    """The life ended at 14 s, or after the change was acknowledged at 20 s."""
    begins = [9, 12, 16.4, 16.6, 18, 20.4, 20.6, 30]
    rows = (change(10, 101, 100), invalidation(20, 10), fill(5, 5, 60, 55))
    lives = [Life(LIFE, 0, 0, 0, 1000, 0), Life(99, first_us, first_us, 0, 1000, first_us)]
    known = replace(KNOWN, lives={(NODE, 7): lives})
    dead = [("dead_life_hit", "F7", 3)] if first_us < 20 * SECOND else []
    assert found(*rows, *(hit(at, 5, 60) for at in begins), known=known) == [*dead, ("stale_hit", "F11", 2)]


@pytest.mark.parametrize("acked", [(20, 11), (11, 20)])
def test_the_first_acknowledgement_of_several_shards_makes_a_hit_stale(acked: tuple[int, int]) -> None:
    other = replace(LINEAGE, name="shop/80-", number=8)
    known = replace(KNOWN, lineages={7: LINEAGE, 8: other}, history_from_us={7: 0, 8: 0})
    both = pack_stamps([PlacedStamp(lineage, LIFE, Place(9)) for lineage in (7, 8)])
    rows = [change(10, 101, 100, flags=0)._replace(lineage=lineage) for lineage in (7, 8)]
    for lineage, at in zip((7, 8), acked, strict=True):
        rows.append(invalidation(at, 10, stamps=pack_stamps([PlacedStamp(lineage, LIFE, Place(0, (10,)))])))
    rows.append(fill(5, 9, 60, 55, stamps=both))
    hits = [hit(at, 9, 60, stamps=both) for at in (11.2, 15)]
    assert found(*rows, *hits, known=known) == [("stale_hit", "F11", 1)]


def test_who_asked_for_values_of_any_age_gets_them() -> None:
    rows = (change(10, 101, 100), invalidation(13, 10), fill(5, 5, 60, 55))
    assert found(*rows, hit(20, 5, 60, flags=SERVED_STALE)) == []


def test_a_fill_that_was_not_answered_may_have_been_stored() -> None:
    unanswered = row(FILL, 5, observed=55, stamps=stamps(5), flags=UNANSWERED)
    assert found(change(2, 100, 99), invalidation(3, 2), unanswered, hit(6, 5, 60)) == []
    assert found(change(2, 100, 99), invalidation(3, 2), hit(6, 5, 60)) == [("thin_air_hit", "F45", 1)]


def test_a_value_from_before_the_recording_is_not_from_thin_air() -> None:
    tally, late = Tally(), replace(KNOWN, history_from_us={7: 100 * SECOND})
    assert found(change(2, 100, 99), invalidation(3, 2), hit(101, 5, 60), known=late, tally=tally) == []
    assert tally.counts["hits of values stored before the history"] == 1


def test_lost_actions_make_an_origin_unknown_and_not_wrong() -> None:
    tally, lossy = Tally(), replace(KNOWN, lost_until_us={7: NEVER})
    assert found(change(2, 100, 99), invalidation(3, 2), hit(6, 5, 60), known=lossy, tally=tally) == []
    assert tally.unknown[WHO, verdict.NOT_FILLED_LOST] == 1


@pytest.mark.parametrize(
    ("lives", "findings", "count"),
    [
        ([Life(LIFE, 0, 0, 5, 1000, 0)], [("missed_invalidation", "F14", 1)], None),
        ([Life(LIFE, 0, 0, 9, 10, 0)], [("missed_invalidation", "F14", 1)], None),
        ([Life(LIFE, 0, 0, 10, 1000, 0)], [], "changes below a floor"),
        ([Life(LIFE, 0, 0, 5, 9, 0)], [], "changes not yet acknowledged"),
    ],
)
def test_loss_is_told_from_lag(lives: list[Life], findings: list[Any], count: str | None) -> None:
    tally = Tally()
    known = replace(KNOWN, lives={(NODE, 7): lives})
    assert found(change(10, 101, 100), fill(5, 5, 60, 55), known=known, tally=tally) == findings
    assert count is None or tally.counts[count] == 1


SOON: Final = 5 + (RULES.clock_error_us + RULES.view_us) / SECOND
"""How long who reads may trust a record from before 5 s."""


@pytest.mark.parametrize(
    ("read", "findings"),
    [
        (fill(SOON + 0.1, 5, 60, 55), [("missed_invalidation", "F14", 1)]),
        (hit(SOON + 0.1, 5, 60), [("missed_invalidation", "F14", 1)]),
        (fill(SOON, 5, 60, 55), []),
        (invalidation(SOON + 0.1, 900), []),
        (hit(SOON + 0.1, 5, 60, flags=SERVED_STALE), []),
        (fill(SOON + 0.1, 5, 60, 55, stamps=stamps(5, life=99)), []),
        (fill(SOON + 0.1, 5, 60, 55, node=99), []),
    ],
)
def test_a_change_is_missed_where_the_item_was_read_under_the_floor_of_the_life(
    read: ReplayRow, findings: list[Any]
) -> None:
    """5 s after the life began the floor rose, since the node has other items from there on, or items left."""
    rows = change(10, 101, 100), fill(1, 5, 60, 55), read
    for since_us, left_us in ((5 * SECOND, 4 * SECOND), (0, 5 * SECOND)):
        tally, life = Tally(), Life(LIFE, 0, 0, 4, 1000, since_us, left_us)
        known = replace(KNOWN, lives={(NODE, 7): [life]})
        assert found(*rows, known=known, tally=tally) == findings
        assert tally.counts["changes that no read needs"] == (not findings)


def test_a_life_has_its_highest_floor_and_when_that_began() -> None:
    low, high, later = (Life(LIFE, 1, 2, 5, 30, 1, 6), Life(LIFE, 7, 8, 9, 20, 7), Life(LIFE, 8, 9, 9, 40, 8, 3))
    for one, other in permutations((low.join(high), later)):
        assert one.join(other) == Life(LIFE, 1, 2, 9, 40, 7, 6)


def test_where_actions_were_lost_a_missing_invalidation_is_unknown() -> None:
    tally, lossy = Tally(), replace(KNOWN, lost_until_us={7: NEVER})
    assert found(change(10, 101, 100), fill(5, 5, 60, 55), known=lossy, tally=tally) == []
    assert tally.unknown[0, verdict.NOT_INVALIDATED_LOST] == 1


def test_a_change_from_before_the_history_is_not_missed() -> None:
    tally, late = Tally(), replace(KNOWN, history_from_us={7: 100 * SECOND})
    assert found(change(10, 101, 100), fill(5, 5, 60, 55), known=late, tally=tally) == []
    assert tally.counts["changes before the history"] == 1


def test_without_progress_a_missing_invalidation_is_unknown() -> None:
    tally = Tally()
    assert found(change(10, 101, 100), fill(5, 5, 60, 55), known=replace(KNOWN, lives={}), tally=tally) == []
    assert tally.unknown[0, verdict.NO_PUBLISH] == 1


def test_hits_at_unknown_positions_are_counted_as_unknown() -> None:
    tally = Tally()
    assert found(hit(5, 5, 60, stamps=stamps(0, flags=timeline.NO_ARCHIVE)), tally=tally) == []
    assert tally.unknown[WHO, verdict.NO_POSITION] == 1
    assert not tally.hits


def test_items_of_one_hash_are_told_apart_by_the_other() -> None:
    other = [each._replace(h2=2) for each in (change(10, 101, 100), fill(5, 5, 60, 55))]
    rows = (invalidation(13, 10), hit(20, 5, 60), *other)
    found = replay(rows, RULES, KNOWN, Tally())
    assert [each.h2 for each in found if isinstance(each, Finding)] == [1, 2]


def test_what_is_held_of_one_item_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itemlog, "CHANGES_HELD_MAX", 3)
    assert found(*(change(at, 100 + at, 99 + at) for at in (1, 2, 3, 3))) == []
    with pytest.raises(FormatError, match="more than 3 changes"):
        found(*(change(at, 100 + at, 99 + at) for at in (1, 2, 3, 4)))


def test_tallies_add_up() -> None:
    tally, total = Tally(), Tally()
    rows = (change(10, 101, 100), invalidation(13, 10), fill(5, 5, 60, 55), hit(6, 5, 60))
    assert found(*rows, tally=tally) == []
    for _ in range(2):
        total.add(tally.to_row())
    assert total.hits[WHO][0] == 2
    assert total.counts["fills"] == 2
    assert [hits for hits, *_ in total.hot] == [1, 1]


# -- the result ------------------------------------------------------------------------------------------


def test_every_verdict_names_failure_modes_by_their_titles() -> None:
    catalogue = tomllib.loads((DOCS / "failure_modes.toml").read_text())
    titles = {number: entry["title"] for number, entry in catalogue.items()}
    invariants = re.findall(r"^\| (I\d+) \| ([^|]+?)\.? \|", (DOCS / "algorithm.md").read_text(), re.M)
    titles |= dict(reversed(invariants))
    named = {failure for kind in verdict.KINDS for failure in kind.failures}
    assert {number: titles[number] for number in named} == verdict.FAILURE_TITLES


@pytest.mark.parametrize(
    ("kinds", "unknown", "code"),
    [
        (set(), 0, verdict.CLEAN),
        (set(), 1, verdict.NOT_KNOWN),
        ({verdict.CLOCK_ANOMALY}, 0, verdict.CLEAN),
        ({verdict.ARCHIVE_GAP}, 0, verdict.NOT_KNOWN),
        ({verdict.ARCHIVE_GAP, verdict.STALE_HIT}, 5, verdict.STALE_DATA),
    ],
)
def test_exit_codes(kinds: set[str], unknown: int, code: int) -> None:
    assert verdict.find_exit_code(kinds, unknown) == code


def test_bounds_of_shares_are_wilsons() -> None:
    half = Share.of_counts(5, 10)
    assert (round(half.low, 4), round(half.high, 4)) == (0.2366, 0.7634)
    none = Share.of_counts(0, 10)
    assert (none.low, round(none.high, 4)) == (0.0, 0.2775)
    assert Share.of_counts(0, 0).high == 1.0
    assert round(Share.of_counts(999_999, 1_000_000).nines, 1) == 5.2


def test_each_value_of_one_version_was_stored_by_its_own_fill() -> None:
    """A version that is there twice makes neither value one from thin air."""
    rows = [fill(1, 9, version=60, observed=55, digest=100), fill(2, 9, version=60, observed=55, digest=101)]
    assert found(*rows, hit(1.5, 9, version=60, digest=100), hit(3, 9, version=60, digest=101)) == []
    assert found(*rows, hit(3, 9, version=60, digest=102)) == [("thin_air_hit", "F45", 1)]
