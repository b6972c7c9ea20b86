"""From which position a VStream brings all that was committed since a time, by the heartbeats in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshness.errors import SourceUnavailable
from freshness.position import MysqlGtidSet, Position, parse_position
from freshness.stream.source import Heartbeat, Transaction
from invalidator.vstream import seek
from invalidator.vstream.seek import Search, first_of, search_log

SID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
CUT = 1_000


def up_to(number: int) -> Position:
    return parse_position("mysql", f"{SID}:1-{number}")


def transaction(number: int, *beats: Heartbeat) -> Transaction:
    return Transaction(MysqlGtidSet.of(SID, number), 0, heartbeats=beats)


def beat(sequence: int, us: int, instance: str = "one") -> Heartbeat:
    return Heartbeat(instance, sequence, us, us, 1)


def searched(*transactions: Transaction, start: Position | None = None) -> Search:
    search = Search(CUT, start or up_to(1))
    search.look(transactions)
    return search


def test_up_to_a_heartbeat_all_was_committed_before_the_same_process_wrote_its_next_one() -> None:
    search = searched(
        transaction(2), transaction(3, beat(1, 800)), transaction(4), transaction(5, beat(2, 900)), transaction(6)
    )
    assert search.found == up_to(3)
    assert not search.is_over


def test_the_last_heartbeat_alone_proves_nothing() -> None:
    """It may have been committed long after it was written."""
    assert searched(transaction(2, beat(1, 800))).found is None


def test_heartbeats_of_two_processes_prove_nothing_of_each_other() -> None:
    assert searched(transaction(2, beat(1, 800)), transaction(3, beat(2, 900, "other"))).found is None


def test_one_that_came_in_another_order_proves_nothing() -> None:
    assert searched(transaction(2, beat(2, 900)), transaction(3, beat(1, 800))).found is None


def test_the_search_ends_at_the_first_heartbeat_after_the_time() -> None:
    search = searched(
        transaction(2, beat(1, 800)),
        transaction(3, beat(2, CUT)),
        transaction(4, beat(3, CUT + 1)),
        transaction(5, beat(4, 900)),
    )
    assert search.found == up_to(2)
    assert search.is_over


def test_a_heartbeat_that_may_be_later_than_the_time_proves_nothing() -> None:
    late = Heartbeat("one", 2, 900, CUT + 1, 1)
    assert searched(transaction(2, beat(1, 800)), transaction(3, late)).found is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 400), st.integers(0, 300)), max_size=30))
def test_nothing_committed_since_the_time_is_left_out(steps: list[tuple[str, int, int]]) -> None:
    """Processes write a heartbeat after their last one was committed; it is committed some time later."""
    free, sequences = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    commits: list[tuple[int, Heartbeat]] = []
    for instance, pause, duration in steps:
        written = free[instance] + pause
        sequences[instance] += 1
        free[instance] = written + duration
        commits.append((free[instance], beat(sequences[instance], written, instance)))
    commits.sort(key=lambda each: each[0])
    log = [transaction(number, each) for number, (_, each) in enumerate(commits, start=2)]
    found = searched(*log).found
    assert found is None or all(
        committed < CUT or not found.contains(each.position)
        for (committed, _), each in zip(commits, log, strict=True)
    )


class FakeSource:
    """Plays a log; each stream of it ends after some transactions."""

    def __init__(self, log: list[Transaction], per_stream: int = 50) -> None:
        self.polled = 0
        self._log, self._per_stream = log, per_stream
        self._left: list[Transaction] = []

    def open(self, start: Position) -> None:
        self._left = [each for each in self._log if not start.contains(each.position)][: self._per_stream]

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        if not self._left:
            raise SourceUnavailable("max_age")
        self.polled += 1
        return [self._left.pop(0)]

    def close(self) -> None: ...


def log_of(transactions: int, second_source_at: int = 10**9) -> list[Transaction]:
    """A heartbeat in every fifth transaction, at ten times its number."""
    return [
        Transaction(
            MysqlGtidSet.of(SID if number < second_source_at else OTHER, number),
            0,
            heartbeats=(beat(number, 10 * number),) if number % 5 == 0 else (),
        )
        for number in range(2, transactions)
    ]


@pytest.mark.parametrize("second_source_at", [10**9, 40, 150])
@pytest.mark.parametrize("read_through", [1, 7, 10**6])
@pytest.mark.parametrize("cut", [0, 60, 1_004, 1_955, 10**6])
def test_a_halved_log_gives_what_a_log_that_is_read_whole_gives(
    cut: int, read_through: int, second_source_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seek, "READ_THROUGH", read_through)
    log = log_of(200, second_source_at)
    whole = Search(cut, up_to(1))
    whole.look(log)
    head = up_to(1).union_all(each.position for each in log)
    assert search_log(FakeSource(log), up_to(1), head, cut) == whole.found


def test_of_a_long_log_little_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seek, "READ_THROUGH", 20)
    source = FakeSource(log_of(10_000), per_stream=10**6)
    assert search_log(source, up_to(1), up_to(9_999), 70_001) is not None
    assert source.polled < 200


def test_a_stream_that_brings_nothing_is_an_error() -> None:
    with pytest.raises(SourceUnavailable):
        search_log(FakeSource([]), up_to(1), up_to(9), CUT)


def test_the_first_transaction_of_a_log() -> None:
    assert first_of(parse_position("mysql", f"{SID}:5-9:12")) == MysqlGtidSet.of(SID, 5)
