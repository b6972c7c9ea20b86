"""The lineages whose reads demand a commit token, and the source of a keyspace's token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appclient import Cache
from appclient.database.atleast import demand_commits, enclosed_by, is_enclosed
from appclient.database.database import Database
from appclient.database.required import Required
from appclient.database.servers import ServerAccess
from appclient.database.shard import EPOCH_SECONDS, ShardDatabase
from appclient.reading.lookup import Lookups
from freshness.algorithm import shortway
from freshness.algorithm.lookup import ReadServer
from freshness.algorithm.request import LATEST
from freshness.config.config import load_config
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.database.vitess import TabletRead
from freshness.errors import ConfigError, FormatError, SourceUnavailable, SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import empty_position, parse_position
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken

CONFIG = """[cache]
nodes = ["127.0.0.1:21"]
namespace = "shop"
[keyspaces.shop]
flavor = "mariadb"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
"""


def shard(lineage: str, *, serving: bool = True) -> Shard:
    name = lineage.rpartition("/")[2]
    return Shard(name=name, primary=ServerAddress(lineage), lineage=lineage, serving=serving)


SHOP = Keyspace(
    name="shop", flavor="mariadb", shards=(shard("shop/-80"), shard("shop/80-"), shard("shop/-", serving=False))
)
USERS = Keyspace(name="users", flavor="mariadb", shards=(shard("users/-"),))


def token(*lineages: str) -> CommitToken:
    position = parse_position("mariadb", "0-1-5")
    return CommitToken.of([EventToken(lineage, "-", 1, 0, position) for lineage in lineages])


def asked(*lineages: str) -> Mapping[str, str]:
    """By lineage, the lineage of the token that is asked of it."""
    found = demand_commits(token(*lineages), [SHOP, USERS])
    return {lineage: each.lineage for lineage, each in found.items()}


def test_a_commit_is_asked_of_its_own_lineage() -> None:
    assert asked("shop/-80") == {"shop/-80": "shop/-80"}
    assert asked("shop/-80", "users/-") == {"shop/-80": "shop/-80", "users/-": "users/-"}


def test_a_commit_of_a_shard_that_was_split_is_asked_of_all_shards_of_its_keyspace() -> None:
    """It compares with no position of theirs, so their primaries are read."""
    assert asked("shop/-") == {"shop/-80": "shop/-", "shop/80-": "shop/-"}
    assert asked("shop/-", "shop/-80") == {"shop/-80": "shop/-", "shop/80-": "shop/-"}


def test_a_commit_of_a_shard_that_nobody_knows_is_asked_of_all() -> None:
    assert asked("gone/-") == {"shop/-80": "gone/-", "shop/80-": "gone/-", "users/-": "gone/-"}


def test_a_text_serves_and_nothing_asks_for_nothing() -> None:
    assert demand_commits(str(token("users/-")), [USERS]) == demand_commits(token("users/-"), [USERS])
    assert demand_commits(None, [USERS]) == {}


def test_whatever_is_no_commit_token_is_refused() -> None:
    """An event token of the stream can be ahead of what the primary of MariaDB shows."""
    (event,) = token("users/-").tokens
    wrong: Any
    for wrong in (event, 5, [token("users/-")]):
        with pytest.raises(ConfigError, match="expected a CommitToken"):
            demand_commits(wrong, [USERS])
    with pytest.raises(FormatError, match="is not a commit token"):
        demand_commits(str(event), [USERS])


def test_the_short_way_is_asked_for_commits_and_not_for_an_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lookups, "_find_columns", lambda *_: (KeyColumn("id", ColumnKind.INTEGER),))
    monkeypatch.setattr(ShardDatabase, "rows_with_token", lambda *_: ([], None))
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    cache = Cache(load_config(path, {}), open_node=lambda _, name: MemoryNode(MemoryStore(name, clock=lambda: 0.0)))
    asked: list[Mapping[str, EventToken]] = []
    many = shortway.find_hits

    def find_many(*arguments: Any) -> Any:
        asked.append(arguments[-1])
        return many(*arguments)

    monkeypatch.setattr("appclient.reading.reader.find_hit", lambda *arguments: asked.append(arguments[-1]))
    monkeypatch.setattr("appclient.reading.reader.find_hits", find_many)
    commits = {"shop/-": seen("shop/-", "0-1-5")}

    def read_both(**options: Any) -> list[Mapping[str, EventToken]]:
        asked.clear()
        cache.get("customer", 1, **options)
        cache.get_many("customer", [1, 2], **options)
        return list(asked)

    assert read_both() == [{}, {}]
    assert read_both(at_least=token("shop/-")) == [commits, commits]
    with enclosed_by("shop/-", seen("shop/-", "0-1-5")):
        assert read_both() == [commits, commits]
    assert read_both(max_staleness_seconds=5) == []


# -- reads inside a loader -----------------------------------------------------------------------------


def seen(lineage: str, text: str, *, epoch: int = 1) -> EventToken:
    return EventToken(lineage, "-", epoch, 0, parse_position("mariadb", text))


def test_parts_are_asked_for_the_commits_of_the_value_around_them() -> None:
    assert not is_enclosed()
    with enclosed_by("shop/-80", seen("shop/-80", "0-1-5")):
        assert is_enclosed()
        assert demand_commits(None, [SHOP]) == {"shop/-80": seen("shop/-80", "0-1-5")}
        with enclosed_by("shop/80-", seen("shop/80-", "0-1-7"), None):
            assert set(demand_commits(None, [SHOP])) == {"shop/-80", "shop/80-"}
        with enclosed_by("shop/-80", None):
            assert demand_commits(None, [SHOP]) == {"shop/-80": seen("shop/-80", "0-1-5")}
    assert not is_enclosed()


def test_parts_are_asked_for_the_demand_of_the_value_around_them_too() -> None:
    """The primary of MariaDB shows commits that its own token lacks."""
    with enclosed_by("shop/-80", seen("shop/-80", "0-1-5"), seen("shop/-80", "0-1-9")):
        assert demand_commits(None, [SHOP]) == {"shop/-80": seen("shop/-80", "0-1-9")}


def test_the_demands_of_a_part_and_of_the_value_around_it_are_joined() -> None:
    with enclosed_by("shop/-80", seen("shop/-80", "0-1-3,1-1-9")), enclosed_by("shop/80-", seen("shop/80-", "0-1-8")):
        joined = demand_commits(token("shop/-80", "users/-"), [SHOP, USERS])
    assert joined["shop/80-"] == seen("shop/80-", "0-1-8"), "nothing else is asked of that one"
    assert joined["shop/-80"].position == parse_position("mariadb", "0-1-5,1-1-9")
    assert joined["users/-"] == seen("users/-", "0-1-5")


@pytest.mark.parametrize("other", [seen("gone/-", "0-1-1"), seen("shop/-80", "0-1-1", epoch=0)])
@pytest.mark.parametrize("is_inner_first", [False, True])
def test_parts_that_are_asked_for_commits_of_the_past_read_the_primary(
    other: EventToken, *, is_inner_first: bool
) -> None:
    """Nothing compares with those; the primary has all that is left of them, and all of the present."""
    tokens = [seen("shop/-80", "0-1-5"), other]
    outer, inner = reversed(tokens) if is_inner_first else tokens
    with enclosed_by("shop/-80", outer), enclosed_by("shop/-80", inner):
        assert demand_commits(None, [SHOP]) == {"shop/-80": other}


# -- the source of a token --------------------------------------------------------------------------------


class Own:
    """A connection whose session has committed up to ``gtid``."""

    def __init__(self, gtid: str) -> None:
        self.gtid = gtid

    def cursor(self) -> Own:
        return self

    def execute(self, _: str) -> None:
        pass

    def fetchone(self) -> tuple[str]:
        return (self.gtid,)

    def close(self) -> None:
        pass


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The epochs that the servers say, one after the other; None: they have none."""
    left: list[int | None] = []

    def run(self: ShardDatabase, _: object) -> EventToken | None:
        if not left:
            raise SourceUnavailable("no server answers")
        epoch = left.pop(0)
        return None if epoch is None else EventToken(self.lineage, "-", epoch, 0, empty_position("mariadb"))

    monkeypatch.setattr(ShardDatabase, "run", lambda self, read: (run(self, read), ""))
    return left


