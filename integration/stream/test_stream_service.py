"""The update stream over HTTP, on the command line and in the archive, against real servers and an invalidator: every
row change of the log, by GTID and row, once."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pymysql.cursors import DictCursor

from freshness.algorithm.envelope import Stripe, stripe_key, stripe_number
from freshness.config.server import ServerAddress
from freshness.database.connection import executed_position
from freshness.history.archive_file import UNFINISHED, find_files
from freshness.keys.placement import Placement
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from freshness.values.codec import row_digest
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    WAIT_SECONDS,
    System,
    call_cli,
    run_cli,
    running_system,
    wait_until,
)
from integration.invalidator.test_process import purge_logs
from integration.servers import DatabaseServer, Pair
from invalidator.binlog.source import BinlogSource

CHECKOUT: Final = Path(__file__).resolve().parents[2]
TABLES: Final = frozenset(("customers", "orders"))
STREAM: Final = "/v1/update-stream"
OPERATOR: Final = 4
DISCONNECTED_SECONDS: Final = 180.0

Change = tuple[str, int, str, str, Any, Any]
"""GTID, row, table, op, before, after."""


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    sections = f'[http]\nlisten = "127.0.0.1:{port}"\n[archive]\npath = "archive"\nrotate_seconds = 1\n'
    with running_system(
        pair, tmp_path, tables=(CUSTOMERS_TABLE, ORDERS_TABLE), objects=CUSTOMER + PROFILE, extra=sections
    ) as started:
        yield started


def head_of(server: DatabaseServer) -> Position:
    with server.connect() as connection:
        return executed_position(connection, server.flavor)


def write(system: System, numbers: range) -> None:
    """Transactions of one to five rows, of all kinds."""
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        for number in numbers:
            cursor.execute("BEGIN")
            for place in range(number % 5 + 1):
                cursor.execute(
                    "INSERT INTO customers VALUES (%s, %s, %s)", (10 * number + place, f"näme {number}", place)
                )
            if number % 3 == 0:
                cursor.execute("UPDATE customers SET v = v + 1 WHERE id = %s", (10 * number,))
                cursor.execute("INSERT INTO orders VALUES (%s, %s, NULL)", (number, 10 * number))
            if number % 4 == 0:
                cursor.execute("DELETE FROM customers WHERE id = %s", (10 * number,))
            cursor.execute("COMMIT")


def changes_in_log(server: DatabaseServer, start: Position) -> list[Change]:
    """What is in the server's log since a position, read by the source alone."""
    end, position = head_of(server), start
    address = ServerAddress("127.0.0.1", server.port, "app", "app", "shop")
    source = BinlogSource(address, server.flavor, TABLES)
    source.open(start)
    found: list[Change] = []
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while not position.contains(end):
            assert time.monotonic() < deadline, f"{end} did not come"
            for transaction in source.poll(1.0, 1000):
                position = position.union(transaction.position)
                found += [
                    (str(transaction.position), row, change.table, change.op, change.before, change.after)
                    for row, change in enumerate(transaction.changes)
                ]
    finally:
        source.close()
    return found


def change_of(line: dict[str, Any]) -> Change:
    return line["gtid"], line["row"], line["table"], line["op"], line["before"], line["after"]


def is_change(line: dict[str, Any]) -> bool:
    return line["event"] == "update" and line["op"] in ("insert", "update", "delete")


@contextmanager
def consuming(port: int, **parameters: Any) -> Iterator[http.client.HTTPResponse]:
    """A consumer, cut off at the end without a farewell."""
    with requesting(port, **parameters) as response:
        assert response.status == 200, response.read()
        yield response


