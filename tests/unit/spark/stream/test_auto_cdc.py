"""The example of a pipeline: by its keys, sequence and deletes the changes of an archive give the table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from freshness.stream.source import RowChange
from spark.session import open_session
from spark.stream.source import register
from tests.unit.invalidator.archive.archive_world import World, message

EXAMPLE: Final = Path(__file__).parents[4] / "examples" / "auto_cdc.py"

CHANGES: Final = (
    RowChange("customers", "insert", None, {"id": 1, "name": "Ada"}),
    RowChange("customers", "insert", None, {"id": 2, "name": "Bob"}),
    RowChange("customers", "insert", None, {"id": 3, "name": "Cyd"}),
    RowChange("customers", "update", {"id": 1, "name": "Ada"}, {"id": 1, "name": "Eve"}),
    RowChange("customers", "update", {"id": 2, "name": "Bob"}, {"id": 4, "name": "Bob"}),
    RowChange("customers", "delete", {"id": 3, "name": "Cyd"}, None),
    RowChange("customers", "update", {"id": 4, "name": "Bob"}, {"id": 3, "name": "Bob"}),
)
TABLE: Final = {1: "Eve", 3: "Bob"}


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    opened = open_session("tests", "local[1]")
    register(opened)  # a batch pushes its filters down, which a stream does not
    yield opened
    opened.stop()


class Pipelines(SimpleNamespace):
    """In the place of ``pyspark.pipelines``, which needs Spark Connect: keeps what is declared."""

    def __init__(self) -> None:
        super().__init__(tables=[], flow={}, views={})

    def temporary_view(self, view: Callable[[], Any]) -> Callable[[], Any]:
        self.views[view.__name__] = view
        return view

    def create_streaming_table(self, name: str) -> None:
        self.tables.append(name)

    def create_auto_cdc_flow(self, **flow: Any) -> None:
        self.flow = flow


def test_the_changes_by_key_and_sequence_are_the_table(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path / "archive") as world:
        for number, change in enumerate(CHANGES, 11):
            world.writer.write(message(number, change))
    declared = Pipelines()
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", declared)
    monkeypatch.setattr("pyspark.pipelines", declared, raising=False)
    monkeypatch.setattr(SparkSession, "active", lambda: session)
    text = EXAMPLE.read_text().replace("/data/archive", str(tmp_path / "archive")).replace(".readStream", ".read")
    exec(text, {})

    flow = declared.flow
    assert declared.tables == [flow["target"]]
    rows = [each.asDict() for each in declared.views[flow["source"]]().collect()]
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: tuple(row[flow["sequence_by"]])):
        last[tuple(row[name] for name in flow["keys"])] = row
    kept = [row for row in last.values() if not row[flow["apply_as_deletes"]]]
    shown = [{name: row[name] for name in row if name not in flow["except_column_list"]} for row in kept]
    assert sorted(shown, key=lambda row: int(row["id"])) == [{"id": key, "name": name} for key, name in TABLE.items()]
    assert len({(row["id"], tuple(row["place"])) for row in rows}) == len(rows), "two of one key have one place"
