"""The state that one audit hands to the next, so that each day reads only its own history.

Rows that later actions can be judged by (changes, invalidations and fills of the last days, the newest of each kind
that is older, which nodes an item was served from), rows that are not judged yet, and everything small beside them.
Saved as a folder of Parquet; a folder of another version is refused. Called by the audit's main.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshness.errors import ConfigError, FormatError
from spark.audit.archive import Archive, RunRow, rebuild
from spark.audit.evidence import Names, Who
from spark.audit.finding import Knowledge, Life
from spark.audit.row import CHANGE, HIT, JUDGED
from spark.audit.timeline import Run
from spark.schema import PENDING, REPLAY

STATE_VERSION: Final = 3
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


def save_state(state: State, path: str, carry_us: int) -> None:
    """Write the folder in place of the last state. ``carry_us``: how far back rows are kept."""
    session = state.rows.sparkSession
    keep_rows(state, carry_us).write.mode("overwrite").parquet(f"{path}/rows")
    state.items.write.mode("overwrite").parquet(f"{path}/items")
    table = session.createDataFrame([(text,) for text in _format(state)], "text string")
    table.coalesce(1).write.mode("overwrite").parquet(f"{path}/small")


def load_state(session: SparkSession, path: str) -> State:
    """Read what `save_state` wrote. Raises `ConfigError` where there is none, `FormatError` for another version."""
    try:
        texts = [row["text"] for row in session.read.parquet(f"{path}/small").collect()]
        rows = session.read.schema(REPLAY).parquet(f"{path}/rows")
        items = session.read.schema(ITEMS).parquet(f"{path}/items")
    except AnalysisException as error:
        raise ConfigError(
            f"{path} holds no state of an audit", hint="it is written by --save-state"
        ) from error
    return _parse(rows, items, texts)


def _format(state: State) -> Iterator[str]:
    """JSON texts, each (what, contents): the first names the version."""
    archive, known = state.archive, state.known
    yield json.dumps(["version", [STATE_VERSION, state.as_of_us, archive.bucket, archive.end_us]])
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
    version, as_of_us, bucket, end_us = parts.get("version", [None] * 4)
    if version != STATE_VERSION:
        raise FormatError(
            f"state of version {version}, this program reads {STATE_VERSION}", hint="audit without it once"
        )
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
