"""Which server is read from, when it is left, and what is never delivered: on servers that a test moves by hand."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshness.config.server import ServerAddress
from freshness.errors import (
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.position import MariadbPosition, Position, empty_position, parse_position
from freshness.stream.source import Transaction
from invalidator.replica.candidate import Choice, ReplicaBounds
from invalidator.replica.server import ServerState, find_foreign
from invalidator.replica.source import DRAINS_MAX, ReplicaSource

UUIDS = {number: f"00000000-0000-0000-0000-00000000000{number}" for number in range(1, 5)}
BOUNDS = ReplicaBounds()
SECOND_US = 1_000_000


class Inline(Executor):
    """Does at once what it is given."""

    def __init__(self, threads_max: int) -> None:
        assert threads_max > 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future


def gtid(flavor: str, server: int, number: int) -> Position:
    return parse_position(flavor, f"{UUIDS[server]}:{number}" if flavor == "mysql" else f"0-{server}-{number}")


@dataclass
class FakeServer:
    """A server with its log; ``first`` is the place of the oldest transaction that it still has."""

    flavor: str
    number: int
    is_replica: bool
    log: list[Position] = field(default_factory=list)
    first: int = 0
    is_up: bool = True
    is_stopped: bool = False
    unfit: str = ""
    heartbeat_us: int = 1_000 * SECOND_US
    identity: str = ""
    group: str = ""
    is_elected: bool = False

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(f"s{self.number}")

    def position(self, transactions: Sequence[Position]) -> Position:
        position = empty_position(self.flavor)
        for each in transactions:
            position = position.union(each)
        return position

    def state(self) -> ServerState:
        if not self.is_up:
            raise SourceUnavailable(f"s{self.number} is down")
        numbers = {
            (domain, server): number
            for each in self.log
            if isinstance(each, MariadbPosition)
            for domain, server, number in each.gtids()
        }
        own = UUIDS[self.number] if self.flavor == "mysql" else str(self.number)
        return ServerState(
            identity=self.identity or own,
            executed=self.position(self.log),
            purged=self.position(self.log[: self.first] if self.flavor == "mysql" else ()),
            follows=self.is_replica,
            stopped="its SQL thread is stopped" if self.is_stopped else "",
            unfit=self.unfit,
            heartbeats={"one": self.heartbeat_us},
            last_numbers=numbers,
            group=self.group,
            is_elected=self.is_elected,
        )


class FakeSource:
    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.opened_from: list[Position] = []
        self.is_open = False
        self.error: FreshnessError | None = None
        self.during_poll: Callable[[], None] = lambda: None
        self.error_at_open: FreshnessError | None = None
        self.gives_last_pieces = True
        self._start = empty_position(server.flavor)
        self._next = 0

    def open(self, start: Position) -> None:
        if self.error_at_open is not None:
            raise self.error_at_open
        server = self.server
        if not server.is_up:
            raise SourceUnavailable(f"s{server.number} is down")
        if not start.contains(server.position(server.log[: server.first])):
            raise HistoryPurged(f"s{server.number} has purged it")
        assert server.position(server.log).contains(start), "opened where the start is not known"
        self.opened_from.append(start)
        self._start, self._next, self.is_open = start, server.first, True

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        assert self.is_open
        self.during_poll()
        if self.error is not None:
            raise self.error
        if not self.server.is_up:
            raise SourceUnavailable(f"s{self.server.number} is gone")
        found: list[Transaction] = []
        while self._next < len(self.server.log) and len(found) < transactions_max:
            if not self._start.contains(self.server.log[self._next]):
                found.append(Transaction(self.server.log[self._next], 0, is_last=self.gives_last_pieces))
            self._next += 1
        return found

    def close(self) -> None:
        self.is_open = False


class Scene:
    """A primary (1), replicas (2, 3), a source over them, and a consumer that acknowledges what it receives."""

    def __init__(self, flavor: str = "mysql", choice: Choice = "freshest", replicas: int = 2, **options: Any) -> None:
        self.flavor = flavor
        self.now = 1_000.0
        self.servers = [FakeServer(flavor, number, number > 1) for number in range(1, replicas + 2)]
        self.primary, *self.replicas = self.servers
        self.sources: list[FakeSource] = []
        self.looks = 0
        self.acknowledged = empty_position(flavor)
        self.received: list[Position] = []
        self.source = ReplicaSource(
            [each.address for each in self.servers],
            flavor,
            choice,
            self.make_source,
            bounds=BOUNDS,
            look=options.pop("look", self.look),
            clock=lambda: self.now,
            make_executor=options.pop("make_executor", Inline),
        )
        self.write(3)

    def by_address(self, address: ServerAddress | None) -> FakeServer:
        [found] = [each for each in self.servers if each.address == address]
        return found

    def make_source(self, address: ServerAddress) -> FakeSource:
        self.sources.append(FakeSource(self.by_address(address)))
        return self.sources[-1]

    def look(self, address: ServerAddress) -> ServerState:
        self.looks += 1
        return self.by_address(address).state()

    def write(self, count: int = 1, *, reaches: Sequence[FakeServer] | None = None) -> None:
        """Transactions on the primary, and on all replicas that run or on those that are named."""
        for _ in range(count):
            number = len(self.primary.log) + 1
            self.primary.log.append(gtid(self.flavor, 1, number))
        for replica in self.replicas if reaches is None else reaches:
            self.replicate(replica)

    def replicate(self, replica: FakeServer) -> None:
        """Like MariaDB in strict mode, stops if the replica has a transaction of its own."""
        if not replica.is_up or replica.is_stopped:
            return
        own = [each for each in replica.log if each not in self.primary.log]
        missing = self.primary.log[len(replica.log) - len(own) :]
        if own and missing and self.flavor == "mariadb":
            replica.is_stopped = True
            return
        replica.log += missing

    def err(self, replica: FakeServer) -> Position:
        """A transaction that only the replica has."""
        number = len(replica.log) + 1 if self.flavor == "mariadb" else 1
        if self.flavor == "mysql":
            number += sum(UUIDS[replica.number] in each.by_source() for each in replica.log)
        replica.log.append(gtid(self.flavor, replica.number, number))
        return replica.log[-1]

    def open(self) -> FakeServer:
        self.source.open(self.acknowledged)
        return self.by_address(self.source.serving)

    def poll(self, count: int = 100) -> int:
        taken = self.source.poll(0, count)
        for transaction in taken:
            if transaction.is_last:
                self.received.append(transaction.position)
                self.acknowledged = self.acknowledged.union(transaction.position)
        return len(taken)

    def pass_seconds(self, seconds: float) -> None:
        """Time goes by while the stream is polled, a second at a time; heartbeats keep up with it everywhere.

        Twice in each second: one look is begun and one is taken in.
        """
        for _ in range(int(seconds)):
            self.now += 1
            self.poll()
            self.poll()

    def left(self, seconds: float = 200) -> SourceUnavailable:
        """Poll until the server is left; raises what else comes."""
        with pytest.raises(SourceUnavailable) as caught:
            self.pass_seconds(seconds)
        return caught.value


FLAVORS = ("mysql", "mariadb")


def until_error(do: Callable[[], object], *, times: int) -> SourceUnavailable:
    for _ in range(times):
        try:
            do()
        except SourceUnavailable as error:
            return error
    raise AssertionError(f"no error in {times} times")


# -- the choice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "expected"), [("freshest", 2), ("slowest", 3), ("primary", 1)])
def test_the_choice_goes_by_lag(choice: Choice, expected: int) -> None:
    scene = Scene(choice=choice)
    scene.replicas[1].heartbeat_us -= 5 * SECOND_US
    assert scene.open().number == expected
    assert scene.source.serving == scene.servers[expected - 1].address


@pytest.mark.parametrize(("choice", "expected"), [("freshest", 3), ("slowest", 2)])
def test_between_two_heartbeats_it_goes_by_what_is_executed(choice: Choice, expected: int) -> None:
    scene = Scene(choice=choice)
    scene.write(1, reaches=[scene.replicas[1]])
    assert scene.open().number == expected


def test_the_slowest_is_chosen_within_the_bound_only() -> None:
    scene = Scene(choice="slowest")
    scene.replicas[0].heartbeat_us -= int(BOUNDS.lag_max / 2 * SECOND_US) + SECOND_US
    scene.replicas[1].heartbeat_us -= 2 * SECOND_US
    assert scene.open().number == 3


def test_the_choice_is_logged_with_the_reason_for_each(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.replicas[1].is_stopped = True
    with caplog.at_level(logging.INFO):
        scene.open()
    [line] = [record.getMessage() for record in caplog.records]
    assert "replica s2:3306 (freshest): healthy" in line
    assert "replica s3:3306: its replication is broken: its SQL thread is stopped" in line
    assert "primary s1:3306: healthy" in line
    assert scene.source.reason == "healthy, lag 0.0 s"


def test_the_primary_serves_where_no_replica_can_and_is_left_when_one_can_for_a_while() -> None:
    scene = Scene(replicas=1)
    scene.replicas[0].is_stopped = True
    assert scene.open().number == 1
    scene.pass_seconds(BOUNDS.back)
    scene.replicas[0].is_stopped = False
    scene.pass_seconds(BOUNDS.back - 2)
    assert "replica s2:3306 is better" in str(scene.left(4))
    assert scene.open().number == 2


def test_a_good_server_is_kept_whoever_becomes_better() -> None:
    scene = Scene()
    scene.replicas[1].heartbeat_us -= 3 * SECOND_US
    assert scene.open().number == 2
    scene.replicas[0].heartbeat_us, scene.replicas[1].heartbeat_us = (
        scene.replicas[1].heartbeat_us,
        scene.replicas[0].heartbeat_us,
    )
    scene.pass_seconds(100)
    assert scene.open().number == 2, "opened again, for a reason of the caller's"


def test_a_replica_that_misses_changes_is_never_read_from() -> None:
    scene = Scene()
    scene.replicas[0].unfit = "it filters what it replicates: Replicate_Ignore_Table"
    scene.replicas[1].is_replica = False
    assert scene.open().number == 1
    scene.primary.is_up = False
    with pytest.raises(SourceUnavailable):
        scene.poll()
    with pytest.raises(SourceUnavailable) as caught:
        scene.open()
    assert "Replicate_Ignore_Table" in str(caught.value)
    assert "name it as primary" in str(caught.value)


def test_after_a_failover_the_new_primary_is_the_one_that_is_configured() -> None:
    scene = Scene()
    scene.open()
    scene.poll()
    scene.primary.is_up = False
    promoted = scene.replicas[0]
    promoted.is_replica = False
    promoted.log.append(gtid("mysql", 2, 1))
    scene.replicas[1].log = list(promoted.log)
    source = ReplicaSource(
        [promoted.address, scene.primary.address, scene.replicas[1].address],
        "mysql",
        "freshest",
        scene.make_source,
        look=scene.look,
        clock=lambda: scene.now,
        make_executor=Inline,
    )
    source.open(scene.acknowledged)
    assert source.serving == scene.replicas[1].address
    assert [each.position for each in source.poll(0, 10)] == [gtid("mysql", 2, 1)]


def test_a_failover_behind_the_primarys_address_is_followed() -> None:
    """A transaction of an unknown server: the primary is asked about it, and answers under another name."""
    scene = Scene()
    scene.open()
    scene.poll()
    promoted = gtid("mysql", 4, 1)

    def promote() -> None:
        scene.primary.identity = UUIDS[4]
        scene.primary.log.append(promoted)
        scene.replicas[0].log.append(promoted)

    # After the round of looks that is due has looked at the primary
    scene.sources[-1].during_poll = promote
    scene.now += 2
    assert scene.poll() == 1
    assert scene.received[-1] == promoted


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_primary_whose_address_leads_elsewhere_is_left(flavor: str) -> None:
    """Its connection may stay, to a server that nobody writes to any more."""
    scene = Scene(flavor, "primary", replicas=0)
    scene.open()
    scene.pass_seconds(10)
    scene.primary.identity = UUIDS[4] if flavor == "mysql" else "4"
    assert "its address leads to another server now" in scene.left().message
    scene.open()
    scene.pass_seconds(10)
    assert len(scene.sources[0].opened_from) == 2


def test_a_replica_whose_address_leads_elsewhere_is_kept() -> None:
    """One name of several replicas leads to another one with each look."""
    scene = Scene("mysql", "freshest", replicas=1)
    assert scene.open() is scene.replicas[0]
    scene.replicas[0].identity = UUIDS[4]
    scene.pass_seconds(10)


# -- who cannot serve -----------------------------------------------------------------------------------


def test_a_replica_that_lacks_the_start_is_refused() -> None:
    scene = Scene(replicas=1)
    scene.write(1, reaches=[])
    scene.acknowledged = scene.primary.state().executed
    assert scene.open().number == 1
    scene.primary.is_up = False
    with pytest.raises(SourceUnavailable, match="gone"):
        scene.poll()
    with pytest.raises(SourceUnavailable, match="lacks a part of the start") as caught:
        scene.open()
    assert not isinstance(caught.value, HistoryLost)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_purged_logs_go_to_another_server_and_then_are_lost(flavor: str) -> None:
    scene = Scene(flavor)
    scene.replicas[0].first = scene.primary.first = 2
    assert scene.open().number == 3
    scene.source.close()
    scene.replicas[1].first = 1
    with pytest.raises(HistoryPurged) as caught:
        scene.open()
    assert all(each in str(caught.value) for each in ("s1", "s2", "s3", "binary logs longer"))


@pytest.mark.parametrize("flavor", FLAVORS)
def test_what_is_purged_where_all_that_could_serve_are_up_counts_as_lost(flavor: str) -> None:
    scene = Scene(flavor)
    scene.primary.first = 2
    scene.replicas[0].is_up = False
    scene.replicas[1].unfit = "it does not log what it replicates"
    with pytest.raises(HistoryPurged):
        scene.open()
    scene.replicas[0].is_up = True
    scene.replicas[0].is_stopped = True
    with pytest.raises(SourceUnavailable) as caught:
        scene.open()
    assert "replica s2:3306: its replication is broken" in str(caught.value)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_primary_that_does_not_answer_may_have_what_the_replicas_have_purged(flavor: str) -> None:
    scene = Scene(flavor)
    scene.open()
    for server in scene.servers:
        server.first = 2
    scene.primary.is_up = False
    with pytest.raises(SourceUnavailable, match="no server can serve the stream now"):
        scene.open()
    scene.primary.is_up = True
    with pytest.raises(HistoryPurged):
        scene.open()


def test_a_primary_that_answers_and_does_not_open_may_have_what_the_replicas_have_purged() -> None:
    scene = Scene(replicas=1)
    make_source = scene.make_source

    def make_failing(address: ServerAddress) -> FakeSource:
        source = make_source(address)
        source.error_at_open = SourceUnavailable("too many connections")
        return source

    scene.source._make_source = make_failing
    scene.replicas[0].first = 2
    with pytest.raises(SourceUnavailable, match="too many connections"):
        scene.open()


def test_only_the_primary_can_tell_that_history_is_lost() -> None:
    scene = Scene()
    scene.acknowledged = scene.primary.state().executed
    scene.primary.log.pop()
    with pytest.raises(HistoryLost, match="has never executed") as caught:
        scene.open()
    assert not isinstance(caught.value, HistoryPurged)
    # The same on a replica: it may only lag
    scene.primary.log = list(scene.replicas[1].log)
    scene.replicas[0].log.pop()
    assert scene.open().number == 3


def test_a_primary_that_was_never_seen_could_not_tell_errant_transactions() -> None:
    scene = Scene()
    scene.primary.is_up = False
    with pytest.raises(SourceUnavailable, match="never seen"):
        scene.open()
    scene.primary.is_up = True
    scene.open()
    scene.primary.is_up = False
    assert scene.open().number == 2


def test_a_wrong_password_everywhere_is_told_as_such() -> None:
    def refuse(address: ServerAddress) -> ServerState:
        if len(looked) < 3:
            looked.append(address)
            return scene.look(address)
        raise SourceUnsuitable("Access denied", hint="check the password")

    looked: list[ServerAddress] = []
    scene = Scene(look=refuse)
    scene.open()
    with pytest.raises(SourceUnsuitable, match="Access denied") as caught:
        scene.open()
    assert caught.value.hint == "check the password"


@pytest.mark.parametrize(
    "error", [HistoryLost("slave has diverged"), StreamStopped("tagged"), SourceUnavailable("x")]
)
def test_a_replica_that_does_not_open_is_passed_over(error: FreshnessError) -> None:
    scene = Scene()
    make_source = scene.make_source

    def make_failing(address: ServerAddress) -> FakeSource:
        source = make_source(address)
        source.error_at_open = error if address == scene.replicas[0].address else None
        return source

    scene.source._make_source = make_failing
    assert scene.open().number == 3
    assert scene.poll() == 3


def test_a_stream_that_the_primary_cannot_serve_stops() -> None:
    scene = Scene(replicas=0)
    scene.open()
    scene.sources[-1].error = StreamStopped("event 40 cannot be handled", hint="turn it off")
    for _ in range(2):
        with pytest.raises(StreamStopped, match="event 40"):
            scene.poll()


def test_a_stream_that_one_replica_cannot_serve_goes_on_elsewhere() -> None:
    scene = Scene()
    scene.open()
    scene.sources[-1].error = StreamStopped("event 165 cannot be handled")
    with pytest.raises(SourceUnavailable, match="event 165"):
        scene.poll()
    assert scene.open().number == 3
    assert scene.poll() == 3


# -- leaving --------------------------------------------------------------------------------------------


def test_a_killed_server_is_left_and_held_off() -> None:
    scene = Scene()
    scene.open()
    scene.replicas[0].is_up = False
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="s2 is gone"):
            scene.poll()
    scene.replicas[0].is_up = True
    assert scene.open().number == 3
    scene.replicas[1].is_up = False
    with pytest.raises(SourceUnavailable):
        scene.poll()
    assert scene.open().number == 1, "the replica was left a moment ago"
    scene.source.close()
    scene.now += BOUNDS.holdoff
    assert scene.open().number == 2


def test_a_stopped_replication_is_left_after_what_was_streamed() -> None:
    scene = Scene()
    scene.open()
    assert scene.poll(1) == 1
    scene.replicas[0].is_stopped = True
    scene.now += 2
    assert scene.poll(1) == 1  # a look is begun
    assert scene.poll(1) == 1  # it shows that the replication is stopped; this was there already
    with pytest.raises(SourceUnavailable, match="its replication is broken: its SQL thread is stopped"):
        scene.poll(1)
    assert scene.source.serving is None
    assert scene.received == scene.primary.log[:3]
    scene.write(1)
    assert scene.open().number == 3
    assert scene.poll() == 1


def test_leaving_is_bounded_where_the_server_never_runs_dry() -> None:
    scene = Scene()
    scene.write(3 * DRAINS_MAX)
    scene.open()
    scene.replicas[0].is_stopped = True
    scene.now += 2
    assert "broken" in str(until_error(lambda: scene.poll(1), times=DRAINS_MAX + 4))
    assert len(scene.received) < len(scene.primary.log)
    assert scene.open().number == 3
    scene.poll(10 * DRAINS_MAX)
    assert scene.received == scene.primary.log


def test_a_replica_that_executes_nothing_while_the_primary_does_is_left() -> None:
    scene = Scene()
    scene.open()
    scene.pass_seconds(100)  # idle, but level with the primary
    scene.write(1, reaches=[scene.replicas[1]])
    scene.pass_seconds(BOUNDS.stuck - 2)
    assert "is stuck" in str(scene.left(5))
    assert scene.open().number == 3


def test_a_replica_that_moves_is_not_stuck_though_it_is_never_level() -> None:
    scene = Scene()
    scene.open()
    scene.write(50, reaches=[scene.replicas[1]])
    for _ in range(40):
        scene.replicas[0].log.append(scene.primary.log[len(scene.replicas[0].log)])
        scene.pass_seconds(1)
    assert scene.received == scene.primary.log[:43]


def test_a_lagging_replica_is_left_beyond_the_bound_and_chosen_again_below_half_of_it() -> None:
    scene = Scene(replicas=1)
    replica = scene.replicas[0]
    scene.open()
    replica.heartbeat_us -= int((BOUNDS.lag_max - 1) * SECOND_US)
    scene.pass_seconds(50)
    replica.heartbeat_us -= 2 * SECOND_US
    assert "lags 31.0 s, more than 30 s" in str(scene.left(3))
    assert scene.open().number == 1
    scene.now += BOUNDS.holdoff
    replica.heartbeat_us += 3 * SECOND_US
    scene.pass_seconds(2 * BOUNDS.back)  # below the bound, above its half: no flapping
    replica.heartbeat_us += int(BOUNDS.lag_max / 2 * SECOND_US)
    scene.left(BOUNDS.back + 3)
    assert scene.open().number == 2


def test_rare_heartbeats_on_their_way_are_no_lag() -> None:
    """One a minute: the replica seems to be a minute behind when it is for a second."""
    scene = Scene()
    scene.open()
    for _ in range(10):
        scene.primary.heartbeat_us += 60 * SECOND_US
        scene.pass_seconds(2)
        for replica in scene.replicas:
            replica.heartbeat_us = scene.primary.heartbeat_us
        scene.pass_seconds(58)
    scene.primary.heartbeat_us += 60 * SECOND_US
    assert "lags 31.0 s, more than 30 s" in str(scene.left(40))


def test_a_lagging_replica_is_better_than_nothing() -> None:
    scene = Scene(replicas=1)
    scene.open()
    scene.primary.heartbeat_us += 100 * SECOND_US
    scene.primary.is_up = False
    scene.pass_seconds(50)
    assert scene.open().number == 2


@pytest.mark.parametrize("purged", [3, 4])
def test_a_bad_server_is_left_for_one_that_has_the_log_from_where_the_stream_is_now(purged: int) -> None:
    scene = Scene(replicas=1)
    scene.open()
    scene.poll()
    scene.write(1, reaches=[])
    scene.primary.first = purged
    scene.replicas[0].heartbeat_us -= 100 * SECOND_US
    if purged == 3:
        assert "primary s1:3306 is better" in str(scene.left())
        assert scene.open().number == 1
    else:
        scene.pass_seconds(50)
        assert scene.source.serving == scene.replicas[0].address


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_transaction_counts_as_read_when_its_last_piece_came(is_whole: bool) -> None:
    """The rest of it would be missing in the log of a server that has purged it."""
    scene = Scene(replicas=1)
    scene.open()
    scene.poll()
    scene.write(1)
    scene.sources[-1].gives_last_pieces = is_whole
    assert scene.poll() == 1
    scene.primary.first = 4
    scene.replicas[0].heartbeat_us -= 100 * SECOND_US
    if is_whole:
        assert "primary s1:3306 is better" in str(scene.left())
        assert scene.open().number == 1
    else:
        scene.pass_seconds(50)
        assert scene.source.serving == scene.replicas[0].address


def test_a_server_that_answers_no_look_is_left_after_a_while_though_the_stream_is_open() -> None:
    scene = Scene()
    scene.source._look = failing = Failing(scene)
    scene.open()
    failing.broken.add(scene.replicas[0].address)
    scene.pass_seconds(BOUNDS.stuck - 3)
    assert "does not tell its state" in str(scene.left(5))
    assert scene.open().number == 3


class Failing:
    """Looks of which some fail, though the server's stream goes on."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.broken: set[ServerAddress] = set()

    def __call__(self, address: ServerAddress) -> ServerState:
        if address in self.broken:
            raise SourceUnavailable("too many connections")
        return self.scene.look(address)


