"""The demo's bookkeeping: what it calls stale, what it calls poisoned, and what it says of both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from examples.demo.acknowledgement import ProgressLedger, StreamLedger, commit_position
from examples.demo.interrupted import Interruptions, is_of
from examples.demo.measurement import Answer, Meter, ObjectKey, Request, Row, StaleHit, Write, percentile
from examples.demo.progress_watcher import parse_progress
from examples.demo.report import DemoResult, StrategyResult, accuse, as_json, as_table, explain
from examples.demo.strategy import DELETE_AFTER_WRITE, DELETE_FROM_STREAM, EVENT_TOKENS, GENERATION_FENCE, STRATEGIES
from examples.demo.stream_deleter import parse_report
from examples.demo.verdict import Poisoned, Verdict, compare, plain
from freshness.position import parse_position

CUSTOMER_7: ObjectKey = ("customer", 7)
PROFILE_7: ObjectKey = ("profile", 7)
ROW_7: Row = ("customers", 7)
ORDER_700: Row = ("orders", 700)


def customer(version: int) -> dict[str, Any]:
    return {"id": 7, "name": "customer 7", "balance": Decimal("10.50"), "version": version, "changed_us": 1}


def order(version: int) -> dict[str, Any]:
    return {"id": 700, "customer_id": 7, "total": Decimal("3.00"), "version": version, "changed_us": 1}


def profile(version: int, *orders: dict[str, Any]) -> dict[str, Any]:
    return {"customer": customer(version), "orders": list(orders)}


def written(versions: Mapping[Row, int], committed_at: float = 1.0) -> Write:
    return Write(versions, (CUSTOMER_7, PROFILE_7), committed_at)


def read(meter: Meter, key: ObjectKey, value: Any, *, is_hit: bool = True) -> None:
    expected = meter.expect(Request((key,)))
    meter.count([Answer(key, value, is_hit, "hit" if is_hit else "filled")], expected)


# -- stale reads ---------------------------------------------------------------------------------------


def test_a_hit_older_than_an_acknowledged_write_is_stale() -> None:
    meter = Meter("any")
    meter.acknowledge(written({ROW_7: 3}), 1.0)
    read(meter, CUSTOMER_7, customer(2))
    assert meter.stale_hits == 1
    assert meter.examples == [StaleHit(CUSTOMER_7, ROW_7, 2, 3)]


@pytest.mark.parametrize("version", [3, 4])
def test_a_hit_at_or_after_the_acknowledged_version_is_fresh(version: int) -> None:
    meter = Meter("any")
    meter.acknowledge(written({ROW_7: 3}), 1.0)
    read(meter, CUSTOMER_7, customer(version))
    assert (meter.hits, meter.stale_hits) == (1, 0)


def test_what_is_acknowledged_during_a_read_does_not_count_against_it() -> None:
    meter = Meter("any")
    expected = meter.expect(Request((CUSTOMER_7,)))
    meter.acknowledge(written({ROW_7: 3}), 1.0)
    meter.count([Answer(CUSTOMER_7, customer(2), True, "hit")], expected)
    assert meter.stale_hits == 0


def test_an_old_row_from_the_replica_is_counted_apart() -> None:
    meter = Meter("any")
    meter.acknowledge(written({ROW_7: 3}), 1.0)
    read(meter, CUSTOMER_7, customer(2), is_hit=False)
    assert (meter.reads, meter.hits, meter.stale_hits, meter.stale_replica_reads) == (1, 0, 0, 1)


def test_an_older_write_acknowledged_late_does_not_lower_what_is_expected() -> None:
    meter = Meter("any")
    meter.acknowledge(written({ROW_7: 3}), 1.0)
    meter.acknowledge(written({ROW_7: 2}), 1.0)
    read(meter, CUSTOMER_7, customer(2))
    assert meter.stale_hits == 1


def test_a_profile_without_an_acknowledged_order_is_stale_and_the_customer_alone_is_not() -> None:
    meter = Meter("any")
    meter.acknowledge(written({ORDER_700: 1}), 1.0)
    read(meter, PROFILE_7, profile(1))
    assert meter.examples == [StaleHit(PROFILE_7, ORDER_700, 0, 1)]
    read(meter, PROFILE_7, profile(1, order(1)))
    read(meter, CUSTOMER_7, customer(1))
    assert meter.stale_hits == 1


def test_a_cached_absence_of_an_acknowledged_row_is_stale() -> None:
    meter = Meter("any")
    meter.acknowledge(written({ROW_7: 1}), 1.0)
    read(meter, CUSTOMER_7, None)
    assert meter.stale_hits == 1


# -- lag -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, 0.0), ([5.0], 99, 5.0), ([4.0, 1.0, 3.0, 2.0], 50, 2.0), (list(range(1, 101)), 99, 99)],
)
def test_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_a_stream_write_is_acknowledged_when_its_last_row_is() -> None:
    meter = Meter("stream")
    ledger = StreamLedger(meter)
    meter.begin()
    ledger.committed(written({ROW_7: 2, ORDER_700: 1}, committed_at=1.0))
    ledger.reported(ROW_7, 2, 1.010)
    assert meter.unacknowledged == 1
    ledger.reported(ORDER_700, 1, 1.025)
    assert meter.unacknowledged == 0
    assert meter.lags_ms == [pytest.approx(25.0)]


def test_a_stream_may_report_before_the_commit_returns() -> None:
    meter = Meter("stream")
    ledger = StreamLedger(meter)
    meter.begin()
    ledger.reported(ROW_7, 2, 0.9)
    ledger.committed(written({ROW_7: 2}, committed_at=1.0))
    assert (meter.unacknowledged, meter.lags_ms) == (0, [0.0])


FIRST, SECOND = "127.0.0.1:1", "127.0.0.1:2"


def progress_ledger() -> tuple[Meter, ProgressLedger]:
    meter = Meter("tokens")
    meter.begin()
    return meter, ProgressLedger([FIRST, SECOND], "mariadb", meter)


def test_a_write_is_acknowledged_when_the_last_of_its_nodes_has_its_position() -> None:
    meter, ledger = progress_ledger()
    both = frozenset({FIRST, SECOND})
    ledger.committed(written({ROW_7: 2}, committed_at=1.0), parse_position("mariadb", "0-1-5"), both)
    ledger.reported(FIRST, "aa", "0-1-5", 1.002)
    ledger.reported(SECOND, "bb", "0-1-4", 1.003)
    assert meter.unacknowledged == 1
    ledger.reported(SECOND, "bb", "0-1-6", 1.004)
    assert meter.unacknowledged == 0
    assert meter.lags_ms == [pytest.approx(4.0)]
    assert ledger.lives == {FIRST: {"aa"}, SECOND: {"bb"}}


def test_progress_counts_from_when_it_was_seen_also_before_the_position_of_the_commit_is_known() -> None:
    meter, ledger = progress_ledger()
    for position, at in (("0-1-4", 1.0), ("0-1-5", 1.001), ("0-1-9", 1.010)):
        ledger.reported(FIRST, "aa", position, at)
    ledger.committed(written({ROW_7: 2}, committed_at=1.0), parse_position("mariadb", "0-1-5"), frozenset({FIRST}))
    assert meter.lags_ms == [pytest.approx(1.0)]


def test_the_report_of_the_progress_watcher_parses() -> None:
    assert parse_progress(f"{FIRST} 6c69 0-1-5 12.25") == (FIRST, "6c69", "0-1-5", 12.25)


def test_the_report_of_the_stream_deleter_parses() -> None:
    assert parse_report("orders 700 5 12.25") == (ORDER_700, 5, 12.25)


def test_the_gtid_of_a_commit_is_in_the_session_state_of_its_ok_packet() -> None:
    gtid = b"3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
    tracked = b"\x00" + bytes([len(gtid)]) + gtid
    other_change = b"\x02\x02\x01\x31"  # something else that the session tracks, before it
    changes = other_change + b"\x03" + bytes([len(tracked)]) + tracked
    message = b"\x04done" + bytes([len(changes)]) + changes
    cursor = SimpleNamespace(_result=SimpleNamespace(server_status=0x4002, message=message))
    assert str(commit_position(None, cursor, "mysql")) == gtid.decode()


# -- poisoned keys -------------------------------------------------------------------------------------


def test_a_value_is_the_same_whatever_the_caches_encoding_made_of_it() -> None:
    assert compare(PROFILE_7, plain(profile(2, order(1))), profile(2, order(1))) is None


def test_a_poisoned_customer_is_shown_with_both_versions() -> None:
    assert compare(CUSTOMER_7, customer(2), customer(5)) == Poisoned(CUSTOMER_7, ROW_7, 2, 5)


def test_a_poisoned_profile_is_shown_by_the_row_that_is_furthest_behind() -> None:
    poisoned = compare(PROFILE_7, profile(4, order(1)), profile(5, order(4)))
    assert poisoned == Poisoned(PROFILE_7, ORDER_700, 1, 4)


def test_a_difference_without_a_version_is_poisoned_too() -> None:
    changed = customer(5) | {"name": "somebody else"}
    assert compare(CUSTOMER_7, changed, customer(5)) == Poisoned(CUSTOMER_7, ROW_7, 5, 5)


def test_an_absent_row_in_the_cache_is_compared_as_well() -> None:
    assert compare(CUSTOMER_7, None, customer(1)) == Poisoned(CUSTOMER_7, ROW_7, 0, 1)
    assert compare(CUSTOMER_7, None, None) is None


def test_a_pair_is_torn_if_one_of_it_lacks_a_transfer() -> None:
    meter = Meter("any")
    for counts in ((3, 3), (3, 4), (5, 4), (0, 0)):
        keys = ("customer", 7), ("customer", 8)
        rows = ({**customer(1), "transfers": count} for count in counts)
        meter.count_pair([Answer(key, row, True, "hit") for key, row in zip(keys, rows, strict=True)])
    assert (meter.pairs, meter.torn_pairs) == (4, 2)


def test_a_transfer_is_expected_of_both_customers() -> None:
    meter = Meter("any")
    objects: list[ObjectKey] = [("customer", 7), ("profile", 8)]
    meter.acknowledge(Write({ROW_7: 3, ("customers", 8): 5, ("orders", 801): 2}, tuple(objects), 1.0), 1.0)
    assert meter.expect(Request(tuple(objects))) == {
        ("customer", 7): {ROW_7: 3},
        ("profile", 8): {("customers", 8): 5, ("orders", 801): 2},
    }


# -- the result ----------------------------------------------------------------------------------------


def result_with(
    *,
    ours_stale: tuple[StaleHit, ...] = (),
    ours_poisoned: tuple[Poisoned, ...] = (),
    interruptions: Interruptions | None = None,
    has_replica: bool = True,
    ours_old: int = 0,
    ours_torn: int = 0,
    ours_outcomes: tuple[str, ...] = ("hit", "filled", "stripe"),
    primary_refusals: int = 0,
) -> DemoResult:
    both = (Poisoned(CUSTOMER_7, ROW_7, 1, 9), Poisoned(PROFILE_7, ORDER_700, 2, 5))

    def strategy(name: str, stale: tuple[StaleHit, ...], poisoned: tuple[Poisoned, ...]) -> StrategyResult:
        verdict = Verdict(20, 15, poisoned)
        is_ours = name == EVENT_TOKENS
        outcomes = dict.fromkeys(ours_outcomes if is_ours else ("hit", "filled"), 50)
        old = ours_old if is_ours else 3
        torn = ours_torn if is_ours else 4
        return StrategyResult(name, 100, 60, len(stale), old, 9, torn, 50, 1.0, 9.0, outcomes, stale, verdict)

    stale = (StaleHit(CUSTOMER_7, ROW_7, 1, 2),)
    return DemoResult(
        flavor="mariadb",
        seconds=20,
        seed=42,
        writes=50,
        replica_delay_seconds=2 if has_replica else 0,
        pause_seconds=2.5 if has_replica else 0.0,
        replica_lags_seconds=[1.0, 3.0] if has_replica else [],
        interruptions=interruptions or Interruptions(),
        lives={"127.0.0.1:1": 1},
        primary_refusals=primary_refusals,
        strategies={
            DELETE_AFTER_WRITE: strategy(DELETE_AFTER_WRITE, stale, both),
            GENERATION_FENCE: strategy(GENERATION_FENCE, stale, both),
            DELETE_FROM_STREAM: strategy(DELETE_FROM_STREAM, stale, both),
            EVENT_TOKENS: strategy(EVENT_TOKENS, ours_stale, ours_poisoned),
        },
    )


def test_the_json_has_the_promised_names() -> None:
    answer = json.loads(json.dumps(as_json(result_with())))
    assert {"flavor", "seconds", "strategies"} <= set(answer)
    assert tuple(answer["strategies"]) == STRATEGIES
    for strategy in answer["strategies"].values():
        assert {"reads", "hit_rate", "stale_reads", "poisoned", "database_reads", "lag_p50_ms", "lag_p99_ms"} <= set(
            strategy
        )
    ours = answer["strategies"][EVENT_TOKENS]
    assert (ours["hit_rate"], ours["database_reads"], ours["poisoned"]) == (0.6, 40, 0)
    others = answer["strategies"][DELETE_AFTER_WRITE]
    assert (others["poisoned"], others["pairs"], others["torn_pairs"]) == (2, 9, 4)


def test_the_exit_code_is_0_only_if_event_tokens_kept_their_promise() -> None:
    assert result_with().exit_code == 0
    assert result_with(ours_poisoned=(Poisoned(CUSTOMER_7, ROW_7, 1, 2),)).exit_code == 5
    assert result_with(ours_stale=(StaleHit(CUSTOMER_7, ROW_7, 1, 2),)).exit_code == 5
    torn = result_with(ours_torn=1)
    assert (torn.exit_code, accuse(torn)) == (5, ["torn: 1 of 9 pairs show half of a transfer"])
    assert result_with(interruptions=Interruptions(9, 4, 0)).exit_code == 0
    wrong = result_with(interruptions=Interruptions(9, 4, 1))
    assert wrong.exit_code == 5
    assert accuse(wrong) == ["interrupted readers: 1 answers of another object"]
    (line,) = (each for each in explain(wrong) if "interrupted" in each)
    assert "read 9 times by processes that signals interrupted in 4 of these reads; 1 answers were" in line


def test_an_old_row_from_a_miss_breaks_the_promise_if_all_reads_knew_what_to_show() -> None:
    old = result_with(ours_old=2)
    assert (old.exit_code, accuse(old)) == (5, ["misses: 2 rows older than an acknowledged invalidation"])
    for excused in (
        result_with(ours_old=2, primary_refusals=1),
        result_with(ours_old=2, ours_outcomes=("hit", "filled", "no_record")),
    ):
        assert (excused.exit_code, accuse(excused)) == (0, [])


def test_a_broken_promise_comes_with_evidence() -> None:
    assert accuse(result_with()) == []
    assert accuse(
        result_with(
            ours_poisoned=(Poisoned(PROFILE_7, ORDER_700, 0, 2),), ours_stale=(StaleHit(CUSTOMER_7, ROW_7, 1, 2),)
        )
    ) == [
        "poisoned: profile 7 with orders 700 missing (primary: version 2)",
        "stale hit: customer 7 with customers 7 at version 1, when version 2 had been acknowledged",
    ]


def test_the_explanation_shows_one_poisoned_key_of_each_other_strategy() -> None:
    text = " ".join(explain(result_with()))
    assert "delete_after_write still serves customer 7 at version 1 (primary: version 9)" in text
    assert "delete_from_stream still serves customer 7 at version 1 (primary: version 9)" in text
    assert "generation_fence still serves profile 7 with orders 700 at version 2 (primary: version 5)" in text


def test_without_a_replica_none_is_named() -> None:
    alone = result_with(has_replica=False)
    text = f"{as_table(alone).title} {' '.join(explain(alone))}"
    assert "replica" not in text.replace("without a replica", "")
    assert "All misses read the primary." in text
    assert "without a replica" not in f"{as_table(result_with()).title}"


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(as_table(result_with()))
    text = capture.get()
    assert "…" not in text
    for name in STRATEGIES:
        assert name in text
    assert "2/20" in text


def test_an_answer_of_another_object_is_noticed() -> None:
    customers = Request((("customer", 7), ("customer", 8)))
    right = [Answer(("customer", number), {"id": number}, True, "hit") for number in (7, 8)]
    assert is_of(customers, right)
    assert not is_of(customers, right[:1])
    assert not is_of(customers, [right[0], Answer(("customer", 8), {"id": 7}, True, "hit")])
    assert not is_of(customers, [right[0], Answer(("customer", 8), None, True, "hit")])
    profile = Request((("profile", 7),))

    def answered(customer: Any, *owners: int) -> list[Answer]:
        orders = [{"customer_id": owner} for owner in owners]
        return [Answer(("profile", 7), {"customer": customer, "orders": orders}, False, "filled")]

    assert is_of(profile, answered({"id": 7}, 7, 7))
    assert not is_of(profile, answered({"id": 7}, 7, 8))
    assert not is_of(profile, answered({"id": 8}, 7))
