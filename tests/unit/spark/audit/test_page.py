"""The report page: its first line, its plots, the pictures of its examples, and that nothing is fetched."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from random import Random
from typing import Any, Final
from xml.etree import ElementTree

import pytest

from spark.audit.input.evidence import Names, Who
from spark.audit.model import verdict
from spark.audit.model.finding import STALENESS_EDGES_US, PoisonedHits, Slices, Tally
from spark.audit.report.example import describe, draw_timeline, show_example
from spark.audit.report.markup import format_moment, format_percent, format_seconds, format_time
from spark.audit.report.page import format_page, tell_served
from spark.audit.report.plot import plot_nines, plot_over_time
from spark.audit.report.summary import (
    TABLES_OVER_TIME_MAX,
    HitsOverTime,
    Nines,
    Served,
    Share,
    Summary,
    ViolationCount,
    count_over_time,
    count_served,
    find_poison,
)

SECOND: Final = 1_000_000


def summary_of(*found: ViolationCount, examples: Sequence[Any] = ()) -> Summary:
    share = Share.of_counts(1, 2)
    return Summary(
        1,
        2,
        None,
        3,
        {},
        {},
        [0.0, 1.0],
        [1, 2, 3],
        [0, 0, 0],
        [],
        share,
        share,
        list(found),
        {"why": 1},
        ["c"],
        [("<i>", 1)],
        list(examples),
    )


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    example = {
        "kind": "stale_hit",
        "failure": "F11",
        "item": "<script>alert(1)</script>",
        "object": "x",
        "node": "n",
        "count": 1,
        "first_us": 1,
        "evidence": [{"record": "<b>"}],
    }
    summary = summary_of(examples=[example])
    page = format_page(summary)
    assert "<script" not in page
    assert "<i>" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert json.dumps(summary.to_json())


def test_the_page_says_what_was_found_and_does_not_point_at_itself() -> None:
    found = (
        ViolationCount(verdict.STALE_HIT, "F11", 1200, 4411, 3700.0),
        ViolationCount(verdict.CLOCK_ANOMALY, "F36", 7, 7, 0.0),
    )
    page = format_page(summary_of(*found))
    assert "poison: the cache held or served what it must not" in page
    assert "see the report" not in page
    assert "<td class=n>61.7 min</td>" in page


def test_evidence_is_shown_in_lines_whatever_is_in_it() -> None:
    records = [
        {"role": "change", "name": "shop/-", "sequence": 7, "record": {"gtid": "0-1-7", "timestamp_us": 1_500_000}},
        {
            "role": "fill",
            "name": "web/1",
            "sequence": 9,
            "record": {"lineages": ["shop/-"], "positions": ["<0-1-6>"]},
        },
        {"role": "hit", "name": "web/2", "sequence": 3},
        ["hit", 1, 2],
    ]
    example = {"kind": "stale_hit", "failure": "F11", "item": None, "object": "x", "node": "n", "count": 1}
    page = format_page(summary_of(examples=[{**example, "first_us": 1, "evidence": records}]))
    assert "<td class=s>01-01 00:00:01.500</td><td>0-1-7</td>" in page
    assert "<td>shop/-: &lt;0-1-6&gt;</td>" in page
    assert "the record is not in this history</td><td>web/2 #3</td>" in page


# -- at first sight --------------------------------------------------------------------------------------


def who_of(node: str, tables: tuple[str, ...], name: str = "customer") -> Who:
    return Who("web-1/0.1.0", name, tables, node, ("shop/-",))


def test_the_top_of_the_page_says_how_much_since_when_and_where() -> None:
    poison = [
        (who_of("a:1", ("customers",)), PoisonedHits(5 * SECOND, 7 * SECOND, [2, 3])),
        (who_of("b:1", ("orders",), "order"), PoisonedHits(SECOND, 6 * SECOND, [1, 0])),
    ]
    told = tell_served(replace(summary_of(), served=count_served(poison, 12_000)))
    assert told == (
        "6 of 12,000 judged hits (0.0500%) were poison, from 1970-01-01 00:00:01 UTC to 1970-01-01 00:00:07 UTC. "
        "Most of them: node a:1 (5), b:1 (1); object customer (5), order (1); version 0.1.0 (6)."
    )
    assert escape(told) in format_page(replace(summary_of(), served=count_served(poison, 12_000)))


@pytest.mark.parametrize(
    ("served", "told"),
    [(count_served([], 0), "No hit was judged."), (count_served([], 7), "None of 7 judged hits was poison.")],
)
def test_the_top_of_the_page_does_not_say_more_than_is_known(served: Served, told: str) -> None:
    assert tell_served(replace(summary_of(), served=served)) == told


def test_a_failure_mode_is_told_by_its_title() -> None:
    page = format_page(summary_of(ViolationCount(verdict.STALE_HIT, "F21", 1, 1, 1.0)))
    assert "<td>F21: TRUNCATE, DROP and partition exchange log no rows</td>" in page


def test_poison_that_rests_on_a_wrong_clock_is_not_counted() -> None:
    tally, names = Tally(), Names({}, {1: who_of("a:1", ("t",)), 2: who_of("b:1", ("t",))}, {1: 11, 2: 12})
    for at, key in enumerate(((1, 0), (1, 21), (1, 22), (2, 0), (2, 21))):
        tally.add_poison(*key, SECOND, SECOND, [10**at])
    assert [hits.counts for _, hits in find_poison(tally, names, {22, 12})] == [[1], [10]]


# -- over time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin_us", "end_us", "width_us", "count"),
    [
        (0, 0, SECOND, 1),
        (1_500_000, 1_600_000, SECOND, 1),
        (0, 60 * SECOND, SECOND, 61),
        (0, 61 * SECOND, 2 * SECOND, 31),
        (7_000 * SECOND, 10_600 * SECOND, 60 * SECOND, 61),
        (0, 86_400 * SECOND, 1_800 * SECOND, 49),
        (0, 90 * 86_400 * SECOND, 2 * 86_400 * SECOND, 46),
        (9 * SECOND, 2 * SECOND, SECOND, 1),
    ],
)
def test_slices_have_a_round_width_and_there_are_not_many(
    begin_us: int, end_us: int, width_us: int, count: int
) -> None:
    slices = Slices.of(begin_us, end_us)
    assert (slices.width_us, slices.count, slices.begin_us % width_us) == (width_us, count, 0)
    assert slices.find(begin_us) == 0
    assert slices.find(max(begin_us, end_us)) == count - 1
    assert (slices.find(-(1 << 62)), slices.find(1 << 62)) == (0, count - 1)


def random_tally(random: Random, slices: Slices) -> Tally:
    tally = Tally()
    for _ in range(random.randrange(200)):
        who, tables = random.choice(((1, ("customers",)), (2, ("customers", "orders")), (3, ()), (4, ("orders",))))
        at_us, staleness_us = (
            random.randrange(-5, 70) * SECOND,
            random.choice((0, 5_000, SECOND, 2 * SECOND, 1 << 40)),
        )
        tally.count_hit(who, tables, slices, at_us, staleness_us)
    return tally


def test_slices_add_up_to_the_histograms_of_all_hits_and_pieces_to_the_whole() -> None:
    random = Random("slices")
    for _ in range(100):
        slices = random.choice((Slices(), Slices(0, 10 * SECOND, 6), Slices(20 * SECOND, SECOND, 30)))
        pieces, total = [random_tally(random, slices) for _ in range(3)], Tally()
        for piece in pieces:
            total.add(piece.to_row())
        buckets = len(STALENESS_EDGES_US) + 1
        for tally in (*pieces, total):
            by_slice = [sum(counts[at::buckets]) for counts in tally.slices.values() for at in range(buckets)]
            by_who = [sum(column) for column in zip(*tally.hits.values(), strict=True)]
            of_tables = [by_slice[at : at + buckets] for at in range(0, len(by_slice), buckets)]
            assert [sum(column) for column in zip(*of_tables, strict=True)] == by_who
        for tables, counts in total.slices.items():
            assert counts == [
                sum(column)
                for column in zip(*(it.slices[tables] for it in pieces if tables in it.slices), strict=True)
            ]


def test_a_hit_over_time_counts_for_each_of_its_tables_and_the_worst_table_comes_first() -> None:
    slices, tally = Slices(0, 10 * SECOND, 3), Tally()
    for at, staleness, tables in ((1, 0, ("a", "b")), (2, 2, ("a",)), (25, 1, ("b",)), (26, 9, ("c",))):
        tally.count_hit(1, tables, slices, at * SECOND, staleness * SECOND)
    poison = [(who_of("n", ("b",)), PoisonedHits(0, 0, [0, 0, 1]))]
    assert count_over_time(tally, poison, slices) == [
        HitsOverTime("", [2, 0, 2], [1, 0, 1], [0, 0, 1]),
        HitsOverTime("b", [1, 0, 1], [1, 0, 1], [0, 0, 1]),
        HitsOverTime("c", [0, 0, 1], [0, 0, 0], [0, 0, 0]),
        HitsOverTime("a", [2, 0, 0], [1, 0, 0], [0, 0, 0]),
    ]
    assert count_over_time(tally, [], Slices()) == []


def test_only_the_worst_tables_are_shown_over_time() -> None:
    slices, tally = Slices(0, SECOND, 2), Tally()
    for number in range(TABLES_OVER_TIME_MAX + 5):
        tally.count_hit(number, (f"table{number:02}",), slices, 0, 0)
    shown = [each.name for each in count_over_time(tally, [], slices)]
    assert shown == ["", *(f"table{number:02}" for number in range(TABLES_OVER_TIME_MAX))]


def shapes_of(picture: str) -> list[tuple[str, str]]:
    """(fill, title) of its rectangles. Raises `ParseError` if it is not XML."""
    return [
        (rect.get("fill", ""), rect.findtext("title") or "") for rect in ElementTree.fromstring(picture).iter("rect")
    ]


def test_a_chart_has_gaps_where_there_were_no_hits_and_red_where_poison_was_served() -> None:
    group = HitsOverTime("<t>", [10, 0, 1000], [9, 0, 1000], [1, 0, 0])
    shapes = shapes_of(plot_over_time([group], Slices(0, 60 * SECOND, 3)))
    assert Counter(fill for fill, _ in shapes) == {"var(--pale)": 2, "var(--bar)": 2, "var(--bad)": 1}
    first = "1970-01-01 00:00:00 UTC, 1 min: 10 hits, 90.000% within 1 s, 1 poison"
    assert [told for fill, told in shapes if fill == "var(--bad)"] == [first]


@pytest.mark.parametrize(
    ("begin_us", "end_us", "labels"),
    [
        (3 * SECOND, 25 * SECOND, ["00:00:05", "00:00:10", "00:00:15", "00:00:20", "00:00:25"]),
        (0, 3_600 * SECOND, ["00:00", "00:10", "00:20", "00:30", "00:40", "00:50", "01:00"]),
        (3_600 * SECOND, 90_000 * SECOND, ["01-01 06:00", "01-01 12:00", "01-01 18:00", "01-02 00:00"]),
        (
            0,
            30 * 86_400 * SECOND,
            ["1970-01-01", "1970-01-06", "1970-01-11", "1970-01-16", "1970-01-21", "1970-01-26", "1970-01-31"],
        ),
    ],
)
def test_the_axis_of_time_has_round_times(begin_us: int, end_us: int, labels: list[str]) -> None:
    slices = Slices.of(begin_us, end_us)
    picture = ElementTree.fromstring(plot_over_time([], slices))
    assert [each.text for each in picture.iter("text")] == labels


def test_a_share_below_all_is_never_drawn_as_all() -> None:
    def top(fresh: int) -> float:
        picture = plot_over_time([HitsOverTime("", [10**9], [fresh], [0])], Slices(0, SECOND, 1))
        return min(float(rect.get("y", "")) for rect in ElementTree.fromstring(picture).iter("rect"))

    assert top(10**9) < top(10**9 - 1) < top(10**9 - 10**6) < top(0)


def test_a_page_has_its_charts_only_where_time_was_counted() -> None:
    assert "Hits over time" not in format_page(summary_of())
    over_time = [HitsOverTime("", [1, 0], [1, 0], [0, 0])]
    page = format_page(replace(summary_of(), slices=Slices(0, SECOND, 2), over_time=over_time))
    assert "Hits over time" in page
    assert "Hits of clients whose clocks are wrong are counted here, too." in page


def test_the_worst_share_has_the_longest_bar() -> None:
    shares = {
        str(seconds): Share.of_counts(count, 1000) for seconds, count in ((1, 10), (10, 990), (60, 1000), (300, 1000))
    }
    picture = plot_nines("all", [Nines("all", "", 1000, 0, shares)])
    bars = ElementTree.fromstring(picture[picture.index("<svg") :]).iter("rect")
    lengths = [float(bar.get("width", "")) for bar in bars if bar.get("fill") == "var(--some)"]
    assert lengths[0] > lengths[1] > lengths[2] == lengths[3] == 0


# -- examples --------------------------------------------------------------------------------------------

CHANGE: Final = {
    "role": "change",
    "name": "shop/-",
    "sequence": 7,
    "record": {"timestamp_us": 10 * SECOND, "received_us": 11 * SECOND, "op": "update", "table": "customers"},
}
INVALIDATION: Final = {"role": "invalidation", "record": {"begin_us": 12 * SECOND, "end_us": 13 * SECOND}}
FILL: Final = {"role": "fill", "record": {"begin_us": 15 * SECOND, "end_us": 16 * SECOND}}
HIT: Final = {"role": "hit", "record": {"begin_us": 20 * SECOND, "end_us": 20 * SECOND}}


def example_of(kind: str, failure: str, *evidence: Any, **columns: Any) -> dict[str, Any]:
    held = {"item": "c:1", "object": "customer", "node": "n", "count": 3, "first_us": 20 * SECOND}
    held |= {"last_us": 25 * SECOND, "longest_us": 12 * SECOND}
    return {"kind": kind, "failure": failure, "evidence": list(evidence), **held, **columns}


EXAMPLES: Final = [
    (
        example_of(verdict.STALE_HIT, "F11", CHANGE, INVALIDATION, HIT),
        "c:1 was served 3 times, up to 12 s after a change of it had been acknowledged.",
        ["committed", "0: update customers", "acknowledged", "+3 s", "served", "+10 s to +15 s, 3 ×"],
    ),
    (
        example_of(verdict.STALE_HIT, "F21", CHANGE, HIT, count=1),
        "c:1 was served once, up to 12 s after a change of its whole table had been acknowledged.",
        ["committed", "0: update customers", "served", "+10 s to +15 s, 1 ×"],
    ),
    (
        example_of(verdict.DEAD_LIFE_HIT, "F7", HIT),
        "c:1 was served 3 times from a previous life of the node, up to 12 s after its end.",
        ["life ended", "0", "served", "+7 s to +12 s, 3 ×"],
    ),
    (
        example_of(verdict.THIN_AIR_HIT, "F45", FILL, HIT),
        "c:1 was served 3 times, though another value was stored.",
        ["filled", "+1 s", "served", "+5 s to +10 s, 3 ×"],
    ),
    (
        example_of(verdict.THIN_AIR_HIT, "F45", HIT),
        "c:1 was served 3 times, though nothing was stored.",
        ["served", "0 to +5 s, 3 ×"],
    ),
    (
        example_of(
            verdict.POISONED_FILL, "F5", CHANGE, INVALIDATION, FILL, first_us=15 * SECOND, last_us=16 * SECOND
        ),
        "c:1 was stored 2 s after the node had acknowledged a change that the value lacks.",
        ["committed", "0: update customers", "acknowledged", "+3 s", "filled", "+5 s to +6 s, 3 ×"],
    ),
    (
        example_of(verdict.FILL_BELOW_FLOOR, "F16", FILL, first_us=15 * SECOND, last_us=16 * SECOND),
        "c:1 was stored from a position that lacks the node's floor.",
        ["filled", "0 to +1 s, 3 ×"],
    ),
    (
        example_of(verdict.DIGEST_MISMATCH, "F2", CHANGE, FILL, first_us=15 * SECOND, last_us=16 * SECOND),
        "c:1 was stored with an older row than the one at its position.",
        ["committed", "0: update customers", "filled", "+5 s to +6 s, 3 ×"],
    ),
    (
        example_of(verdict.DIGEST_MISMATCH, "F46", CHANGE, HIT),
        "c:1 was served 3 times with another row than the one at its position.",
        ["committed", "0: update customers", "served", "+10 s to +15 s, 3 ×"],
    ),
    (
        example_of(verdict.MISSED_INVALIDATION, "F14", CHANGE, first_us=10 * SECOND, last_us=10 * SECOND),
        "c:1 changed, and was not invalidated in the 12 s that followed, though progress names the change.",
        ["committed", "0: update customers", "acknowledged", "0 to +12 s, never"],
    ),
    (
        example_of(verdict.TORN_VIEW, "I11", CHANGE, HIT, HIT),
        "c:1: values that were read together are those of no one moment.",
        ["committed", "0: update customers", "served", "+10 s to +15 s, 3 ×"],
    ),
    (
        example_of(verdict.ARCHIVE_GAP, "F15", item=None, object="shop/-"),
        "shop/-: ordinals are missing in the archive of a lineage.",
        [],
    ),
]


@pytest.mark.parametrize(("example", "sentence", "labels"), EXAMPLES)
def test_an_example_is_one_sentence_and_one_picture(
    example: dict[str, Any], sentence: str, labels: Sequence[str]
) -> None:
    assert describe(example) == sentence
    picture, _, _ = draw_timeline(example).partition("<p")
    texts = list(ElementTree.fromstring(picture).iter("text")) if picture else []
    assert [each.text for each in texts if float(each.get("y", "")) > 12] == labels
    red = [fill for fill, _ in shapes_of(picture) if fill == "var(--bad)"] if picture else []
    assert len(red) == bool(labels)


def test_the_examples_here_are_of_all_kinds_of_poison() -> None:
    shown = {example["kind"] for example, _, _ in EXAMPLES}
    assert shown >= {kind.name for kind in verdict.KINDS if kind.is_poison}


@pytest.mark.parametrize("kind", verdict.KINDS)
def test_an_example_without_records_has_a_sentence_and_no_picture(kind: verdict.ViolationKind) -> None:
    example = example_of(kind.name, kind.failures[0], {"role": "hit"}, ["hit", 1], first_us=None, last_us=None)
    assert draw_timeline(example) == ""
    assert escape(describe(example)) in show_example(example, is_open=False)


def test_one_moment_is_no_picture() -> None:
    assert draw_timeline(example_of(verdict.CLOCK_ANOMALY, "F3", CHANGE)) == ""


def test_pictures_escape_what_they_show() -> None:
    record = {**CHANGE["record"], "table": "</text><script>"}  # type: ignore[dict-item]
    evidence = {**CHANGE, "record": record}, INVALIDATION, HIT
    shown = show_example(example_of(verdict.STALE_HIT, "F11", *evidence, item="<b>"), is_open=True)
    assert "<script" not in shown
    assert "<b>&lt;b&gt; was served" in shown


def test_the_first_example_of_each_kind_is_open() -> None:
    kinds = (verdict.STALE_HIT, verdict.STALE_HIT, verdict.POISONED_FILL)
    page = format_page(summary_of(examples=[example_of(kind, "F5", CHANGE) for kind in kinds]))
    assert re.findall("<details( open|)><summary>(stale|poison)", page) == [
        (" open", "stale"),
        ("", "stale"),
        (" open", "poison"),
    ]


# -- numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_us", [None, -1, 1 << 62])
def test_a_time_that_is_none_is_unknown(at_us: int | None) -> None:
    assert format_time(at_us) == "unknown"
    assert at_us is None or format_moment(at_us, "%m-%d") == "unknown"


@pytest.mark.parametrize(
    ("share", "shown"), [(1.0, "100.00000%"), (0.99999999, "99.99999%"), (0.0, "0.00000%"), (0.5, "50.00000%")]
)
def test_a_share_is_never_rounded_up(share: float, shown: str) -> None:
    assert format_percent(share, 5) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.01, "10 ms"), (0.1234, "123 ms"), (1, "1 s"), (60, "1 min"), (90, "90 s"), (3600, "1 h"), (3700, "61.7 min")],
)
def test_durations_have_the_unit_that_suits_them(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown
