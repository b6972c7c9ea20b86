"""The work of the last minutes: ended buckets count, old ones do not, and clocks are reported as bounds."""

from __future__ import annotations

import pytest

from invalidator.process.recent import (
    BUCKET_SECONDS,
    BUCKETS_MAX,
    LAGS_MAX,
    ClockDifference,
    RecentWork,
    find_quantile,
)

NOW = 1000 * BUCKET_SECONDS


def test_batches_are_counted_in_buckets_that_are_over() -> None:
    recent = RecentWork()
    recent.note_batch(NOW + 0.1, 2, 3)
    recent.note_batch(NOW + 0.2, 4, 5)
    assert sum(each.transactions for each in recent.list_buckets(NOW + 1)) == 0, "it is not over"
    buckets = recent.list_buckets(NOW + 2 * BUCKET_SECONDS)
    assert len(buckets) == BUCKETS_MAX
    assert [(each.transactions, each.keys) for each in buckets[-2:]] == [(6, 8), (0, 0)]


def test_what_is_older_than_the_buckets_is_gone() -> None:
    recent = RecentWork()
    recent.note_heartbeat(NOW, NOW - 3)
    assert recent.list_lags(NOW) == [3]
    later = NOW + (BUCKETS_MAX + 1) * BUCKET_SECONDS
    assert recent.list_lags(later) == []
    assert sum(len(each.lags) for each in recent.list_buckets(later)) == 0
    assert recent.begun_at == NOW - 3, "the latest heartbeat stays the latest"
    for number in range(2 * BUCKETS_MAX):
        recent.note_batch(NOW + number * BUCKET_SECONDS, 1, 1)
    assert len(recent._buckets) == BUCKETS_MAX


def test_lags_are_in_order_and_bounded() -> None:
    recent = RecentWork()
    for lag in (3.0, 1.0, 2.0):
        recent.note_heartbeat(NOW, NOW - lag)
    assert recent.list_lags(NOW) == [1, 2, 3]
    for _ in range(2 * LAGS_MAX):
        recent.note_heartbeat(NOW, NOW)
    assert len(recent.list_lags(NOW)) == LAGS_MAX


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.0, 1.0), (0.5, 2.0), (0.75, 3.0), (0.76, 4.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_a_quantile_is_one_of_the_values(share: float, wanted: float) -> None:
    assert find_quantile([1.0, 2.0, 3.0, 4.0], share) == wanted
    assert find_quantile([], share) is None


def test_a_clock_is_between_what_the_samples_allow() -> None:
    recent = RecentWork()
    assert recent.find_clock_difference() is None
    # The primary is 2 s ahead: committed 1 ms after it was written, seen 9 ms later
    recent.note_clocks(10_000_000, 12_001_000, 10_010_000)
    found = recent.find_clock_difference()
    assert found == ClockDifference(1.991, 2.001)
    # A log of whole seconds: the commit was within the second
    recent.note_clocks(20_900_000, 22_000_000, 20_910_000)
    assert recent.find_clock_difference() == found, "it says less, and does not contradict"
    recent.note_clocks(30_000_000, 33_000_001, 30_010_000)
    assert recent.find_clock_difference() == ClockDifference(2.990001, 3.000001), "the clock was set"


def test_whole_seconds_become_narrow_by_many() -> None:
    """The primary's clock is right; heartbeats come at all moments of its seconds."""
    recent = RecentWork()
    for number in range(30):
        at = 50_000_000 + number * 1_033_333
        recent.note_clocks(at, at // 1_000_000 * 1_000_000, at + 1000)
    found = recent.find_clock_difference()
    assert found is not None
    assert -0.05 < found.at_least <= 0 <= found.at_most < 0.05
