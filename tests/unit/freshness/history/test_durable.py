"""Every file that is written survives a crash at any moment: nothing promised is lost, and writing goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow
import pytest
from pyarrow import parquet

from freshness.errors import ConfigError
from freshness.history.archive_file import UNFINISHED, find_files
from freshness.history.recorder import Recorder, _OpenFile
from freshness.stream.source import RowChange
from invalidator.archive.reader import open_archive
from invalidator.archive.writer import RotationPolicy
from invalidator.reshard.guide import replace_file
from spark.archive import compaction
from spark.audit.report.trend_table import open_tables
from spark.audit.shuffle.state import load_state, save_state
from spark.copy.folder import FolderTarget
from spark.copy.state import TableState, read_state
from spark.folder import open_folder
from spark.table_at import job as table_at
from tests.unit.freshness.history.disk import find_crashes
from tests.unit.freshness.history.test_recorder import an_action
from tests.unit.invalidator.archive.archive_world import World, message
from tests.unit.spark.audit.test_state import FOREVER, make_carry
from tests.unit.spark.copy.test_job import GOODS, applied, state

ANY: Final[Any] = None
"""A session of Spark that nothing is asked of."""


class Work(NamedTuple):
    """``write`` all, or what is missing; it yields how much it promises, and ends with ``total``. ``read``: how much
    is there; fails if that is not a prefix."""

    total: int
    write: Callable[[Path], Iterator[int]]
    read: Callable[[Path], int]
    prepare: Callable[[Path], object] = Path.mkdir


# -- the archive -------------------------------------------------------------------------------------------------


def record(folder: Path) -> Iterator[int]:
    """Transactions one by one, two to a file; the third comes in pieces."""
    world = World(folder, RotationPolicy(rows_max=2))
    for number in range(1, 6):
        if world.writer.resume["shop/-"].position.contains(message(number).token.position):
            continue
        rows = [RowChange("customers", "insert", None, {"id": 10 * number + row, "v": "x"}) for row in (0, 1)]
        if number == 3:
            world.writer.write(message(number, rows[0], first_row=0, is_last=False))
            world.writer.write(message(number, rows[1], first_row=1, is_last=True))
        else:
            world.writer.write(message(number, rows[0]))
        yield count_recorded(folder)
    world.writer.close()
    yield 5


def count_recorded(folder: Path) -> int:
    """The reader takes every file, and so does the check of the archive."""
    if not find_files(folder):
        return 0
    messages = [each for lineage in open_archive(folder) for each in lineage.messages() if each.is_last]
    assert [each.token for each in messages] == [message(number).token for number in range(1, len(messages) + 1)]
    for path in compaction.list_local(str(folder)):
        assert compaction.check_file(str(folder), str(path)).problem == ""
    return len(messages)


def record_all(folder: Path) -> None:
    list(record(folder))


def merge(folder: Path) -> Iterator[int]:
    compaction.remove_drafts(folder)
    for place in {file.path.parent for file in find_files(folder)}:
        compaction.merge_folder(str(folder), str(place))
        yield 5
    compaction.delete_merged(compaction.list_local(str(folder)), 0, 1e12)
    assert [file.last for file in find_files(folder)] == [0, 5]
    yield 5


# -- the history -------------------------------------------------------------------------------------------------


def act(folder: Path) -> Iterator[int]:
    for number in range(count_actions(folder) + 1, 4):
        recorder = Recorder(folder)
        recorder.tell(an_action(number))
        recorder.close()
        yield number


def count_actions(folder: Path) -> int:
    tables = [parquet.read_table(path, columns=["begin_us"]) for path in folder.rglob("*.parquet")]
    return len({begin_us for table in tables for begin_us in table.column(0).to_pylist()})


def begin(folder: Path) -> Iterator[int]:
    """An unfinished file shows that actions are missing, so it may not be missing itself."""
    if not count_begun(folder):
        _OpenFile(folder / "history" / "actions.parquet")
    yield 1


def count_begun(folder: Path) -> int:
    return len(list(folder.rglob(f"*{UNFINISHED}")))


# -- the jobs ----------------------------------------------------------------------------------------------------


class Rows:
    """A frame that Spark writes, in two files of a folder."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.write = self

    def format(self, _: str) -> Rows:
        return self

    def mode(self, _: str) -> Rows:
        return self

    def save(self, text: str) -> None:
        place = Path(text)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in ("part-0", "part-1"):
            (place / name).write_text(self._text)

    def parquet(self, uri: str) -> None:
        self.save(uri.removeprefix("file://"))


