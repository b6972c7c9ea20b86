"""Loads that readers share: how many there are, which they may share, and what is left of one that fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from appclient.connection.pool import nested_reads
from appclient.reading import flights as flights_module
from appclient.reading.flights import Flight, Flights
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.network import BLOCKING
from freshness.position import empty_position, parse_position
from freshness.position.token import EventToken

TOKEN = EventToken("shop/-", "-", 1, 0, empty_position("mysql"))


def lookup(number: int) -> Lookup:
    item = b"item %d" % number
    policy: Any = None
    return Lookup(policy, "node", item, item, (number,))


class Database:
    """Its loads end when the test says so."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, ...]] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.failures: list[Exception] = []

    def load(self, lookups: Sequence[Lookup], _: Mapping[str, EventToken]) -> list[Loaded]:
        self.loads.append(tuple(each.values[0] for each in lookups))
        number = len(self.loads)
        self.begun.release()
        assert self.may_end.acquire(timeout=60)
        if self.failures:
            raise self.failures.pop(0)
        return [Loaded({"key": each.values[0], "load": number}, {}) for each in lookups]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def flights(database: Database) -> Flights:
    return Flights(database.load, BLOCKING)


class Reader(threading.Thread):
    def __init__(self, flights: Flights, *keys: int, at_least: Mapping[str, EventToken] | None = None) -> None:
        super().__init__(daemon=True)
        self._read: Callable[[], list[Loaded]] = lambda: flights.load([*map(lookup, keys)], at_least or {})
        self.values: list[Any] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.values = [each.value for each in self._read()]
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def answer(self) -> list[Any]:
        self.join(60)
        assert not self.is_alive()
        return self.values


def wait_waiting(flights: Flights, key: int, count: int) -> None:
    """Return when ``count`` readers have joined the load that is to follow."""
    found, tick = (lookup(key).item, lookup(key).identity), threading.Event()
    while True:
        following = flights._next.get(found)
        if following is not None and following.followers >= count:
            return
        tick.wait(0.001)


