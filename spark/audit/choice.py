"""The engine of an audit: one process, or Spark.

Spark is imported only if it is used: a history that fits one machine needs neither Spark nor Java.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from freshness.errors import required_packages
from spark.audit.engine.local import LocalEngine
from spark.audit.engine.progress import Progress
from spark.audit.engine.step import Engine
from spark.audit.input.recording import list_files
from spark.folder import Folder, open_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES: Final = ("auto", "local", "spark")
LOCAL_BYTES_MAX: Final = 8 << 30
"""Files up to which one process audits a history, about 100 million events."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit."""


@contextmanager
def open_engine(
    wanted: str,
    folders: Sequence[str],
    progress: Progress,
    *,
    master: str | None = None,
    session: SparkSession | None = None,
) -> Iterator[Engine]:
    """The engine of one audit of ``folders``. ``wanted``: one of `ENGINES`; "auto" is Spark for a session or a master
    that was given, under spark-submit, and for more than `LOCAL_BYTES_MAX`. Raises the errors of the steps, without
    Spark's words around them."""
    is_spark = session is not None or master is not None or _SUBMITTED in os.environ
    if wanted == "auto" and not is_spark:
        size = sum(map(measure, map(open_folder, folders)))
        is_spark = size > LOCAL_BYTES_MAX
        progress.tell(f"engine: {'spark' if is_spark else 'local'}, for {size / 1e6:,.1f} MB of history")
    if wanted == "local" or not (is_spark or wanted == "spark"):
        yield LocalEngine(progress)
        return
    with required_packages("spark.audit on Spark", "spark"):
        from spark.audit.engine.cluster import open_spark
    with open_spark(progress, master, session) as engine:
        yield engine


def measure(folder: Folder) -> int:
    """Bytes of the files of a folder. Raises `ConfigError` as `list_files`."""
    return sum(info.size for info in list_files(folder))
