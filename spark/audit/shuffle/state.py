"""The state that one audit hands to the next, so that each day reads only its own history.

Rows that later actions can be judged by (changes, invalidations and fills of the last days, the newest of each kind
that is older, which nodes an item was served from), rows that are not judged yet, and everything small beside them.
Saved as a generation of a folder, which appears as a whole; one of another version is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pyarrow import fs, parquet

from freshness.errors import ConfigError, FormatError
from spark.audit.engine.step import Engine, ScanPart, Shuffled, Told, collect
from spark.audit.input.archive import Archive, RunRow, Times, rebuild
from spark.audit.input.evidence import Names, Who
from spark.audit.input.recording import RecordedFiles, open_rows, read_parts
from spark.audit.input.spread import Spread, drop_context
from spark.audit.kernel.arrays import number_items, to_numbers
from spark.audit.model.finding import Knowledge, Life
from spark.audit.model.hashing import hash_items
from spark.audit.model.row import CHANGE, HIT, JUDGED
from spark.audit.model.schema import ITEM, REPLAY
from spark.audit.model.timeline import Run
from spark.folder import Folder, make_folder, open_folder, publish

STATE_VERSION: Final = 6
MANIFEST: Final = "manifest.json"
DRAFT: Final = ".draft"
ITEMS: Final = "items.parquet"
SMALL: Final = "small.json"
_GENERATION: Final = re.compile(r"[0-9]{8}-[0-9a-f]{32}")
_FILE: Final = pyarrow.schema([("path", pyarrow.string()), ("rows", pyarrow.int64())])


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is small. ``told``: gaps reported, as (lineage, source, first number)."""

    archive: Archive
    known: Knowledge
    names: Names
    sequences: Mapping[str, int]
    raises: frozenset[tuple[int, str, int]]
    told: frozenset[tuple[int, str, int]]
    as_of_us: int


