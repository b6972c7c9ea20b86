"""The heartbeat's rhythm: what counts is when a beat was begun, and a beat that fails stops nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from freshness.config.server import ServerAddress
from freshness.database import pulse as pulse_module
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.pulse import Pulse
from freshness.errors import SourceUnavailable

WAIT_SECONDS = 60.0


class ScriptedWriter(HeartbeatWriter):
    """Beats in a table of one number, in place of a database.

    ``during``: called between the begin of a beat and its end. ``losses_left``: the number of beats that will be
    written and lose their answer; ``failures_left``: the number of beats that will not be written.
    """

    def __init__(self) -> None:
        super().__init__(ServerAddress("127.0.0.1"), "mysql", "me", 0)
        self.rows: list[int] = []
        self.failures_left = self.losses_left = 0
        self.beaten = threading.Semaphore(0)
        self.is_closed = False
        self.during: Callable[[int], None] = lambda _: None

    def _execute(self, sql: str, parameters: Any = None) -> tuple[list[tuple[Any, ...]], int]:
        if sql.startswith("SELECT"):
            return [(number,) for number in self.rows[-1:]], 0
        if self.failures_left:
            self.failures_left -= 1
            raise SourceUnavailable("the primary is down")
        self.rows.append(parameters["sequence"])
        self.during(parameters["sequence"])
        if self.losses_left:
            self.losses_left -= 1
            raise SourceUnavailable("the connection broke")
        self.beaten.release()
        return [], 1

    def find_primary(self) -> str:
        return f"server of {len(self.rows)} rows"

    def close(self) -> None:
        self.is_closed = True


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.failures = 0
        self.writer = ScriptedWriter()
        self.pulse = self.create(0.001)

    def create(self, period_seconds: float) -> Pulse:
        return Pulse(self.writer, period_seconds, self.clock, self.count_failure)

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def count_failure(self) -> None:
        self.failures += 1

    def run_until(self, beats: int) -> None:
        self.pulse.start()
        for _ in range(beats):
            assert self.writer.beaten.acquire(timeout=WAIT_SECONDS)
        self.pulse.stop()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_beat_is_dated_from_its_begin(scene: Scene) -> None:
    def pass_time(_: int) -> None:
        scene.now += 50.0  # the write takes long

    scene.writer.during = pass_time
    scene.run_until(2)
    first, second = scene.pulse.find_begun(1), scene.pulse.find_begun(2)
    assert first == 101.0
    assert second == 152.0
    assert [scene.pulse.find_primary(number) for number in (1, 2, 99)] == ["server of 0 rows", "server of 1 rows", ""]
    assert scene.writer.is_closed


def test_a_beat_that_the_stream_brings_before_its_commit_returned(scene: Scene) -> None:
    seen: list[float | None] = []
    scene.writer.during = lambda number: seen.append(scene.pulse.find_begun(number))
    scene.run_until(3)
    assert seen[:3] == [101.0, 102.0, 103.0]


def test_a_number_that_was_never_written_is_unknown(scene: Scene) -> None:
    assert scene.pulse.find_begun(1) is None
    scene.run_until(1)
    assert scene.pulse.find_begun(scene.writer.rows[-1] + 1) is None
    assert scene.pulse.find_begun(0) is None


def test_an_older_number_is_never_taken_for_the_one_in_flight(scene: Scene) -> None:
    """A row of a previous beat that comes again must not look young."""
    seen: list[float | None] = []
    scene.writer.during = lambda number: seen.append(scene.pulse.find_begun(number - 1))
    scene.run_until(3)
    assert seen[1:3] == [101.0, 102.0]


def test_a_failed_beat_is_counted_and_the_next_one_tried(scene: Scene) -> None:
    scene.writer.failures_left = 3
    scene.run_until(1)
    assert scene.failures == 3
    assert scene.writer.rows[0] == 4
    assert scene.pulse.find_begun(4) == 104.0


def test_a_number_is_never_given_twice(scene: Scene) -> None:
    """Nobody knows whether a beat was written whose answer was lost, and the stream may bring it at any time."""
    writer = scene.writer
    assert writer.beat() == 1
    writer.losses_left = 1
    with pytest.raises(SourceUnavailable):
        writer.beat()
    writer.failures_left = 1
    with pytest.raises(SourceUnavailable):
        writer.beat()
    assert writer.beat() == 4
    assert writer.rows == [1, 2, 4]
    again = ScriptedWriter()
    again.rows = writer.rows
    assert again.beat() == 5, "a row of this instance that is there is counted on"


def test_a_beat_whose_answer_was_lost_is_not_taken_for_the_next_one(scene: Scene) -> None:
    """The stream brings it while the next one is in flight. It began before that one and stays as old as it is."""
    seen: list[float | None] = []
    scene.writer.losses_left = 1
    scene.writer.during = lambda number: seen.append(scene.pulse.find_begun(1))
    scene.run_until(2)
    assert seen[:3] == [101.0] * 3
    assert scene.pulse.find_begun(2) == 102.0


def test_a_beat_that_is_hurried_does_not_wait_for_its_time(scene: Scene) -> None:
    pulse = scene.create(10 * WAIT_SECONDS)
    pulse.start()
    assert scene.writer.beaten.acquire(timeout=WAIT_SECONDS)
    since = scene.clock()
    pulse.hurry(since)
    assert scene.writer.beaten.acquire(timeout=WAIT_SECONDS)
    pulse.stop()
    begun = pulse.find_begun(2)
    assert begun is not None
    assert begun > since


def test_a_beat_in_flight_is_enough_for_those_alone_who_came_before_its_begin(scene: Scene) -> None:
    pulse = scene.create(10 * WAIT_SECONDS)
    is_hurried = []

    def hurry(number: int) -> None:
        begun = pulse.find_begun(number)
        assert begun is not None
        for since in (begun - 1, begun, begun + 1)[: 3 if number == 1 else 2]:
            pulse.hurry(since)
            is_hurried.append(pulse._waking.is_set())

    scene.writer.during = hurry
    pulse.start()
    for _ in range(2):
        assert scene.writer.beaten.acquire(timeout=WAIT_SECONDS)
    pulse.stop()
    assert is_hurried == [False, False, True, False, False]
    assert scene.writer.rows == [1, 2]


def test_what_is_remembered_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "REMEMBERED_MAX", 2)
    scene.run_until(5)
    last = scene.writer.rows[-1]
    assert scene.pulse.find_begun(last) is not None
    assert scene.pulse.find_begun(last - 1) is not None
    assert scene.pulse.find_begun(last - 2) is None
