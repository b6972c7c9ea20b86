"""How a database is connected to: TLS as the address says it, and the words for a login that is refused."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path
from typing import Any, ClassVar, Self

import pymysql
import pytest

from freshness.config.access import Password, PasswordCommand, PasswordFile, Tls
from freshness.config.server import ServerAddress
from freshness.database import connection as database
from freshness.database.connection import OUTSIDE_HINT, connect, translated
from freshness.errors import SourceUnavailable, SourceUnsuitable

REMOTE, LOOPBACK = "db.example", "127.0.0.1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each connection, none of which connects."""
    options: list[dict[str, Any]] = []

    class Connection:
        ctx: Any = None
        info = "10.11.6-MariaDB"
        error: Exception | None = None
        statements: ClassVar[list[str]] = []

        def get_server_info(self) -> str:
            return self.info

        def cursor(self) -> Self:
            return self

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def execute(self, sql: str) -> None:
            if self.error is not None:
                raise self.error
            self.statements.append(sql)

        def close(self) -> None:
            self.statements.append("closed")

        def __init__(self, **given: Any) -> None:
            options.append(given)
            self.ctx = given["ssl"] or ssl.create_default_context()

        def connect(self, _: object) -> None:
            pass

    monkeypatch.setattr(database, "_Connection", Connection)
    return options


@pytest.mark.usefixtures("asked")
def test_no_server_cuts_an_answer_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its global variables say. A vtgate has no such limit, and would hold the variable for the tablets."""
    monkeypatch.setattr(database._Connection, "statements", [])
    for info in ("10.11.6-MariaDB", "8.4.6-Vitess"):
        monkeypatch.setattr(database._Connection, "info", info, raising=False)
        connect(ServerAddress(LOOPBACK))
    assert database._Connection.statements == [  # type: ignore[attr-defined]
        f"SET time_zone = '+00:00', sql_select_limit = {2**63 - 1}",
        "SET time_zone = '+00:00'",
    ]
    monkeypatch.setattr(database._Connection, "error", pymysql.OperationalError(2013, "lost"), raising=False)
    with pytest.raises(SourceUnavailable, match="lost"):
        connect(ServerAddress(LOOPBACK))
    assert database._Connection.statements[-1] == "closed"  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", [REMOTE, LOOPBACK])
def test_tls_that_is_configured_is_demanded_and_verifies(host: str, asked: list[dict[str, Any]]) -> None:
    connect(ServerAddress(host, tls=Tls()))
    context = asked[0]["ssl"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not asked[0]["ssl_disabled"]


@pytest.mark.parametrize(
    ("host", "tls", "is_off"), [(REMOTE, False, True), (LOOPBACK, None, True), (REMOTE, None, None)]
)
def test_without_it_another_machine_alone_is_asked_for_tls(
    host: str, tls: None, is_off: bool | None, asked: list[dict[str, Any]]
) -> None:
    connect(ServerAddress(host, tls=tls))
    assert (asked[0]["ssl"], asked[0]["ssl_disabled"]) == (None, is_off)


def test_the_password_is_read_for_each_connection(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    path = tmp_path / "password"
    for text in ("previous", "following"):
        path.write_text(text)
        connect(ServerAddress(REMOTE, password=PasswordFile(path)))
    assert [each["password"] for each in asked] == ["previous", "following"]
    path.unlink()
    with pytest.raises(SourceUnavailable, match=f"{REMOTE}:3306: connecting: the password file") as caught:
        connect(ServerAddress(REMOTE, password=PasswordFile(path)))
    assert "read again" in caught.value.hint
    assert len(asked) == 2


def test_each_connection_has_a_token_of_its_own_by_the_recipe_of_the_page(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "config.md").read_text()
    (recipe,) = re.findall(r'`(\["aws",[^`]*\])`', page)
    program = tmp_path / "aws"
    program.write_text('#!/bin/sh\necho "$@" >> "$0.calls"\necho "token $(wc -l < "$0.calls")"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for _ in range(2):
        connect(ServerAddress(REMOTE, user="app", password=PasswordCommand(tuple(json.loads(recipe)))))
    assert [each["password"] for each in asked] == ["token 1", "token 2"]
    said = f"rds generate-db-auth-token --hostname {REMOTE} --port 3306 --username app"
    assert (tmp_path / "aws.calls").read_text().splitlines() == [said, said]


@pytest.mark.parametrize(
    ("password", "kind"),
    [
        ("x", SourceUnsuitable),
        ("", SourceUnsuitable),
        (PasswordFile(Path("x")), SourceUnavailable),
        (PasswordCommand(("x",)), SourceUnavailable),
    ],
)
def test_a_refused_password_may_be_another_one_at_the_next_try(password: Password, kind: type) -> None:
    refusal = pymysql.err.OperationalError(1045, "Access denied for user 'app'")
    error = translated(refusal, ServerAddress(REMOTE, password=password), "connecting")
    assert type(error) is kind
    assert "check user, password" in error.hint


def test_a_certificate_that_is_refused_is_no_server_that_is_down() -> None:
    error = pymysql.err.OperationalError(2003, "Can't connect to MySQL server")
    refusal = ssl.SSLCertVerificationError("")
    refusal.verify_message = "certificate has expired"
    error.original_exception = refusal  # type: ignore[attr-defined]
    told = translated(error, ServerAddress(REMOTE), "connecting")
    assert told.message == f"{REMOTE}:3306: connecting: the server's certificate is refused: certificate has expired"
    assert "tls_ca" in told.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [("WSREP has not yet prepared node for application use", OUTSIDE_HINT), ("Unknown command", "is the server up")],
)
def test_a_node_outside_of_its_cluster_is_no_server_that_is_down(text: str, hint: str) -> None:
    told = translated(pymysql.err.OperationalError(1047, text), ServerAddress(REMOTE), "reading")
    assert isinstance(told, SourceUnavailable)
    assert hint in told.hint
