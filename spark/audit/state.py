"""The state that one audit hands to the next, so that each day reads only its own history.

Rows that later actions can be judged by (changes, invalidations and fills of the last days, the newest of each kind
that is older, which nodes an item was served from), rows that are not judged yet, and everything small beside them.
Saved as a generation of a folder, which appears as a whole; one of another version is refused. Called by the audit's
main.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshness.errors import ConfigError, FormatError
from spark.audit.archive import Archive, RunRow, rebuild
from spark.audit.evidence import Names, Who
from spark.audit.finding import Knowledge, Life
from spark.audit.row import CHANGE, HIT, JUDGED
from spark.audit.timeline import Run
from spark.folder import Folder
from spark.schema import PENDING, REPLAY

STATE_VERSION: Final = 3
MANIFEST: Final = "manifest.json"
DRAFT: Final = ".draft"
_GENERATION: Final = re.compile(r"[0-9]{8}-[0-9a-f]{32}")
ITEMS: Final = "h1 long, h2 int, item binary"


@dataclass(frozen=True, slots=True)
class State:
    """``rows`` as `REPLAY`. ``pending`` as `PENDING`. ``told``: gaps reported, as (lineage, source, first number).

    ``items``: (h1, h2, item), the names of what is pending: the next audit may not see them otherwise.
    """

    rows: DataFrame
    pending: DataFrame | None
    items: DataFrame
    archive: Archive
    known: Knowledge
    names: Names
    sequences: dict[str, int]
    raises: frozenset[tuple[int, str, int]]
    told: frozenset[tuple[int, str, int]]
    as_of_us: int


def keep_rows(state: State, carry_us: int) -> DataFrame:
    """The rows that the next audit needs, with what is judged marked as such."""
    assert state.pending is not None, "only an audit's own state can be saved"
    rows, as_of_us = state.rows, state.as_of_us
    since_us = as_of_us - carry_us
    of_change = F.col("kind") == CHANGE
    changes = rows.where(of_change)
    waiting = changes.join(state.pending, PENDING.names, "left_semi")
    judged = _judged(changes.join(state.pending, PENDING.names, "left_anti"))
    others = rows.where(~of_change & (F.col("kind") != HIT))
    late = others.where(F.col("begin_us") > as_of_us)
    early = _judged(others.where(F.col("begin_us") <= as_of_us))
    hits = rows.where(F.col("kind") == HIT)
    places = _judged(hits.where(F.col("begin_us") <= as_of_us)).dropDuplicates(["h1", "h2", "node"])
    kept = waiting.unionByName(late).unionByName(places)
    kept = kept.unionByName(hits.where(F.col("begin_us") > as_of_us))
    for frame, place, order in ((judged, "lineage", "ordinal"), (early, "node", "begin_us")):
        kept = kept.unionByName(frame.where(F.col("begin_us") > since_us))
        kept = kept.unionByName(_newest(frame.where(F.col("begin_us") <= since_us), place, order))
    return kept.select(*REPLAY.names)


def _judged(rows: DataFrame) -> DataFrame:
    return rows.withColumn("flags", F.col("flags").bitwiseOR(F.lit(JUDGED)))


def _newest(rows: DataFrame, place: str, order: str) -> DataFrame:
    """The newest row of each item and kind in each place, a lineage or a node."""
    whole = F.max_by(F.struct(*REPLAY.names), order).alias("row")
    return rows.groupBy("h1", "h2", "kind", place).agg(whole).select("row.*")


# -- the folder ------------------------------------------------------------------------------------------


def save_state(state: State, folder: Folder, carry_us: int) -> None:
    """Write a new generation into the folder, which may be that of the state that was continued. ``carry_us``: how
    far back rows are kept.

    Its manifest comes last, and names every file with its size. Until then the former generation is the state. That
    one stays for those who read it; what is older is deleted.
    """
    session, filesystem = state.rows.sparkSession, folder.filesystem
    former = _find_generations(folder)
    number = max((int(name.partition("-")[0]) for name in former), default=0) + 1
    name = f"{number:08d}-{uuid4().hex}"
    place = f"{folder.uri}/{name}"
    keep_rows(state, carry_us).write.parquet(f"{place}/rows")
    state.items.write.parquet(f"{place}/items")
    table = session.createDataFrame([(text,) for text in _format(state)], "text string")
    table.coalesce(1).write.parquet(f"{place}/small")
    inside = f"{folder.path}/{name}"
    manifest = {"version": STATE_VERSION, "files": _list_files(folder, name)}
    with filesystem.open_output_stream(f"{inside}/{MANIFEST}{DRAFT}") as stream:
        stream.write(json.dumps(manifest).encode())
    filesystem.move(f"{inside}/{MANIFEST}{DRAFT}", f"{inside}/{MANIFEST}")
    newest = max((each for each, has_manifest in former.items() if has_manifest), default="")
    for each in former:
        if each < newest:
            filesystem.delete_dir(f"{folder.path}/{each}")


def load_state(session: SparkSession, folder: Folder) -> State:
    """Read what `save_state` wrote last. Raises `ConfigError` where there is none, `FormatError` for one of another
    version and for one that is not whole."""
    whole = sorted(name for name, has_manifest in _find_generations(folder).items() if has_manifest)
    if not whole:
        raise ConfigError(f"{folder.uri} holds no state of an audit", hint="it is written by --save-state")
    _check_files(folder, whole[-1])
    place = f"{folder.uri}/{whole[-1]}"
    texts = [row["text"] for row in session.read.parquet(f"{place}/small").collect()]
    rows = session.read.schema(REPLAY).parquet(f"{place}/rows")
    items = session.read.schema(ITEMS).parquet(f"{place}/items")
    return _parse(rows, items, texts)


def _find_generations(folder: Folder) -> dict[str, bool]:
    """Names of the generations in the folder, and whether they have a manifest."""
    filesystem = folder.filesystem
    try:
        infos = filesystem.get_file_info(fs.FileSelector(folder.path, allow_not_found=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{folder.uri} cannot be read: {error}", hint="is it the right folder?") from error
    names = [info.base_name for info in infos if _GENERATION.fullmatch(info.base_name)]
    manifests = filesystem.get_file_info([f"{folder.path}/{name}/{MANIFEST}" for name in names])
    return {name: info.type == fs.FileType.File for name, info in zip(names, manifests, strict=True)}


def _list_files(folder: Folder, name: str) -> dict[str, int]:
    """Sizes of the files of Parquet in a generation, by their paths in it."""
    root = f"{folder.path}/{name}"
    infos = folder.filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    return {
        info.path.rpartition(f"{name}/")[2]: info.size for info in infos if info.path.endswith(".parquet")
    }


def _check_files(folder: Folder, name: str) -> None:
    """Raises `FormatError` unless the generation has the files of its manifest, and no others."""
    with folder.filesystem.open_input_stream(f"{folder.path}/{name}/{MANIFEST}") as stream:
        manifest = json.loads(stream.read())
    if manifest["version"] != STATE_VERSION:
        raise FormatError(
            f"state of version {manifest['version']}, this program reads {STATE_VERSION}",
            hint="audit without it once",
        )
    files, found = manifest["files"], _list_files(folder, name)
    wrong = sorted(path for path in files.keys() | found.keys() if files.get(path) != found.get(path))
    if wrong:
        raise FormatError(
            f"{folder.uri}/{name}/{wrong[0]} is not as it was saved: it has {found.get(wrong[0], 'no')} bytes, "
            f"and had {files.get(wrong[0], 'none')}",
            hint="restore the folder as a whole, or audit without it once",
        )


def _format(state: State) -> Iterator[str]:
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
    yield json.dumps(["lost", sorted(known.lost)])
    yield json.dumps(["history_from_us", list(known.history_from_us.items())])
    yield json.dumps(["names", list(state.names.names.items())])
    yield json.dumps(["whos", list(state.names.whos.items())])
    yield json.dumps(["clients", list(state.names.clients.items())])
    for number, times in archive.times.items():
        yield json.dumps(["times", [number, list(times.items())]])


def _parse(rows: DataFrame, items: DataFrame, texts: list[str]) -> State:
    parts: dict[str, Any] = {}
    times: dict[int, dict[int, int]] = {}
    for text in texts:
        what, contents = json.loads(text)
        if what == "times":
            times[contents[0]] = dict(contents[1])
        else:
            parts[what] = contents
    as_of_us, bucket, end_us = parts["span"]
    runs = [
        RunRow(name, number, flavor, epoch, Run(*run)) for name, number, flavor, epoch, run in parts["runs"]
    ]
    archive = rebuild(runs, bucket, times, end_us)
    known = Knowledge(
        lineages=archive.lineages,
        lives={tuple(place): [Life(*life) for life in lives] for place, lives in parts["lives"]},
        raise_acks={tuple(key): end for key, end in parts["raise_acks"]},
        tables={who: tuple(tables) for who, tables in parts["tables"]},
        lost=frozenset(parts["lost"]),
        history_from_us=dict(parts["history_from_us"]),
    )
    names = Names(
        dict(parts["names"]),
        {who: Who(it[0], it[1], tuple(it[2]), it[3], tuple(it[4])) for who, it in parts["whos"]},
        dict(parts["clients"]),
    )
    return State(
        rows,
        None,
        items,
        archive,
        known,
        names,
        dict(parts["sequences"]),
        frozenset((number, table, ordinal) for number, table, ordinal in parts["raises"]),
        frozenset((number, source, first) for number, source, first in parts["told"]),
        as_of_us,
    )
