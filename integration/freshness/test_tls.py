"""TLS and passwords on real servers: what is trusted, what is refused, and what is read again."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pymysql
import pytest

from freshness.algorithm.request import MISSING, Get
from freshness.config.access import NodeAccess, NodeLogin, PasswordFile, Tls
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position, read_rows
from freshness.errors import FreshnessError, NodeUnavailable, NodeUnsuitable, SourceUnavailable, SourceUnsuitable
from freshness.login import TLS_HINT
from freshness.nodes.open import open_node
from freshness.stream.source import RowChange
from integration.harness import wait_until
from integration.servers import DatabaseServer, Flavor, MariadbServer, MysqlServer
from integration.servers.certificates import DAY, Authority
from integration.servers.database import SCHEMA
from integration.servers.guarded import USER, GuardedMemcached, GuardedRedis
from integration.servers.memcached import Memcached
from integration.servers.redis import Redis
from invalidator.binlog.source import BinlogSource

SECRET = "correct-horse-47"
RELOAD = {"mariadb": "FLUSH SSL", "mysql": "ALTER INSTANCE RELOAD TLS"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def _database(flavor: Flavor, authority: Authority) -> DatabaseServer:
    files = authority.certify()
    kinds: dict[Flavor, type[DatabaseServer]] = {"mariadb": MariadbServer, "mysql": MysqlServer}
    options = (f"--ssl-ca={files.ca}", f"--ssl-cert={files.cert}", f"--ssl-key={files.key}")
    return kinds[flavor](options=options)


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def database(request: pytest.FixtureRequest, authority: Authority) -> Iterator[DatabaseServer]:
    """One with a certificate, and an account that demands TLS."""
    with _database(request.param, authority) as server:
        server.execute(f"CREATE DATABASE {SCHEMA}")
        server.execute(f"CREATE USER secure@'%' IDENTIFIED BY '{SECRET}' REQUIRE SSL")
        server.execute("GRANT ALL ON *.* TO secure@'%'")
        yield server


@pytest.fixture
def renewed(database: DatabaseServer, authority: Authority) -> Iterator[Callable[..., None]]:
    """Gives the server another certificate while it runs; at the end a good one."""

    def renew(host: str = "127.0.0.1", *, ends_in: timedelta = DAY) -> None:
        authority.certify(host, ends_in=ends_in)
        database.execute(RELOAD[database.flavor])

    yield renew
    renew()


def address_of(server: DatabaseServer, tls: Tls | None, user: str = "secure") -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, user, SECRET, SCHEMA, tls)


def cipher_of(address: ServerAddress) -> str:
    with closing(connect(address)) as connection:
        [(_, cipher)] = read_rows(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    return str(cipher)


# -- databases -------------------------------------------------------------------------------------------


def test_a_database_that_the_authority_vouches_for_is_spoken_to_over_tls(
    database: DatabaseServer, authority: Authority
) -> None:
    assert "_" in cipher_of(address_of(database, Tls(authority.ca)))
    with pytest.raises(SourceUnsuitable, match="1045"):
        connect(address_of(database, None))


def test_a_database_of_another_authority_is_refused(database: DatabaseServer, stranger: Authority) -> None:
    for trusted in (Tls(stranger.ca), Tls()):
        with pytest.raises(SourceUnavailable, match="the server's certificate is refused") as caught:
            connect(address_of(database, trusted))
        assert caught.value.hint == TLS_HINT


def test_a_certificate_for_another_host_is_refused(
    database: DatabaseServer, authority: Authority, renewed: Callable[..., None]
) -> None:
    renewed("127.0.0.9")
    with pytest.raises(SourceUnavailable, match=r"certificate is refused: .*127\.0\.0\.1"):
        connect(address_of(database, Tls(authority.ca)))
    renewed()
    assert cipher_of(address_of(database, Tls(authority.ca)))


def test_a_certificate_that_has_expired_is_refused_until_it_is_renewed(
    database: DatabaseServer, authority: Authority, renewed: Callable[..., None]
) -> None:
    renewed(ends_in=timedelta(seconds=5))  # MySQL takes none that has ended

    def find_refusal() -> SourceUnavailable | None:
        try:
            connect(address_of(database, Tls(authority.ca))).close()
        except SourceUnavailable as error:
            return error
        return None

    refusal = wait_until(find_refusal, "the certificate has expired")
    assert "certificate is refused: certificate has expired" in refusal.message
    renewed()
    assert cipher_of(address_of(database, Tls(authority.ca)))


def test_a_client_certificate_is_shown_where_the_account_demands_one(
    database: DatabaseServer, authority: Authority
) -> None:
    database.execute(f"CREATE USER known@'%' IDENTIFIED BY '{SECRET}' REQUIRE X509")
    files = authority.certify()
    with pytest.raises(SourceUnsuitable, match="1045"):
        connect(address_of(database, Tls(files.ca), "known"))
    database.execute("GRANT ALL ON *.* TO known@'%'")
    assert cipher_of(address_of(database, Tls(files.ca, files.cert, files.key), "known"))


def test_the_log_is_streamed_over_tls(database: DatabaseServer, authority: Authority) -> None:
    """Also packets that are larger than a record of TLS; and the thread that waits for more can be ended."""
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)", database=SCHEMA)
    with database.connect() as connection:
        start = executed_position(connection, database.flavor)
    texts = ["a", "b" * 3_000_000, "c"]
    for number, text in enumerate(texts):
        database.execute("INSERT INTO t VALUES (%s, %s)", number, text, database=SCHEMA)
    source = BinlogSource(address_of(database, Tls(authority.ca)), database.flavor, frozenset({"t"}))
    source.open(start)
    rows: list[RowChange] = []
    while len(rows) < len(texts):
        rows += [change for each in source.poll(10, 100) for change in each.changes]
    source.close()
    assert [change.after["v"] for change in rows if change.after is not None] == texts
    database.execute("DROP TABLE t", database=SCHEMA)


def test_a_password_goes_through_tls_without_rsa(
    database: DatabaseServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new account is in no cache of caching_sha2_password, so the server asks for the password itself."""

    def refuse(*_: object) -> bytes:
        raise AssertionError("the password was encrypted with a key of the server")

    monkeypatch.setattr(pymysql._auth, "sha2_rsa_encrypt", refuse)  # type: ignore[attr-defined]
    database.execute(f"CREATE USER fresh@'%' IDENTIFIED BY '{SECRET}'")
    database.execute("GRANT ALL ON *.* TO fresh@'%'")
    assert cipher_of(address_of(database, Tls(authority.ca), "fresh"))


