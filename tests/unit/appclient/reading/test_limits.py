"""The bound on reads of the database per second: which reads wait or are refused, and how much idle time counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from appclient.reading.limits import RateLimit
from freshness.errors import Overloaded


@dataclass
class Process:
    """Ten reads in a second, of which one may wait for 0.25 s. Nobody sleeps; the waits are noted."""

    now: float = 100.0
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit = RateLimit("customer", 10, 0.25, lambda: self.now, self.waits.append)

    def take(self, count: int = 1, times: int = 1) -> list[float]:
        """How long each of these waited."""
        self.waits.clear()
        for _ in range(times):
            self.limit.take(count)
        return [round(seconds, 3) for seconds in self.waits]


def test_reads_within_the_rate_wait_for_nothing() -> None:
    process = Process()
    for _ in range(50):
        assert process.take() == []
        process.now += 0.1


def test_a_second_is_caught_up_at_once_and_no_more() -> None:
    process = Process()
    process.now += 60
    assert process.take(times=11) == []
    assert process.take() == [0.1]


def test_reads_beyond_the_rate_wait_until_it_allows_them_and_are_refused_where_that_takes_too_long() -> None:
    process = Process()
    process.take(times=11)
    assert process.take(times=2) == [0.1, 0.2]
    with pytest.raises(Overloaded, match=r"customer is read .* more than 10 times .* permitted in 0\.30 s") as told:
        process.take()
    assert "database_reads_per_second" in str(told.value.hint)
    process.now += 0.1
    assert process.take() == [0.2], "a refused read takes no place"


def test_what_is_permitted_without_a_wait() -> None:
    process = Process()
    assert [process.limit.permits() for _ in range(12)] == [True] * 11 + [False]
    process.now += 0.1
    assert [process.limit.permits() for _ in range(2)] == [True, False]
    assert not RateLimit("customer", 0, 0, lambda: process.now, process.waits.append).permits()
    assert process.waits == []


def test_many_keys_of_a_call_count_each() -> None:
    process = Process()
    assert process.take(count=11) == []
    assert process.take(count=2) == [0.1]
    with pytest.raises(Overloaded):
        process.take()
