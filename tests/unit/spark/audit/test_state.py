"""The folder of state that one audit hands to the next: whole or missing, even if an audit continues itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest

from freshness.errors import ConfigError, FormatError
from spark.audit.engine.local import LocalEngine, LocalShuffled
from spark.audit.engine.progress import Progress
from spark.audit.input.archive import Archive
from spark.audit.input.evidence import Names
from spark.audit.input.recording import RecordedFiles, read_parts
from spark.audit.input.spread import Spread
from spark.audit.model.finding import Knowledge
from spark.audit.model.row import CHANGE, FILL, HIT, JUDGED
from spark.audit.model.schema import PENDING, REPLAY, to_table
from spark.audit.shuffle import state as audit_state
from spark.audit.shuffle.state import Carry, Kept, State, keep_rows, load_state, save_state
from spark.folder import Folder, open_folder

FOREVER: Final = 10**18


class Killed(Exception):
    """The end of the audit."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return open_folder(str(tmp_path / "state"))


def row_of(**columns: Any) -> dict[str, Any]:
    return {**dict.fromkeys(REPLAY.names), "h1": 1, "h2": 1, "flags": 0, **columns}


def make_rows(*rows: dict[str, Any]) -> pyarrow.Table:
    return pyarrow.Table.from_pylist(list(rows), REPLAY)


def make_carry(day: int, previous: State | None = None) -> Carry:
    """Of an audit that saw one change of one item on each day, and did not judge the last one."""
    shuffled = LocalShuffled(Progress(), 1 << 20)
    shuffled.add(0, make_rows(row_of(kind=CHANGE, begin_us=day, lineage=1, ordinal=day)))
    for batch in read_parts(previous.rows.parts, REPLAY.names) if previous else ():
        shuffled.add(0, pyarrow.Table.from_batches([batch]).cast(REPLAY))
    nothing = frozenset[tuple[int, str, int]]()
    kept = Kept(
        archive=Archive((), {}, (), (), 1, {}, day),
        known=Knowledge({}),
        names=Names({}, {}, {}),
        sequences={"client": day},
        raises=nothing,
        told=nothing,
        as_of_us=day,
    )
    pending = to_table([(1, 1, 1, day)], PENDING)
    return Carry(
        kept, LocalEngine(), shuffled, Spread(1), RecordedFiles(()), RecordedFiles(()), pending, {(1, 1): b"item"}
    )


def days_of(state: State) -> list[int]:
    batches = read_parts(state.rows.parts, ["ordinal"])
    return sorted(day for batch in batches for day in batch.column("ordinal").to_pylist())


def test_a_state_is_saved_over_the_one_that_it_continues(folder: Folder) -> None:
    save_state(make_carry(1), folder, FOREVER)
    save_state(make_carry(2, load_state(folder)), folder, FOREVER)
    last = load_state(folder)
    assert (days_of(last), last.kept.as_of_us, last.kept.sequences) == ([1, 2], 2, {"client": 2})
    assert last.items == {(1, 1): b"item"}


def test_the_previous_state_stays_for_its_readers_and_no_older_one(folder: Folder) -> None:
    for day in (1, 2, 3):
        save_state(make_carry(day), folder, FOREVER)
        if day == 2:
            read_by_another = load_state(folder)
    assert days_of(read_by_another) == [2]
    assert [path.name[:8] for path in sorted(Path(folder.path).iterdir())] == ["00000002", "00000003"]


def test_a_state_that_was_cut_off_is_none(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(_: Kept) -> Iterator[str]:
        raise Killed

    @contextmanager
    def cut_off() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(audit_state, "_format", cut)
            yield

    with cut_off(), pytest.raises(Killed):
        save_state(make_carry(1), folder, FOREVER)
    with pytest.raises(ConfigError, match="no state"):
        load_state(folder)
    save_state(make_carry(2), folder, FOREVER)
    with cut_off(), pytest.raises(Killed):
        save_state(make_carry(3), folder, FOREVER)
    found = load_state(folder)
    assert (days_of(found), found.kept.as_of_us) == ([2], 2)
    save_state(make_carry(4), folder, FOREVER)
    assert days_of(load_state(folder)) == [4]


@pytest.mark.parametrize("pattern", ["*/rows/*.parquet", "*/items.parquet", "*/small.json"])
def test_a_state_that_lacks_a_file_is_refused(folder: Folder, pattern: str) -> None:
    save_state(make_carry(1), folder, FOREVER)
    path = next(Path(folder.path).glob(pattern))
    held = path.read_bytes()
    for content in (held[:-1], None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FormatError, match="not as it was saved"):
            load_state(folder)
    path.write_bytes(held)
    # Of a task that was started twice
    path.with_name("other.parquet").write_bytes(held)
    assert days_of(load_state(folder)) == [1]


def test_a_state_of_another_version_is_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no state"):
        load_state(folder)
    with monkeypatch.context() as patch:
        patch.setattr(audit_state, "STATE_VERSION", 99)
        save_state(make_carry(1), folder, FOREVER)
    with pytest.raises(FormatError, match="version 99"):
        load_state(folder)


# -- rows ------------------------------------------------------------------------------------------------

AS_OF: Final = 1_000
CARRY: Final = 100


def kept_of(*rows: dict[str, Any], pending: tuple[int, ...] = ()) -> list[tuple[int, int, bool]]:
    """(item, order of the row, whether it is judged) of what is kept. ``pending``: ordinals of changes of item 1."""
    waiting = to_table([(1, 1, 7, ordinal) for ordinal in pending], PENDING)
    kept = pyarrow.concat_tables(keep_rows(make_rows(*rows), waiting, AS_OF, CARRY)).to_pylist()
    return sorted((row["h1"], row["sequence"], bool(row["flags"] & JUDGED)) for row in kept)


def test_of_old_changes_the_newest_of_each_lineage_is_kept() -> None:
    changes = [
        row_of(kind=CHANGE, lineage=lineage, ordinal=at, begin_us=at, sequence=10 * lineage + at)
        for lineage in (7, 8)
        for at in (1, 2, 3)
    ]
    late = [row_of(kind=CHANGE, lineage=7, ordinal=at, begin_us=940 + at, sequence=100 + at) for at in (4, 5)]
    expected = [(1, 73, True), (1, 83, True), (1, 104, True), (1, 105, False)]
    assert kept_of(*changes, *late, pending=(5,)) == expected
    assert kept_of(*changes, pending=(1,)) == [(1, 71, False), (1, 73, True), (1, 83, True)]


def test_of_old_fills_the_newest_of_each_node_and_item_is_kept() -> None:
    fills = [
        row_of(kind=FILL, node=node, h1=item, begin_us=at, sequence=100 * item + 10 * node + at)
        for item in (1, 2)
        for node in (3, 4)
        for at in (1, 2)
    ]
    late = row_of(kind=FILL, node=3, begin_us=AS_OF + 1, sequence=9)
    young = row_of(kind=FILL, node=3, begin_us=AS_OF - 1, sequence=8)
    expected = [(1, 8, True), (1, 9, False), (1, 132, True), (1, 142, True), (2, 232, True), (2, 242, True)]
    assert kept_of(*fills, late, young) == expected


def test_of_hits_each_node_is_kept_once_and_all_later_ones() -> None:
    hits = [row_of(kind=HIT, node=3, begin_us=AS_OF - at, sequence=at) for at in range(4)]
    late = [row_of(kind=HIT, node=3, begin_us=AS_OF + at, sequence=10 + at) for at in (1, 2)]
    assert kept_of(*hits, *late) == [(1, 0, True), (1, 11, False), (1, 12, False)]