def test_readers_of_one_load_unite_what_they_require() -> None:
    """The stripe of the last one may hold a change that those before have not seen."""
    seen: list[Mapping[str, EventToken]] = []
    gate = threading.Semaphore(0)

    def load(lookups: Sequence[Lookup], _: Mapping[str, EventToken]) -> list[Loaded]:
        seen.append(lookups[0].required)
        assert gate.acquire(timeout=60)
        return [Loaded(None, {}) for _ in lookups]

    flights = Flights(load, BLOCKING)

    def start(number: int) -> threading.Thread:
        position = parse_position("mysql", f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{number}")
        one = replace(lookup(1), required={"shop/-": replace(TOKEN, position=position)})
        thread = threading.Thread(target=flights.load, args=([one],), daemon=True)
        thread.start()
        return thread

    threads = [start(1)]
    while not seen:
        threading.Event().wait(0.001)
    threads += [start(2)]
    while not flights._next:
        threading.Event().wait(0.001)
    threads += [start(3)]
    wait_waiting(flights, 1, 1)
    for _ in threads:
        gate.release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    first, second = (str(each["shop/-"].position) for each in seen)
    assert (first.rpartition(":")[2], second.rpartition(":")[2]) == ("1", "2-3")


def test_a_herd_loads_twice(flights: Flights, database: Database) -> None:
    first = Reader(flights, 1)
    database.begun.acquire()
    herd = [Reader(flights, 1) for _ in range(20)]
    wait_waiting(flights, 1, 19)
    database.may_end.release()
    assert first.answer() == [{"key": 1, "load": 1}]
    database.begun.acquire()
    database.may_end.release()
    assert [reader.answer() for reader in herd] == [[{"key": 1, "load": 2}]] * 20
    assert database.loads == [(1,), (1,)]
    assert not flights._running
    assert not flights._next


def test_nobody_shares_a_load_that_began_before(flights: Flights, database: Database) -> None:
    """Its rows may be older than the stripes that the reader has seen."""
    first = Reader(flights, 1)
    database.begun.acquire()
    second = Reader(flights, 1)
    wait_waiting(flights, 1, 0)
    database.may_end.release()
    database.begun.acquire()
    third = Reader(flights, 1)
    wait_waiting(flights, 1, 0)
    database.may_end.release(2)
    loads = [reader.answer()[0]["load"] for reader in (first, second, third)]
    assert loads == [1, 2, 3]


def test_each_reader_has_a_value_of_its_own(flights: Flights, database: Database) -> None:
    first = Reader(flights, 1)
    database.begun.acquire()
    herd = [Reader(flights, 1) for _ in range(3)]
    wait_waiting(flights, 1, 2)
    database.may_end.release(2)
    values = [reader.answer()[0] for reader in (first, *herd)]
    assert len({id(value) for value in values}) == len(values)


def test_the_reader_that_loads_may_change_its_value_at_once(database: Database) -> None:
    """The others may still be about to copy theirs, and they store it."""
    flights = Flights(database.load, BLOCKING)
    ends = flights._end

    def end_late(key: Any, flight: Flight, loaded: Loaded | None = None, error: Exception | None = None) -> None:
        """As if the readers that follow were slow: the value of the one that loads changes first."""
        if loaded is not None and made:
            made[-1]["load"] = "changed"
        ends(key, flight, loaded, error)

    made: list[dict[str, Any]] = []
    load = database.load

    def note(lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        loaded = load(lookups, at_least)
        made.append(loaded[0].value)
        return loaded

    flights._load = note
    first = Reader(flights, 1)
    database.begun.acquire()
    herd = [Reader(flights, 1) for _ in range(2)]
    wait_waiting(flights, 1, 1)
    flights._end = end_late  # type: ignore[method-assign]
    database.may_end.release(2)
    first.answer()
    assert {"changed", 2} == {reader.answer()[0]["load"] for reader in herd}


def test_keys_are_loaded_together_where_no_load_is_under_way(flights: Flights, database: Database) -> None:
    one = Reader(flights, 1)
    database.begun.acquire()
    many = Reader(flights, 3, 1, 2)
    database.begun.acquire()
    database.may_end.release(3)
    assert one.answer() == [{"key": 1, "load": 1}]
    assert many.answer() == [{"key": 3, "load": 2}, {"key": 1, "load": 3}, {"key": 2, "load": 2}]
    assert database.loads == [(1,), (3, 2), (1,)]


def test_two_reads_that_wait_for_each_other_both_end(flights: Flights, database: Database) -> None:
    one = Reader(flights, 1)
    two = Reader(flights, 2)
    database.begun.acquire()
    database.begun.acquire()
    crossed = [Reader(flights, 1, 2), Reader(flights, 2, 1)]
    wait_waiting(flights, 1, 1)
    wait_waiting(flights, 2, 1)
    database.may_end.release(10)
    for reader in (one, two, *crossed):
        assert len(reader.answer()) in (1, 2)


def test_the_error_of_a_shared_load_is_everybodys(flights: Flights, database: Database) -> None:
    first = Reader(flights, 1)
    database.begun.acquire()
    herd = [Reader(flights, 1) for _ in range(3)]
    wait_waiting(flights, 1, 2)
    database.may_end.release()
    first.answer()
    database.failures.append(ValueError("broken"))
    database.may_end.release()
    for reader in herd:
        reader.answer()
        assert isinstance(reader.error, ValueError)
    assert len({id(reader.error) for reader in herd}) == len(herd), "none has the frames of another request"
    assert database.loads == [(1,), (1,)]
    database.may_end.release()
    assert Reader(flights, 1).answer() == [{"key": 1, "load": 3}]


class NoSuchRow(Exception):
    """Its text is made of its argument."""

    def __init__(self, key: int) -> None:
        super().__init__(f"no row {key}")
        self.key = key


def test_the_error_of_a_shared_load_says_the_same_to_all(flights: Flights, database: Database) -> None:
    first = Reader(flights, 1)
    database.begun.acquire()
    herd = [Reader(flights, 1) for _ in range(3)]
    wait_waiting(flights, 1, 2)
    database.failures += [ValueError("first"), NoSuchRow(1)]
    database.may_end.release(2)
    first.answer()
    for reader in herd:
        reader.answer()
        assert isinstance(reader.error, NoSuchRow)
        assert (str(reader.error), reader.error.key) == ("no row 1", 1)


class Interrupted(BaseException):
    """As a signal handler or a cancelled task raises it."""


def test_a_reader_that_is_interrupted_leaves_the_others_to_load(
    flights: Flights, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Reader(flights, 1)
    database.begun.acquire()

    def interrupt(*_: Any) -> Any:
        raise Interrupted

    monkeypatch.setattr(flights, "_begin", interrupt)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            flights.load([lookup(1)])
        except Interrupted as error:
            caught.append(error)

    leader = threading.Thread(target=read, daemon=True)
    leader.start()
    wait_waiting(flights, 1, 0)
    follower = Reader(flights, 1)
    wait_waiting(flights, 1, 1)
    database.may_end.release(2)
    assert first.answer() == [{"key": 1, "load": 1}]
    assert follower.answer() == [{"key": 1, "load": 2}]
    leader.join(60)
    assert caught
    assert not flights._next


def test_a_load_that_does_not_end_is_not_waited_for_for_ever(
    flights: Flights, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights_module, "WAIT_SECONDS", 0.01)
    stuck = Reader(flights, 1)
    database.begun.acquire()
    other = Reader(flights, 1)
    database.begun.acquire()
    assert len(database.loads) == 2
    database.may_end.release(2)
    assert sorted([stuck.answer()[0]["load"], other.answer()[0]["load"]]) == [1, 2]
    assert not flights._running


def test_reads_inside_a_loader_and_reads_with_a_demand_share_nothing(flights: Flights, database: Database) -> None:
    database.may_end.release(10)
    stuck = Database()
    waiting = Flights(stuck.load, BLOCKING)
    Reader(waiting, 1)
    stuck.begun.acquire()
    stuck.may_end.release()
    with nested_reads():
        assert [each.value["load"] for each in waiting.load([lookup(1)])] == [2]
    stuck.may_end.release()
    assert [each.value["load"] for each in waiting.load([lookup(1)], {"shop/-": TOKEN})] == [3]


def test_a_forked_process_does_not_wait_for_its_parents_loads(
    flights: Flights, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Reader(flights, 1)
    database.begun.acquire()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    child = Reader(flights, 1)
    assert database.begun.acquire(timeout=30), "its load begins while the parent's is under way"
    database.may_end.release(2)
    child.answer()
    parent.answer()
