"""What the procedures tell a witness, and how the recorder writes it: every action once, or counted as dropped."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from freshness.algorithm.witness import Action, Trace
from freshness.errors import ConfigError
from freshness.history import recorder as recording
from freshness.history.archive_file import UNFINISHED
from freshness.history.columns import ACTIONS, ACTIONS_VERSION, KIND_KEY, VERSION_KEY
from freshness.history.recorder import Recorder, hash_item
from freshness.position import MysqlGtidSet
from freshness.values.codec import encode_value, row_digest
from tests.schedules.world import KEY, LINEAGE, NODE, Invalidator, Reader, Replica, World

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Notebook:
    """A witness that remembers."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.actions: list[Action] = []
        self.sampled = sampled

    def wants(self, item: bytes) -> bool:
        return self.sampled

    def now_us(self) -> int:
        return 1

    def tell(self, action: Action) -> None:
        self.actions.append(action)

    def kinds(self) -> list[tuple[str, str]]:
        return [(action.kind, action.outcome) for action in self.actions]


def watched(world: World, notebook: Notebook) -> tuple[Invalidator, Reader, Replica]:
    one = Invalidator(world)
    one.member.witness = notebook
    one.join()
    one.live(1)
    replica = Replica(world.database)
    replica.catch_up()
    reader = Reader(world, replica)
    reader.context.witness = notebook
    notebook.actions.clear()
    return one, reader, replica


def test_a_fill_a_hit_an_invalidation_and_a_refusal_are_told_with_their_evidence() -> None:
    world, notebook = World(), Notebook()
    one, reader, replica = watched(world, notebook)
    reader.read()
    reader.read()
    assert notebook.kinds() == [("fill", "FILLED"), ("hit", "HIT")]
    fill, hit = notebook.actions
    record = one.member.joined_record()
    assert (fill.item, fill.node, fill.object_name, fill.tables) == (KEY, NODE, "customer", ("customers",))
    assert fill.traces[LINEAGE] == Trace(record.epoch, record.life, replica.token().position, record.floor)
    assert fill.version == hit.version > fill.observed > 0
    assert fill.payload == hit.payload is not None
    assert hit.traces[LINEAGE] == Trace(record.epoch, record.life, replica.token().position)
    notebook.actions.clear()

    event = world.commit(KEY)
    one.apply()
    assert notebook.kinds() == [("invalidation", "stored"), ("publish", "stored")]
    invalidation, publication = notebook.actions
    assert invalidation.item == KEY
    assert invalidation.traces[LINEAGE].position == event.position
    assert publication.traces[LINEAGE].position == one.member.joined_record().progress
    notebook.actions.clear()

    reader.read()
    assert notebook.kinds() == [("refusal", "STRIPE")]
    assert notebook.actions[0].traces[LINEAGE].position == replica.token().position


def test_a_fill_that_was_not_answered_may_be_stored() -> None:
    world, notebook = World(), Notebook()
    _, reader, _ = watched(world, notebook)
    run = reader.reading().until(lambda action: type(action).__name__ == "Cas")
    run.lose_reply()
    run.finish()
    assert notebook.kinds() == [("fill", "NODE_DOWN")]


def test_what_is_not_in_the_sample_is_not_told() -> None:
    world, notebook = World(), Notebook(sampled=False)
    one, reader, _ = watched(world, notebook)
    reader.read()
    reader.read()
    world.commit(KEY)
    one.apply()
    assert {kind for kind, _ in notebook.kinds()} == {"publish"}


# -- the recorder --------------------------------------------------------------------------------------


def an_action(number: int = 1, **changes: Any) -> Action:
    trace = Trace(1, b"12345678", MysqlGtidSet.of(SOURCE, number), MysqlGtidSet.of(SOURCE, 1))
    usual: dict[str, Any] = {
        "kind": "fill",
        "outcome": "FILLED",
        "node": NODE,
        "begin_us": number,
        "end_us": number + 1,
        "item": b"shop:customer:%d" % number,
        "object_name": "customer",
        "tables": ("customers",),
        "traces": {LINEAGE: trace},
        "payload": encode_value({"id": number}),
        "version": number,
    }
    return Action(**{**usual, **changes})


def rows_in(folder: Path) -> list[dict[str, Any]]:
    assert not list(folder.glob("*.unfinished"))
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_every_action_is_a_row_with_all_columns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.tell(an_action(7, observed=5))
    recorder.tell(an_action(8, payload=None, is_absent=True, version=0))
    recorder.close()
    first, second = rows_in(tmp_path)
    assert list(first) == [column.name for column in ACTIONS]
    assert first == {
        "client": second["client"],
        "sequence": 1,
        "action": "fill",
        "outcome": "FILLED",
        "object": "customer",
        "tables": ["customers"],
        "item": b"shop:customer:7",
        "item_hash": hash_item(b"shop:customer:7"),
        "node": NODE,
        "lineages": [LINEAGE],
        "epochs": ["1"],
        "lives": [b"12345678"],
        "positions": [f"{SOURCE}:7"],
        "floors": [f"{SOURCE}:1"],
        "digest": row_digest({"id": 7}),
        "is_absent": False,
        "version": 7,
        "observed": 5,
        "begin_us": 7,
        "end_us": 8,
        "count": 1,
    }
    assert second["sequence"] == 2
    assert (second["digest"], second["is_absent"], second["version"], second["observed"]) == (None, True, None, None)
    (path,) = tmp_path.glob("*.parquet")
    metadata = pq.read_metadata(path).metadata
    assert metadata[KIND_KEY.encode()] == b"actions"
    assert metadata[VERSION_KEY.encode()] == str(ACTIONS_VERSION).encode()


