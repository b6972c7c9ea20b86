"""The state that one audit hands to the next, as a folder: whole or not there, also where it continues itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from freshness.errors import ConfigError, FormatError
from spark.audit import state as audit_state
from spark.audit.archive import Archive
from spark.audit.evidence import Names
from spark.audit.finding import Knowledge
from spark.audit.row import CHANGE
from spark.audit.state import ITEMS, State, load_state, save_state
from spark.folder import Folder, open_folder
from spark.schema import PENDING, REPLAY

FOREVER: Final = 10**18


class Killed(Exception):
    """The end of the driver."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return open_folder(str(tmp_path / "state"))


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are kept, which is quick: for tests of the folder alone."""
    monkeypatch.setattr(audit_state, "keep_rows", lambda state, _: state.rows)


def make_state(session: SparkSession, day: int, former: State | None = None) -> State:
    """Of an audit that saw one change of one item on each day."""
    row = {**dict.fromkeys(REPLAY.names), "h1": 1, "h2": 1, "kind": CHANGE, "flags": 0, "begin_us": day}
    rows = session.createDataFrame([{**row, "lineage": 1, "ordinal": day}], REPLAY)
    if former is not None:
        rows = rows.unionByName(former.rows)
    pending = session.createDataFrame([(1, 1, 1, day)], PENDING)
    items = session.createDataFrame([(1, 1, b"item")], ITEMS)
    nothing = frozenset[tuple[int, str, int]]()
    return State(
        rows=rows,
        pending=pending,
        items=items,
        archive=Archive((), {}, (), (), 1, {}, day),
        known=Knowledge({}),
        names=Names({}, {}, {}),
        sequences={"client": day},
        raises=nothing,
        told=nothing,
        as_of_us=day,
    )


def days_of(state: State) -> list[int]:
    return sorted(row["ordinal"] for row in state.rows.collect())


def test_a_state_is_saved_over_the_one_that_it_continues(session: SparkSession, folder: Folder) -> None:
    save_state(make_state(session, 1), folder, FOREVER)
    save_state(make_state(session, 2, load_state(session, folder)), folder, FOREVER)
    last = load_state(session, folder)
    assert (days_of(last), last.as_of_us, last.sequences) == ([1, 2], 2, {"client": 2})
    assert [bytes(row["item"]) for row in last.items.collect()] == [b"item"]


def test_the_former_state_stays_for_its_readers_and_no_older_one(
    session: SparkSession, folder: Folder, all_rows: None
) -> None:
    for day in (1, 2, 3):
        save_state(make_state(session, day), folder, FOREVER)
        if day == 2:
            read_by_another = load_state(session, folder)
    assert days_of(read_by_another) == [2]
    assert [path.name[:8] for path in sorted(Path(folder.path).iterdir())] == ["00000002", "00000003"]


def test_a_state_that_was_cut_off_is_none(
    session: SparkSession, folder: Folder, all_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: State) -> Iterator[str]:
        raise Killed

    @contextmanager
    def cut_off() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(audit_state, "_format", cut)
            yield

    with cut_off(), pytest.raises(Killed):
        save_state(make_state(session, 1), folder, FOREVER)
    with pytest.raises(ConfigError, match="no state"):
        load_state(session, folder)
    save_state(make_state(session, 2), folder, FOREVER)
    with cut_off(), pytest.raises(Killed):
        save_state(make_state(session, 3), folder, FOREVER)
    found = load_state(session, folder)
    assert (days_of(found), found.as_of_us) == ([2], 2)
    save_state(make_state(session, 4), folder, FOREVER)
    assert days_of(load_state(session, folder)) == [4]


def test_a_state_that_lacks_a_file_is_refused(session: SparkSession, folder: Folder, all_rows: None) -> None:
    save_state(make_state(session, 1), folder, FOREVER)
    path = next(Path(folder.path).glob("*/rows/*.parquet"))
    held = path.read_bytes()
    for content in (held[:-1], None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FormatError, match="not as it was saved"):
            load_state(session, folder)
    path.write_bytes(held)
    path.with_name("other.parquet").write_bytes(held)
    with pytest.raises(FormatError, match="not as it was saved"):
        load_state(session, folder)


def test_a_state_of_another_version_is_refused(
    session: SparkSession, folder: Folder, all_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no state"):
        load_state(session, folder)
    with monkeypatch.context() as patch:
        patch.setattr(audit_state, "STATE_VERSION", 99)
        save_state(make_state(session, 1), folder, FOREVER)
    with pytest.raises(FormatError, match="version 99"):
        load_state(session, folder)