@dataclass(frozen=True, slots=True)
class State:
    """As it was saved. ``rows`` as `REPLAY`. ``items``: by (h1, h2), the names of what is pending: the next audit may
    not see them otherwise."""

    kept: Kept
    rows: RecordedFiles
    items: Mapping[tuple[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Carry:
    """All that an audit hands on. ``pending`` as `PENDING`; ``items``: items of the state that it continued."""

    kept: Kept
    engine: Engine
    shuffled: Shuffled
    spread: Spread
    changes: RecordedFiles
    actions: RecordedFiles
    pending: pyarrow.Table
    items: Mapping[tuple[int, int], bytes]


class KeptRows(NamedTuple):
    """Rows of a piece (`REPLAY`), with what is judged marked as such. ``newest``: the newest old row of each kind in
    each place, a lineage or a node; ``rows``: all others that are kept."""

    rows: pyarrow.Table
    newest: pyarrow.Table


def keep_rows(table: pyarrow.Table, pending: pyarrow.Table, as_of_us: int, carry_us: int) -> KeptRows:
    """The rows of a piece (`REPLAY`) that the next audit needs."""
    columns = to_numbers(table)
    kind, begin_us, since_us = columns["kind"], columns["begin_us"], as_of_us - carry_us
    is_change, is_hit = kind == CHANGE, kind == HIT
    is_open = numpy.where(is_change, _find_waiting(columns, pending), begin_us > as_of_us)
    is_old = ~is_open & (is_hit | (begin_us <= since_us))
    flags = pyarrow.array(numpy.where(is_open, columns["flags"], columns["flags"] | JUDGED).astype(numpy.int32))
    marked = table.set_column(table.schema.get_field_index("flags"), "flags", flags)
    old = marked.filter(pyarrow.array(is_old))
    return KeptRows(marked.filter(pyarrow.array(~is_old)), choose_newest(old))


def choose_newest(old: pyarrow.Table) -> pyarrow.Table:
    """The newest row of each item and kind in each place, a lineage or a node."""
    columns = to_numbers(old)
    item, kind = number_items(columns["h1"], columns["h2"]), columns["kind"]
    is_change = kind == CHANGE
    place = numpy.where(is_change, columns["lineage"], columns["node"])
    at = numpy.where(is_change, columns["ordinal"], columns["begin_us"])
    keys = columns["sequence"], columns["client"], columns["row"], at, place, kind, item
    order = numpy.lexsort(keys)
    is_last = numpy.ones(len(order), numpy.bool_)
    is_last[:-1] = ~numpy.logical_and.reduce(
        [values[order][1:] == values[order][:-1] for values in (place, kind, item)]
    )
    return old.take(pyarrow.array(numpy.sort(order[is_last])))


def _find_waiting(columns: Mapping[str, NDArray[Any]], pending: pyarrow.Table) -> NDArray[numpy.bool_]:
    names = pending.column_names
    wanted = set(zip(*(pending.column(name).to_pylist() for name in names), strict=True))
    waiting = numpy.zeros(len(columns["h1"]), numpy.bool_)
    at = numpy.flatnonzero(numpy.isin(columns["h1"], pending.column("h1").to_numpy()))
    rows = zip(at.tolist(), *(columns[name][at].tolist() for name in names), strict=True)
    waiting[[place for place, *key in rows if tuple(key) in wanted]] = True
    return waiting


@dataclass(frozen=True, slots=True)
class KeepStep:
    """A step for each piece: write the rows that are kept to a file, and yield its name (`_FILE`). Yield the
    ``newest`` rows (`REPLAY`) of an item in several pieces (``spread``), and do not write them. A task that is
    started again writes another file. Files whose names are not collected are not part of the state."""

    folder: str
    path: str
    pending: pyarrow.Table
    as_of_us: int
    carry_us: int
    spread: Spread

    def __call__(self, piece: int, table: pyarrow.Table) -> Iterator[tuple[str, pyarrow.Table]]:
        kept = keep_rows(drop_context(table), self.pending, self.as_of_us, self.carry_us)
        if self.spread.find(piece) is None:
            yield from self.write(pyarrow.concat_tables(kept))
        else:
            yield from self.write(kept.rows)
            yield "newest", kept.newest

    def write(self, rows: pyarrow.Table) -> Iterator[tuple[str, pyarrow.Table]]:
        if rows.num_rows:
            path = f"{self.path}/{uuid4().hex}.parquet"
            parquet.write_table(rows, path, filesystem=open_folder(self.folder).filesystem)
            yield "files", pyarrow.Table.from_arrays([[path], [rows.num_rows]], schema=_FILE)


def find_items(column: str, pending: pyarrow.Table, as_of_us: int, parts: Iterable[ScanPart]) -> Iterator[Told]:
    """A step: ``items`` (`ITEM`) of what is pending, and of actions that are judged next time."""
    wanted = pending.column("h1").to_numpy()
    for batch in read_parts(parts, [column, *(["end_us"] if column == "item" else [])]):
        items = batch.column(column)
        if column == "item":
            is_late = pyarrow.compute.greater(batch.column("end_us"), as_of_us)
            items = items.filter(pyarrow.compute.and_(is_late, items.is_valid())).unique()
        else:
            items = items.flatten().unique()
        h1, h2 = hash_items(items)
        chosen = numpy.isin(h1, wanted) if column == "items" else numpy.ones(len(h1), numpy.bool_)
        columns = (pyarrow.array(h1[chosen]), pyarrow.array(h2[chosen]), items.filter(pyarrow.array(chosen)))
        yield "items", pyarrow.Table.from_arrays(list(columns), schema=ITEM)


def _name_items(carry: Carry) -> pyarrow.Table:
    """`ITEM`; records of what is pending are in this part of the history only."""
    pending, as_of_us = carry.pending, carry.kept.as_of_us
    told = [ITEM.empty_table()]
    if pending.num_rows:
        step = partial(find_items, "items", pending, as_of_us)
        found = carry.engine.scan("items that are pending", carry.changes.parts, step)
        told += [found["items"]] if "items" in found else []
    found = carry.engine.scan(
        "items of later actions", carry.actions.parts, partial(find_items, "item", pending, as_of_us)
    )
    told += [found["items"]] if "items" in found else []
    wanted = set(zip(pending.column("h1").to_pylist(), pending.column("h2").to_pylist(), strict=True))
    before = [(h1, h2, item) for (h1, h2), item in carry.items.items() if (h1, h2) in wanted]
    told.append(pyarrow.Table.from_pylist([dict(zip(ITEM.names, row, strict=True)) for row in before], ITEM))
    return pyarrow.concat_tables(told).group_by(ITEM.names).aggregate([])


def save_state(carry: Carry, folder: Folder, carry_us: int) -> None:
    """Write a new generation into the folder, which may be that of the state that was continued. ``carry_us``: how
    far back rows are kept. Its manifest comes last, and names every file with its size. Until then the previous
    generation is the state. That one stays for those who read it; what is older is deleted."""
    filesystem = folder.filesystem
    previous = _find_generations(folder)
    number = max((int(name.partition("-")[0]) for name in previous), default=0) + 1
    name = f"{number:08d}-{uuid4().hex}"
    place = f"{folder.path}/{name}"
    make_folder(folder, f"{place}/rows")
    step = KeepStep(folder.name, f"{place}/rows", carry.pending, carry.kept.as_of_us, carry_us, carry.spread)
    kept = carry.shuffled.reduce("rows for the next audit", step)
    last = step.write(choose_newest(kept.get("newest", REPLAY.empty_table())))
    told = collect([*((name, kept[name]) for name in kept), *last]).get("files", _FILE.empty_table())
    counts = zip(told.column("path").to_pylist(), told.column("rows").to_pylist(), strict=True)
    rows = {path.removeprefix(f"{place}/"): [count] for path, count in counts}
    parquet.write_table(_name_items(carry), f"{place}/{ITEMS}", filesystem=filesystem)
    with filesystem.open_output_stream(f"{place}/{SMALL}") as stream:
        stream.write("\n".join(_format(carry.kept)).encode())
    files = _find_sizes(folder, name, [*rows, ITEMS, SMALL])
    manifest = {"version": STATE_VERSION, "files": files, "rows": rows}
    with filesystem.open_output_stream(f"{place}/{MANIFEST}{DRAFT}") as stream:
        stream.write(json.dumps(manifest).encode())
    publish(folder, f"{place}/{MANIFEST}{DRAFT}", f"{place}/{MANIFEST}")
    newest = max((each for each, has_manifest in previous.items() if has_manifest), default="")
    for each in previous:
        if each < newest:
            filesystem.delete_dir(f"{folder.path}/{each}")


def load_state(folder: Folder) -> State:
    """Read what `save_state` wrote last. Raises `ConfigError` if there is none, `FormatError` for one of another
    version and for one that is not whole."""
    whole = sorted(name for name, has_manifest in _find_generations(folder).items() if has_manifest)
    if not whole:
        raise ConfigError(f"{folder.name} holds no state of an audit", hint="it is written by --save-state")
    place = f"{folder.path}/{whole[-1]}"
    counts = _check_files(folder, whole[-1])
    rows = open_rows(folder, {f"{place}/{path}": count for path, count in counts.items()}, REPLAY)
    with folder.filesystem.open_input_stream(f"{place}/{SMALL}") as stream:
        texts = stream.read().decode().splitlines()
    items = parquet.read_table(f"{place}/{ITEMS}", filesystem=folder.filesystem).to_pydict()
    named = {(h1, h2): item for h1, h2, item in zip(*(items[name] for name in ITEM.names), strict=True)}
    return State(_parse(texts), rows, named)


def _find_generations(folder: Folder) -> dict[str, bool]:
    """Names of the generations in the folder, and whether they have a manifest."""
    filesystem = folder.filesystem
    try:
        infos = filesystem.get_file_info(fs.FileSelector(folder.path, allow_not_found=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{folder.name} cannot be read: {error}", hint="is it the right folder?") from error
    names = [info.base_name for info in infos if _GENERATION.fullmatch(info.base_name)]
    manifests = filesystem.get_file_info([f"{folder.path}/{name}/{MANIFEST}" for name in names])
    return {name: info.type == fs.FileType.File for name, info in zip(names, manifests, strict=True)}


def _find_sizes(folder: Folder, name: str, paths: Iterable[str]) -> dict[str, int | None]:
    """Sizes of files of a generation; None for one that is not there."""
    wanted = list(paths)
    infos = folder.filesystem.get_file_info([f"{folder.path}/{name}/{path}" for path in wanted])
    return {path: info.size for path, info in zip(wanted, infos, strict=True)}


def _check_files(folder: Folder, name: str) -> dict[str, list[int]]:
    """The files of rows, and how many each has. Raises `FormatError` unless the generation has the files of its
    manifest. Others are of tasks that were started twice."""
    with folder.filesystem.open_input_stream(f"{folder.path}/{name}/{MANIFEST}") as stream:
        manifest = json.loads(stream.read())
    if manifest["version"] != STATE_VERSION:
        raise FormatError(
            f"state of version {manifest['version']}, this program reads {STATE_VERSION}",
            hint="audit without it once",
        )
    files = manifest["files"]
    found = _find_sizes(folder, name, files)
    wrong = sorted(path for path, size in files.items() if found[path] != size)
    if wrong:
        raise FormatError(
            f"{folder.name}/{name}/{wrong[0]} is not as it was saved: it has {found[wrong[0]] or 'no'} bytes, "
            f"and had {files[wrong[0]]}",
            hint="restore the folder as a whole, or audit without it once",
        )
    rows: dict[str, list[int]] = manifest["rows"]
    return rows


def _format(state: Kept) -> Iterator[str]:
    """JSON texts, each (what, contents)."""
    archive, known = state.archive, state.known
    yield json.dumps(["span", [state.as_of_us, archive.bucket, archive.end_us]])
    yield json.dumps(["sequences", list(state.sequences.items())])
    yield json.dumps(["raises", sorted(state.raises)])
    yield json.dumps(["told", sorted(state.told)])
    yield json.dumps(["runs", [[*row[:4], list(row.run)] for row in archive.runs]])
    yield json.dumps(["lives", [[place, lives] for place, lives in known.lives.items()]])
    yield json.dumps(["raise_acks", list(known.raise_acks.items())])
    yield json.dumps(["tables", list(known.tables.items())])
    yield json.dumps(["lost_until_us", list(known.lost_until_us.items())])
    yield json.dumps(["history_from_us", list(known.history_from_us.items())])
    yield json.dumps(["names", list(state.names.names.items())])
    yield json.dumps(["whos", list(state.names.whos.items())])
    yield json.dumps(["clients", list(state.names.clients.items())])
    for number, times in archive.times.items():
        yield json.dumps(["times", [number, times.at.tolist(), times.latest_us.tolist()]])


def _parse(texts: Iterable[str]) -> Kept:
    parts: dict[str, Any] = {}
    times: dict[int, Times] = {}
    for text in texts:
        what, contents = json.loads(text)
        if what == "times":
            number, *columns = contents
            times[number] = Times(*(numpy.array(column, numpy.int64) for column in columns))
        else:
            parts[what] = contents
    as_of_us, bucket, end_us = parts["span"]
    runs = [RunRow(name, number, flavor, epoch, Run(*run)) for name, number, flavor, epoch, run in parts["runs"]]
    archive = rebuild(runs, bucket, times, end_us)
    known = Knowledge(
        lineages=archive.lineages,
        lives={tuple(place): [Life(*life) for life in lives] for place, lives in parts["lives"]},
        raise_acks={tuple(key): end for key, end in parts["raise_acks"]},
        tables={who: tuple(tables) for who, tables in parts["tables"]},
        history_from_us=dict(parts["history_from_us"]),
        lost_until_us=dict(parts["lost_until_us"]),
    )
    names = Names(
        dict(parts["names"]),
        {who: Who(it[0], it[1], tuple(it[2]), it[3], tuple(it[4])) for who, it in parts["whos"]},
        dict(parts["clients"]),
    )
    return Kept(
        archive,
        known,
        names,
        dict(parts["sequences"]),
        frozenset((number, table, ordinal) for number, table, ordinal in parts["raises"]),
        frozenset((number, source, first) for number, source, first in parts["told"]),
        as_of_us,
    )
