"""The README and the quickstart, carried out: settings, accounts, configuration and Python as they stand there.

The servers' addresses and nothing else are replaced by those of private servers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from appclient import GtidConnection
from integration.servers import Memcached, Pair, database_pair

CHECKOUT = Path(__file__).resolve().parents[2]
README, QUICKSTART = CHECKOUT / "README.md", CHECKOUT / "docs/quickstart.md"
APPLICATION, SQLALCHEMY = CHECKOUT / "docs/application.md", CHECKOUT / "docs/sqlalchemy.md"
WAIT_SECONDS = 120.0
"""Only a failure takes as long."""


def _snippets(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def _wait_until(is_true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A pair with the settings of the quickstart, its accounts and its tables."""
    (settings,) = _snippets(QUICKSTART, "ini")
    parts = re.split("# MariaDB\n|# MySQL .*\n|# On a replica.*\n", settings.partition("\n")[2])
    common, of_mariadb, of_mysql, of_replica = parts
    own = of_mariadb if request.param == "mariadb" else of_mysql.replace("# ", "")
    options, for_replica = (
        ["--" + re.sub(r"\s*=\s*", "=", line) for line in text.splitlines()]
        for text in (common + own, of_replica.replace("# ", ""))
    )
    assert for_replica == ["--read_only=ON"]
    assert "--sync_binlog=1" in options
    with database_pair(request.param, primary_options=options, replica_options=[*options, *for_replica]) as servers:
        for statements in _snippets(QUICKSTART, "sql"):
            for statement in filter(str.strip, statements.split(";")):
                servers.primary.execute(statement, database="shop")
        servers.wait_caught_up()
        yield servers


def _environment(page: Path) -> dict[str, str]:
    if page == README:
        return {"SHOP_PASSWORD": "app"}
    exports = next(text for text in _snippets(page, "sh") if "_PASSWORD" in text)
    return dict(re.findall(r"(\w+_PASSWORD)=(\S+)", exports))


def _cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invalidator.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@contextmanager
def _running(log: Path) -> Iterator[None]:
    """An invalidator in the working directory, from when its nodes have their stripes until it has ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "invalidator.cli", "run"],
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )

    def is_open() -> bool:
        assert process.poll() is None, log.read_text()
        nodes = json.loads(_cli("status", "--json").stdout)["nodes"]
        return all(node["state"] == "open" and node["stripes_there_percent"] == 100 for node in nodes)

    try:
        _wait_until(is_open, f"the nodes are open: {log.read_text()}")
        yield
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@contextmanager
def _carried_out(
    page: Path,
    pair: Pair,
    node: Memcached,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    python: Path | None = None,
) -> Iterator[Mapping[str, Any]]:
    """The page's configuration and an invalidator; then its Python, or that of another page, of which the names are
    returned."""
    (configuration,) = _snippets(page, "toml")
    configuration = configuration.replace('"mariadb"', f'"{pair.primary.flavor}"')
    if python is not None:
        configuration += "".join(_snippets(python, "ini"))
        for statement in _snippets(python, "sql"):
            pair.primary.execute(statement)
    addresses = {
        "127.0.0.1:11211": node.address,
        "127.0.0.1:3306": f"127.0.0.1:{pair.primary.port}",
        "127.0.0.1:3307": f"127.0.0.1:{pair.replica.port}",
    }
    for documented, address in addresses.items():
        assert documented in configuration
        configuration = configuration.replace(documented, address)
    (folder / "freshness.toml").write_text(configuration)
    monkeypatch.chdir(folder)
    for name, password in _environment(page).items():
        monkeypatch.setenv(name, password)
    with _running(folder / "log.txt"):
        pair.wait_caught_up()
        names: dict[str, Any] = {}
        for snippet in _snippets(python or page, "python"):
            for documented, address in addresses.items():
                snippet = snippet.replace(documented, address)
            exec(compile(snippet, str(python or page), "exec", dont_inherit=True), names)
        yield names
        if "cache" in names:
            names["cache"].close()


def test_the_quickstart(pair: Pair, memcached: Memcached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _carried_out(QUICKSTART, pair, memcached, tmp_path, monkeypatch) as names:
        checked = _cli("check", "--json")
        assert (json.loads(checked.stdout), checked.returncode) == ([], 0), checked.stdout + checked.stderr
        assert [names["first"].outcome.name, names["second"].outcome.name] == ["FILLED", "HIT"]
        assert names["second"].value == {"id": 42, "name": "Ada"}
        assert names["later"].extras.fresher is True
        cache = names["cache"]
        assert cache.get_many("customer", [42, 43]) == {42: {"id": 42, "name": "Ada"}, 43: None}
        assert [str(order["total"]) for order in cache.get("profile", 42)["orders"]] == ["9.50"]

        pair.primary.execute("UPDATE customers SET name = 'Grace' WHERE id = 42", database="shop")
        _wait_until(lambda: cache.get("customer", 42)["name"] == "Grace", "the change is seen")
        _wait_until(lambda: cache.get("customer", 42, explain=True).is_hit, "the key is cached again")
        assert cache.get("profile", 42)["customer"]["name"] == "Grace"
        shown = json.loads(_cli("inspect", "customer", "42", "--json").stdout)
        assert [stripe["state"] for stripe in shown["stripes"]] == ["there"]
        assert [fill["verdict"] for fill in shown["fills"]] == ["stored"]
        assert (shown["entry"], shown["equals_primary"]) == ("live", True)
        pair.primary.execute("UPDATE customers SET name = 'Ada' WHERE id = 42", database="shop")


def test_the_readme(pair: Pair, memcached: Memcached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _carried_out(README, pair, memcached, tmp_path, monkeypatch) as names:
        assert names["customer"] == {"id": 42, "name": "Ada"}
        assert names["customers"] == {42: names["customer"], 43: None}
        assert names["profile"]["customer"] == names["customer"]
        read = names["cache"].get("profile", 42, explain=True)
        assert (read.is_hit, read.value) == (True, names["profile"])


def test_the_page_of_the_application_library(
    pair: Pair, memcached: Memcached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the configuration of the quickstart."""
    with _carried_out(QUICKSTART, pair, memcached, tmp_path, monkeypatch, python=APPLICATION) as names:
        row, customer = {"id": 42, "name": "Ada"}, names["Customer"](42, "Ada")
        assert names["profile"]["customer"] == row
        assert (names["customer"], names["several"]) == (customer, {42: customer, 43: None})
        assert names["token"] is not None
        read = r'freshness_client_reads_total{namespace="shop",object="customer",outcome="\w+"} 1.0'
        assert re.search(read, names["page"])


