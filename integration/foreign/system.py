"""The cache beside a foreign suite, started inside the suite's process once its tables are known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from integration.configuration import write_config
from integration.harness import CACHE, STREAM
from integration.servers import Flavor, Memcached
from integration.servers.process import run_directory
from integration.servers.program import InvalidatorProcess


def start_cache(flavor: Flavor, primary: str, tables: Iterable[str]) -> Path:
    """Start a node and an invalidator, which end with this process; return the file that has the tables as objects.
    ``primary``: URL of the database."""
    node = Memcached().start()
    path = write_config(
        Path(tempfile.mkdtemp(dir=run_directory())),
        flavor,
        primary,
        [node.address],
        objects="".join(
            f'[objects.o{number}]\ntable = "{table}"\n' for number, table in enumerate(sorted(set(tables)))
        ),
        cache=CACHE,
        stream=STREAM,
    )
    InvalidatorProcess(path).start()
    return path
