"""Which server is read: the replicas in turn, a late one seldom, those of the own zone first, the primary last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from appclient.database.choice import LATE_SECONDS, REST_SECONDS, RETRY_SECONDS, ServerChoice
from freshness.config.server import ServerAddress
from freshness.position import parse_position

PRIMARY = ServerAddress("primary")
A, B, C = (ServerAddress(name, zone=zone) for name, zone in (("a", "east"), ("b", "west"), ("c", "east")))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(
    clock: Clock,
    replicas: Sequence[ServerAddress] = (A, B, C),
    zone: str = "",
    below: Callable[[int], int] | None = None,
) -> ServerChoice:
    if below is None:
        return ServerChoice(replicas, PRIMARY, zone, clock)
    return ServerChoice(replicas, PRIMARY, zone, clock, below)


def show(choice: ServerChoice, server: ServerAddress, number: int) -> None:
    """A read of the server has shown the transactions up to ``number``."""
    choice.note_position(server, parse_position("mysql", f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{number}"))


def test_reads_are_spread_over_the_replicas(clock: Clock) -> None:
    choice = make(clock)
    firsts = Counter(choice.find_order()[0] for _ in range(3000))
    assert set(firsts) == {A, B, C}
    assert min(firsts.values()) > 800
    assert {choice.find_order()[3] for _ in range(100)} == {PRIMARY}
    assert all(set(choice.find_order()) == {A, B, C, PRIMARY} for _ in range(10))


def test_one_replica_and_none(clock: Clock) -> None:
    assert list(make(clock, [A]).find_order()) == [A, PRIMARY]
    alone = make(clock, [])
    assert list(alone.find_order()) == [PRIMARY]
    alone.note_failure(PRIMARY)
    assert list(alone.find_order()) == [PRIMARY]
    assert list(make(clock, [PRIMARY]).find_order()) == [PRIMARY], "a primary that is named as a replica"


def test_the_own_zone_is_read_first(clock: Clock) -> None:
    choice = make(clock, zone="east")
    orders = [choice.find_order() for _ in range(200)]
    assert {order[0] for order in orders} == {A, C}
    assert {order[2] for order in orders} == {B}
    choice.note_failure(A)
    choice.note_failure(C)
    assert choice.find_order()[0] == B, "better far than down"


def test_a_server_that_failed_comes_last_for_a_while(clock: Clock) -> None:
    choice = make(clock, [A, B], below=lambda _: 0)
    choice.note_failure(A)
    assert list(choice.find_order()) == [B, PRIMARY, A]
    clock.now += RETRY_SECONDS
    assert list(choice.find_order()) == [A, B, PRIMARY]
    choice.note_failure(A)
    choice.note_answer(A)
    assert list(choice.find_order()) == [A, B, PRIMARY]


def make_late(choice: ServerChoice, clock: Clock) -> None:
    """B has shown ten transactions long ago, and A shows five."""
    show(choice, B, 10)
    clock.now += LATE_SECONDS
    show(choice, B, 11)
    clock.now += LATE_SECONDS
    show(choice, B, 12)
    show(choice, A, 5)


def test_a_late_replica_rests_and_is_tried_again(clock: Clock) -> None:
    choice = make(clock, [A, B], below=lambda _: 0)
    make_late(choice, clock)
    assert list(choice.find_order()) == [B, A, PRIMARY], "it is still read before the primary"
    clock.now += REST_SECONDS
    assert list(choice.find_order()) == [A, B, PRIMARY]
    show(choice, A, 6)
    assert list(choice.find_order()) == [B, A, PRIMARY]
    clock.now += REST_SECONDS
    show(choice, A, 12)
    assert list(choice.find_order()) == [A, B, PRIMARY], "it has caught up"


def test_a_moment_is_no_lag(clock: Clock) -> None:
    choice = make(clock, [A, B], below=lambda _: 0)
    show(choice, A, 5)
    clock.now += LATE_SECONDS
    show(choice, B, 10)
    show(choice, A, 9)
    assert list(choice.find_order()) == [A, B, PRIMARY]
    clock.now += LATE_SECONDS / 2
    show(choice, A, 9)
    assert list(choice.find_order()) == [A, B, PRIMARY]


def test_replicas_that_are_late_together_do_not_rest(clock: Clock) -> None:
    choice = make(clock, [A, B], below=lambda _: 0)
    for _ in range(10):
        clock.now += LATE_SECONDS
        show(choice, A, 5)
        show(choice, B, 5)
        assert list(choice.find_order()) == [A, B, PRIMARY]


def test_what_a_failover_took_back_is_not_expected_for_ever(clock: Clock) -> None:
    choice = make(clock, [A, B], below=lambda _: 0)
    make_late(choice, clock)
    for _ in range(3):
        clock.now += REST_SECONDS
        show(choice, B, 8)
        show(choice, A, 8)
    assert not choice._late_until