def copy(folder: Path) -> Iterator[int]:
    target = FolderTarget(ANY, folder / "copies" / "copy")
    with target.opened():
        held = target.open_state(["goods"]) or state(applied(1, 1), TableState())
        for number in range(held.tables["goods"].generation + 1, 4):
            rows: Any = Rows(str(number))
            target.dump("goods", held.tables["goods"], GOODS, rows)
            target.commit(held, ["goods"])
            yield number


def read_copied(folder: Path) -> int:
    held = read_state(folder / "copies" / "copy")
    if held is None:
        return 0
    table = held.tables["goods"]
    for name in ("part-0", "part-1"):
        assert (folder / "copies" / "copy" / table.published / name).read_text() == str(table.generation)
    return table.generation


def save_days(folder: Path) -> Iterator[int]:
    place = open_folder(str(folder / "state"))
    for day in range(count_days(folder) + 1, 3):
        save_state(make_carry(day, load_state(place) if day > 1 else None), place, FOREVER)
        yield day


def count_days(folder: Path) -> int:
    try:
        return load_state(open_folder(str(folder / "state"))).kept.as_of_us
    except ConfigError:
        return 0


def add_audits(folder: Path) -> Iterator[int]:
    tables = open_tables(str(folder / "tables"))
    for number in range(count_audits(folder) + 1, 4):
        tables.replace("nines", pyarrow.table({"number": [number]}), date(2026, 1, number), number)
        yield number


def count_audits(folder: Path) -> int:
    found = sorted(
        number
        for path in folder.rglob("[!.]*.parquet")
        for number in parquet.ParquetFile(path).read().column("number").to_pylist()
    )
    assert found == list(range(1, len(found) + 1))
    return len(found)


def put_in_force(folder: Path) -> Iterator[int]:
    for number in range(count_stages(folder) + 1, 4):
        replace_file(folder / "freshness.toml", f"{number} {'x' * 100}")
        yield number


def prepare_stage(folder: Path) -> None:
    folder.mkdir()
    (folder / "freshness.toml").write_text(f"1 {'x' * 100}")


def count_stages(folder: Path) -> int:
    number, _, rest = (folder / "freshness.toml").read_text().partition(" ")
    assert rest == "x" * 100
    return int(number)


def make_table(folder: Path) -> Iterator[int]:
    class Session:
        read = property(lambda self: self)

        def parquet(self, _: str) -> Any:
            return self

        def count(self) -> int:
            return 2

    (copied := folder.parent / "published").mkdir(exist_ok=True)
    rows, session = Rows("1"), Session()
    if not count_tables(folder):
        table_at._publish(session, rows, folder / "table", copied.parent, copied.name)
    yield 1


def count_tables(folder: Path) -> int:
    if not (folder / "table").exists():
        return 0
    assert [(folder / "table" / name).read_text() for name in ("part-0", "part-1")] == ["1", "1"]
    return 1


WORKS: Final = {
    "archive": Work(5, record, count_recorded),
    "merged archive": Work(5, merge, count_recorded, record_all),
    "history": Work(3, act, count_actions),
    "unfinished history": Work(1, begin, count_begun),
    "copy": Work(3, copy, read_copied),
    "state of an audit": Work(2, save_days, count_days),
    "tables of audits": Work(3, add_audits, count_audits),
    "configuration": Work(3, put_in_force, count_stages, prepare_stage),
    "table as it was": Work(1, make_table, count_tables),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_crash_at_any_moment_loses_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is a prefix, and not less than was promised; the next run makes the rest."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    work = WORKS[name]
    work.prepare(tmp_path / "written")
    crashes = find_crashes(tmp_path / "written", work.write)
    assert len(crashes) > 2
    for number, crash in enumerate(crashes):
        folder = crash.restore(tmp_path / str(number))
        assert work.read(folder) >= crash.promised, crash
        list(work.write(folder))
        assert work.read(folder) == work.total
        shutil.rmtree(folder)
