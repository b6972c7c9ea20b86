"""The engine of one process: for what fits one machine. Needs neither Java nor Spark.

Rows of the shuffle are held in memory up to a limit, and go to temporary files beyond, so that the memory does not
grow with the history.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow

from spark.audit.engine.progress import Progress
from spark.audit.engine.step import (
    PieceStep,
    PlannedScan,
    ScanPart,
    ScanStep,
    Tables,
    Told,
    collect,
    read_table,
    use_system_memory,
    write_table,
)
from spark.folder import Folder, require_writable

HELD_BYTES_MAX: Final = 2 << 30


class LocalEngine:
    """``held_bytes_max``: rows of a shuffle that are held in memory."""

    def __init__(self, progress: Progress | None = None, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        use_system_memory()
        self._progress, self._held_bytes_max = progress or Progress(), held_bytes_max

    def scan(self, what: str, parts: Sequence[ScanPart], step: ScanStep) -> Tables:
        return collect((str(name), table) for name, table in step(self._watch(what, parts)))

    def shuffle(self, what: str, scans: Sequence[PlannedScan], pieces: int) -> LocalShuffled:
        shuffled = LocalShuffled(self._progress, self._held_bytes_max)
        parts = [part for scan in scans for part in scan.parts]
        watched = iter(self._watch(what, parts))
        shuffled.take(chain.from_iterable(scan.step(next(watched) for _ in scan.parts) for scan in scans))
        return shuffled

    def _watch(self, what: str, parts: Sequence[ScanPart]) -> Iterator[ScanPart]:
        with self._progress.watch(what, sum(part.rows for part in parts)) as done:
            for part in parts:
                yield part
                done(part.rows)

    def require_shared(self, folder: Folder) -> None:
        require_writable(folder)


class LocalShuffled:
    """Rows in their pieces, in memory and in temporary files."""

    told: Tables

    def __init__(self, progress: Progress, held_bytes_max: int) -> None:
        self.told = {}
        self._progress, self._held_bytes_max = progress, held_bytes_max
        self._held: dict[int, list[pyarrow.Table]] = {}
        self._held_bytes = 0
        self._rows: dict[int, int] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, list[Path]] = {}

    def add(self, piece: int, rows: pyarrow.Table) -> None:
        self._held.setdefault(piece, []).append(rows)
        self._rows[piece] = self._rows.get(piece, 0) + rows.num_rows
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._held_bytes_max:
            self._spill()

    def take(self, told: Iterable[Told]) -> None:
        """Everything that some steps yield."""
        tables: list[tuple[str, pyarrow.Table]] = []
        for name, table in told:
            if isinstance(name, int):
                self.add(name, table)
            else:
                tables.append((name, table))
        self.told = collect(tables)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="freshness-audit-")
        for piece, tables in self._held.items():
            files = self._files.setdefault(piece, [])
            path = Path(self._folder.name) / f"{piece}-{len(files)}.arrow"
            with pyarrow.OSFile(str(path), "wb") as sink:
                write_table(pyarrow.concat_tables(tables), sink)
            files.append(path)
        self._held, self._held_bytes = {}, 0

    def reduce(self, what: str, step: PieceStep, numbers: Mapping[int, int] | None = None) -> Tables:
        return self.regroup(what, step, numbers).told

    def regroup(self, what: str, step: PieceStep, numbers: Mapping[int, int] | None = None) -> LocalShuffled:
        groups: dict[int, list[int]] = {}
        for piece in sorted(self._rows):
            if numbers is None or piece in numbers:
                groups.setdefault(piece if numbers is None else numbers[piece], []).append(piece)

        def run() -> Iterator[Told]:
            with self._progress.watch(what, sum(self._rows[it] for its in groups.values() for it in its)) as done:
                for number, pieces in groups.items():
                    yield from step(number, pyarrow.concat_tables(chain(*map(self._read, pieces))))
                    done(sum(self._rows[piece] for piece in pieces))

        regrouped = LocalShuffled(self._progress, self._held_bytes_max)
        regrouped.take(run())
        return regrouped

    def _read(self, piece: int) -> Iterable[pyarrow.Table]:
        for path in self._files.get(piece, []):
            with pyarrow.OSFile(str(path), "rb") as source:
                yield read_table(source)
        yield from self._held.get(piece, [])

    def close(self) -> None:
        self._held, self._rows = {}, {}
        if self._folder is not None:
            self._folder.cleanup()