def test_the_token_of_a_commit(epochs: list[int | None]) -> None:
    epochs.append(7)
    database = Database(USERS)
    made = database.commit_token(Own("0-1-5"))
    assert made == CommitToken.of([EventToken("users/-", "-", 7, 0, parse_position("mariadb", "0-1-5"))])
    assert database.commit_token(Own("")) is None
    assert database.commit_token_of("0-1-5") == made
    assert database.commit_token_of("") is None
    with pytest.raises(FormatError):
        database.commit_token_of("yesterday")


def test_of_several_shards_one_is_named(epochs: list[int | None]) -> None:
    epochs.append(1)
    database = Database(SHOP)
    with pytest.raises(ConfigError, match="needs the name of a shard"):
        database.commit_token(Own("0-1-5"))
    made = database.commit_token(Own("0-1-5"), shard="80-")
    assert made is not None
    assert [each.lineage for each in made.tokens] == ["shop/80-"]


def test_the_epoch_is_read_once_in_a_while(epochs: list[int | None]) -> None:
    now = [50.0]
    database = ShardDatabase("mariadb", USERS.shards[0], ServerAccess(clock=lambda: now[0]))
    epochs += [1, 2]
    assert [database.find_epoch() for _ in range(3)] == [1, 1, 1]
    now[0] += EPOCH_SECONDS
    assert database.find_epoch() == 2
    now[0] += EPOCH_SECONDS
    with pytest.raises(SourceUnavailable):
        database.find_epoch()


