"""What a process knows of a table's columns: until a floor is raised that it does not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from appclient.reading.columns import ColumnTypes
from freshness.algorithm.envelope import NodeRecord
from freshness.algorithm.request import Item
from freshness.algorithm.view import NodeView
from freshness.errors import SourceUnavailable
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken


def at(end: int) -> Position:
    return MysqlGtidSet.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{end}")


class World:
    """A shard whose server has executed ``end`` transactions in ``epoch``; ``has_token``: it says so."""

    def __init__(self) -> None:
        self.now, self.end, self.epoch, self.has_token = 100.0, 20, 1, True
        self.types = {"id": "int", "at": "datetime"}
        self.asked: list[EventToken | None] = []
        self.columns = ColumnTypes({"a": self}, lambda: self.now, 3.0)  # type: ignore[dict-item]

    def snapshot(self, load: Callable[[Any], Any], at_least: EventToken | None) -> tuple[Any, EventToken | None]:
        self.asked.append(at_least)
        if at_least is not None and not at(self.end).contains(at_least.position):
            raise SourceUnavailable("behind")
        return load(self), EventToken("a", "-", self.epoch, 0, at(self.end)) if self.has_token else None

    def query(self, _: str, parameters: tuple[str]) -> list[dict[str, str]]:
        assert parameters == ("stamps",)
        return [{"name": name, "type": kind.upper()} for name, kind in self.types.items()]

    def see(self, node: str = "n1", floor: int = 5, is_open: bool = True, **tables: int) -> None:
        """A reader fetches the record of a node."""
        record = NodeRecord(
            lineage="a",
            life=b"LIFELIFE",
            tenure=b"TENURE..",
            is_open=is_open,
            epoch=self.epoch,
            ring=1,
            as_of_us=0,
            heartbeat_age_ms=0,
            node=node,
            stripes=8,
            progress=at(10),
            floor=at(floor),
            table_floors={name: at(end) for name, end in tables.items()},
        )
        self.columns.note(NodeView(node, ("a",), [Item(record.encode(), 1, 6)], self.now, 1))

    def find(self) -> dict[str, str]:
        return dict(self.columns.find("a", "stamps"))

    def count(self) -> int:
        """The questions since the last call."""
        number = len(self.asked)
        self.asked.clear()
        return number


@pytest.fixture
def world() -> World:
    made = World()
    made.see()
    assert made.find() == {"id": "int", "at": "datetime"}
    made.now += 2
    made.see()
    assert made.count() == 1
    return made


def test_hits_ask_nothing_while_no_floor_is_raised(world: World) -> None:
    kept = world.columns.find("a", "stamps")
    for node in ("n1", "n2", "n3"):
        world.now += 2
        world.see(node, floor=6, other=30)
        assert world.columns.find("a", "stamps") is kept
    assert world.count() == 0


@pytest.mark.parametrize("raise_it", [lambda world: world.see(stamps=21), lambda world: world.see("n2", floor=21)])
def test_a_floor_ends_it_and_a_server_that_shows_it_is_asked(world: World, raise_it: Callable[[World], None]) -> None:
    world.types["at"], world.end = "timestamp", 21
    raise_it(world)
    assert world.find()["at"] == "timestamp"
    (asked,) = world.asked
    assert asked is not None
    assert asked.position == at(21)
    world.now += 2
    world.see(stamps=21)
    assert world.find()["at"] == "timestamp"
    assert world.count() == 1


def test_another_epoch_ends_it(world: World) -> None:
    world.epoch, world.types["at"] = 2, "timestamp"
    world.see()
    assert world.find()["at"] == "timestamp"


def test_a_floor_that_no_server_shows_leaves_it_unknown(world: World) -> None:
    world.see(stamps=21)
    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            world.find()
    world.see("n2", floor=5)
    with pytest.raises(SourceUnavailable):
        world.find()


def test_a_table_that_changes_all_the_time_is_asked_for_once_a_second(world: World) -> None:
    for end in range(21, 25):
        world.end = end
        world.see(stamps=end)
        if end == 21:
            world.find()
        else:
            with pytest.raises(SourceUnavailable, match="after its last change"):
                world.find()
    assert world.count() == 1
    world.now += 1
    world.find()
    assert world.count() == 1


@pytest.mark.parametrize("is_open", [False, None], ids=["closed", "no record"])
def test_without_an_open_record_time_ends_it(world: World, is_open: bool | None) -> None:
    for expected in (0, 1):
        if is_open is not None:
            world.see(is_open=is_open)
        world.find()
        assert world.count() == expected
        world.now += 4
    world.now -= 3.5
    world.find()
    assert world.count() == 0, "at most once a second"


def test_a_server_without_a_token_shows_what_was_asked_of_it(world: World) -> None:
    world.has_token, world.end = False, 21
    world.see(stamps=21)
    world.find()
    world.now += 2
    world.see("n2", stamps=21)
    world.find()
    assert world.count() == 1
    world.end = 22
    world.see(stamps=22)
    world.find()
    assert world.count() == 1


def test_a_timestamp_that_became_a_datetime_is_still_called_so(world: World) -> None:
    for end, kind, expected in ((21, "timestamp", "timestamp"), (22, "datetime", "timestamp"), (23, "int", "int")):
        world.types["at"], world.end = kind, end
        world.see(stamps=end)
        assert world.find()["at"] == expected
        world.now += 2
