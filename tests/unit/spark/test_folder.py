"""What a folder's name means, and for whom."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyarrow import fs

from freshness.errors import ConfigError
from spark.folder import open_file, open_folder, open_local, spell
from spark.stream.archive_folder import ArchiveFolder


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("out", "out"),
        ("./a/../out", "out"),
        ("with space and %", "with space and %"),
        ("hour=2026-01-31T12:00", "hour=2026-01-31T12:00"),
        ("{here}/out", "out"),
        ("file:{here}/out", "out"),
        ("file://{here}/with%20space", "with space"),
    ],
)
def test_a_path_is_one_of_this_machine_for_spark_too(
    text: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = open_folder(text.format(here=tmp_path))
    assert (folder.uri, folder.path) == (f"file://{tmp_path}/{path}", f"{tmp_path}/{path}")
    assert isinstance(folder.filesystem, fs.LocalFileSystem)
    assert open_local(text.format(here=tmp_path)) == tmp_path / path


@pytest.mark.parametrize("text", ["wasbs://box@store/out", "dbfs://x/y", "nonsense://x"])
def test_a_uri_that_arrow_does_not_know_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_folder(text)


@pytest.mark.parametrize("text", ["file://host/out", "file:out"])
def test_a_uri_of_another_machines_files_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="three slashes"):
        open_folder(text)


@pytest.mark.parametrize("text", ["s3://b/out", "hdfs://h/out"])
def test_a_uri_is_no_local_folder(text: str) -> None:
    with pytest.raises(ConfigError, match="not on a local or mounted"):
        open_local(text)


def test_s3_has_the_scheme_of_who_opens_it() -> None:
    for scheme in ("s3", "s3a", "s3n"):
        assert spell(f"{scheme}://b/x:y", "s3a") == "s3a://b/x:y"
        assert spell(f"{scheme}://b/x:y", "s3") == "s3://b/x:y"
    assert spell("gs://b/x", "s3a") == "gs://b/x"


def test_a_file_is_found_as_spark_names_it(tmp_path: Path) -> None:
    (tmp_path / "a b%c").write_text("x")
    filesystem, path = open_file(f"file://{tmp_path}/a%20b%25c")
    assert filesystem.get_file_info(path).size == 1


def test_an_archive_is_the_same_folder_for_an_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has another current folder."""
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(ArchiveFolder("archive"))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).locate()[1] == f"{tmp_path}/archive"  # noqa: S301 - our own
