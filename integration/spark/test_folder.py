"""Folders of the audit: the same for all processes, or refused before anything is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs, parquet
from pyspark.sql import SparkSession

from freshness.errors import ConfigError, FormatError
from freshness.history.archive_file import format_name
from spark.audit import __main__ as command
from spark.audit.engine.cluster import SparkEngine
from spark.audit.engine.local import LocalEngine
from spark.audit.input.recording import open_actions, open_changes
from spark.folder import open_folder
from tests.simulation.recorded import write_rows
from tests.unit.spark.audit.test_evidence import ACTION, change


@pytest.fixture
def written(tmp_path: Path) -> dict[str, str]:
    """An archive and a history, in folders whose names have to be quoted in a URI."""
    changes = [{**change(ordinal), "items": [], "row_items": []} for ordinal in range(1, 9)]
    folder = tmp_path / "a b%20c"
    return {
        "--archive": write_rows("changes", changes, folder / "archive"),
        "--history": write_rows("actions", [{**ACTION, "sequence": 1}], folder / "history"),
        "--report": str(folder / "new/out"),
    }


def run(session: SparkSession, options: dict[str, str]) -> int:
    return command.main([part for pair in options.items() for part in pair], session)


def test_relative_folders_are_those_of_the_current_one(
    session: SparkSession, written: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Spark's own default is another file system, as on YARN. Folders on the way are made."""
    monkeypatch.chdir(tmp_path)
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    previous = configuration.get("fs.defaultFS")
    configuration.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        relative = {name: str(Path(path).relative_to(tmp_path)) for name, path in written.items()}
        assert run(session, {**relative, "--save-state": "state"}) == 3
        assert run(session, {**relative, "--state": "state"}) == 3
    finally:
        configuration.set("fs.defaultFS", previous)
    out = Path(written["--report"])
    assert {path.name for path in out.iterdir()} >= {"violations", "summary.json", "report.html"}
    assert not any(path.name.startswith(".probe") for path in out.iterdir())


@pytest.mark.parametrize(
    ("option", "uri"),
    [
        *((option, "nonsense://b/x") for option in ("--archive", "--history", "--report", "--state")),
        *(
            (option, "s3://b/x?region=nowhere&endpoint_override=http://127.0.0.1:1")
            for option in ("--archive", "--report")
        ),
    ],
)
def test_a_uri_that_cannot_be_opened_is_told_before_anything_is_done(
    written: dict[str, str], capsys: pytest.CaptureFixture[str], option: str, uri: str
) -> None:
    assert command.main([part for pair in {**written, option: uri}.items() for part in pair]) == 2
    told = capsys.readouterr().err
    assert "error: " in told
    assert uri.partition("?")[0] in told
    assert not Path(written["--report"], "summary.json").exists()


def test_what_executors_write_elsewhere_is_told(session: SparkSession, tmp_path: Path) -> None:
    engine, folder = SparkEngine(session), open_folder(str(tmp_path / "out"))
    engine.require_shared(folder)
    assert [*(tmp_path / "out").iterdir()] == []
    (tmp_path / "of another machine").mkdir()
    elsewhere = fs.SubTreeFileSystem(str(tmp_path / "of another machine"), folder.filesystem)
    with pytest.raises(ConfigError, match="not there for this process"):
        engine.require_shared(replace(folder, filesystem=elsewhere))


def test_executors_read_the_footers(
    session: SparkSession, written: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand of them in an object store would take the driver minutes."""

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("the driver reads a footer")

    monkeypatch.setattr(parquet, "read_metadata", read)
    assert open_changes(SparkEngine(session), written["--archive"]).rows == 8
    assert open_actions(SparkEngine(session), written["--history"]).rows == 1


def test_all_files_that_will_not_do_are_counted(tmp_path: Path) -> None:
    path = write_rows("changes", [change(1)], tmp_path / "archive", files=5)
    for number in (1, 3, 4):
        (tmp_path / f"archive/{number}.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"archive/1\.parquet is no whole Parquet file.*and 2 more"):
        open_changes(LocalEngine(), path)


def test_a_merged_archive_may_have_any_name(tmp_path: Path) -> None:
    """The file that was merged into the other one is left out."""
    for first, last in ((1, 8), (1, 4)):
        folder = tmp_path / "a b%20c"
        path = Path(write_rows("changes", [*map(change, range(first, last + 1))], folder, files=1))
        (path / "0.parquet").rename(path / format_name("0123abcd", first, last))
    assert open_changes(LocalEngine(), str(folder)).rows == 8
