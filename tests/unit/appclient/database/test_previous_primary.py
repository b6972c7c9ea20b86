"""A server that was the primary, and is still read as the primary: by an old file, or on an old connection."""

from __future__ import annotations

from typing import Any

import pytest

from appclient.database.atleast import Behind, behind
from appclient.database.required import LOCK
from appclient.database.shard import ShardDatabase
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnavailable
from freshness.position import parse_position
from freshness.position.token import EventToken

PRIMARY = ServerAddress("10.0.0.9")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NOBODY: Any = None


class Connected:
    """A connection that only knows whether it is open."""

    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False


def at(flavor: str, number: int) -> EventToken:
    text = f"{UUID}:1-{number}" if flavor == "mysql" else f"0-1-{number}"
    return EventToken("shop/-", "-", 1, 0, parse_position(flavor, text))


def open_database(flavor: str) -> ShardDatabase:
    return ShardDatabase(flavor, Shard(primary=PRIMARY, lineage="shop/-"))


def test_a_connection_that_leads_to_the_previous_primary_gives_way_to_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a proxy that has another server behind its name by now, and lets old connections be."""
    database = open_database("mysql")
    made: list[Connected] = []

    def connect(_: ServerAddress) -> Connected:
        made.append(Connected())
        return made[-1]

    monkeypatch.setattr(database, "_connect", connect)
    database.run(lambda *_: database.run(lambda *_: None))  # one read inside another: two connections
    old = list(made)
    assert len(old) == 2
    present: list[Any] = []

    def read(connection: Any, address: ServerAddress) -> str:
        if connection in old:
            raise behind(address)
        present.append(connection)
        return "the row"

    assert database.run(read) == "the row"
    assert present == made[len(old) :]

    def lack(_: Any, address: ServerAddress) -> str:
        raise behind(address)

    count = len(made)
    with pytest.raises(SourceUnavailable, match="not known to show"):
        database.run(lack)
    assert len(made) == count + 1, "a new one that lacks the commit, too, is the last one"


@pytest.mark.parametrize(
    ("flavor", "is_read_only", "logged", "is_refused"),
    [
        ("mariadb", 1, 5, True),
        ("mariadb", "ON", 5, True),
        ("mariadb", 1, 9, False),
        ("mariadb", 0, 5, False),
        ("mariadb", "OFF", 5, False),
        ("mysql", 1, 0, True),
        ("mysql", 0, 0, False),
    ],
)
@pytest.mark.parametrize("tables", [(), ("customers",)])
def test_a_read_only_primary_whose_log_lacks_what_a_miss_must_show_is_left(
    monkeypatch: pytest.MonkeyPatch,
    flavor: str,
    is_read_only: object,
    logged: int,
    is_refused: bool,
    tables: tuple[str, ...],
) -> None:
    """Its row would be older than an acknowledged invalidation. One that is about to be replaced has all of them."""
    database, end = open_database(flavor), f"0-1-{logged}" if flavor == "mariadb" else ""
    monkeypatch.setattr(database, "_ask", lambda *_: (["question"], [("server", is_read_only, end, len(tables))]))
    monkeypatch.setattr(database, "read_token", lambda _: (at(flavor, 4), "server"))
    required = at(flavor, 9)

    def read() -> object:
        if tables:
            return database._read_log(NOBODY, "server", tables, at(flavor, 4), required)
        return database._read_start(NOBODY, PRIMARY, None, required, may_lock=False)

    if is_refused:
        with pytest.raises(Behind):
            read()
    elif tables:
        assert read() == (at(flavor, max(4, logged)), LOCK)
    else:
        assert read() == (at(flavor, 4), "server")