def test_a_primary_that_goes_back_ends_the_stream() -> None:
    scene = Scene()
    scene.open()
    scene.poll()
    scene.primary.log.pop()
    with pytest.raises(HistoryLost, match="went back"):
        scene.pass_seconds(3)
    with pytest.raises(HistoryLost, match="never executed"):
        scene.open()


def test_a_primary_that_was_just_elected_has_lost_nothing() -> None:
    """Behind the address of the primary is another member of its group, which still applies its backlog."""
    scene = Scene()
    scene.open()
    scene.poll()
    last = scene.primary.log.pop()
    scene.primary.identity, scene.primary.is_elected = UUIDS[4], True
    assert "still applies what its predecessor has committed" in str(scene.left(3))
    with pytest.raises(SourceUnavailable, match="was elected"):
        scene.open()
    scene.primary.log.append(last)
    with pytest.raises(SourceUnavailable, match="was elected"):
        scene.open()
    scene.primary.is_elected = False
    scene.open()


def test_looks_are_bounded_in_number() -> None:
    scene = Scene()
    scene.open()
    before = scene.looks
    for _ in range(40):
        scene.now += 0.25
        scene.poll()
    assert scene.looks - before == 10 * len(scene.servers)


def test_a_hanging_server_blocks_neither_open_nor_poll_and_is_looked_at_once() -> None:
    """With real threads. A look that never returns would hang this test."""
    released = threading.Event()
    hanging: list[ServerAddress] = []

    def look(address: ServerAddress) -> ServerState:
        if address == scene.replicas[0].address:
            hanging.append(address)
            released.wait()
        return scene.look(address)

    scene = Scene(look=look, make_executor=ThreadPoolExecutor)
    scene.source._bounds = ReplicaBounds(look_timeout=1.0)
    try:
        for _ in range(3):
            assert scene.open().number == 3
            scene.now += 5
            scene.poll()
        assert scene.received == scene.primary.log
        assert len(hanging) == 1
    finally:
        released.set()
        scene.source.close()


