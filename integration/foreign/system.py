"""The cache beside a foreign suite, started inside the suite's process once its tables are known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from integration.configuration import write_config
from integration.harness import CACHE, STREAM
from integration.servers import Flavor, Memcached
from integration.servers.process import run_directory
from integration.servers.program import InvalidatorProcess

FLAVOR: Final[Flavor] = "mysql"


@contextmanager
def running_cache(primary: str, tables: Iterable[str]) -> Iterator[Path]:
    """A node and an invalidator; yields the file that has the tables as objects. ``primary``: URL of the database."""
    names = enumerate(sorted(set(tables)))
    with Memcached() as node:
        path = write_config(
            Path(tempfile.mkdtemp(dir=run_directory())),
            FLAVOR,
            primary,
            [node.address],
            objects="".join(f'[objects.o{number}]\ntable = "{table}"\n' for number, table in names),
            cache=CACHE,
            stream=STREAM,
        )
        with InvalidatorProcess(path):
            yield path
