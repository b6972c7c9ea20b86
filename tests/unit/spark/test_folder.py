"""What a folder's name means, and for whom."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyarrow import fs

from freshness.errors import ConfigError
from spark.folder import open_folder, open_local
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
def test_a_path_is_one_of_this_machine(text: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = open_folder(text.format(here=tmp_path))
    assert folder.name == folder.path == f"{tmp_path}/{path}"
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


def test_s3_has_several_schemes_and_is_one_store() -> None:
    folders = [open_folder(f"{scheme}://b/x:y?region=r") for scheme in ("s3", "s3a", "s3n")]
    assert {type(folder.filesystem) for folder in folders} == {fs.S3FileSystem}
    assert {folder.path for folder in folders} == {"b/x:y"}


def test_an_archive_is_the_same_folder_for_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has another current folder."""
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(ArchiveFolder("archive"))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).locate()[1] == f"{tmp_path}/archive"  # noqa: S301 - our own