def test_a_source_is_not_used_again_after_another_one() -> None:
    """What it remembers of prepared XA transactions would be out of date."""
    scene = Scene()
    scene.open()
    scene.open()
    assert len(scene.sources) == 1
    scene.replicas[0].is_up = False
    scene.open()
    scene.replicas[0].is_up = True
    scene.replicas[1].is_up = False
    scene.open()
    assert [source.server.number for source in scene.sources] == [2, 3, 2]
    assert [source.is_open for source in scene.sources] == [False, False, True]


def test_poll_before_open_and_after_close() -> None:
    scene = Scene()
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="not open"):
            scene.poll()
        scene.open()
        scene.source.close()


# -- errant transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("flavor", FLAVORS)
def test_an_errant_transaction_is_never_delivered_and_its_server_refused_while_it_is_there(flavor: str) -> None:
    scene = Scene(flavor)
    scene.open()
    errant = scene.err(scene.replicas[0])
    assert scene.poll() == 3, "what came before it"
    with pytest.raises(SourceUnavailable, match="errant") as caught:
        scene.poll()
    assert str(errant) in str(caught.value)
    scene.now += 2 * BOUNDS.holdoff
    scene.write(3)
    assert scene.open().number == 3
    scene.poll()
    scene.replicas[1].is_up = False
    with pytest.raises(SourceUnavailable):
        scene.poll()
    assert scene.open().number == 1
    scene.now += 2 * BOUNDS.holdoff
    scene.replicas[0].log = list(scene.primary.log)  # rebuilt
    scene.replicas[0].is_stopped = False
    assert scene.open().number == 2
    assert scene.received == scene.primary.log


