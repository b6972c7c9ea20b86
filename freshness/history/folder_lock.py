"""A folder of files that one process at a time may write to: an archive, a copy."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from freshness.errors import ConfigError


def lock_folder(folder: Path, name: str, what: str) -> IO[bytes]:
    """Hold the folder until the result is closed, or the process ends. ``name``: name of the lock's file. Raises
    `ConfigError` if another run holds it: "FOLDER is being ``what`` by another run".
    """
    file = (folder / name).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"{folder} is being {what} by another run", hint="wait until it has ended, or stop it"
        ) from None
    return file