def test_a_server_without_tls_hears_nothing_from_a_client_that_demands_it() -> None:
    # From 11.4 on, MariaDB makes its own certificate if none is given.
    with MariadbServer(options=("--skip-ssl",)) as server:
        before = _failed_logins(server)
        with pytest.raises(SourceUnsuitable, match="SSL is required") as caught:
            connect(address_of(server, Tls(), "root"))
        assert "tls=false" in caught.value.hint
        # It neither accepted nor refused a login: none was sent.
        assert _failed_logins(server) == before


def _failed_logins(server: DatabaseServer) -> str:
    [(_, count)] = server.execute("SHOW GLOBAL STATUS LIKE 'Access_denied_errors'")
    return str(count)


def test_tls_that_is_off_is_off(database: DatabaseServer) -> None:
    address = ServerAddress("127.0.0.1", database.port, "app", "app", SCHEMA, tls=False)
    assert cipher_of(address) == ""


def test_a_changed_password_is_read_for_the_next_connection(
    database: DatabaseServer, authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("previous\n")
    database.execute("CREATE USER rotated@'%' IDENTIFIED BY 'previous'")
    database.execute("GRANT ALL ON *.* TO rotated@'%'")
    tls = Tls(authority.ca)
    address = ServerAddress("127.0.0.1", database.port, "rotated", PasswordFile(path), SCHEMA, tls)
    assert cipher_of(address)
    database.execute("ALTER USER rotated@'%' IDENTIFIED BY 'following'")
    with pytest.raises(SourceUnavailable, match="Access denied") as caught:
        connect(address)
    assert "read again" in caught.value.hint
    path.unlink()
    with pytest.raises(SourceUnavailable, match=f"the password file {re.escape(str(path))} cannot be read"):
        connect(address)
    path.write_text("following\n")
    assert cipher_of(address)


# -- cache nodes -----------------------------------------------------------------------------------------


Guarded = GuardedMemcached | GuardedRedis


@pytest.fixture(params=["memcached", "redis"])
def node(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Guarded]:
    kinds: dict[str, type[Guarded]] = {"memcached": GuardedMemcached, "redis": GuardedRedis}
    with kinds[request.param](authority.certify(), SECRET) as server:
        yield server


def ask(server: Guarded, login: NodeLogin) -> None:
    with closing(open_node(NodeAccess(server.technology, login), server.address)) as opened:
        assert opened.perform([Get(b"absent")]) == [MISSING]


def test_a_node_that_the_authority_vouches_for_is_spoken_to(
    node: Guarded, authority: Authority, stranger: Authority
) -> None:
    ask(node, NodeLogin(USER, SECRET, Tls(authority.ca)))
    for trusted in (Tls(stranger.ca), Tls()):
        with pytest.raises(NodeUnavailable, match="the server's certificate is refused") as caught:
            ask(node, NodeLogin(USER, SECRET, trusted))
        assert caught.value.hint == TLS_HINT
    with pytest.raises(NodeUnavailable):
        ask(node, NodeLogin(USER, SECRET))


@pytest.mark.parametrize(
    ("host", "ends_in", "says"),
    [("127.0.0.9", DAY, r"127\.0\.0\.1"), ("127.0.0.1", -DAY / 2, "certificate has expired")],
)
@pytest.mark.parametrize("kind", [Memcached, Redis])
def test_a_node_with_a_wrong_certificate_is_refused(
    kind: type[Memcached | Redis], host: str, ends_in: timedelta, says: str, tmp_path: Path
) -> None:
    files = Authority(tmp_path).certify(host, ends_in=ends_in)
    server = (GuardedMemcached if kind is Memcached else GuardedRedis)(files, SECRET)
    server.launch()
    try:
        wait_until(partial(_is_listening, server.port), "the node listens")
        with pytest.raises(NodeUnavailable, match=f"certificate is refused: .*{says}"):
            ask(server, NodeLogin(USER, SECRET, Tls(files.ca)))
    finally:
        server.stop()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_node_with_a_changed_password_is_opened_with_the_one_of_now(
    node: Guarded, authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text(SECRET)
    login = NodeLogin(USER, PasswordFile(path), Tls(authority.ca))
    ask(node, login)
    node.change_password("following")
    _refuses(node, login)
    path.write_text("following\n")
    ask(node, login)


def _refuses(node: Guarded, login: NodeLogin) -> None:
    """memcached reads its file again when it comes to it."""

    def find_refusal() -> FreshnessError | None:
        try:
            ask(node, login)
        except (NodeUnavailable, NodeUnsuitable) as error:
            return error
        return None

    refusal = wait_until(find_refusal, "the previous password is refused")
    assert "refuses" in refusal.message
    assert "read again" in refusal.hint
    assert SECRET not in str(refusal)