def test_after_its_end_it_begins_again_as_another_client(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.tell(an_action(1))
    recorder.close()
    recorder.close()
    recorder.tell(an_action(2))
    recorder.close()
    first, second = rows_in(tmp_path)
    assert first["client"] != second["client"]
    assert (first["sequence"], second["sequence"]) == (1, 1)


def test_a_full_buffer_drops_and_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BUFFERED_MAX", 3)
    monkeypatch.setattr(recording, "WRITE_SECONDS", 60.0)
    recorder = Recorder(tmp_path)
    for number in range(1, 11):
        recorder.tell(an_action(number))
    recorder.close()
    *rows, dropped = rows_in(tmp_path)
    assert [row["begin_us"] for row in rows] == [1, 2, 3]
    assert (dropped["action"], dropped["count"], dropped["item"]) == ("dropped", 7, None)


def test_a_folder_that_cannot_be_written_stops_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "file"
    folder.write_text("in the way")
    recorder = Recorder(folder)
    recorder.tell(an_action())
    recorder.close()
    assert "history is not recorded any more" in caplog.text


def test_every_action_that_is_dropped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BUFFERED_MAX", 2)
    monkeypatch.setattr(recording, "WRITE_SECONDS", 60.0)
    dropped: list[int] = []
    recorder = Recorder(tmp_path, on_drop=dropped.append)
    for number in range(1, 6):
        recorder.tell(an_action(number))
    assert dropped == [1, 1, 1]
    recorder.close()
    assert sum(dropped) == sum(row["count"] for row in rows_in(tmp_path) if row["action"] == "dropped")


def test_actions_that_cannot_be_written_are_dropped_too(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("in the way")
    dropped: list[int] = []
    recorder = Recorder(folder, on_drop=dropped.append)
    recorder.tell(an_action(1))
    assert recorder._session is not None
    recorder._session.close()  # it tries to write, and fails
    assert sum(dropped) == 1
    recorder.tell(an_action(2))
    assert sum(dropped) == 2
    recorder.close()


def test_a_client_that_is_killed_leaves_an_unfinished_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows that actions are missing, also if all before them are in complete files."""
    unfinished: list[int] = []
    is_complete = threading.Event()
    finish = recording._OpenFile.finish

    def watch(file: recording._OpenFile) -> None:
        finish(file)
        unfinished.append(len(list(tmp_path.glob(f"*{UNFINISHED}"))))
        is_complete.set()

    monkeypatch.setattr(recording._OpenFile, "finish", watch)
    monkeypatch.setattr(recording, "WRITE_SECONDS", 0.01)
    recorder = Recorder(tmp_path, rotate_seconds=0)
    recorder.tell(an_action(1))
    assert is_complete.wait(60)
    recorder.close()
    assert unfinished == [1, 0]
    assert len(rows_in(tmp_path)) == 1


def test_a_forked_process_is_a_client_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.tell(an_action(1))
    child = os.fork()
    if not child:
        recorder.tell(an_action(2))
        recorder.close()
        os._exit(0)
    os.waitpid(child, 0)
    recorder.close()
    first, second = sorted(rows_in(tmp_path), key=lambda row: row["begin_us"])
    assert first["client"] != second["client"]
    assert [first["begin_us"], second["begin_us"]] == [1, 2]


@pytest.mark.parametrize("sample", [0.0, 0.25, 1.0])
def test_a_sample_is_of_items(tmp_path: Path, sample: float) -> None:
    recorder = Recorder(tmp_path, sample=sample)
    share = sum(recorder.wants(b"shop:customer:%d" % number) for number in range(4000)) / 4000
    assert abs(share - sample) < 0.05
    again = Recorder(tmp_path, sample=sample)
    assert all(recorder.wants(b"k%d" % number) == again.wants(b"k%d" % number) for number in range(200))


def test_without_its_package_the_configuration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from freshness.config.config import load_config
    from freshness.history.open import open_recorder

    path = tmp_path / "freshness.toml"
    path.write_text(
        '[cache]\nnodes = ["n:1"]\nnamespace = "shop"\n[history]\npath = "h"\n[keyspaces.shop]\nflavor = "mysql"\n'
        '[[keyspaces.shop.shards]]\nprimary = "mysql://a@h/shop"\n'
    )
    config = load_config(path, {})
    found = open_recorder(config)
    assert found is not None
    monkeypatch.setitem(sys.modules, "freshness.history.recorder", None)
    with pytest.raises(ConfigError, match=r"history\.path = 'h'"):
        open_recorder(config)
