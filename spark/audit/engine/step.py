"""The steps of the audit, and the engine that runs them.

A **step** reads parts of recorded history and yields tables, each under a name. A step before the shuffle also yields
pieces of rows, each under its number; a step after it gets the rows of one piece. Steps are the same in every engine,
so that all engines give the same result. Implemented by `spark.audit.engine.local` and `spark.audit.engine.cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow

from spark.folder import Folder


class ScanPart(Protocol):
    """A piece of recorded history that a step reads at once; it can be pickled."""

    @property
    def rows(self) -> int: ...


Told: TypeAlias = tuple[str | int, pyarrow.Table]
"""A table under its name, or some rows under the number of their piece."""
ScanStep: TypeAlias = Callable[[Iterable[ScanPart]], Iterator[Told]]
PieceStep: TypeAlias = Callable[[int, pyarrow.Table], Iterator[Told]]
"""The number of a piece, and its rows."""
Tables: TypeAlias = Mapping[str, pyarrow.Table]
"""By name, everything that was yielded under it; a name under which nothing was yielded is missing."""


class PlannedScan(NamedTuple):
    parts: Sequence[ScanPart]
    step: ScanStep


class Shuffled(Protocol):
    """Rows in their pieces. ``told``: the tables that the steps yielded with them."""

    @property
    def told(self) -> Tables: ...

    def reduce(self, what: str, step: PieceStep, numbers: Mapping[int, int] | None = None) -> Tables:
        """Run a step for each piece that has rows. It may be called several times. ``numbers``: the pieces that are
        read, and as which one each; several may be one. By default each is itself."""

    def regroup(self, what: str, step: PieceStep, numbers: Mapping[int, int] | None = None) -> Shuffled:
        """As `reduce`, with a step that gives rows for pieces of another shuffle."""

    def close(self) -> None: ...


class Engine(Protocol):
    """``what``: a few words for a person, for the progress that is shown."""

    def scan(self, what: str, parts: Sequence[ScanPart], step: ScanStep) -> Tables:
        """Read all parts, and collect the tables that the step yields."""

    def shuffle(self, what: str, scans: Sequence[PlannedScan], pieces: int) -> Shuffled:
        """Read all parts of all scans, and bring the rows of each piece together."""

    def require_shared(self, folder: Folder) -> None:
        """Raises `ConfigError` unless steps can write there, and this process sees it. Leaves nothing behind."""


def use_system_memory() -> None:
    """Let Arrow allocate as the process does. Its own allocator gives freed memory back at once, and steps that
    free and allocate the same again spend a fifth of their time on page faults."""
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())


def write_table(table: pyarrow.Table, sink: Any) -> None:
    """Write a table to a file or buffer of Arrow, in its IPC format, compressed; `read_table` reads it."""
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)


def read_table(source: Any) -> pyarrow.Table:
    return pyarrow.ipc.open_stream(source).read_all()


def collect(told: Iterable[tuple[str, pyarrow.Table]]) -> Tables:
    """Everything told, by its name."""
    tables: dict[str, list[pyarrow.Table]] = {}
    for name, table in told:
        tables.setdefault(name, []).append(table)
    return {name: pyarrow.concat_tables(its) for name, its in tables.items()}
