"""What the application's own connection has committed: what drivers say, and the bytes of a server's answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from appclient.connection.commits import GtidConnection, find_gtids, find_transaction, read_committed
from freshness.errors import ConfigError, FormatError
from freshness.position import parse_position

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Driver:
    """A connection of PEP 249, whose rows are ``row``."""

    def __init__(self, row: Any, **attributes: Any) -> None:
        self.row = row
        self.asked: list[str] = []
        self.closed = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def cursor(self) -> Driver:
        return self

    def execute(self, sql: str) -> None:
        self.asked.append(sql)

    def fetchone(self) -> Any:
        return self.row

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"server_status": 2}, False),  # pymysql
        ({"server_status": 3}, True),
        ({"server_status": 1}, True),
        ({"server_status": 0}, None),  # since then INSERT … RETURNING may have begun one
        ({"in_transaction": False}, False),  # mysql-connector
        ({"in_transaction": True}, True),
        ({"in_transaction": lambda: True}, None),
        ({}, None),  # mysqlclient
    ],
)
def test_a_driver_says_whether_a_transaction_is_open(attributes: dict[str, Any], told: bool | None) -> None:
    assert find_transaction(SimpleNamespace(**attributes)) is told


@pytest.mark.parametrize(
    ("flavor", "row", "position"),
    [
        ("mariadb", ("0-1-5",), "0-1-5"),
        ("mariadb", (b"0-1-5",), "0-1-5"),
        ("mariadb", {"@@last_gtid": "0-1-5"}, "0-1-5"),
        ("mariadb", ("",), None),
        ("mariadb", (None,), None),
        ("mysql", (f"{UUID}:1-9",), f"{UUID}:1-9"),
    ],
)
def test_any_driver_is_asked_with_one_statement(flavor: str, row: Any, position: str | None) -> None:
    driver = Driver(row)
    found = read_committed(driver, flavor)
    assert (None if found is None else str(found)) == position
    assert (len(driver.asked), driver.closed) == (1, 1)
    assert " FROM " not in driver.asked[0], "it would open a snapshot for the application's next statements"


def test_a_token_in_the_middle_of_a_transaction_is_refused() -> None:
    driver = Driver(("0-1-5",), in_transaction=True)
    with pytest.raises(ConfigError, match="open transaction"):
        read_committed(driver, "mariadb")
    assert driver.asked == []


def text(data: bytes) -> bytes:
    return bytes([len(data)]) + data if len(data) < 0xFB else b"\xfc" + len(data).to_bytes(2, "little") + data


def answer(*changes: tuple[int, bytes], info: bytes = b"") -> bytes:
    return text(info) + text(b"".join(bytes([kind]) + text(data) for kind, data in changes))


def gtids(value: str) -> tuple[int, bytes]:
    return 3, b"\0" + text(value.encode())


LONG = f"{UUID}:" + ":".join(str(each) for each in range(1, 200, 2))


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (answer(), []),
        (answer(gtids(f"{UUID}:5")), [f"{UUID}:5"]),
        (answer((0, b"\x0aautocommit\x02ON"), gtids(f"{UUID}:5"), (2, b"1"), info=b"Rows matched: 1"), [f"{UUID}:5"]),
        (answer(gtids(LONG)), [LONG]),
    ],
)
def test_the_gtids_in_an_answer(message: bytes, found: Sequence[str]) -> None:
    assert [*find_gtids(message)] == found


@pytest.mark.parametrize("cut", range(1, 60))
def test_an_answer_that_is_cut_is_refused(cut: int) -> None:
    """No token is made of a part of the commits."""
    message = answer(gtids(f"{UUID}:5"))
    with pytest.raises(FormatError, match="state of"):
        [*find_gtids(message[: len(message) - cut])]


def test_a_length_that_cannot_be_is_refused() -> None:
    with pytest.raises(FormatError, match="0xfb"):
        [*find_gtids(b"\xfb")]


def tracked(*numbers: int) -> GtidConnection:
    """A connection whose server has told these commits. Nothing is connected."""
    connection = GtidConnection(defer_connect=True)
    for number in numbers:
        connection._note("commit", 1 << 14, answer(gtids(f"{UUID}:{number}")))
    return connection


def test_a_tracking_connection_gives_each_commit_once() -> None:
    connection = tracked(5, 7)
    assert read_committed(connection, "mysql") == parse_position("mysql", f"{UUID}:5:7")
    assert read_committed(connection, "mysql") is None


def test_an_answer_without_changes_of_the_session_is_not_looked_into() -> None:
    connection = tracked()
    connection._note("commit", 2, b"Rows matched: 1")
    assert read_committed(connection, "mysql") is None


def test_of_many_commits_the_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their set would be longer than the server's own."""
    driver = Driver((f"{UUID}:1-999",))
    monkeypatch.setattr(GtidConnection, "cursor", lambda _: driver)
    assert read_committed(tracked(*range(1, 131, 2)), "mysql") == parse_position("mysql", f"{UUID}:1-999")
    assert len(driver.asked) == 1
    assert read_committed(tracked(*range(1, 129, 2)), "mysql") is not None
    assert len(driver.asked) == 1
