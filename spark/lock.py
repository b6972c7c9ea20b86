"""A folder that one run of a job at a time may write to. Called by ``spark.archive`` and ``spark.copy``."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freshness.errors import ConfigError


@contextmanager
def locked(folder: Path, name: str, what: str) -> Iterator[None]:
    """Raises `ConfigError` where another run is at work: "FOLDER is being ``what`` by another run". ``name``: of the
    lock's file. It ends with the process."""
    with (folder / name).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{folder} is being {what} by another run", hint="wait until it has ended"
            ) from None
        yield