@pytest.mark.parametrize("flavor", FLAVORS)
def test_an_errant_transaction_below_the_primarys_head_is_one_all_the_same(flavor: str) -> None:
    """On MariaDB the primary's position contains its number."""
    scene = Scene(flavor, replicas=1)
    scene.open()
    scene.poll()
    scene.err(scene.replicas[0])
    scene.write(5)
    with pytest.raises(SourceUnavailable, match="errant"):
        scene.poll()
    assert scene.received == scene.primary.log[:3]


def test_what_the_primary_does_not_show_yet_is_not_errant() -> None:
    """Semi-synchronous replication shows a transaction on the replica first (F57)."""
    scene = Scene(replicas=1)
    scene.open()
    scene.poll()
    scene.replicas[0].log.append(gtid("mysql", 1, 4))
    assert scene.poll() == 1
    scene.pass_seconds(5)


def test_a_transaction_of_the_primarys_group_is_not_errant() -> None:
    """Each member shows it at a moment of its own."""
    scene = Scene(replicas=1)
    scene.open()
    scene.poll()
    for group, count in ((UUIDS[3], 0), (UUIDS[4], 1)):
        scene.primary.group = group
        scene.replicas[0].log.append(gtid("mysql", 4, count + 1))
        state, primary = scene.replicas[0].state(), scene.primary.state()
        assert (find_foreign(state, primary, scene.acknowledged) == "") == bool(count)
        scene.replicas[0].log.pop()
    scene.replicas[0].log.append(gtid("mysql", 4, 1))
    assert scene.poll() == 1
    scene.pass_seconds(5)


