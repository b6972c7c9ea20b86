"""A large history with a known number of violations of every kind, generated as columns and written as Parquet files.

One lineage, one key with a tenth of everything. A second lineage has an archive that is damaged in every way, and no
actions: damage leaves open what comes after it. For the benchmark of the audit by replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pyarrow import parquet

from tests.simulation.recorded import arrow_schema

FILES: Final = 8
NODES: Final = 4
READERS: Final = 8
PLANTED: Final = 500
START_US: Final = 1_790_000_000_000_000
STEP_US: Final = 1_000
ACK_US: Final = 12_000
TOKEN_AGE_US: Final = 5_000
LIVED_US: Final = 60_000_000
ERROR_US: Final = 500_000
LATE_US: Final = 2_000_000
SID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
LINEAGE: Final = "bench/-"
LIFE: Final = b"LIFELIFE"
LIFE_AFTER: Final = b"LIFE-TWO"
DAMAGED: Final = "damaged/-"
DAMAGED_SID: Final = "7c2ad1f0-71ca-11e1-9e33-c80aa9429562"
Integers = NDArray[numpy.int64]
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bench:
    """The folder of a generated history, and the faults planted in it."""

    archive: Path
    history: Path
    events: int
    expected: Counts


@dataclass(slots=True)
class _Changes:
    """By ordinal - 1: the key that was changed. ``places``: (key, ordinal) as one number, rising."""

    keys: Integers
    places: Integers

    def next(self, keys: Integers, prefixes: Integers) -> Integers:
        """The next change of each key after a prefix, as an ordinal; 0 for none."""
        at = numpy.searchsorted(self.places, _place(keys, prefixes), side="right")
        found = self.places[numpy.minimum(at, len(self.places) - 1)]
        return numpy.where((at < len(self.places)) & (found >> 32 == keys), found & 0xFFFFFFFF, 0)

    def last(self, keys: Integers, prefixes: Integers) -> Integers:
        """The last change of each key in a prefix; 0 for none."""
        at = numpy.searchsorted(self.places, _place(keys, prefixes), side="right") - 1
        found = self.places[numpy.maximum(at, 0)]
        return numpy.where((at >= 0) & (found >> 32 == keys), found & 0xFFFFFFFF, 0)


def _place(keys: Integers, ordinals: Integers) -> Integers:
    return (keys << 32) | ordinals


def _committed(ordinals: Integers) -> Integers:
    return START_US + ordinals * STEP_US


def _keys(random: numpy.random.Generator, count: int, kinds: int) -> Integers:
    keys = random.integers(1, kinds, count)
    keys[random.random(count) < 0.1] = 0
    return keys


def generate(folder: Path, events: int) -> Bench:
    """About ``events`` rows: a fifth changes, a fifth invalidations, a tenth fills, half of it hits."""
    random = numpy.random.default_rng(events)
    count, kinds = events // 5, max(2000, events // 50)
    keys = _keys(random, count, kinds)
    ordinals = numpy.arange(1, count + 1)
    changes = _Changes(keys, numpy.sort(_place(keys, ordinals)))
    (archive, history) = (folder / "archive", folder / "history")
    for each in (archive, history):
        each.mkdir(parents=True)
    _write_changes(archive, changes, ordinals)

    fills = _fills(random, changes, events // 10, kinds, count)
    # Items that nobody reads may not be recorded at all, and the first changes may be older than the records.
    settled = _committed(ordinals) > START_US + LATE_US
    missed = numpy.flatnonzero(settled & (keys % 97 == 5) & numpy.isin(keys, fills["key"]))[:PLANTED]
    kept = numpy.delete(ordinals, missed)
    hits = _hits(random, changes, fills, events // 2)
    bad = numpy.flatnonzero((fills["key"] % 97 == 7) & (changes.next(fills["key"], fills["prefix"]) > 0))[
        : 2 * PLANTED
    ]
    acked_us = _committed(changes.next(fills["key"], fills["prefix"])) + ACK_US
    poisoned, outlived = bad[::2], bad[1::2]
    late = {name: column[poisoned] for name, column in fills.items()}
    late["begin"] = acked_us[poisoned] + LATE_US
    late["version"] = numpy.arange(len(poisoned)) * 2 + 2 * len(fills["key"]) + 1
    stale = {name: column[outlived] for name, column in fills.items()}
    stale["begin"] = acked_us[outlived] + LATE_US
    young = numpy.flatnonzero(_committed(hits["prefix"]) > START_US + LATE_US)[:PLANTED]
    thin = {name: column[young] for name, column in hits.items()}
    thin["version"] = thin["version"] + (1 << 40)
    _write_actions(history, changes, kept, _joined(fills, late), _joined(hits, stale, thin))
    expected = {
        "poisoned_fill": len(poisoned),
        "stale_hit": len(outlived),
        "thin_air_hit": len(thin["key"]),
        "missed_invalidation": len(missed),
        **_write_odd_actions(history, changes, fills, kinds),
        **_write_damages(archive),
    }
    rows = count + len(kept) + len(fills["key"]) + len(poisoned) + len(hits["key"]) + len(outlived) + len(thin["key"])
    return Bench(archive, history, rows, expected)


def _joined(*parts: Mapping[str, Integers]) -> dict[str, Integers]:
    return {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}


def _fills(
    random: numpy.random.Generator, changes: _Changes, count: int, kinds: int, ordinals: int
) -> dict[str, Integers]:
    """From a replica that is a little behind, but has all that was acknowledged."""
    begins = START_US + random.integers(100_000, ordinals * STEP_US, count)
    return {
        "key": _keys(random, count, kinds),
        "begin": begins,
        "prefix": numpy.minimum((begins - TOKEN_AGE_US - START_US) // STEP_US, ordinals),
        "version": numpy.arange(count) * 2 + 1,
    }


def _hits(
    random: numpy.random.Generator, changes: _Changes, fills: Mapping[str, Integers], count: int
) -> dict[str, Integers]:
    """Each of some entry, before the change after it was acknowledged."""
    chosen = random.integers(0, len(fills["key"]), count)
    hits = {name: column[chosen] for name, column in fills.items()}
    following = changes.next(hits["key"], hits["prefix"])
    ends = hits["begin"] + LIVED_US
    ends = numpy.where(following > 0, numpy.minimum(ends, _committed(following) + ACK_US), ends)
    begins = hits["begin"] + 2_500
    hits["begin"] = begins + (random.random(count) * numpy.maximum(0, ends - begins)).astype(numpy.int64)
    return hits


# -- violations of the other kinds -----------------------------------------------------------------------


def _write_odd_actions(folder: Path, changes: _Changes, fills: Mapping[str, Integers], kinds: int) -> dict[str, int]:
    """A few hundred actions that no other violation touches: of items that never change, but for wrong digests."""
    first_us, known = START_US + 100_000, changes.last(fills["key"], fills["prefix"])
    planted = numpy.arange(PLANTED)
    # A value that is not its row. Nobody reads it.
    wrong = numpy.flatnonzero(known)[:PLANTED]
    wrong_fills = {
        "key": fills["key"][wrong],
        "begin_us": fills["begin"][wrong],
        "prefix": fills["prefix"][wrong],
        "digest": known[wrong] + 1_000_000_000,
    }
    # A position that lacks the floor beside it.
    low_fills = {"key": kinds + planted, "begin_us": first_us + planted, "prefix": planted + 1}
    # Values of a life that had ended, of a node that nothing else uses.
    dead_keys = 2 * kinds + planted
    dead = {"key": dead_keys, "begin_us": first_us + planted, "prefix": planted + 1}
    # Actions that ended before they began.
    wrong_clock = {"key": 3 * kinds + planted, "begin_us": first_us + 2 * LIVED_US, "prefix": planted + 1}
    groups: tuple[tuple[str, str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("fill", "bench/odd-reader/1", wrong_fills, {}),
        ("fill", "bench/low-reader/1", low_fills, {"floors": [f"{SID}:1-{PLANTED + 2}"]}),
        ("fill", "bench/dead-reader/1", dead, {"node": "n-dead"}),
        ("hit", "bench/dead-hits/1", {**dead, "begin_us": first_us + LIVED_US}, {"node": "n-dead"}),
        ("fill", "bench/wrong-clock/1", wrong_clock, {"end_us": first_us}),
    )
    rows: list[dict[str, Any]] = []
    for action, client, columns, others in groups:
        count = len(columns["key"])
        each = {name: numpy.broadcast_to(column, count).tolist() for name, column in columns.items()}
        for at in range(count):
            key, begin_us = each["key"][at], each["begin_us"][at]
            state = each["digest"][at] if "digest" in each else 0
            rows.append(
                {
                    "client": client,
                    "sequence": at + 1,
                    "action": action,
                    "outcome": "FILLED" if action == "fill" else "HIT",
                    "object": "row",
                    "tables": ["rows"],
                    "item": f"bench:row:{key}".encode(),
                    "node": f"n{key % NODES}",
                    "lineages": [LINEAGE],
                    "epochs": ["1"],
                    "lives": [LIFE],
                    "positions": [f"{SID}:1-{each['prefix'][at]}"],
                    "floors": [""] if action == "fill" else [],
                    "digest": (state * 1_000_003 + (0 if state else key)).to_bytes(8, "little"),
                    "is_absent": False,
                    "version": (1 << 50) + key,
                    "observed": (1 << 50) + key - 1 if action == "fill" else None,
                    "begin_us": begin_us,
                    "end_us": begin_us + 2_000,
                    "count": 1,
                    **others,
                }
            )
    for number, life in enumerate((LIFE, LIFE_AFTER)):
        at_us = first_us + number * LIVED_US // 2
        rows.append(_publish(number + 1, "n-dead", LINEAGE, life, f"{SID}:1-1", at_us))
    # Two actions with one between them that is lost, before anything else; the second shows a number that the
    # damaged archive never had.
    for sequence, numbers in ((1, "1-2"), (3, "1-4")):
        rows.append(_publish(sequence, "n-damaged", DAMAGED, LIFE, f"{DAMAGED_SID}:{numbers}", START_US + sequence))
        rows[-1]["client"] = "bench/lost/1"
    schema = arrow_schema("actions")
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), folder / "odd.parquet")
    return {
        "digest_mismatch": len(wrong),
        "fill_below_floor": PLANTED,
        "dead_life_hit": PLANTED,
        "clock_anomaly": PLANTED,
        "recorder_gap": 3,  # counted by the numbers among which one is lost
    }


def _publish(sequence: int, node: str, lineage: str, life: bytes, position: str, begin_us: int) -> dict[str, Any]:
    return {
        "client": "bench/publisher/2",
        "sequence": sequence,
        "action": "publish",
        "outcome": "stored",
        "tables": [],
        "node": node,
        "lineages": [lineage],
        "epochs": ["1"],
        "lives": [life],
        "positions": [position],
        "floors": [""],
        "is_absent": False,
        "begin_us": begin_us,
        "end_us": begin_us,
        "count": 1,
    }


def _write_damages(folder: Path) -> dict[str, int]:
    """An archive with each damage once: (ordinal, number) of its transactions; number 4 is nowhere."""
    rows = [
        {
            "keyspace": "damaged",
            "shard": "-",
            "lineage": DAMAGED,
            "epoch": 1,
            "ordinal": ordinal,
            "row": -1,
            "rows": 0,
            "gtid": f"{DAMAGED_SID}:{number}",
            "timestamp_us": START_US + ordinal * STEP_US,
            "received_us": START_US + ordinal * STEP_US,
            "op": "empty",
            "items": [],
            "row_items": [],
        }
        for ordinal, number in ((1, 1), (2, 2), (3, 3), (4, 5), (5, 5), (7, 8), (8, 7))
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows, arrow_schema("changes")), folder / "damaged.parquet")
    return {"archive_gap": 1, "gtid_gap": 1, "archive_duplicate": 1, "archive_reordering": 1}


# -- files -----------------------------------------------------------------------------------------------


def _digests(ordinals: Integers, keys: Integers) -> pyarrow.Array:
    """Of the state that a change left; 0: of the row as it was at first."""
    numbers = (ordinals * 1_000_003 + numpy.where(ordinals == 0, keys, 0)).astype("<i8")
    return pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(8), len(numbers), [None, pyarrow.py_buffer(numbers.tobytes())]
    ).cast(pyarrow.binary())


def _texts(prefix: str, numbers: Integers) -> pyarrow.Array:
    texts = pyarrow.array(numbers).cast(pyarrow.string())
    return pyarrow.compute.binary_join_element_wise(prefix, texts, "")


def _lists(values: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.ListArray.from_arrays(pyarrow.array(numpy.arange(len(values) + 1, dtype=numpy.int32)), values)


def _same(value: Any, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    if pyarrow.types.is_list(kind) and value:
        return _lists(pyarrow.array([value[0]], kind.value_type).take(pyarrow.array(numpy.zeros(count, numpy.int64))))
    return pyarrow.array([value], kind).take(pyarrow.array(numpy.zeros(count, numpy.int64)))


def _table(kind: str, count: int, columns: Mapping[str, Any]) -> pyarrow.Table:
    schema = arrow_schema(kind)
    arrays = []
    for field in schema:
        value: Any = columns.get(field.name)
        if isinstance(value, numpy.ndarray):
            value = pyarrow.array(value)
        is_whole = isinstance(value, (pyarrow.Array, pyarrow.ChunkedArray))
        arrays.append(value.cast(field.type) if is_whole else _same(value, field.type, count))
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _write(folder: Path, name: str, table: pyarrow.Table) -> None:
    size = -(-table.num_rows // FILES)
    for number in range(FILES):
        parquet.write_table(table.slice(number * size, size), folder / f"{name}{number}.parquet")


def _items(keys: Integers) -> pyarrow.Array:
    return _texts("bench:row:", keys).cast(pyarrow.binary())


def _write_changes(folder: Path, changes: _Changes, ordinals: Integers) -> None:
    before = changes.last(changes.keys, ordinals - 1)
    items = _lists(_items(changes.keys))
    columns = {
        "keyspace": "bench",
        "shard": "-",
        "lineage": LINEAGE,
        "epoch": 1,
        "ordinal": ordinals,
        "row": 0,
        "rows": 1,
        "gtid": _texts(f"{SID}:", ordinals),
        "timestamp_us": _committed(ordinals),
        "received_us": _committed(ordinals) + 1_000,
        "op": "update",
        "table": "rows",
        "items": items,
        "row_items": items,
        "key": pyarrow.array(changes.keys).cast(pyarrow.string()),
        "before_digest": _digests(before, changes.keys),
        "after_digest": _digests(ordinals, changes.keys),
    }
    _write(folder, "part", _table("changes", len(ordinals), columns))


def _write_actions(
    folder: Path, changes: _Changes, kept: Integers, fills: Mapping[str, Integers], hits: Mapping[str, Integers]
) -> None:
    common = {"lineages": [LINEAGE], "epochs": ["1"], "lives": [LIFE], "is_absent": False, "count": 1}
    keys = changes.keys[kept - 1]
    committed = _committed(kept)
    invalidations = {
        **common,
        "client": "bench/invalidator/1",
        "sequence": numpy.arange(1, len(kept) + 1),
        "action": "invalidation",
        "outcome": "stored",
        "item": _items(keys),
        "node": _texts("n", keys % NODES),
        "tables": [],
        "floors": [],
        "positions": _lists(_texts(f"{SID}:", kept)),
        "begin_us": committed + ACK_US - 2_000,
        "end_us": committed + ACK_US,
    }
    _write(folder, "invalidation", _table("actions", len(kept), invalidations))
    end_us = int(committed[-1]) + ACK_US
    published = {
        **invalidations,
        "item": None,
        "floors": [""],
        "positions": [f"{SID}:1-{len(changes.keys)}"],
        "client": "bench/publisher/1",
        "sequence": numpy.arange(1, NODES + 1),
        "action": "publish",
        "node": _texts("n", numpy.arange(NODES)),
        "begin_us": end_us,
        "end_us": end_us,
    }
    _write(folder, "publish", _table("actions", NODES, published))
    for name, rows, outcome in (("fill", fills, "FILLED"), ("hit", hits, "HIT")):
        count = len(rows["key"])
        reader = numpy.arange(count) * READERS // count
        firsts = numpy.searchsorted(reader, reader)
        columns = {
            **common,
            "client": _texts(f"bench/{name}-reader-", reader),
            "sequence": numpy.arange(count) - firsts + 1,
            "action": name,
            "outcome": outcome,
            "object": "row",
            "tables": ["rows"],
            "item": _items(rows["key"]),
            "node": _texts("n", rows["key"] % NODES),
            "floors": [""] if name == "fill" else [],
            "positions": _lists(_texts(f"{SID}:1-", rows["prefix"])),
            "digest": _digests(changes.last(rows["key"], rows["prefix"]), rows["key"]),
            "version": rows["version"],
            "observed": rows["version"] - 1 if name == "fill" else None,
            "begin_us": rows["begin"],
            "end_us": rows["begin"] + 2_000,
        }
        _write(folder, name, _table("actions", count, columns))
