"""Alignment of shards in virtual time: each upstream defect, and shards that idle, die or come back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from invalidator.stream.skew import Alignment, AlignmentVerdict

SECOND: Final = 1_000_000
START: Final = 1_000_000  # the wall clock at virtual second 0, in seconds
STEP: Final = 0.1
SILENCE: Final = 10.0
HOLD: Final = 60.0


@dataclass
class Delivery:
    """``at`` and ``time``: virtual seconds of the delivery, and of the message."""

    at: float
    shard: str
    time: float
    is_aligned: bool


@dataclass
class World:
    """Shards whose messages come at set moments; a merger that delivers whatever may go, as soon as it may.

    ``capacity``: messages that a reader delivers for each shard in one step of 0.1 s.
    """

    now: float = 0.0
    capacity: int = 100
    arrivals: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    offered: dict[str, float] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    holds: set[tuple[str, float]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.alignment = Alignment(
            lambda: self.now, lambda: round((START + self.now) * SECOND), silence_seconds=SILENCE, hold_seconds=HOLD
        )

    def add(self, name: str, messages: Sequence[tuple[float, float]], since: float = 0.0) -> None:
        """``messages``: (arrives, time), in virtual seconds; the shard starts at ``since``."""
        self.arrivals[name] = deque(sorted(messages, key=lambda message: message[0]))
        self.alignment.join(name, round((START + since) * SECOND))

    def remove(self, name: str) -> None:
        self.arrivals.pop(name)
        self.offered.pop(name, None)
        self.alignment.leave(name)

    def run(self, until: float) -> None:
        while self.now < until:
            self._deliver()
            self.now = round(self.now + STEP, 6)

    def _deliver(self) -> None:
        left = dict.fromkeys(self.arrivals, self.capacity)
        while True:
            for name in self.arrivals:
                self._offer(name)
            judged = {name: self._judge(name) for name in self.offered if left[name] > 0}
            going = [name for name, verdict in judged.items() if verdict is not AlignmentVerdict.HOLD]
            if not going:
                assert len(judged) < len(self.arrivals), "every shard waits: nothing can ever move"
                return
            self._pass_on(going[0], judged[going[0]])
            left[going[0]] -= 1

    def _offer(self, name: str) -> None:
        queue = self.arrivals[name]
        if name not in self.offered and queue and queue[0][0] <= self.now:
            _, self.offered[name] = queue.popleft()
            self.alignment.offer(name, round((START + self.offered[name]) * SECOND))

    def _judge(self, name: str) -> AlignmentVerdict:
        verdict = self.alignment.judge(name)
        if verdict is AlignmentVerdict.HOLD:
            self.holds.add((name, self.offered[name]))
        return verdict

    def _pass_on(self, name: str, verdict: AlignmentVerdict) -> None:
        time = self.offered.pop(name)
        self.alignment.delivered(name)
        self.deliveries.append(Delivery(self.now, name, time, verdict is AlignmentVerdict.ALIGNED))

    def of(self, name: str) -> list[Delivery]:
        return [delivery for delivery in self.deliveries if delivery.shard == name]

    def times(self, name: str) -> list[float]:
        return [delivery.time for delivery in self.of(name)]

    def delay(self, name: str, time: float, arrived: float) -> float:
        [found] = [delivery for delivery in self.of(name) if delivery.time == time]
        return found.at - arrived

    @property
    def unaligned(self) -> list[Delivery]:
        return [delivery for delivery in self.deliveries if not delivery.is_aligned]


def live(start: float, end: float, period: float = 1.0, lag: float = 0.0) -> list[tuple[float, float]]:
    """Messages that arrive ``lag`` seconds after their time."""
    count = round((end - start) / period)
    return [(start + number * period + lag, start + number * period) for number in range(count)]


# -- the defects of the upstream algorithm (vtgate's vstream_manager.go) -------------------------------------------


def test_only_those_beyond_the_limit_wait() -> None:
    """Defect 1: the lowest time was never set, so every stream but the slowest paused."""
    world = World()
    world.add("slow", live(0, 60, lag=8))
    world.add("near", live(1.5, 60, lag=6.5))  # never more than 1.5 s ahead of what "slow" brings
    world.add("ahead", live(0, 60))
    world.run(100)
    assert not [hold for hold in world.holds if hold[0] in ("slow", "near")]
    assert [hold for hold in world.holds if hold[0] == "ahead"]
    assert not world.unaligned
    for name, count in (("slow", 60), ("near", 58), ("ahead", 60)):
        assert len(world.of(name)) == count


def test_whoever_is_the_slowest_now_counts() -> None:
    """Defect 2: the laggard was elected only once, so a third stream that turned out slower was paused forever."""
    world = World()
    world.add("a", live(0, 100))
    world.add("b", live(0, 100, lag=5))  # the slowest at first
    # Slow from second 30 on: then it is far behind b.
    world.add("c", [(time if time < 30 else time + 25, time) for time in range(100)])
    world.run(140)
    assert not [hold for hold in world.holds if hold[0] == "c" and hold[1] >= 30]
    assert [len(world.of(name)) for name in "abc"] == [100, 100, 100]
    # c said nothing for 25 s, which is longer than anybody waits
    assert {delivery.shard for delivery in world.unaligned} <= {"a", "b"}
    assert not [delivery for delivery in world.unaligned if delivery.at > 55]


def test_the_same_without_a_pause() -> None:
    """Defect 2 again, with a third stream that never falls silent: nothing is unaligned."""
    world = World()
    world.add("a", live(0, 100))
    world.add("b", live(0, 100, lag=5))
    world.add("c", [(time if time < 30 else 30 + (time - 30) * 1.5, time) for time in range(100)])
    world.run(140)
    assert [len(world.of(name)) for name in "abc"] == [100, 100, 100]
    assert not world.unaligned
    assert world.delay("a", 99.0, 99.0) > 20  # it waited for c


def test_a_shard_that_left_holds_nobody() -> None:
    """Defect 3: the finished source shard's time stayed the minimum forever."""
    world = World()
    world.add("-", live(0, 20))
    world.run(20)
    world.add("-80", live(20, 60), since=20)
    world.add("80-", live(20, 60), since=20)
    world.run(21)
    world.remove("-")
    world.run(62)
    assert not world.holds
    assert not world.unaligned
    assert [len(world.of(name)) for name in ("-", "-80", "80-")] == [20, 40, 40]