def test_a_doubtful_transaction_waits_for_the_primary() -> None:
    """The round of looks that was under way when it came says nothing about it."""
    scene = Scene()
    scene.open()
    scene.poll()
    scene.err(scene.replicas[0])
    scene.primary.is_up = False
    with pytest.raises(SourceUnavailable, match="cannot be asked") as caught:
        scene.poll()
    assert "errant transaction" not in str(caught.value)
    assert scene.received == scene.primary.log


def test_the_time_of_a_poll_bounds_the_wait_for_the_primarys_word() -> None:
    released = threading.Event()
    released.set()

    def look(address: ServerAddress) -> ServerState:
        released.wait()
        return scene.look(address)

    scene = Scene(look=look, make_executor=ThreadPoolExecutor)
    scene.source._bounds = ReplicaBounds(look_timeout=60)
    try:
        scene.open()
        scene.poll()
        released.clear()
        scene.err(scene.replicas[0])
        for _ in range(5):
            assert scene.poll() == 0
        released.set()
        assert "errant" in str(until_error(lambda: scene.source.poll(0.01, 10), times=1_000_000))
    finally:
        released.set()
        scene.source.close()


@pytest.mark.parametrize(
    ("primary", "replica", "behind_us"),
    [
        ({}, {}, 0),
        ({"one": 50}, {}, 50),
        ({"one": 50}, {"one": 50}, 0),
        ({"one": 50, "two": 60}, {"one": 20, "two": 60}, 30),
        ({"one": 50, "two": 60}, {"two": 55}, 5),
        ({"gone": 1, "one": 50}, {"gone": 1, "one": 50}, 0),
        ({"one": 50}, {"one": 55}, -5),
    ],
)
def test_the_heartbeat_that_is_furthest_behind_tells_the_lag(
    primary: dict[str, int], replica: dict[str, int], behind_us: int
) -> None:
    """Of a log that is made of several one may stand still; a process that is gone writes no more on either."""

    def state(heartbeats: dict[str, int]) -> ServerState:
        nothing = empty_position("mysql")
        return ServerState("1", nothing, nothing, True, "", "", heartbeats)

    assert state(replica).find_behind(state(primary)) == behind_us