def test_without_an_epoch_there_is_no_token(epochs: list[int | None]) -> None:
    epochs.append(None)
    with pytest.raises(SourceUnsuitable, match="run the invalidator once"):
        Database(USERS).commit_token(Own("0-1-5"))


def test_a_keyspace_behind_vtgate_gives_no_commit_token() -> None:
    gate = VtgateAddress("gate", "shop", tablet_type="replica")
    behind_gate = Shard(primary=ServerAddress("gate"), lineage="shop/-", vtgate=gate)
    database = Database(Keyspace(name="shop", flavor="vitess", shards=(behind_gate,)))
    with pytest.raises(ConfigError, match="behind vtgate"):
        database.commit_token(Own("0-1-5"))


def test_behind_vtgate_the_primary_tablet_is_read_where_another_lacks_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    shown = {"shop:-@replica": 10, "shop:-@primary": 12}

    asked_tablets: list[str] = []

    @contextmanager
    def on_one_tablet(_: object, target: Any) -> Iterator[TabletRead]:
        asked_tablets.append(target.target)
        position = parse_position("mysql", f"{uuid}:1-{shown[target.target]}")
        yield TabletRead(EventToken("shop/-", "-", 1, 0, position))

    monkeypatch.setattr("appclient.database.vitess_shard.on_one_tablet", on_one_tablet)
    monkeypatch.setattr(ShardDatabase, "run", lambda _, read: read(None, None))
    gate = VtgateAddress("gate", "shop", tablet_type="replica")
    behind_gate = Shard(primary=ServerAddress("gate"), lineage="shop/-", vtgate=gate)
    database = Database(Keyspace(name="shop", flavor="vitess", shards=(behind_gate,))).find_shard(None)

    def read(number: int, epoch: int = 1) -> Any:
        asked = EventToken("shop/-", "-", epoch, 0, parse_position("mysql", f"{uuid}:{number}"))
        return database.snapshot(lambda _: (asked_tablets[-1], demand_commits(None, [])), asked)[0]

    def find_role(at_least: EventToken | None = None, required: EventToken | None = None) -> str:
        servers: dict[str, ReadServer] = {}
        database.snapshot(lambda _: None, at_least, Required(required), servers)
        return str(servers["shop/-"])

    late = EventToken("shop/-", "-", 1, 0, parse_position("mysql", f"{uuid}:12"))
    assert [find_role(), find_role(required=late), find_role(at_least=late), find_role(required=LATEST)] == [
        "replica gate:3306",
        "primary gate:3306",
        "primary gate:3306",
        "primary gate:3306",
    ]
    assert [read(10)[0], read(12)[0]] == ["shop:-@replica", "shop:-@primary"]
    assert read(10, epoch=0)[0] == "shop:-@primary", "what is left of a previous history"
    enclosing = read(10)[1]["shop/-"]
    assert str(enclosing.position) == f"{uuid}:1-10", "parts have what the tablet showed"
    with pytest.raises(SourceUnavailable, match="not known to show"):
        read(13)