def test_a_message_does_not_grow_newer_by_waiting() -> None:
    """Defect 4: a waiting stream's time was made again from the current one, so that it kept away from the others."""
    world = World()
    world.add("ahead", [(0, 0), (1, 30)])
    world.add("slow", [(float(time), float(time) / 2) for time in range(1, 70)])
    world.now = 30  # all of it is history
    world.run(100)
    delivered = next(delivery for delivery in world.of("ahead") if delivery.time == 30)
    slow = max(delivery.time for delivery in world.of("slow") if delivery.at <= delivered.at)
    assert 28 <= slow <= 28.5 + STEP
    assert delivered.is_aligned


# -- idle, dead, late, and wrong clocks -------------------------------------------------------------------------


def test_an_idle_shard_speaks_through_its_heartbeats() -> None:
    world = World()
    world.add("busy", live(0, 60, period=0.05))
    world.add("idle", live(0, 60))
    world.add("idle too", live(0.7, 60))
    world.run(61)
    assert not world.unaligned
    assert not world.holds
    assert max(delivery.at - delivery.time for delivery in world.of("busy")) <= 2 * STEP


def test_a_dead_shard_holds_the_others_for_a_bounded_time_and_they_align_when_it_is_back() -> None:
    world = World()
    world.add("a", live(0, 120))
    world.add("b", live(0, 120))
    # dead from 20 to 60, then all at once
    world.add("dead", [(time if time < 20 else max(60, time), time) for time in range(120)])
    world.run(125)
    first = next(delivery for delivery in world.deliveries if not delivery.is_aligned)
    assert 19 + SILENCE < first.at <= 19 + SILENCE + 1
    assert {delivery.shard for delivery in world.unaligned} == {"a", "b"}
    assert {delivery.at for delivery in world.unaligned if delivery.at >= 60} == set()
    late = [delivery.at - delivery.time for delivery in world.of("a") if 30 < delivery.at < 60]
    assert late
    assert max(late) <= 2 * STEP, "once given up, nobody waits for it again"
    assert [len(world.of(name)) for name in ("a", "b", "dead")] == [120, 120, 120]


