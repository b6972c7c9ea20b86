"""One load for many readers of a key: a herd reads the database twice, and not two hundred times (F40).

A reader shares only a load that begins after it has asked. So its rows are read after its stripes and records, as the
read procedure demands, and nobody gets a value from before its own read. With a load under way, all that come later
wait for one more. Used by ``appclient.reading.pipeline``.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from appclient.connection.pool import is_nested
from appclient.reading.loader import join_required
from appclient.telemetry.observer import Load
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import NO_TOKENS
from freshness.network import Gate, Network
from freshness.position.token import EventToken

Key = tuple[bytes, bytes]

WAIT_SECONDS: Final = 5.0
"""Time that a reader waits for the load of another one, in seconds; then it loads the value."""


@dataclass(slots=True, eq=False)
class Flight:
    """One load of one key, and its end: a value, an error, or neither if its reader was interrupted. ``lookup``: the
    key, with all that its readers require of the rows."""

    gate: Gate
    lookup: Lookup
    followers: int = 0
    is_done: bool = False
    loaded: Loaded | None = None
    error: Exception | None = None

    def end(self, loaded: Loaded | None = None, error: Exception | None = None) -> None:
        """End the load, and wake all readers that wait for it."""
        self.loaded, self.error = loaded, error
        self.is_done = True
        for _ in range(self.gate.waiting):
            self.gate.wake()

    def wait(self) -> bool:
        """Whether it ended in time."""
        return self.is_done or self.gate.wait_for(lambda: self.is_done, WAIT_SECONDS)


@dataclass(slots=True)
class _Places:
    """The places of a read's lookups, by what this reader has to do. ``led``: with the flight to wait for first."""

    own: dict[int, Flight] = field(default_factory=dict)
    led: dict[int, tuple[Flight, Flight]] = field(default_factory=dict)
    followed: dict[int, tuple[Flight, Flight]] = field(default_factory=dict)


class Flights:
    """The loads of a process that are under way, and for each key at most one that is to follow."""

    def __init__(self, load: Load, network: Network, tell_shared: Callable[[Lookup], None] | None = None) -> None:
        """``tell_shared``: callback for each lookup that another reader's load answered."""
        self._load, self._network, self._tell_shared = load, network, tell_shared
        self._forget()

    def _forget(self) -> None:
        """A forked process waits for no load of its parent's."""
        self._lock = threading.Lock()
        self._running: dict[Key, Flight] = {}
        self._next: dict[Key, Flight] = {}
        self._process = os.getpid()

    def load(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken] = NO_TOKENS) -> list[Loaded]:
        """Answer a `Load` step. An error of a load that is shared is raised by all its readers. Reads inside a loader
        share nothing: they would wait for each other. Nor do reads that ask for commits."""
        if at_least or is_nested():
            return self._load(lookups, at_least)
        if self._process != os.getpid():
            self._forget()
        keys = [(lookup.item, lookup.identity) for lookup in lookups]
        places = self._join(lookups, keys)
        loaded: dict[int, Loaded] = {}
        try:
            loaded.update(self._fly(keys, places.own))
            if places.led:
                for earlier, _ in places.led.values():
                    earlier.wait()
                led = {place: flight for place, (_, flight) in places.led.items()}
                self._begin(keys, led)
                loaded.update(self._fly(keys, led))
        finally:
            for place, (_, flight) in places.led.items():
                if not flight.is_done:
                    self._end(keys[place], flight)
        for place, (earlier, flight) in places.followed.items():
            earlier.wait()
            loaded[place] = self._follow(lookups[place], flight)
        return [loaded[place] for place in range(len(lookups))]

    def _join(self, lookups: Sequence[Lookup], keys: Sequence[Key]) -> _Places:
        places = _Places()
        with self._lock:
            for place, (lookup, key) in enumerate(zip(lookups, keys, strict=True)):
                earlier = self._running.get(key)
                if earlier is None:
                    places.own[place] = self._running[key] = Flight(self._network.open_gate(), lookup)
                    continue
                following = self._next.get(key)
                if following is None:
                    following = self._next[key] = Flight(self._network.open_gate(), lookup)
                    places.led[place] = earlier, following
                else:
                    following.followers += 1
                    if lookup.required:
                        required = join_required([following.lookup, lookup])
                        following.lookup = replace(lookup, required=required)
                    places.followed[place] = earlier, following
        return places

    def _begin(self, keys: Sequence[Key], led: Mapping[int, Flight]) -> None:
        """From now on nobody joins these flights."""
        with self._lock:
            for place, flight in led.items():
                del self._next[keys[place]]
                self._running[keys[place]] = flight

    def _end(self, key: Key, flight: Flight, loaded: Loaded | None = None, error: Exception | None = None) -> None:
        with self._lock:
            for flights in (self._running, self._next):
                if flights.get(key) is flight:
                    del flights[key]
        flight.end(loaded, error)

    def _fly(self, keys: Sequence[Key], flights: Mapping[int, Flight]) -> dict[int, Loaded]:
        if not flights:
            return {}
        failure: Exception | None = None
        answers: Sequence[Loaded | None] = [None] * len(flights)
        try:
            answers = self._load([flight.lookup for flight in flights.values()], NO_TOKENS)
        except Exception as error:
            failure = error
            raise
        finally:
            for (place, flight), answer in zip(flights.items(), answers, strict=True):
                # The leader may change its own value while others still copy theirs.
                shared = _copy(answer) if answer is not None and flight.followers else answer
                self._end(keys[place], flight, shared, failure)
        return dict(zip(flights, answers, strict=True))

    def _follow(self, lookup: Lookup, flight: Flight) -> Loaded:
        flight.wait()
        if flight.error is not None:
            raise _own_error(flight.error) from None
        if flight.loaded is None:
            (alone,) = self._load([lookup], NO_TOKENS)
            return alone
        if self._tell_shared is not None:
            self._tell_shared(lookup)
        return _copy(flight.loaded)


def _own_error(error: Exception) -> Exception:
    """A copy without the frames of another reader's request, and with nothing that two readers would both change. The
    same error if its class does not let itself be copied."""
    try:
        mine = copy.copy(error)
    except Exception:  # noqa: BLE001 - a class of the application, with arguments of its own
        return error
    mine.args = error.args  # copy.copy has a class make them of its text once more
    return mine if type(mine) is type(error) else error


def _copy(loaded: Loaded) -> Loaded:
    """With a value of its own, which its reader may change."""
    return replace(loaded, value=copy.deepcopy(loaded.value))
