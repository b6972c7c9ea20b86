"""Copies of hits in one process: how old they may be, and which goes first."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import pytest

from appclient.reading.copies import COPY_BYTES, Copies
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.state import NO_DEMAND, Read

POLICY = ObjectPolicy("customer", 7, ("customers",), ("shop/-",), 3600)


@dataclass
class Process:
    """Its clock shows 100 s at first."""

    bytes_max: int = 10 * COPY_BYTES
    now: float = 100.0
    copies: Copies = field(init=False)

    def __post_init__(self) -> None:
        self.copies = Copies(self.bytes_max, lambda: self.now)

    def hit(self, key: str, payload: bytes | None, asked_at: float = 100.0) -> None:
        self.copies.note(lookup(key), Read(ReadOutcome.HIT, payload), asked_at)

    def find(self, key: str, age_max_seconds: float = 1.0) -> bytes | str | None:
        """The payload, or "nothing" if no copy serves."""
        read = self.copies.find(lookup(key), age_max_seconds, ReadOutcome.LOCAL_HIT)
        if read is None:
            return "nothing"
        assert read.outcome is ReadOutcome.LOCAL_HIT
        return read.payload


def lookup(key: str, identity: str = "") -> Lookup:
    return Lookup(POLICY, "node", key.encode(), (identity or key).encode(), (key,))


def test_a_copy_serves_until_its_age_counted_from_before_the_read() -> None:
    process = Process()
    process.hit("a", b"1", asked_at=99.5)
    assert process.find("a") == b"1"
    process.now = 100.49
    assert process.find("a") == b"1"
    process.now = 100.5
    assert process.find("a") == "nothing"
    assert process.find("a", 5.0) == b"1", "a reader that may be given an older one"
    assert process.find("a", 0.0) == "nothing"


def test_no_such_row_is_copied_too() -> None:
    process = Process()
    process.hit("a", None)
    assert process.find("a") is None


def test_another_key_in_the_same_place_has_no_copy() -> None:
    process = Process()
    process.hit("a", b"1")
    assert process.copies.find(lookup("a", "other"), 1.0, ReadOutcome.LOCAL_HIT) is None


def test_the_copy_of_a_later_read_stays() -> None:
    """Of two reads that run at the same time the earlier one may end last."""
    process = Process()
    process.hit("a", b"new", asked_at=99.9)
    process.hit("a", b"old", asked_at=99.8)
    assert process.find("a") == b"new"
    process.hit("a", b"newer", asked_at=100.0)
    assert process.find("a") == b"newer"


@pytest.mark.parametrize("outcome", [ReadOutcome.FILLED, ReadOutcome.LOST_RACE, ReadOutcome.NODE_DOWN])
def test_a_key_that_was_no_hit_any_more_has_no_copy(outcome: ReadOutcome) -> None:
    """Who has seen the new value is not given the old one again."""
    process = Process()
    process.hit("a", b"old", asked_at=99.5)
    process.copies.note(lookup("a"), Read(outcome, value="new"), 99.9)
    assert process.find("a") == "nothing"


def test_a_copy_that_was_served_while_another_fills_serves_the_next_reader_too() -> None:
    copies = Copies(10 * COPY_BYTES, lambda: 100.0, {"customer": (0.0, 5.0)})
    copies.note(lookup("a"), Read(ReadOutcome.HIT, b"1"), 100.0)
    read = copies.serving(lambda lookups, *_: [copies.recall(each) or Read(ReadOutcome.HIT) for each in lookups])
    for _ in range(2):
        (served,) = read([lookup("a")], NO_DEMAND, None)
        assert (served.outcome, served.payload) == (ReadOutcome.STALE_SERVED, b"1")


def test_the_bytes_are_bounded_and_the_oldest_copy_goes_first() -> None:
    process = Process(bytes_max=2 * COPY_BYTES + 20)
    process.hit("a", b"0123456789")
    process.hit("b", b"0123456789")
    process.hit("a", b"0123456789", asked_at=100.1)  # replaced
    process.hit("c", None)
    assert [process.find(key) for key in "abc"] == [b"0123456789", "nothing", None]
    process.hit("d", b"more than all others may have together" * 100)
    assert [process.find(key) for key in "abcd"] == ["nothing"] * 4
    process.hit("e", b"5")
    assert process.find("e") == b"5", "the bytes of what has gone are free again"


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    process = Process()
    process.hit("a", b"1")
    with process.copies._changing:
        child = os.fork()
        if child == 0:
            noting = threading.Thread(target=process.hit, args=("b", b"2"), daemon=True)
            noting.start()
            noting.join(60)
            os._exit(3 if noting.is_alive() else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