def test_a_shard_that_never_speaks_is_waited_for_once() -> None:
    world = World()
    world.add("a", live(0, 40))
    world.add("b", live(0, 40))
    world.add("mute", [])
    world.run(41)
    assert [len(world.of(name)) for name in "ab"] == [40, 40]
    assert all(delivery.time > 2 for delivery in world.unaligned)
    assert max(delivery.at - delivery.time for delivery in world.of("a")) <= SILENCE
    assert world.alignment.find_silent() == ["mute"]


def test_a_shard_restarted_with_old_times_catches_up_while_the_others_wait() -> None:
    world = World()
    world.add("a", live(1000, 1100))
    world.add("b", live(1000, 1100))
    world.now = 1000
    world.alignment.join("a", round((START + 1000) * SECOND))
    world.alignment.join("b", round((START + 1000) * SECOND))
    # opened 900 s back; reads 200 s of history in each second
    read = [(1000 + (time - 100) / 200, float(time)) for time in range(100, 1100)]
    world.add("old", [(max(arrives, time), time) for arrives, time in read], since=100)
    world.run(1110)
    assert not world.unaligned
    assert not [hold for hold in world.holds if hold[0] == "old"]
    assert 4 < world.delay("a", 1000.0, 1000.0) < 5
    assert [len(world.of(name)) for name in ("a", "b", "old")] == [100, 100, 1000]


def test_one_old_time_holds_nobody_for_long() -> None:
    """A statement that ran for a minute commits with the time of its start (F3)."""
    world = World()
    world.add("a", live(100, 200))
    world.add("b", sorted([*live(100, 200), (150.5, 90.0)]))
    world.now = 100
    world.run(201)
    assert not world.unaligned
    assert max(delivery.at - delivery.time for delivery in world.of("a")) <= 2 * STEP


@pytest.mark.parametrize("offset", [-3600.0, -30.0, -1.0, 1.0, 30.0, 3600.0])
def test_a_wrong_clock_delays_nobody_beyond_the_bounds_and_stalls_nobody(offset: float) -> None:
    """A clock that is ahead costs nothing. For one that is behind the others wait, as they should, but not forever;
    heartbeats, which bring the writer's time, end that."""
    world = World()
    world.now = 5000
    for name, wrong in (("a", 0.0), ("b", 0.0), ("wrong", offset)):
        world.add(name, [(at, at + wrong) for at in range(5000, 5200)], since=5000 + min(wrong, 0))
    world.run(5200 + HOLD + 5)
    assert [len(world.of(name)) for name in ("a", "b", "wrong")] == [200, 200, 200]
    delays = [delivery.at - delivery.time for delivery in world.of("a")]
    if offset > -2:
        assert not world.unaligned
        assert max(delays) <= 2 * STEP
    else:
        assert max(delays) <= HOLD + 1
    assert max(delivery.at - (delivery.time - offset) for delivery in world.of("wrong")) <= 2 * STEP


def test_a_clock_that_is_behind_does_not_matter_where_there_are_heartbeats() -> None:
    world = World()
    world.now = 5000
    world.add("a", [(at, at) for at in range(5000, 5100)], since=5000)
    world.add("b", [(at, at) for at in range(5000, 5100)], since=5000)
    rows = [(at + 0.5, at - 3600 + 0.5) for at in range(5000, 5100)]
    heartbeats = [(float(at), float(at)) for at in range(5000, 5100)]
    world.add("behind", rows + heartbeats, since=5000)
    world.run(5101)
    assert not world.unaligned
    assert max(delivery.at - delivery.time for delivery in world.of("a")) <= 2 * STEP


def test_who_was_held_for_too_long_goes_on_unaligned_until_the_times_meet_again() -> None:
    world = World()
    world.now = 10_000
    world.add("a", [(at, at) for at in range(10_000, 10_200)], since=10_000)
    world.add("b", [(at, at) for at in range(10_000, 10_200)], since=10_000)
    # An hour behind, never silent, and no faster than time itself until second 100, when it catches up; and 5 s
    # behind from second 150 on, when the others must wait for it again.
    slow = [(float(at), at - 3600) for at in range(10_000, 10_100)]
    slow += [(10_100 + (at - 6500) / 1000, at) for at in range(6500, 10_200)]
    late = [(max(arrives, at + 5 * (at >= 10_150)), at) for arrives, at in slow]
    world.add("slow", late, since=6400)
    world.run(10_210)
    first = min(delivery.at for delivery in world.unaligned)
    assert 10_000 + HOLD < first <= 10_000 + HOLD + 2
    assert not [delivery for delivery in world.unaligned if delivery.at > 10_110]
    assert [len(world.of(name)) for name in "ab"] == [200, 200]
    assert world.delay("a", 10_190, 10_190) > 2


