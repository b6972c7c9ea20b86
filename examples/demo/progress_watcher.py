"""Reads the node records every millisecond, as any client may: an event is acknowledged on a node as soon as the
record's progress contains its GTID.

A process of its own, as the stream deleter is: among the threads of the readers and writers it would measure how long
these keep the interpreter. For each change of a record it reports ``node life position time`` on a loopback
connection. It only watches and makes nothing happen. Started by ``examples.demo.world``; ends when it is killed.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

from freshness.algorithm.envelope import find_record, record_key
from freshness.algorithm.request import Get, Item
from freshness.config.config import load_config
from freshness.nodes.open import open_node

READY: Final = "ready"
WATCH_SECONDS: Final = 0.001
"""How often the node records are read: the resolution of the lag of event_tokens."""


def parse_progress(line: str) -> tuple[str, str, str, float]:
    """(node, life, position, when it was there) of one line of the report."""
    node, life, position, at = line.split()
    return node, life, position, float(at)


def main(settings: dict[str, Any]) -> None:
    """``settings``: config, lineage, report_port."""
    cache = load_config(Path(settings["config"])).cache
    request = (Get(record_key(cache.namespace, settings["lineage"]), is_bound=True),)
    nodes = {name: open_node(cache.access, name) for name in cache.nodes}
    seen: dict[str, bytes] = {}
    with socket.create_connection(("127.0.0.1", settings["report_port"])) as connection:
        # One packet a line: a report that waits for others would be late.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(f"{READY}\n".encode())
        while True:
            for name, node in nodes.items():
                (reply,) = node.perform(request)
                at = time.monotonic()
                if not isinstance(reply, Item) or reply.value == seen.get(name):
                    continue
                record = find_record(reply, name)
                if record is not None:
                    seen[name] = reply.value
                    connection.sendall(f"{name} {record.life.hex()} {record.progress} {at}\n".encode())
            time.sleep(WATCH_SECONDS)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
