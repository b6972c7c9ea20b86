"""A transaction that nobody can handle, on real servers: the invalidator stops, unless its configuration skips it."""

from __future__ import annotations

import json
import re
import struct
import urllib.request
from pathlib import Path
from zlib import crc32

from integration.configuration import CUSTOMER
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    WAIT_SECONDS,
    System,
    run_cli,
    running_system,
    wait_for_hits,
)
from integration.servers import DatabaseServer, Pair
from invalidator.binlog.wire.event import ROW_EVENTS
from invalidator.stream.open import StreamOpener

OPERATOR_NEEDED = 4
UNKNOWN_KIND = 99
KEYS = [1, 2, 3]
ORDER = '[objects.order]\ntable = "orders"\n'


def spoil_last_rows(server: DatabaseServer) -> None:
    """Give the last row event of the server's log a kind that no reader knows. The log file is closed before."""
    [*_, last] = server.execute("SHOW BINARY LOGS")
    [(checksum,)] = server.execute("SELECT @@GLOBAL.binlog_checksum")
    server.execute("FLUSH BINARY LOGS")
    path = server.data_directory / str(last[0])
    data, place = path.read_bytes(), 4
    rows: list[tuple[int, bytearray]] = []
    while place < len(data):
        (size,) = struct.unpack_from("<I", data, place + 9)
        if data[place + 4] in ROW_EVENTS:
            rows.append((place, bytearray(data[place : place + size])))
        place += size
    place, event = rows[-1]
    event[4] = UNKNOWN_KIND
    if checksum == "CRC32":
        event[-4:] = crc32(event[:-4]).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.seek(place)
        file.write(event)


def name_skip(system: System, gtid: str, tables: str) -> None:
    """Let the only shard's transaction pass."""
    with system.config_path.open("a") as file:
        file.write(f'[[keyspaces.shop.shards.skip]]\ngtid = "{gtid}"\n{tables}\nreason = "its rows are damaged"\n')


def read_hits(system: System, name: str) -> tuple[list[int], list[int]]:
    """The keys that are hits for a new process, and the second column's values of all."""
    cache = system.open_cache()
    found = cache.get_many(name, KEYS, explain=True)
    cache.close()
    return [key for key, each in found.items() if each.is_hit], [
        next(value for column, value in each.value.items() if column in ("v", "total")) for each in found.values()
    ]


def read_changes(system: System, since: str, count: int) -> list[dict[str, object]]:
    result = run_cli("stream", "-c", system.config_path, "--since", since, "--count", str(count), "--no-heartbeats")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [line for line in lines if line["event"] == "update"]


def test_a_transaction_that_stops_the_stream_is_skipped_by_its_gtid(
    own_pair: Pair, tmp_path: Path, port: int
) -> None:
    with running_system(
        own_pair,
        tmp_path,
        tables=(CUSTOMERS_TABLE, ORDERS_TABLE),
        objects=CUSTOMER + ORDER,
        extra=f'[http]\nlisten = "127.0.0.1:{port}"\n',
    ) as system:
        system.execute("INSERT INTO customers VALUES (1, 'n', 0), (2, 'n', 0), (3, 'n', 0)")
        system.execute("INSERT INTO orders VALUES (1, 1, 0), (2, 1, 0), (3, 1, 0)")
        system.settle()
        cache = system.open_cache()
        for name in ("customer", "order"):
            wait_for_hits(cache, name, KEYS, system.describe)
        cache.close()
        system.wait_resumable()
        lives = system.lives()
        assert system.invalidator.terminate() == 0
        since = StreamOpener(lambda: system.config).read_token(None, None).format()
        system.execute("UPDATE customers SET v = 7 WHERE id = 1")
        own_pair.wait_caught_up()
        spoil_last_rows(own_pair.primary)
        system.execute("UPDATE orders SET total = 5 WHERE id = 2")

        stopped = run_cli("run", "-c", system.config_path)
        assert stopped.returncode == OPERATOR_NEEDED, stopped.stderr
        assert f"event {UNKNOWN_KIND}" in stopped.stderr
        named = re.search(r'gtid = "([^"]+)"', stopped.stderr.replace("\n", " "))
        assert named is not None, stopped.stderr
        gtid = named[1]

        name_skip(system, gtid, 'tables = ["customers"]')
        system.invalidator.start()
        system.settle()
        assert system.lives() == lives
        assert read_hits(system, "customer") == ([], [7, 0, 0]), "the whole table is invalidated"
        assert read_hits(system, "order") == ([1, 3], [0, 5, 0]), "everything else stays"
        assert f"transaction {gtid} is skipped" in system.invalidator.log()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as answer:
            metrics = answer.read().decode()
        assert re.search(r'^freshness_transactions_skipped_total\{lineage="shop/-"\} [1-9]', metrics, re.M)

        raised, order = read_changes(system, since, 2)
        assert (raised["gtid"], raised["table"], raised["op"]) == (gtid, "customers", "raise")
        assert "its rows are damaged" in str(raised["reason"])
        assert (order["table"], order["op"]) == ("orders", "update")