def test_a_message_of_unknown_time_never_waits_and_moves_no_watermark() -> None:
    alignment = Alignment(lambda: 0.0, lambda: 100 * SECOND)
    alignment.join("a", 5 * SECOND)
    alignment.join("b", 5 * SECOND)
    alignment.offer("a", 0)
    assert alignment.judge("a") is AlignmentVerdict.ALIGNED
    alignment.delivered("a")
    assert alignment.watermark_of("a") == 5 * SECOND


def test_a_watermark_moves_with_what_is_delivered_and_never_falls() -> None:
    alignment = Alignment(lambda: 0.0, lambda: 100 * SECOND)
    alignment.join("a", 5 * SECOND)
    alignment.join("b", 7 * SECOND)
    alignment.offer("a", 9 * SECOND)
    assert alignment.watermark_of("a") == 5 * SECOND, "offered is not delivered"
    alignment.delivered("a")
    assert alignment.watermark_of("a") == 9 * SECOND
    assert alignment.watermark_of("b") == 7 * SECOND
    alignment.offer("b", 3 * SECOND)
    alignment.delivered("b")
    assert alignment.watermark_of("b") == 7 * SECOND


# -- chance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_shards_that_come_and_go_stall_nobody(seed: int) -> None:
    """Reshards at any moment, with new shards that begin far back, as those that are found by time do."""
    chance = random.Random(seed)
    world = World()
    world.now = 1000
    world.add("stays", live(1000, 1300), since=1000)
    world.add("0", live(1000, 1300, lag=chance.choice((0, 3))), since=1000)
    for number in range(1, 5):
        at = 1000 + 60.0 * number
        world.run(at)
        world.remove(str(number - 1))
        back = chance.choice((0.0, 5.0, 300.0))
        history = [(at + step / 100, at - back + step) for step in range(int(back))]
        world.add(str(number), [*history, *live(at + 3, at + 60)], since=at - back)
        assert len(world.of("stays")) >= at - 1000 - SILENCE - 5
    world.run(1400)
    assert world.times("stays") == [1000.0 + number for number in range(300)]
    assert not world.unaligned


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_all_is_delivered_in_order_and_what_is_called_aligned_is(seed: int) -> None:
    """`World` itself fails when every shard waits. Shards live, lag, stop, come back, and leave."""
    chance = random.Random(seed)
    world = World(capacity=chance.choice((1, 3, 100)))
    world.now = 1000
    sent: dict[str, list[float]] = {}
    for name in "abcd"[: chance.randint(3, 4)]:
        messages, at = [], 1000.0
        lag = chance.choice((0.0, 0.5, 4.0, 30.0))
        for _ in range(chance.randint(30, 120)):
            at += chance.choice((0.05, 0.5, 1.0, chance.choice((1.0, 15.0))))
            messages.append((at + lag, at - chance.choice((0.0, 0.0, 0.0, 1.0, 40.0))))
        sent[name] = [time for _, time in messages]
        world.add(name, messages, since=1000 - lag)
    world.run(1900)
    for name, times in sent.items():
        assert world.times(name) == times
    # What was delivered as aligned was not more than the limit after anything that another shard still had to bring
    # then, except for old times that nobody could know of.
    latest = {name: [message.time for message in world.of(name)] for name in sent}
    assert all(latest.values())
    for place, delivery in enumerate(world.deliveries):
        if delivery.is_aligned:
            for name in sent:
                before = [other.time for other in world.deliveries[:place] if other.shard == name]
                after = [other for other in world.deliveries[place:] if other.shard == name]
                known = max([*before, 0.0])
                if after and name != delivery.shard:
                    assert delivery.time <= max(known, after[0].time, 1000.0) + 2 + 1e-6
