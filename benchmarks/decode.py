"""From the binary log to keys: against mysql-replication's decoding, and against the server's own tool on the wire.

Three logs of each server: events of hundreds of rows, the same of a wide table, and transactions of one row each.
In memory, in processor time: the same packets through the library, every row of every event, and through our decoder
to transactions with the keys of their rows and with checksums verified, which the library leaves out; the two large
logs also to transactions with whole rows. Over the wire:
the tool writes the log to a file as it comes, without looking into it (``--read-from-remote-server --raw``), and our
source delivers transactions with keys; both begin with connecting.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from pymysql.protocol import MysqlPacket
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from benchmarks.measure import Criterion, Result, interleave, stopwatch
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position
from freshness.database.schema import key_columns
from freshness.keys.cachekey import KeyBuilder
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.stream.source import Transaction
from integration.provision import find_mysql
from integration.servers import DatabaseServer, Flavor
from integration.servers.database import SCHEMA, make_database
from integration.servers.process import get_program, run_directory
from invalidator.binlog.decoder import EventDecoder
from invalidator.binlog.dump import request_stream
from invalidator.binlog.fasttrack import FastTrack, make_decoder
from invalidator.binlog.source import HEARTBEAT_SECONDS, BinlogSource
from invalidator.binlog.transaction import Subscription
from invalidator.binlog.wire.event import FORMAT_DESCRIPTION, parse_format_description
from invalidator.process.app import seldom_collected

FLAVORS: Final[tuple[Flavor, ...]] = ("mariadb", "mysql")
ROWS_IN_STATEMENT: Final = 1000
STREAM_SECONDS: Final = 60.0
"""Within this time a log must have come over the wire."""

PIECE_PACKETS: Final = 3000
"""Packets that are decoded at once, about what one read from the network brings."""

LIBRARY_SHARE: Final = 20
"""The library decodes the first 1/20 of the log's packets, and its time is multiplied by 20."""

LIBRARY_EVENTS: Final = frozenset((TableMapEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent))
LIBRARY: Final = "mysql-replication"
WHOLE_ROWS: Final = ("rows", "wide_rows")
"""The logs that are decoded to whole rows too."""

TOOL: Final = "mysqlbinlog --raw"
SMALL: Final = "CREATE TABLE small (id BIGINT PRIMARY KEY, a INT, b INT, c INT, v VARCHAR(32))"
WIDE: Final = (
    f"CREATE TABLE wide (id BIGINT PRIMARY KEY, {', '.join(f'i{n} INT, s{n} VARCHAR(20)' for n in range(8))},"
    " d DATETIME(3), n DECIMAL(12,2), t TEXT)"
)
VARIED_FROM: Final = 50_000_000
SINGLE: Final = """CREATE PROCEDURE singles(count INT) BEGIN DECLARE n INT DEFAULT 0;
  WHILE n < count DO
    INSERT INTO small VALUES (n + 100000000, n, n, n, 'hello world'); SET n = n + 1;
  END WHILE; END"""


@dataclass(frozen=True, slots=True)
class Log:
    """The contents of one log file. ``in_memory``: number of first rows that are decoded from memory."""

    name: str
    table: str
    rows: int
    transactions: int
    in_memory: int
    file: str
    start: Position
    decode_criterion: Criterion | None
    stream_criterion: Criterion | None


@dataclass(frozen=True, slots=True)
class Plant:
    """A server with its logs."""

    server: DatabaseServer
    logs: tuple[Log, ...]
    definitions: dict[str, ObjectDefinition]

    @property
    def flavor(self) -> Flavor:
        return self.server.flavor

    @property
    def address(self) -> ServerAddress:
        return ServerAddress("127.0.0.1", self.server.port, "app", "app", SCHEMA)


def measure_decode(rounds: int) -> list[Result]:
    """Both servers, each log: decoded in memory, and read over the wire."""
    results = []
    for flavor in FLAVORS:
        with open_plant(flavor) as plant, TemporaryDirectory(dir=run_directory()) as folder:
            for log in plant.logs:
                results.append(_measure_in_memory(plant, log, rounds))
                if log.name in WHOLE_ROWS:
                    results.append(_measure_in_memory(plant, log, rounds, is_keyed=False))
                results.append(_measure_stream(plant, log, Path(folder), rounds))
    return results