def test_old_numbers_of_a_previous_primary_are_not_errant() -> None:
    """0-2-2 was written when server 2 was primary; the start is beyond it."""
    history = {(0, 2): 2, (0, 1): 9}
    nothing = empty_position("mariadb")
    base = {"purged": nothing, "follows": True, "stopped": "", "unfit": "", "heartbeats": {}}
    replica = ServerState("2", parse_position("mariadb", "0-1-9"), last_numbers=history, **base)  # type: ignore[arg-type]
    cloned = ServerState("1", parse_position("mariadb", "0-1-9"), last_numbers={(0, 1): 9}, **base)  # type: ignore[arg-type]
    assert find_foreign(replica, cloned, parse_position("mariadb", "0-1-5")) == ""
    assert find_foreign(replica, cloned, nothing) == "0-2-2"
    assert find_foreign(replica, replica, nothing) == ""
    assert cloned.executed.contains(parse_position("mariadb", "0-2-2"))
    assert not cloned.knows(parse_position("mariadb", "0-2-2"))


def test_a_commit_that_a_node_of_galera_made_for_itself_is_not_the_primarys() -> None:
    """All nodes have one server id; the cluster's own commits have its domain."""
    nothing = parse_position("mariadb", "")
    primary = ServerState("1", nothing, nothing, False, "", "", {}, domain="7")
    assert primary.is_origin(parse_position("mariadb", "7-1-5"))
    assert not primary.is_origin(parse_position("mariadb", "11-1-5"))
    assert not primary.is_origin(parse_position("mariadb", "0-7-5"))
    assert replace(primary, domain="").is_origin(parse_position("mariadb", "11-1-5"))