@contextmanager
def requesting(port: int, **parameters: Any) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    connection.request("GET", f"{STREAM}?{query}")
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def get_json(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == 200, answer
    return answer


# -- HTTP ------------------------------------------------------------------------------------------------------------


def test_a_consumer_that_is_cut_again_and_again_has_every_change_once(system: System, port: int) -> None:
    """It records each pair of GTID and row once, and comes back with the resume text of its last line."""
    start, server = head_of(system.pair.primary), system.pair.primary
    since = get_json(port, "/v1/token")["token"]
    writer = threading.Thread(target=write, args=(system, range(1, 120)))
    writer.start()
    recorded: dict[tuple[str, int], Change] = {}
    repeated = 0
    lines_of_round = [3, 17, 1, 40, 8, 100, 2]
    try:
        for count in lines_of_round:
            with consuming(port, since=since) as response:
                for _ in range(count):
                    line = json.loads(response.readline())
                    if is_change(line):
                        repeated += (line["gtid"], line["row"]) in recorded
                        recorded[line["gtid"], line["row"]] = change_of(line)
                    since = line["resume"] or since
    finally:
        writer.join()
    expected = changes_in_log(server, start)
    with consuming(port, since=since) as response:
        while len(recorded) < len(expected):
            line = json.loads(response.readline())
            assert line["event"] in ("update", "schema", "heartbeat"), line
            if is_change(line):
                repeated += (line["gtid"], line["row"]) in recorded
                recorded[line["gtid"], line["row"]] = change_of(line)
    assert list(recorded.values()) == expected
    assert repeated <= len(lines_of_round) * 8, "at most the rows of one transaction for each cut"


def test_events_for_browsers_resume_by_their_last_id(system: System, port: int) -> None:
    start = head_of(system.pair.primary)
    since = get_json(port, "/v1/token")["token"]
    write(system, range(1, 20))
    expected = changes_in_log(system.pair.primary, start)
    found: dict[tuple[str, int], Change] = {}
    headers = {"accept": "text/event-stream"}
    while len(found) < len(expected):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        connection.request("GET", f"{STREAM}?since={since}&count=9", headers=headers)
        events = connection.getresponse().read().decode().split("\n\n")
        connection.close()
        for event in filter(None, events):
            fields = dict(line.split(": ", 1) for line in event.split("\n"))
            line = json.loads(fields["data"])
            if is_change(line):
                found[line["gtid"], line["row"]] = change_of(line)
            headers["last-event-id"] = fields["id"]
    assert list(found.values()) == expected


def test_a_slow_consumer_is_disconnected_and_the_invalidator_goes_on(system: System, port: int) -> None:
    system.execute("ALTER TABLE customers ADD note LONGTEXT")
    system.settle()
    since = get_json(port, "/v1/token")["token"]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(DISCONNECTED_SECONDS)
        client.connect(("127.0.0.1", port))
        client.sendall(f"GET {STREAM}?since={since} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for number in range(1, 161):
            system.execute("INSERT INTO customers VALUES (%s, 'n', 0, REPEAT('x', 100000))", number)
        began = time.monotonic()
        while "did not read for" not in system.invalidator.log():
            system.execute("UPDATE customers SET v = v + 1 WHERE id = 1")
            system.wait_covered()  # the nodes acknowledge as if nobody was there
            assert time.monotonic() - began < DISCONNECTED_SECONDS, system.invalidator.log()[-2000:]
        response = http.client.HTTPResponse(client)
        response.begin()
        *lines, end = [json.loads(line) for line in response.read().splitlines()]
    assert end["event"] == "end"
    assert end["resume"] == lines[-1]["resume"]
    keys = [line["key"]["id"] for line in lines if is_change(line)]
    assert keys == list(range(1, len(keys) + 1))
    with consuming(port, since=end["resume"]) as response:
        line = json.loads(response.readline())
        while not is_change(line):
            line = json.loads(response.readline())
        assert line["key"]["id"] == len(keys) + 1


def test_the_head_as_a_token_and_the_topology(system: System, port: int) -> None:
    first = get_json(port, "/v1/token?keyspace=shop&shard=-")
    system.execute("INSERT INTO customers VALUES (1, 'n', 0)")
    before = head_of(system.pair.primary)
    second = get_json(port, "/v1/token")
    position = EventToken.parse(second["token"]).position
    assert position.contains(before)
    assert head_of(system.pair.primary).contains(position)
    result = call_cli("compare", first["token"], second["token"])
    assert (result.returncode, result.stdout) == (0, "older\n")
    topology = get_json(port, "/v1/topology")
    [shard] = topology["keyspaces"]["shop"]["shards"]
    assert shard["primary"] == f"app@127.0.0.1:{system.pair.primary.port}/shop"
    assert ":app@" not in json.dumps(topology)


# -- the command line ------------------------------------------------------------------------------------------------


def printed(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_command_prints_what_the_service_sends(system: System, port: int) -> None:
    start = head_of(system.pair.primary)
    since = get_json(port, "/v1/token")["token"]
    began = datetime.now(UTC)
    write(system, range(1, 12))
    expected = changes_in_log(system.pair.primary, start)
    with consuming(port, since=since, count=40) as response:
        served = [json.loads(line) for line in response.read().splitlines()]
    lines = printed(
        run_cli("stream", "--since", since, "--count", "40", "--keyspace", "shop", "-c", system.config_path)
    )
    assert sum(line["event"] == "update" for line in lines) == 40
    assert [line["event"] for line in lines] == [line["event"] for line in served]
    updates = [[change_of(each) for each in found if each["event"] == "update"] for found in (lines, served)]
    assert updates[0] == updates[1]
    changes: list[Change] = []
    with consuming(port, since=began.strftime("%Y-%m-%dT%H:%M:%SZ")) as response:
        while not changes or changes[-1] != expected[-1]:
            line = json.loads(response.readline())
            changes += [change_of(line)] if is_change(line) else []
    assert changes[-len(expected) :] == expected, "a time misses nothing"


def test_history_that_is_gone(own_pair: Pair, tmp_path: Path, port: int) -> None:
    section = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    with running_system(own_pair, tmp_path, has_replica=False, extra=section) as system:
        since = get_json(port, "/v1/token")["token"]
        for number in range(1, 4):
            system.execute("INSERT INTO customers VALUES (%s, 'n', 0)", number)
            system.execute("FLUSH BINARY LOGS")
        system.settle()
        wait_until(lambda: purge_logs(own_pair.primary), "the logs are purged")
        result = run_cli("stream", "--since", since, "-c", system.config_path)
        assert result.returncode == OPERATOR, result.stderr
        assert "no longer has the log" in result.stderr
        with requesting(port, since=since) as response:
            first = json.loads(response.readline())
        if response.status == 410:  # the server's refusal came before the answer had begun
            assert first["detail"]["error"] == "HistoryPurged"
        else:
            assert (first["event"], first["error"]) == ("error", "HistoryPurged")
            assert first["resume"] is not None


# -- the archive -----------------------------------------------------------------------------------------------------


def archived(folder: Path) -> list[dict[str, Any]]:
    tables = [pq.read_table(file.path, partitioning=None) for file in find_files(folder)]
    return list(pa.concat_tables(tables).to_pylist())


def archived_changes(folder: Path) -> list[Change]:
    return [
        (row["gtid"], row["row"], row["table"], row["op"], read_json(row["before"]), read_json(row["after"]))
        for row in archived(folder)
        if row["op"] in ("insert", "update", "delete")
    ]


def read_json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def wait_archived(folder: Path, count: int) -> None:
    wait_until(
        lambda: len(archived_changes(folder)) >= count if find_files(folder) else False,
        f"{count} changes are archived",
        lambda: str([file.path.name for file in find_files(folder)]),
    )


def test_the_archive_of_a_killed_invalidator_has_every_change_once(system: System, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    wait_until(lambda: bool(find_files(folder)), "the archive has begun", system.describe)
    start = head_of(system.pair.primary)
    for number in range(3):
        write(system, range(100 * number, 100 * number + 30))
        system.invalidator.kill()
        write(system, range(100 * number + 30, 100 * number + 40))
        system.invalidator.start()
    expected = changes_in_log(system.pair.primary, start)
    wait_archived(folder, len(expected))
    assert archived_changes(folder) == expected
    ordinals = sorted({row["ordinal"] for row in archived(folder)})
    assert ordinals == list(range(1, len(ordinals) + 1))


def test_digests_are_those_of_the_rows_and_items_those_of_the_cache(system: System, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    wait_until(lambda: bool(find_files(folder)), "the archive has begun", system.describe)
    write(system, range(1, 10))
    system.execute("UPDATE customers SET v = -1 WHERE id >= 50")
    with system.pair.primary.connect("shop") as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute("SELECT * FROM customers")
        rows = {row["id"]: row for row in cursor.fetchall()}
    wait_until(lambda: any(row["after"] and '"v":-1' in row["after"] for row in archived(folder)), "it is archived")
    last: dict[int, dict[str, Any]] = {}
    for row in archived(folder):
        if row["table"] == "customers":
            last[json.loads(row["key"])["id"]] = row
    assert {key for key, row in last.items() if row["op"] != "delete"} == rows.keys()
    for key, row in rows.items():
        assert last[key]["after_digest"] == row_digest(row)
        item = system.subject("customer", key).item
        assert last[key]["row_items"] == [item]
        assert set(last[key]["items"]) == {item, system.subject("profile", key).item}


@contextmanager
def recording(system: System, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "invalidator.cli", "record", "-c", str(system.config_path)]
    with subprocess.Popen(
        [*command, *map(str, arguments)], cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_a_recorder_that_is_killed_again_and_again(system: System, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    with recording(system, "--out", folder) as process:
        wait_until(lambda: bool(find_files(folder)), "the archive has begun")
        start = head_of(system.pair.primary)
        process.kill()
    for number in range(3):
        with recording(system, "--out", folder) as process:
            before = len(archived_changes(folder))
            write(system, range(50 * number, 50 * number + 20))
            wait_archived(folder, before + 1)
            write(system, range(50 * number + 20, 50 * number + 40))
            process.kill()
    expected = changes_in_log(system.pair.primary, start)
    with recording(system, "--out", folder) as process:
        wait_archived(folder, len(expected))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    assert archived_changes(folder) == expected
    assert list(folder.rglob(f"*{UNFINISHED}")) == []
    refused = call_cli("record", "--out", folder, "--since", "now", "-c", system.config_path)
    assert (refused.returncode, "goes on where it ends" in refused.stderr) == (2, True)


def find_replayed(system: System, item: bytes) -> Position:
    """What a fill of this item would have to contain in the namespace of the replay."""
    item, stripes = item.replace(b"shop:", b"shop.replay:", 1), system.config.cache.stripes
    key = stripe_key("shop.replay", "shop/-", stripe_number(item, stripes))
    node = Placement(system.config.cache.nodes, "shop.replay").node_for(item)
    found = system.find_raw(node, key)
    assert found is not None, f"{item!r} has no stripe"
    return Stripe.decode(found.value).position


@pytest.mark.parametrize("form", ["archive", "lines"])
def test_a_recording_is_replayed_into_the_nodes(form: str, system: System, port: int, tmp_path: Path) -> None:
    folder, start = tmp_path / "archive", head_of(system.pair.primary)
    wait_until(lambda: bool(find_files(folder)), "the archive has begun", system.describe)
    since = get_json(port, "/v1/token")["token"]
    write(system, range(1, 20))
    expected = changes_in_log(system.pair.primary, start)
    wait_archived(folder, len(expected))
    path = folder
    if form == "lines":
        path = tmp_path / "stream.jsonl"
        with consuming(port, since=since) as response, path.open("wb") as file:
            seen = 0
            while seen < len(expected):
                data = response.readline()
                seen += is_change(json.loads(data))
                file.write(data)
    result = call_cli("replay", path, "--json", "-c", system.config_path)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["namespace"] == "shop.replay"
    [lineage] = answer["lineages"]
    assert lineage["nodes_left_out"] == []
    assert lineage["keys"] > 0
    flavor = system.pair.primary.flavor
    changes = [(item, parse_position(flavor, row["gtid"])) for row in archived(folder) for item in row["items"]]
    assert changes
    assert [item for item, event in changes if not find_replayed(system, item).contains(event)] == []
    system.settle()
    again = call_cli("replay", path, "-c", system.config_path)
    assert again.returncode == 2
    assert "in use" in again.stderr
    used = call_cli("replay", path, "--namespace", "shop", "-c", system.config_path)
    assert (used.returncode, "in use" in used.stderr) == (2, True)
