"""The stand-in without Spark and without a service: while the cluster is late, the nodes hold what it would write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow
import pytest

from freshness.errors import SourceUnavailable, StreamStopped
from freshness.position.token import EventToken
from integration.harness import wait_until
from spark.sink import stand_in
from spark.sink.keeper import Keeper, LineageKeeper, LineageStatus
from spark.sink.sender import Part, Ticket
from spark.sink.stand_in import StandIn
from tests.unit.invalidator.archive.archive_world import NODES, make_config
from tests.unit.spark.sink.test_sink import FIRST, LINEAGE, STREAM, World, assert_like_one_process, rows_of, upto

SOURCE: Final = {"url": "http://service", "keyspace": "shop"}


class Late:
    """The cluster is late until it has come. ``asked``: how often somebody looked."""

    def __init__(self) -> None:
        self.has_come = False
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return not self.has_come


class Stand:
    """Stands in for keeper and reader: the acknowledger and the nodes of a world, and the stream of its tests."""

    def __init__(self, world: World) -> None:
        self.world, self.plan = world, world.plan
        self.opened = self.commits = self.closed = 0
        self.failures: list[Exception] = []
        self.alterations: list[Exception] = []
        self.while_reading: Callable[[], None] = lambda: None

    def open(self, *_: Any) -> Stand:
        self.opened += 1
        if self.failures:
            raise self.failures.pop(0)
        return self

    # the keeper

    def begin(self) -> Ticket:
        return self.world.begin()

    def commit(self, ticket: Ticket, parts: Sequence[Part]) -> None:
        self.world.commit(ticket, parts)
        self.commits += 1

    def find_starts(self) -> list[EventToken]:
        start = self.world.acknowledger.start_position()
        return [] if start is None else [EventToken(LINEAGE, "-", 1, 0, start)]

    def require_keys(self, lineages: Collection[str]) -> None:
        assert lineages == {LINEAGE}
        if self.alterations:
            raise self.alterations.pop(0)

    def close(self) -> None:
        self.closed += 1

    # the reader

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        return {}

    def partitions(self, *_: Any) -> list[int]:
        return [] if self.commits else [1]

    def read(self, _: int) -> Iterator[pyarrow.RecordBatch]:
        for batch in pyarrow.Table.from_pylist(rows_of(STREAM, FIRST)).to_batches(max_chunksize=3):
            self.while_reading()
            yield batch


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand(World(tmp_path / "sink"))
    monkeypatch.setattr(stand_in, "Keeper", made.open)
    monkeypatch.setattr(stand_in, "ChangeStreamReader", lambda _: made)
    monkeypatch.setattr(stand_in, "load_registry", lambda _: {})
    monkeypatch.setattr(stand_in, "open_node", lambda _, name: made.world.open_nodes()[name])
    monkeypatch.setattr(stand_in, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(stand_in, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(stand_in, "LINGER_SECONDS", 0.001)
    return made


def make(stand: Stand, tmp_path: Path, late: Late) -> StandIn:
    return StandIn(make_config(tmp_path / "own"), SOURCE, late)


def test_the_nodes_hold_what_one_process_writes(stand: Stand, tmp_path: Path) -> None:
    stand.world.furnish()
    with make(stand, tmp_path, Late()) as started:
        wait_until(lambda: stand.commits, "a piece was acknowledged")
        started.check()
    assert_like_one_process(stand.world, tmp_path / "one")
    assert (stand.opened, stand.closed) == (1, 1)


def test_nothing_is_done_while_the_cluster_is_on_time(stand: Stand, tmp_path: Path) -> None:
    late = Late()
    late.has_come = True
    with make(stand, tmp_path, late):
        wait_until(lambda: late.asked > 3, "it has looked again and again")
    assert stand.opened == 0


def test_it_ends_when_the_cluster_is_there_and_begins_again_when_that_stalls(stand: Stand, tmp_path: Path) -> None:
    late = Late()
    with make(stand, tmp_path, late) as started:
        wait_until(lambda: stand.commits, "a piece was acknowledged")
        late.has_come = True
        wait_until(lambda: stand.closed == 1, "it has ended")
        late.has_come = False
        wait_until(lambda: stand.opened == 2, "it has begun again")
        started.check()


def test_its_keeper_is_held_for_a_while(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is late again and again costs one row of heartbeats, and not one each time."""
    monkeypatch.setattr(stand_in, "LINGER_SECONDS", 3600.0)
    late = Late()
    with make(stand, tmp_path, late) as started:
        for _ in range(3):
            late.has_come = False
            wait_until(lambda: started.find_keeper() is not None, "it is at work")
            late.has_come = True
            wait_until(lambda: started.find_keeper() is None, "it is idle")
        assert (stand.opened, stand.closed) == (1, 0)
    assert stand.closed == 1


def test_a_piece_is_given_up_where_the_cluster_is_there_before(stand: Stand, tmp_path: Path) -> None:
    stand.world.furnish()
    late = Late()
    stand.while_reading = lambda: setattr(late, "has_come", True)
    with make(stand, tmp_path, late) as started:
        wait_until(lambda: stand.closed, "it has ended")
        started.check()
    assert stand.commits == 0
    assert {stand.world.record(node).progress for node in NODES} == {upto(FIRST)}


def test_a_server_that_is_away_is_tried_again(stand: Stand, tmp_path: Path) -> None:
    stand.failures = [SourceUnavailable("the primary is down", hint="start it")] * 2
    with make(stand, tmp_path, Late()) as started:
        wait_until(lambda: stand.commits, "a piece was acknowledged")
        started.check()
    assert stand.opened == 3


def test_keys_that_were_altered_are_read_again(stand: Stand, tmp_path: Path) -> None:
    """By another keeper, from a registry of its own."""
    stand.alterations = [StreamStopped("the key columns of customer were altered")]
    with make(stand, tmp_path, Late()) as started:
        wait_until(lambda: stand.commits, "a piece was acknowledged")
        started.check()
    assert (stand.opened, stand.closed) == (2, 2)


def test_a_bug_ends_the_job(stand: Stand, tmp_path: Path) -> None:
    stand.failures = [ZeroDivisionError()]
    started = make(stand, tmp_path, Late())

    def fails() -> bool:
        try:
            started.check()
        except ZeroDivisionError:
            return True
        return False

    with started:
        wait_until(fails, "the bug is raised")


@pytest.mark.parametrize(("begun_at", "is_late"), [(None, True), (990.0, False), (989.0, True)])
def test_the_cluster_is_late_when_nodes_must_close(
    monkeypatch: pytest.MonkeyPatch, begun_at: float | None, is_late: bool
) -> None:
    """A heartbeat may be 10 s old here."""
    monkeypatch.setattr("spark.sink.keeper.running_clock", lambda: 1000.0)
    passed = None if begun_at is None else SimpleNamespace(begun_at=begun_at)
    young: Any = SimpleNamespace(passed=SimpleNamespace(begun_at=1000.0), joined=[])
    other: Any = SimpleNamespace(passed=passed, joined=[])
    driver: Any = None
    lineages = {name: LineageKeeper("-", each, driver, 10.0) for name, each in (("a", young), ("b", other))}
    keeper: Any = SimpleNamespace(lineages=lineages)
    assert Keeper.is_late(keeper) is is_late
    assert lineages["a"].read_status() == LineageStatus(0, 0, 0.0)