# -- any order of events --------------------------------------------------------------------------------

ACTIONS = st.sampled_from(
    [
        "write",
        "write",
        "catch up",
        "stop",
        "start",
        "kill",
        "revive",
        "err",
        "rebuild",
        "purge",
        "lag",
        "poll",
        "poll",
    ]
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    flavor=st.sampled_from(FLAVORS),
    choice=st.sampled_from(["freshest", "slowest", "primary"]),
    actions=st.lists(st.tuples(ACTIONS, st.integers(0, 2)), max_size=60),
)
def test_whatever_happens_the_stream_is_the_primarys_history(
    flavor: str, choice: Choice, actions: list[tuple[str, int]]
) -> None:
    scene = Scene(flavor, choice)
    for action, index in actions:
        act(scene, action, index)
        follow(scene)
    for server in scene.servers:
        server.is_up = True
        if server.is_replica:
            act(scene, "rebuild", server.number - 1)
    scene.write(1)
    for _ in range(4):
        scene.now += BOUNDS.holdoff
        follow(scene)
    assert scene.received == scene.primary.log
    scene.source.close()


def act(scene: Scene, action: str, index: int) -> None:
    server = scene.servers[index]
    scene.now += 1
    if action == "write":
        if scene.primary.is_up:
            scene.write(1 + index, reaches=[])
    elif action == "kill":
        server.is_up = False
    elif action == "revive":
        server.is_up = True
    elif action == "purge":
        # never what was not acknowledged, or history would be gone everywhere
        server.first = max(
            server.first, next((i for i, g in enumerate(server.log) if g not in scene.received), len(server.log))
        )
    elif server.is_replica:
        if action == "catch up":
            scene.replicate(server)
        elif action == "rebuild":
            server.log, server.is_stopped, server.first = list(scene.primary.log), False, 0
            server.heartbeat_us = scene.primary.heartbeat_us
        elif action == "err" and server.is_up:
            scene.err(server)
        elif action == "lag":
            server.heartbeat_us -= 20 * SECOND_US
        elif action in ("stop", "start"):
            server.is_stopped = action == "stop"


def follow(scene: Scene) -> None:
    """As the loop does: poll, and open again from what was acknowledged after an error."""
    for _ in range(4):
        try:
            if scene.source.serving is None:
                scene.source.open(scene.acknowledged)
            scene.poll(4)
        except SourceUnavailable:
            scene.now += 1
        assert scene.received == scene.primary.log[: len(scene.received)]
