"""Positions that are placed by arrays stand where `Lineage.place` says, text by text."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pyarrow
import pytest

from spark.audit.kernel.placement import STAMP_COLUMNS, encode_stamps
from spark.audit.model.row import BELOW_FLOOR, unpack_stamps
from spark.audit.model.timeline import MALFORMED, Lineage, Run, build_chains
from tests.unit.spark.audit.stamps import read_stamps

SIDS: Final = tuple(f"{letter * 8}-71ca-11e1-9e33-c80aa9429562" for letter in "abc")
TYPES: Final = {
    name: pyarrow.list_(pyarrow.binary() if name == "lives" else pyarrow.string()) for name in STAMP_COLUMNS
}


def lineage_of(name: str, flavor: str, random: Random) -> Lineage:
    """Runs of a few sources that alternate, with numbers left out, and out of order here and there."""
    first = ordinal = random.choice((1, 1, 4))
    sources = SIDS if flavor == "mysql" else ("0", "1")
    numbers = {source: random.choice((1, 1, 3)) for source in sources}
    runs: list[Run] = []
    for _ in range(random.randrange(1, 8)):
        source = random.choice(sources[: random.randrange(1, len(sources) + 1)])
        length = random.randrange(1, 5)
        server = "" if flavor == "mysql" else str(random.choice((1, 2)))
        start = numbers[source]
        if runs and random.random() < 0.1:
            start = max(1, start - 7)
        runs.append(Run(source, server, start, ordinal, length, length))
        numbers[source] = max(numbers[source], start + length + random.choice((0, 0, 1)))
        ordinal += length
    ends = {1: ordinal - 1} if random.random() < 0.7 else {1: max(first, ordinal // 2), 2: ordinal - 1}
    return Lineage(name, 7 if name == "a" else 8, flavor, first, ordinal - 1, build_chains(runs), ends)


def position_of(flavor: str, random: Random) -> str:
    if random.random() < 0.03:
        return random.choice(("", "nonsense", "1-2", f"{SIDS[0]}", f"{SIDS[0]}:0", "0-1-99999999999999999999"))
    if flavor == "mariadb":
        domains = random.sample((0, 1, 5), random.randrange(1, 4))
        return ",".join(f"{domain}-{random.choice((1, 2))}-{random.randrange(1, 12)}" for domain in sorted(domains))
    parts = []
    for sid in random.sample(SIDS, random.randrange(1, 4)):
        first = random.choice((1, 1, 1, random.randrange(1, 10)))
        text = f"{first}-{random.randrange(first, 14)}" if random.random() < 0.8 else str(random.randrange(1, 14))
        if random.random() < 0.1:
            text += f":{random.randrange(20, 30)}"
        if random.random() < 0.05:
            sid = sid.upper()
        parts.append(f"{sid}:{text}")
    return random.choice((",", ",", ",", ", ")).join(parts)


def row_of(lineages: dict[str, Lineage], random: Random) -> dict[str, list[Any]]:
    names = random.sample((*lineages, "gone"), random.choice((0, 1, 1, 1, 1, 2)))
    flavors = [lineages[name].flavor if name in lineages else "mysql" for name in names]
    row: dict[str, list[Any]] = {
        "lineages": names,
        "epochs": [random.choice(("1", "1", "1", "2", "3", "x")) for _ in names],
        "lives": [random.choice((b"", b"\x80LIFE\0\0\1", b"\1")) for _ in names],
        "positions": [position_of(flavor, random) for flavor in flavors],
        "floors": [random.choice(("", position_of(flavor, random))) for flavor in flavors],
    }
    if random.random() < 0.5:
        row["floors"] = row["floors"][: random.randrange(0, 2)]
    if names and random.random() < 0.02:
        row["positions"].append("one too many")
    return row


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
@pytest.mark.parametrize("hundred", range(5))
def test_stamps_of_columns_are_those_of_each_row(flavor: str, hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        random = Random(seed)
        lineages = {name: lineage_of(name, flavor, random) for name in ("a", "b")}
        rows = [row_of(lineages, random) for _ in range(60)]
        types = {
            name: pyarrow.list_(pyarrow.binary() if name == "lives" else pyarrow.string()) for name in STAMP_COLUMNS
        }
        columns = {name: pyarrow.array([row[name] for row in rows], types[name]) for name in STAMP_COLUMNS}
        stamps, flags = encode_stamps(lineages, columns)
        for row, packed, flag in zip(rows, stamps.to_pylist(), flags.tolist(), strict=True):
            expected, below = read_stamps(lineages, *(row[name] for name in STAMP_COLUMNS))
            assert (list(unpack_stamps(packed)), flag) == (expected, below), (seed, row)
    assert below in (0, BELOW_FLOOR)


def test_rows_without_anything_have_no_stamps() -> None:
    types = {name: pyarrow.list_(pyarrow.binary() if name == "lives" else pyarrow.string()) for name in STAMP_COLUMNS}
    columns = {name: pyarrow.array([[], None], types[name]) for name in STAMP_COLUMNS}
    stamps, flags = encode_stamps({}, columns)
    assert (stamps.to_pylist(), flags.tolist()) == ([b"", b""], [0, 0])


def test_columns_of_different_lengths_are_a_position_that_cannot_be_read() -> None:
    lists: dict[str, list[Any]] = {"lineages": ["a"], "epochs": ["1"], "lives": [b""], "floors": []}
    lists["positions"] = [f"{SIDS[0]}:1", f"{SIDS[0]}:2"]
    columns = {name: pyarrow.array([lists[name]], TYPES[name]) for name in STAMP_COLUMNS}
    stamps, _ = encode_stamps({"a": lineage_of("a", "mysql", Random(1))}, columns)
    [stamp] = unpack_stamps(stamps[0].as_py())
    assert stamp.place.flags == MALFORMED
