"""Passwords are changed while an invalidator and applications run, with the configuration of docs/config.md.

Everything speaks TLS. Afterwards no server accepts the previous passwords, and no program was restarted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pymysql
import pytest

from appclient import Cache
from appclient.async_cache import AsyncCache
from freshness.config.config import load_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, call_cli, wait_for_hits, wait_until
from integration.servers import DatabaseServer, Flavor, Pair, database_pair
from integration.servers.certificates import Authority, Certificates
from integration.servers.database import SCHEMA
from integration.servers.guarded import USER, GuardedMemcached, GuardedRedis
from integration.servers.program import CHECKOUT, InvalidatorProcess

KEYS: Final = (1, 2, 3)
ACCOUNTS: Final = ("invalidator", "webapp")
PREVIOUS: Final = {name: f"previous-{name}" for name in (*ACCOUNTS, USER)}
FOLLOWING: Final = {name: f"following-{name}" for name in (*ACCOUNTS, USER)}

Guarded = GuardedMemcached | GuardedRedis


@dataclass(slots=True)
class Secured:
    """``folder``: the folder of the configuration, with ``secrets/NAME`` for each account."""

    pair: Pair
    node: Guarded
    folder: Path
    config_path: Path

    @property
    def servers(self) -> tuple[DatabaseServer, ...]:
        return self.pair.primary, self.pair.replica

    def write_passwords(self, passwords: dict[str, str]) -> None:
        for name, password in passwords.items():
            (self.folder / "secrets" / name).write_text(f"{password}\n")

    def change_databases(self, passwords: dict[str, str]) -> None:
        """New passwords on all servers, and no connection of these accounts is left."""
        for name in ACCOUNTS:
            self.pair.primary.execute(f"ALTER USER {name}@'%' IDENTIFIED BY '{passwords[name]}'")
        self.pair.wait_caught_up()
        for server in self.servers:
            for number, user in server.execute("SELECT id, user FROM information_schema.processlist"):
                if user in ACCOUNTS:
                    _kill(server, int(number))


def _kill(server: DatabaseServer, number: int) -> None:
    try:
        server.execute(f"KILL {number}")
    except pymysql.OperationalError as error:
        if error.args[0] != 1094:  # it has already ended
            raise


def _write_config(folder: Path, flavor: Flavor, pair: Pair, node: Guarded) -> Path:
    """The example of the page, for these servers."""
    page = (CHECKOUT / "docs" / "config.md").read_text()
    (text,) = re.findall(r"^## TLS and rotation\n\n```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    command = folder / "show-password"
    command.write_text(f"#!/bin/sh\nexec cat {folder}/secrets/$1\n")
    command.chmod(0o700)
    times = "".join(f"{name} = {value}\n" for name, value in {**CACHE, "stripes": 1024}.items())
    for previous, present in {
        '"10.0.0.5:11211"': f'"{node.address}"',
        "10.0.0.6:3306": f"127.0.0.1:{pair.primary.port}",
        "10.0.0.7:3306": f"127.0.0.1:{pair.replica.port}",
        '"/usr/local/bin/show-password"': f'"{command}"',
        'flavor = "mariadb"': f'flavor = "{flavor}"',
        "[cache]\n": f'[cache]\nbackend = "{node.technology}"\n{times}',
    }.items():
        assert text.count(previous) == 1, previous
        text = text.replace(previous, present)
    path = folder / "freshness.toml"
    path.write_text(text + "[stream]\n" + "".join(f"{name} = {value}\n" for name, value in STREAM.items()))
    return path


@pytest.fixture(params=["mariadb", "mysql"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Secured]:
    """MariaDB with memcached, and MySQL with Redis."""
    flavor: Flavor = request.param
    files = Authority(tmp_path / "tls").certify()
    (tmp_path / "secrets").mkdir()
    options = [f"--ssl-ca={files.ca}", f"--ssl-cert={files.cert}", f"--ssl-key={files.key}"]
    with ExitStack() as stack:
        pair = stack.enter_context(database_pair(flavor, primary_options=options, replica_options=options))
        node = _make_node(flavor, files)
        stack.enter_context(node)
        for name in ACCOUNTS:
            pair.primary.execute(f"CREATE USER {name}@'%' IDENTIFIED BY '{PREVIOUS[name]}' REQUIRE SSL")
        pair.primary.execute("GRANT ALL ON *.* TO invalidator@'%'")
        pair.primary.execute(f"GRANT SELECT ON {SCHEMA}.* TO webapp@'%'")
        pair.primary.execute(CUSTOMERS_TABLE, database=SCHEMA)
        for key in KEYS:
            pair.primary.execute("INSERT INTO customers VALUES (%s, 'a', 0)", key, database=SCHEMA)
        pair.wait_caught_up()
        secured = Secured(pair, node, tmp_path, tmp_path)
        secured.write_passwords(PREVIOUS)
        secured.config_path = _write_config(tmp_path, flavor, pair, node)
        yield secured


def _make_node(flavor: Flavor, files: Certificates) -> Guarded:
    return (GuardedMemcached if flavor == "mariadb" else GuardedRedis)(files, PREVIOUS[USER])


def test_passwords_are_changed_while_programs_run(
    secured: Secured, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with InvalidatorProcess(secured.config_path) as invalidator:
        pid = invalidator.pid
        cache = Cache.open(secured.config_path)
        wait_for_hits(cache, "customer", KEYS, invalidator.log)

        secured.change_databases(FOLLOWING)
        secured.node.change_password(FOLLOWING[USER])
        secured.node.restart()  # memcached leaves open connections alone
        # The servers have changed already, and the files not yet
        wait_until(lambda: "Access denied" in invalidator.log(), "the previous password is refused", invalidator.log)
        secured.write_passwords(FOLLOWING)

        secured.pair.primary.execute("UPDATE customers SET v = 7", database=SCHEMA)
        secured.pair.wait_caught_up()
        wait_for_hits(cache, "customer", KEYS, invalidator.log)
        wait_until(
            lambda: all(cache.get("customer", key)["v"] == 7 for key in KEYS),
            "the change was invalidated",
            invalidator.log,
        )
        assert asyncio.run(_read_on_a_loop(secured.config_path)) == 7
        assert (invalidator.pid, invalidator.is_running()) == (pid, True)
        for name in ACCOUNTS:
            for server in secured.servers:
                with pytest.raises(pymysql.OperationalError, match="Access denied"):
                    server.connect(user=name, password=PREVIOUS[name], ssl_disabled=False)

        status = call_cli("status", "--config", secured.config_path, "--json")
        check = call_cli("check", "--config", secured.config_path)
        assert (status.returncode, check.returncode) == (0, 0), check.stdout
        command_line = Path(f"/proc/{pid}/cmdline").read_text()
        shown = [status.stdout, status.stderr, check.stdout, check.stderr, command_line, invalidator.log()]
        shown += [*capfd.readouterr(), caplog.text, repr(load_config(secured.config_path)), repr(cache.config)]
        for secret in (*PREVIOUS.values(), *FOLLOWING.values()):
            assert secret not in "".join(shown)


async def _read_on_a_loop(path: Path) -> int:
    async with await AsyncCache.open(path) as cache:
        hit = await cache.get("customer", 1, explain=True)
        assert hit.is_hit
        found = await cache.database().query("SELECT v FROM customers WHERE id = 1")
    assert found.rows == [{"v": hit.value["v"]}]
    return int(hit.value["v"])
