"""Two attempts at one folder, as Spark starts them when an executor is lost or slow; the borders of files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from freshness.history.archive_file import find_files
from freshness.stream.source import RowChange
from invalidator.archive.writer import RotationPolicy
from spark.archive import compaction
from tests.unit.invalidator.archive.archive_world import World, message

NUMBERS = range(11, 31)


class Killed(Exception):
    """The end of an executor."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with World(tmp_path / "archive", RotationPolicy(rows_max=2), begins_at=10) as world:
        for number in NUMBERS:
            row = {"id": number % 5, "v": f"value {number}"}
            world.writer.write(message(number, RowChange("customers", "insert", None, row)))
    return tmp_path / "archive"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_second_attempt_harms_no_first_one(archive: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    """The second one begins in the middle of the first, and ends, or dies in the middle itself."""
    folder = find_files(archive)[-1].path.parent
    monkeypatch.setattr(compaction, "GROUP_ROWS_MAX", 4)
    groups = compaction._groups
    attempts: list[int] = []

    def interrupted(*inputs: Any) -> Iterator[pyarrow.Table]:
        attempts.append(attempt := len(attempts))
        for number, group in enumerate(groups(*inputs)):
            if number == 1 and attempt == 0:
                second()
            if number == 2 and attempt == 1 and is_killed:
                raise Killed
            yield group

    def second() -> None:
        if is_killed:
            with pytest.raises(Killed):
                compaction.merge_folder(str(archive), str(folder))
        else:
            compaction.merge_folder(str(archive), str(folder))

    monkeypatch.setattr(compaction, "_groups", interrupted)
    merged = compaction.merge_folder(str(archive), str(folder))
    assert (merged.inputs, merged.outputs, merged.rows, attempts) == (10, 1, 20, [0, 1])
    (wide,) = (file for file in find_files(archive) if file.last >= file.first)
    assert (wide.first, wide.last) == (1, 20)
    assert sorted(parquet.read_table(wide.path).column("ordinal").to_pylist()) == list(range(1, 21))
    assert compaction.check_file(str(archive), str(wide.path)).problem == ""
    compaction.remove_drafts(archive)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_borders_are_checked_without_the_files(archive: Path) -> None:
    """Executors have read them; the driver would read thousands one after the other."""
    files = find_files(archive)
    checked = [compaction.check_file(str(archive), str(file.path)) for file in files]
    shutil.rmtree(archive)
    pairs = list(zip(files, checked, strict=True))
    assert compaction.check_borders(pairs) == []
    [gap] = compaction.check_borders([*pairs[:3], *pairs[4:]])
    assert gap.problem == "it begins with 7, the one before ends with 4"
    file, found = pairs[3]
    [other] = compaction.check_borders([*pairs[:3], (file, replace(found, begin=found.end)), *pairs[4:]])
    assert other.problem.startswith("it begins after ")