def test_the_page_of_sqlalchemy(
    pair: Pair, memcached: Memcached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the configuration of the quickstart, and what the page adds to it."""
    with _carried_out(QUICKSTART, pair, memcached, tmp_path, monkeypatch, python=SQLALCHEMY) as names:
        assert (names["customer"].id, names["name"], len(names["pair"])) == (42, "Ada", 1)
        assert (names["renamed"], names["again"]) == ("Ada", "Ada")
        assert names["totals"] == [Decimal("9.50")]
        assert asyncio.run(names["main"]()) is not None
        if pair.primary.flavor == "mysql":
            with names["tracked"].connect() as connection:
                assert isinstance(connection.connection.dbapi_connection, GtidConnection)
        for made in ("engine", "tracked"):
            names[made].dispose()
    pair.primary.execute("UPDATE customers SET name = 'Ada' WHERE id = 42", database="shop")
    pair.wait_caught_up()


def test_the_quickstart_says_what_check_demands(pair: Pair) -> None:
    """Each setting of the quickstart that is put back to another value is found by ``check``."""
    from freshness.config.server import ServerAddress
    from invalidator.rules.primary import check_database

    address = ServerAddress("127.0.0.1", pair.primary.port, "invalidator", "change-me-1", "shop")
    changes = {
        "binlog_format": ("STATEMENT", "ROW"),
        "binlog_row_image": ("MINIMAL", "FULL"),
        "binlog_row_metadata": ("MINIMAL", "FULL"),
        "sync_binlog": (0, 1),
        "innodb_flush_log_at_trx_commit": (2, 1),
    }
    if pair.primary.flavor == "mariadb":
        changes["gtid_strict_mode"] = (0, 1)
    for name, (wrong, right) in changes.items():
        pair.primary.execute(f"SET GLOBAL {name} = {wrong}")
        try:
            with pair.primary.connect("shop", user="invalidator", password="change-me-1") as connection:
                found = check_database(connection, address, pair.primary.flavor)
        finally:
            pair.primary.execute(f"SET GLOBAL {name} = {right}")
        assert [name in finding.message for finding in found] == [True], name
