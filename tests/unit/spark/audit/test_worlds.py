"""The audit against the simulator: it finds exactly what was planted in hundreds of worlds, and invents nothing.

FRESHNESS_AUDIT_WORLDS (400): how many; `make spark` takes a thousand."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow
import pytest
from pyarrow import parquet

from freshness.errors import ConfigError, FormatError
from freshness.history.archive_file import UNFINISHED
from freshness.history.columns import VERSION_KEY
from spark.audit import __main__ as command
from spark.audit.engine.local import LocalEngine
from spark.audit.engine.step import Engine
from spark.audit.input import recording
from spark.audit.input.recording import RecordedFiles, open_actions, open_changes, read_parts
from spark.audit.input.window import ALL, Window
from spark.audit.job import Audit, audit
from spark.audit.model import verdict
from spark.audit.model.finding import Rules
from spark.audit.model.schema import REPLAY
from spark.audit.shuffle.state import State, load_state, save_state
from spark.audit.shuffle.survey import WHOLE, Scope, survey_history
from spark.folder import open_folder
from tests.simulation.planted import AS_OF_US, HOUR, PLANTS, Expected, Planted, plant
from tests.simulation.recorded import EPOCH_US, Row, record, write_rows
from tests.unit.spark.audit.both import gather_rows, judge_both

WORLDS: Final = int(os.environ.get("FRESHNESS_AUDIT_WORLDS", "400"))
PARTS_WORLDS: Final = 120
"""Worlds whose audits in parts are compared with an audit of the whole."""
RULES: Final = Rules(0)
PIECES: Final = 4
FILES: Final = 5
HOT_ROWS: Final = 24
"""So few that many items of the worlds are hot."""


@pytest.fixture
def engine() -> Engine:
    return LocalEngine()


@pytest.fixture(scope="module")
def worlds() -> list[Planted]:
    logging.disable(logging.CRITICAL)  # what the production code logs of what is done to it
    try:
        return [plant(record(seed), seed) for seed in range(WORLDS)]
    finally:
        logging.disable(logging.NOTSET)


class Folders(NamedTuple):
    """The paths of a recorded world."""

    archive: str
    history: str

    def read(self, engine: Engine) -> tuple[RecordedFiles, RecordedFiles]:
        return open_changes(engine, self.archive), open_actions(engine, self.history)


def write(worlds: Sequence[Planted], folder: Path) -> Folders:
    changes = [row for world in worlds for row in world.history.changes]
    actions = [row for world in worlds for row in world.history.actions]
    return Folders(
        write_rows("changes", changes, folder / "archive"), write_rows("actions", actions, folder / "history")
    )


def run(engine: Engine, folders: Folders, **options: Any) -> Audit:
    options = {"rules": RULES, "scope": Scope(AS_OF_US), "pieces": PIECES, **options}
    return audit(engine, *folders.read(engine), **options)


def found_in(result: Audit) -> Counter[Expected]:
    """What the audit found, each with how often."""
    found: Counter[Expected] = Counter()
    for row in result.violations.to_pylist():
        item = row["item"]
        named = item.decode() if item else row["lineage"] or next(iter(row["clients"]), None) or row["object"]
        (world,) = re.findall(r"^w\d+", named)
        found[Expected(world, row["kind"], row["failure"], item)] += row["count"]
    return found


# -- many worlds -----------------------------------------------------------------------------------------


def test_what_was_planted_is_found_and_nothing_else(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    assert {world.plant for world in worlds} == {"", *(each.__name__ for each in PLANTS)}
    result = run(engine, write(worlds, tmp_path))
    expected = {each for world in worlds for each in world.expected}
    assert set(found_in(result)) == expected
    # A row may be newer than its token, by a change that a plant has taken out of the archive.
    assert set(result.summary.unknown) <= {verdict.WRONG_CLOCK, verdict.ROW_UNKNOWN}
    assert result.summary.exit_code == verdict.STALE_DATA
    for row in result.violations.to_pylist():
        records = json.loads(row["evidence"])
        assert records, row
        assert all("record" in each for each in records), row
    result.close()


def test_worlds_with_crashes_and_lag_are_clean(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    clean = [world for world in worlds if not world.plant]
    assert len(clean) >= WORLDS / 4
    faults = {fault for world in clean for fault in world.history.options.faults}
    wanted = {"crash", "restart", "evict", "flush", "jump", "cut", "truncate", "lose_reply", "pause"}
    assert wanted | {"redeploy", "reshape"} <= faults
    result = run(engine, write(clean, tmp_path))
    summary = result.summary
    assert (summary.exit_code, summary.found, summary.unknown) == (verdict.CLEAN, [], {})
    assert sum(summary.staleness) > 1000
    assert summary.counts["values compared"] > 50
    assert summary.counts["changes invalidated"] > 500
    assert summary.counts["views compared"] > 10
    result.close()


def test_arrays_say_of_each_world_what_the_judge_says(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    survey = survey_history(engine, *write(worlds, tmp_path).read(engine), RULES, Scope(AS_OF_US), pieces=1)
    by_arrays, by_rows = judge_both(gather_rows(survey), survey.rules, survey.kept.known)
    assert by_arrays == by_rows


# -- day by day ------------------------------------------------------------------------------------------

_TIMELESS: Final = (
    "client_in_the_past",
    "clock_stepped_back",
    "commit_from_the_past",
    "commit_from_the_future",
    "dropped_actions",
)
"""A wrong clock has no day; and what was dropped on a day without anything else may be of any lineage."""


_SETTLE_US: Final = 6_000_000
"""What a statement may have begun before its commit is archived: until then staleness is not known (F3)."""


Halves: TypeAlias = tuple[list[Row], list[Row]]


def _cut(rows: Sequence[Row], who: str, order: str, time: str, at_us: int) -> Halves:
    """The rows of each recorder before its first one of that time, and the rest."""
    halves: Halves = ([], [])
    late: set[str] = set()
    for row in sorted(rows, key=lambda row: int(row[order])):
        late |= {row[who]} if row[time] >= at_us else set()
        halves[row[who] in late].append(row)
    return halves


def _cut_worlds(worlds: Sequence[Planted], archive_us: int, history_us: int) -> tuple[Halves, Halves]:
    changes = [row for world in worlds for row in world.history.changes]
    actions = [row for world in worlds for row in world.history.actions]
    return (
        _cut(changes, "lineage", "ordinal", "received_us", archive_us),
        _cut(actions, "client", "sequence", "begin_us", history_us),
    )


def _days(worlds: Sequence[Planted], folder: Path, split_us: int) -> list[Folders]:
    """Two days of recordings: of each lineage and each client the first part, and the rest."""
    return [
        Folders(
            write_rows("changes", changes, folder / "archive" / str(day)),
            write_rows("actions", actions, folder / "history" / str(day)),
        )
        for day, (changes, actions) in enumerate(zip(*_cut_worlds(worlds, split_us, split_us), strict=True))
    ]


def _of_items(found: Counter[Expected]) -> Counter[Expected]:
    return Counter({each: count for each, count in found.items() if each.item is not None})


@pytest.mark.slow
def test_texts_that_are_read_as_dictionaries_say_the_same(
    engine: Engine, worlds: list[Planted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write(worlds[:PARTS_WORLDS], tmp_path)
    plain = run(engine, folders)
    monkeypatch.setattr(recording, "ROWS_PER_BATCH_MIN", 0)
    [batch, *_] = open_actions(engine, folders.history).parts[0].read_batches(["lives"])
    assert isinstance(batch.schema.field("lives").type.value_type, pyarrow.DictionaryType)
    encoded = run(engine, folders)
    assert plain.violations.num_rows
    assert encoded.violations.equals(plain.violations)
    assert encoded.summary == plain.summary
    for result in (plain, encoded):
        result.close()


def test_two_days_are_one_audit_in_two_parts(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    chosen = [world for world in worlds if world.plant not in _TIMELESS][:PARTS_WORLDS]
    split_us = EPOCH_US + 13_000_000
    whole = run(engine, write(chosen, tmp_path / "whole"))
    first, second = _days(chosen, tmp_path, split_us)
    one = run(engine, first, scope=Scope(split_us - _SETTLE_US))
    save_state(one.carry, open_folder(str(tmp_path / "state")), HOUR)
    two = run(engine, second, scope=Scope(AS_OF_US, previous=load_state(open_folder(str(tmp_path / "state")))))
    both, together = found_in(one) + found_in(two), found_in(whole)
    assert sum(found_in(one).values()) > 10
    assert sum(found_in(two).values()) > 10
    assert set(both) == set(together)
    assert _of_items(both) == _of_items(together)
    histograms = zip(one.summary.staleness, two.summary.staleness, strict=True)
    assert [sum(pair) for pair in histograms] == list(whole.summary.staleness)
    for name in ("fills", "changes invalidated"):
        counts = [each.summary.counts.get(name, 0) for each in (one, two, whole)]
        assert counts[0] + counts[1] == counts[2], name
    for result in (one, two, whole):
        result.close()


# -- a part of the time ----------------------------------------------------------------------------------


def _not_planted(result: Audit, worlds: Sequence[Planted]) -> list[Expected]:
    """Of a planted violation only a part may be left, which is another one."""
    planted = {(each.world, each.item) for world in worlds for each in world.expected}
    return sorted(each for each in found_in(result) if (each.world, each.item) not in planted)


@pytest.mark.parametrize(("archive_s", "history_s"), [(0, 8), (7, 7), (6, 5), (0, 12)])
def test_history_that_begins_later_accuses_nothing_more(
    engine: Engine, worlds: list[Planted], tmp_path: Path, archive_s: int, history_s: int
) -> None:
    """As after old files were deleted. Seconds of the worlds that neither recorded."""
    chosen = [world for world in worlds if world.plant not in _TIMELESS]
    begin_us = (EPOCH_US + seconds * 1_000_000 for seconds in (archive_s, history_s))
    (_, changes), (_, actions) = _cut_worlds(chosen, *begin_us)
    archive = write_rows("changes", changes, tmp_path / "archive")
    result = run(engine, Folders(archive, write_rows("actions", actions, tmp_path / "history")))
    assert found_in(result)
    assert not _not_planted(result, chosen)
    result.close()


def test_a_client_that_was_killed_accuses_nobody(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    """One client of each world lacks the second half of its actions, and an unfinished file says so."""
    chosen = [world for world in worlds if world.plant not in _TIMELESS]
    actions: list[Row] = []
    for number, world in enumerate(chosen):
        clients = sorted({row["client"] for row in world.history.actions})
        killed = clients[number % len(clients)]
        last = max(row["sequence"] for row in world.history.actions if row["client"] == killed)
        actions += [row for row in world.history.actions if row["client"] != killed or row["sequence"] <= last / 2]
    archive = write_rows("changes", [row for world in chosen for row in world.history.changes], tmp_path / "archive")
    folders = Folders(archive, write_rows("actions", actions, tmp_path / "history"))
    result = run(engine, folders)
    assert _not_planted(result, chosen), "nobody says that actions are missing"
    result.close()
    unfinished = f"w0.parquet{UNFINISHED}"
    (tmp_path / "history" / unfinished).write_bytes(b"PAR1")
    result = run(engine, folders)
    assert [each for each in _not_planted(result, chosen) if each.kind != verdict.RECORDER_GAP] == []
    assert len(found_in(result)) > WORLDS / 8, "the rest is judged"
    assert verdict.NOT_FILLED_LOST in result.summary.unknown
    (gap,) = (row for row in result.violations.to_pylist() if row["object"] == unfinished)
    assert (gap["kind"], gap["failure"]) == (verdict.RECORDER_GAP, "I8")
    result.close()


def _write_files(worlds: Sequence[Planted], folder: Path) -> Folders:
    """Several files of each client, as a recorder leaves them."""
    clients: dict[str, list[Row]] = {}
    for row in (row for world in worlds for row in world.history.actions):
        clients.setdefault(row["client"], []).append(row)
    for number, rows in enumerate(clients.values()):
        rows.sort(key=lambda row: int(row["sequence"]))
        size = -(-len(rows) // FILES)
        for at in range(0, len(rows), size):
            write_rows("actions", rows[at : at + size], folder / "files" / f"{number}-{at}", 1)
    return write(worlds, folder)._replace(history=str(folder / "files"))


def _run_window(engine: Engine, folders: Folders, window: Window, as_of_us: int | None = None) -> Audit:
    changes, actions = open_changes(engine, folders.archive), open_actions(engine, folders.history, window)
    return audit(engine, changes, actions, rules=RULES, scope=Scope(as_of_us, window), pieces=PIECES)


def test_windows_that_touch_are_one_audit(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    chosen = [world for world in worlds if world.plant not in _TIMELESS][: PARTS_WORLDS // 2]
    folders = _write_files(chosen, tmp_path)
    whole = run(engine, folders, scope=WHOLE)
    edges = [EPOCH_US + seconds * 1_000_000 for seconds in (5, 9)]
    windows = [Window(begin_us, end_us, HOUR) for begin_us, end_us in pairwise((ALL.from_us, *edges, AS_OF_US))]
    parts = [_run_window(engine, folders, window) for window in windows]
    told = [_of_items(found_in(part)) for part in parts]
    both, together = sum(told, Counter()), _of_items(found_in(whole))
    assert min(sum(each.values()) for each in told) > 3
    assert set(both) == set(together)
    # Each window with evidence of a change that nothing invalidated reports it.
    assert {each for each in together if both[each] != together[each]} <= {
        each for each in together if each.kind == verdict.MISSED_INVALIDATION
    }
    histograms = zip(*(part.summary.staleness for part in parts), strict=True)
    assert [sum(counts) for counts in histograms] == list(whole.summary.staleness)
    for name in ("fills", "changes invalidated"):
        counts = [part.summary.counts.get(name, 0) for part in parts]
        assert sum(counts) == whole.summary.counts[name], name
    read = [open_actions(engine, folders.history, window).rows for window in windows]
    assert read[0] < read[1] < read[2] == open_actions(engine, folders.history).rows
    for result in (whole, *parts):
        result.close()


def test_a_window_accuses_nothing_for_lack_of_evidence(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    chosen = [world for world in worlds if world.plant not in _TIMELESS]
    folders = _write_files(chosen, tmp_path)
    window = Window(EPOCH_US + 9_000_000, EPOCH_US + 15_000_000)
    assert open_actions(engine, folders.history, window).rows < open_actions(engine, folders.history).rows
    result = _run_window(engine, folders, window)
    assert found_in(result)
    assert not _not_planted(result, chosen)
    result.close()


def test_a_value_of_a_client_that_a_window_does_not_read_is_not_thin_air(
    engine: Engine, worlds: list[Planted], tmp_path: Path
) -> None:
    """Its process ended before the window begins. The client that reads is recorded from the beginning."""
    actions = sorted(worlds[0].history.actions, key=lambda row: int(row["sequence"]))
    fills, others = ([row for row in actions if (row["action"] == "fill") is is_fill] for is_fill in (True, False))
    for client, rows in (("filler", fills), ("reader", others)):
        told = [{**row, "client": client, "sequence": at} for at, row in enumerate(rows, start=1)]
        write_rows("actions", told, tmp_path / "files" / client, 1)
    folders = write(worlds[:1], tmp_path)._replace(history=str(tmp_path / "files"))
    end_us = max(int(row["end_us"]) for row in fills)
    result = _run_window(engine, folders, Window(end_us + 1, AS_OF_US), as_of_us=AS_OF_US)
    assert result.summary.counts["hits of values stored before the history"]
    assert not result.summary.found
    result.close()


# -- a hot key -------------------------------------------------------------------------------------------


def _rows_of(state: State) -> list[str]:
    batches = read_parts(state.rows.parts, REPLAY.names)
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


def test_an_audit_in_which_many_items_are_hot_says_the_same(
    engine: Engine, worlds: list[Planted], tmp_path: Path
) -> None:
    """On two days: the second one continues the first."""
    changes, actions = write(worlds[: PARTS_WORLDS // 2], tmp_path).read(engine)
    said = []
    for hot_rows in (1 << 30, HOT_ROWS):
        folder = open_folder(str(tmp_path / str(hot_rows)))
        options: dict[str, Any] = {"rules": RULES, "pieces": PIECES, "hot_rows": hot_rows}
        one = audit(engine, changes, actions, scope=Scope(EPOCH_US + 7_000_000), **options)
        save_state(one.carry, folder, HOUR // 1000)
        state = load_state(folder)
        two = audit(engine, changes, actions, scope=Scope(AS_OF_US, previous=state), **options)
        said.append(
            [
                (len(each.carry.spread.items) > 20, each.summary.to_json(), each.violations.to_pylist())
                for each in (one, two)
            ]
        )
        said[-1].append((False, {}, _rows_of(state)))
        one.close()
        two.close()
    whole, apart = said
    assert [each[0] for each in apart] == [True, True, False]
    assert [each[1:] for each in whole] == [each[1:] for each in apart]


def find_first_and_last(world: Planted) -> tuple[Row, Row]:
    """The first hit of the entry of a planted hit, and that one, which is the last hit that was written down."""
    (expected,) = world.expected
    hits = [row for row in world.history.actions if row["action"] == "hit"]
    last = [row for row in hits if row["item"] == expected.item][-1]
    entry = last["version"], last["node"]
    return next(row for row in hits if (row["version"], row["node"]) == entry), last


def find_span_us(world: Planted) -> int:
    """The time between the two, as far as the archive reaches."""
    first, last = find_first_and_last(world)
    end_us = max(int(change["received_us"]) for change in world.history.changes)
    return min(int(last["begin_us"]), end_us) - int(first["begin_us"])


def test_hits_of_a_hot_key_are_all_counted(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    """20,000 hits more of one entry, half of them after it was invalidated."""
    # The planted hit is far from the first one of its entry: they count in different slices of the time.
    world = max((world for world in worlds if world.plant == "stale_hit"), key=find_span_us)
    (expected,) = world.expected
    before = run(engine, write([world], tmp_path / "before"))
    fresh, stale = find_first_and_last(world)
    for _ in range(10_000):
        world.history.clone(stale)
        world.history.clone(fresh)
    folders = write([world], tmp_path / "after")
    after = run(engine, folders)
    assert found_in(after)[expected] == found_in(before)[expected] + 10_000
    served, over_time = after.summary.served, after.summary.over_time
    assert served.poison == before.summary.served.poison + 10_000
    assert sum(over_time[0].poison) == served.poison
    assert sum(over_time[0].hits) == sum(after.summary.staleness) == served.of
    assert sum(count > 0 for count in over_time[0].hits) > 1
    assert sum(after.summary.staleness) == sum(before.summary.staleness) + 20_000
    hits = sum(row["item"] == expected.item for row in world.history.actions if row["action"] == "hit")
    assert after.summary.hot[0] == (stale["item"].decode(), hits)
    for result in (before, after):
        result.close()


# -- bad input -------------------------------------------------------------------------------------------


@pytest.fixture
def good(worlds: list[Planted], tmp_path: Path) -> Folders:
    return write([world for world in worlds if not world.plant][:1], tmp_path)


def test_a_truncated_file_is_an_error(engine: Engine, good: Folders) -> None:
    path = Path(good.history) / "1.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FormatError, match="no whole Parquet file"):
        good.read(engine)


def test_another_version_is_an_error(engine: Engine, good: Folders) -> None:
    path = Path(good.archive) / "1.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.replace_schema_metadata({**table.schema.metadata, VERSION_KEY.encode(): b"99"}), path)
    with pytest.raises(FormatError, match="version 99"):
        good.read(engine)


def test_the_other_kind_of_file_is_an_error(engine: Engine, good: Folders) -> None:
    with pytest.raises(FormatError, match="holds actions, where changes were expected"):
        open_changes(engine, good.history)


def test_a_column_that_is_missing_is_an_error(engine: Engine, good: Folders) -> None:
    path = Path(good.history) / "1.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["floors"]), path)
    with pytest.raises(FormatError, match="lacks the column floors"):
        good.read(engine)


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_a_folder_without_files_is_an_error(engine: Engine, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        open_changes(engine, str(tmp_path / name))


def test_an_archive_without_rows_is_an_error(engine: Engine, good: Folders, tmp_path: Path) -> None:
    empty = Folders(write_rows("changes", [], tmp_path / "none"), good.history)
    with pytest.raises(FormatError, match="archive is empty"):
        run(engine, empty)


def test_a_history_without_rows_is_not_green(engine: Engine, good: Folders, tmp_path: Path) -> None:
    result = run(engine, Folders(good.archive, write_rows("actions", [], tmp_path / "none")))
    assert result.summary.exit_code == verdict.NOT_KNOWN
    assert result.summary.unknown == {verdict.NO_HISTORY: 1}
    result.close()


def test_a_history_of_another_system_is_unknown(
    engine: Engine, worlds: list[Planted], good: Folders, tmp_path: Path
) -> None:
    """No archive for its span: not one hit can be judged, and all are counted."""
    other = next(world for world in worlds[4:] if not world.plant and _hits(world) > 10)
    result = run(engine, Folders(good.archive, write([other], tmp_path / "other").history))
    assert result.summary.exit_code == verdict.NOT_KNOWN
    assert result.summary.unknown[verdict.NO_POSITION] >= _hits(other)
    assert sum(result.summary.staleness) == 0
    result.close()


def _hits(world: Planted) -> int:
    return sum(row["action"] == "hit" for row in world.history.actions)


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("gtid", "nonsense", "GTID that cannot be read"),
        ("action", "guess", "'guess'"),
        ("item", None, "names no item"),
    ],
)
def test_rows_that_cannot_be_understood_are_an_error(
    engine: Engine, worlds: list[Planted], tmp_path: Path, column: str, value: Any, what: str
) -> None:
    world = next(world for world in worlds if not world.plant and _hits(world))
    changes, actions = ([dict(row) for row in rows] for rows in (world.history.changes, world.history.actions))
    rows = changes if column == "gtid" else [row for row in actions if row["action"] == "hit"]
    rows[-1][column] = value
    folders = Folders(
        write_rows("changes", changes, tmp_path / "archive"), write_rows("actions", actions, tmp_path / "history")
    )
    with pytest.raises(FormatError, match=what):
        run(engine, folders)


# -- the command -----------------------------------------------------------------------------------------


def test_the_command_writes_its_report(
    engine: Engine, worlds: list[Planted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plants = ("", "stale_hit", "archive_gap")
    chosen = [world for name in plants for world in [each for each in worlds if each.plant == name][:7]]
    folders = write(chosen, tmp_path)
    options = [
        "--archive",
        folders.archive,
        "--history",
        folders.history,
        "--report",
        str(tmp_path / "out"),
        "--json",
    ]
    options += ["--as-of", "2027-01-01T00:00:00Z", "--save-state", str(tmp_path / "state")]
    assert command.main(options) == verdict.STALE_DATA
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out/summary.json").read_text())
    assert {each["kind"] for each in printed["found"]} == {"stale_hit", "archive_gap"}
    assert parquet.read_table(tmp_path / "out/violations").num_rows == len(
        {each for world in chosen for each in world.expected}
    )
    page = (tmp_path / "out/report.html").read_text()
    assert "<svg" in page
    assert "stale hit" in page
    assert load_state(open_folder(str(tmp_path / "state"))).kept.archive.lineages


def test_the_command_tells_mistakes_without_a_traceback(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--archive", str(tmp_path / "a"), "--history", str(tmp_path / "b"), "--report", str(tmp_path / "out")]
    assert command.main(options) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_command_judges_the_rest_of_an_unfinished_history(
    engine: Engine, good: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(good.history) / f"a{UNFINISHED}").write_bytes(b"")
    options = ["--archive", good.archive, "--history", good.history, "--report", str(tmp_path / "out")]
    assert command.main([*options, "--json"]) == verdict.NOT_KNOWN
    assert sum(json.loads(capsys.readouterr().out)["staleness"])
    assert f"a{UNFINISHED}" in (tmp_path / "out/report.html").read_text()
    assert command.main([*options, "--save-state", str(tmp_path / "state")]) == 2
    assert f"a{UNFINISHED} is not finished" in capsys.readouterr().err
    for path in Path(good.history).glob("*.parquet"):
        path.unlink()
    assert command.main(options) == 2
    assert "unfinished files alone" in capsys.readouterr().err


def test_the_command_judges_a_part_of_the_time(
    engine: Engine, good: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--archive", good.archive, "--history", good.history, "--report", str(tmp_path / "out")]
    begin, end = (datetime.fromtimestamp(EPOCH_US / 1e6 + seconds, UTC).isoformat() for seconds in (2, 4))
    assert command.main([*options, "--from", begin, "--to", end, "--json"]) == verdict.CLEAN
    summary = json.loads(capsys.readouterr().out)
    assert (summary["judged_from_us"], summary["as_of_us"]) == (EPOCH_US + 2_000_000, EPOCH_US + 4_000_000)
    assert 0 < sum(summary["staleness"]) < _hits_of(engine, good)
    assert "Judged: actions later than" in (tmp_path / "out/report.html").read_text()


def test_a_window_without_files_is_an_error(engine: Engine, worlds: list[Planted], tmp_path: Path) -> None:
    folders = _write_files(worlds[:1], tmp_path)
    with pytest.raises(ConfigError, match="is of the time from --from to --to"):
        open_actions(engine, folders.history, Window(to_us=EPOCH_US - HOUR))


def _hits_of(engine: Engine, folders: Folders) -> int:
    result = run(engine, folders)
    result.close()
    return sum(result.summary.staleness)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--from", "yesterday"], "--from 'yesterday'"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], "is not before"),
        (["--from", "2026-01-01", "--state", "state"], "do not go with --state"),
        (["--to", "2026-01-01", "--save-state", "state"], "do not go with --save-state"),
        (["--to", "2026-01-01", "--as-of", "2026-01-01"], "do not go with --as-of"),
    ],
)
def test_a_part_of_the_time_that_cannot_be_judged_is_an_error(
    good: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    arguments = ["--archive", good.archive, "--history", good.history, "--report", str(tmp_path / "out")]
    assert command.main([*arguments, *options]) == 2
    assert told in capsys.readouterr().err


def test_help_needs_no_session() -> None:
    done = subprocess.run([sys.executable, "-m", "spark.audit", "--help"], capture_output=True, text=True, check=True)
    assert "--save-state" in done.stdout
