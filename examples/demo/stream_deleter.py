"""Invalidation from the binlog without tokens: a process that reads the primary's stream and deletes keys.

As Debezium-, Maxwell- or home-made consumers work: the row events of the primary's binlog, by
mysql-replication's
own loop, name the keys; each key is deleted. The primary's stream and not the replica's is the common case, since it
is the fastest one. It is a process of its own, as the invalidator is, so that the two are measured alike. For each
row it reports ``table id version time`` on a loopback connection, once its deletes are acknowledged; that report is
the demo's measurement and no part of the strategy.

Started by ``examples.demo.world``; ends when it is killed.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from examples.demo.measurement import CUSTOMER, PROFILE, Row
from examples.demo.progress_watcher import READY
from examples.demo.strategy import open_client, plain_key

HEARTBEAT_SECONDS: Final = 1
_HEAD: Final = {"mariadb": "SHOW MASTER STATUS", "mysql": "SHOW BINARY LOG STATUS"}


def parse_report(line: str) -> tuple[Row, int, float]:
    """(row, version, when its deletes were acknowledged) of one line of the report."""
    table, number, version, at = line.split()
    return (table, int(number)), int(version), float(at)


def main(settings: dict[str, Any]) -> None:
    """``settings``: namespace, nodes, backend, flavor, server (pymysql's settings), report_port."""
    client = open_client(settings["nodes"], settings["backend"])
    with socket.create_connection(("127.0.0.1", settings["report_port"])) as connection:
        # One packet a line: a report that waits for others would be late.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = _open_stream(settings["server"], settings["flavor"])
        connection.sendall(f"{READY}\n".encode())
        for event in stream:
            for values in _rows(event):
                _delete(client, settings["namespace"], event.table, values)
                at = time.monotonic()
                connection.sendall(f"{event.table} {values['id']} {values['version']} {at}\n".encode())


def _open_stream(server: dict[str, Any], flavor: str) -> BinLogStreamReader:
    with pymysql.connect(**server) as connection, connection.cursor() as cursor:
        cursor.execute(_HEAD[flavor])
        file, position, *_ = cursor.fetchone()
    return BinLogStreamReader(
        connection_settings=server,
        server_id=random.SystemRandom().randrange(100_000, 1_000_000),
        log_file=file,
        log_pos=position,
        resume_stream=True,
        blocking=True,
        slave_heartbeat=HEARTBEAT_SECONDS,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=["customers", "orders"],
        enable_logging=False,
    )


def _rows(event: Any) -> Iterator[dict[str, Any]]:
    for row in event.rows:
        yield row["after_values"] if "after_values" in row else row["values"]


def _delete(client: Any, namespace: str, table: str, values: dict[str, Any]) -> None:
    if table == "customers":
        client.delete(plain_key(namespace, (CUSTOMER, values["id"])), noreply=False)
        client.delete(plain_key(namespace, (PROFILE, values["id"])), noreply=False)
    else:
        client.delete(plain_key(namespace, (PROFILE, values["customer_id"])), noreply=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