@contextmanager
def open_plant(
    flavor: Flavor, *, rows: int = 1_000_000, wide_rows: int = 100_000, singles: int = 60_000
) -> Iterator[Plant]:
    """A server with four logs. Raises `ServerFailed` if it does not start."""
    server = make_database(flavor, server_id=1, options=("--sync-binlog=0",))
    try:
        server.launch()
        server.wait_ready()
        server.execute(f"CREATE DATABASE {SCHEMA}")
        for statement in (SMALL, WIDE, SINGLE):
            server.execute(statement, database=SCHEMA)
        half = Criterion(at_least=0.5)
        logs = (
            _fill(server, "rows", "small", rows, rows // 4, Criterion(at_least=40), half),
            _fill(server, "varied_rows", "small", wide_rows, wide_rows // 2, None, None),
            _fill(server, "wide_rows", "wide", wide_rows, wide_rows // 2, None, None),
            _fill(server, "transactions", "small", singles, singles // 2, Criterion(at_least=20), half),
        )
        with connect(ServerAddress("127.0.0.1", server.port, "app", "app", SCHEMA)) as connection:
            definitions = {}
            for table in ("small", "wide"):
                columns = key_columns(connection, SCHEMA, table)
                builder = KeyBuilder("bench", table, columns)
                definitions[table] = ObjectDefinition(cast(Any, None), cast(Any, None), builder, {table: columns})
        yield Plant(server, logs, definitions)
    finally:
        server.stop()


def _fill(
    server: DatabaseServer,
    name: str,
    table: str,
    rows: int,
    in_memory: int,
    decode_criterion: Criterion | None,
    stream_criterion: Criterion | None,
) -> Log:
    """A log file of its own with these rows."""
    with server.connect(SCHEMA, read_timeout=300) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        status = "SHOW MASTER STATUS" if server.flavor == "mariadb" else "SHOW BINARY LOG STATUS"
        cursor.execute(status)
        [(file, *_)] = cursor.fetchall()
        start = executed_position(connection, server.flavor)
        if name == "transactions":
            cursor.execute("CALL singles(%s)", (rows,))
            transactions = rows
        else:
            for first in range(0, rows, ROWS_IN_STATEMENT):
                lines = ",".join(_line(name, first + place) for place in range(ROWS_IN_STATEMENT))
                cursor.execute(f"INSERT INTO {table} VALUES {lines}")
            transactions = rows // ROWS_IN_STATEMENT
        cursor.execute("FLUSH BINARY LOGS")
    return Log(name, table, rows, transactions, in_memory, str(file), start, decode_criterion, stream_criterion)


def _line(name: str, number: int) -> str:
    if name == "rows":
        # All of one length, which are read by stride.
        return f"({number},{number},1,2,'hello world {number % 10}')"
    if name == "varied_rows":
        return f"({number + VARIED_FROM},{number},1,2,'{'x' * (number % 20)}')"
    pairs = ",".join("NULL,NULL" if (number + place) % 5 == 0 else f"{number},'text {place}'" for place in range(8))
    return f"({number},{pairs},'2026-01-31 12:00:00.5',{number % 999}.25,'{'x' * (number % 40)}')"


# -- in memory --------------------------------------------------------------------------------------------


def _measure_in_memory(plant: Plant, log: Log, rounds: int, *, is_keyed: bool = True) -> Result:
    """To keys, or to whole rows."""
    packets = _read_packets(plant, log)
    pieces = [packets[at : at + PIECE_PACKETS] for at in range(0, len(packets), PIECE_PACKETS)]
    library_packets = packets[: len(packets) // LIBRARY_SHARE]
    rows_of_library = _decode_by_library(plant, library_packets)

    def ours(_: int) -> float:
        decoder = _decoder(plant, is_keyed=is_keyed)
        counted = [0]

        def work() -> None:
            for piece in pieces:
                found: list[Transaction] = []
                decoder.decode(piece, found)
                counted[0] += sum(len(each.items) + len(each.changes) for each in found)

        seconds = _cpu_seconds(work)
        assert counted == [log.in_memory], "every row was decoded"
        return seconds

    def library(_: int) -> float:
        seconds = _cpu_seconds(lambda: _decode_by_library(plant, library_packets))
        return seconds * log.in_memory / rows_of_library

    timings = interleave(ours, library, rounds)
    name = f"decode_{plant.flavor}_{log.name}" if is_keyed else f"decode_{plant.flavor}_whole_{log.name}"
    unit = "transactions/s" if log.name == "transactions" else "rows/s"
    return timings.per_second(name, log.in_memory, unit, LIBRARY, log.decode_criterion if is_keyed else None)


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process: neither side waits for anything, and the machine may have other work. Both with the garbage
    collector set as the invalidator sets it."""
    with seldom_collected():
        start = time.process_time()
        work()
        return time.process_time() - start


def _decoder(plant: Plant, *, is_keyed: bool = True) -> EventDecoder | FastTrack:
    subscription = Subscription(plant.flavor, SCHEMA, frozenset(plant.definitions), "freshness_heartbeat")
    decoder = make_decoder(subscription, find_cascades=dict, definitions=plant.definitions if is_keyed else None)
    decoder.restart(has_checksum=True)
    return decoder


def _read_packets(plant: Plant, log: Log) -> list[bytes]:
    """The packets of the first transactions of the log, as many as are decoded from memory."""
    decoder = _decoder(plant)
    packets: list[bytes] = []
    rows = 0
    with connect(plant.address) as connection:
        reader, has_checksum = request_stream(connection, plant.flavor, log.start, HEARTBEAT_SECONDS)
        assert has_checksum, "the server writes checksums"
        while rows < log.in_memory:
            for packet in reader.read():
                if rows == log.in_memory:
                    break
                found: list[Transaction] = []
                decoder.decode([packet], found)
                rows += sum(len(each.items) for each in found)
                packets.append(packet)
    return packets


class _Server:
    """What the library asks of a second connection."""

    charset = "utf8mb4"

    def __init__(self, flavor: str) -> None:
        self._flavor = flavor

    def _get_dbms(self) -> str:
        return self._flavor


def _decode_by_library(plant: Plant, packets: Sequence[bytes]) -> int:
    """What the library's stream does with each packet, and then all rows of its event. How many rows there are."""
    server = _Server(plant.flavor)
    tables: dict[int, Any] = {}
    lengths: tuple[int, ...] = ()
    rows = 0
    for packet in packets:
        if packet[5] == FORMAT_DESCRIPTION:
            lengths = parse_format_description(packet).post_header_lengths
        wrapper = BinLogPacketWrapper(
            MysqlPacket(packet, "utf8"), tables, server, (8, 0, 0), True, LIBRARY_EVENTS, None, None, None, None,
            False, False, False, True, False, False, lengths,
        )  # fmt: skip
        event = wrapper.event
        if isinstance(event, TableMapEvent):
            tables[event.table_id] = event.get_table()
        elif event is not None:
            rows += len(event.rows)
    return rows


# -- over the wire ----------------------------------------------------------------------------------------


def _measure_stream(plant: Plant, log: Log, folder: Path, rounds: int) -> Result:
    command = _tool_command(plant, log, folder)

    def tool(_: int) -> float:
        seconds = stopwatch(lambda: subprocess.run(command, check=True, capture_output=True))
        [written] = folder.iterdir()
        assert written.stat().st_size > log.rows, "the tool has written the log"
        written.unlink()
        return seconds

    def ours(_: int) -> float:
        with seldom_collected():
            return stopwatch(lambda: _stream(plant, log))

    timings = interleave(ours, tool, rounds)
    name = f"stream_{plant.flavor}_{log.name}"
    unit = "transactions/s" if log.name == "transactions" else "rows/s"
    return timings.per_second(name, log.rows, unit, TOOL, log.stream_criterion)


def _stream(plant: Plant, log: Log) -> None:
    source = BinlogSource(plant.address, plant.flavor, frozenset(plant.definitions), definitions=plant.definitions)
    source.open(log.start)
    try:
        deadline = time.monotonic() + STREAM_SECONDS
        transactions = rows = 0
        while transactions < log.transactions:
            assert time.monotonic() < deadline, f"{transactions} of {log.transactions} transactions came"
            # The log goes on in the next file.
            received = source.poll(1.0, log.transactions - transactions)
            transactions += len(received)
            rows += sum(len(transaction.items) for transaction in received)
        assert rows == log.rows
    finally:
        source.close()


def _tool_command(plant: Plant, log: Log, folder: Path) -> list[str]:
    if plant.flavor == "mariadb":
        program = [get_program("mariadb-binlog"), "--no-defaults"]
    else:
        mysql = find_mysql()
        program = [*mysql.command(mysql.usr / "bin/mysqlbinlog"), "--no-defaults"]
    return [
        *program,
        "--read-from-remote-server",
        "--raw",
        f"--result-file={folder}/",
        "--host=127.0.0.1",
        f"--port={plant.server.port}",
        "--user=app",
        "--password=app",
        log.file,
    ]
