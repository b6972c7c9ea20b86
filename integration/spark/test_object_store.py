"""The audit on an object store: a server of moto, which speaks S3, and Arrow's own client on both sides.

A history, its state and its report are in the store alone; each engine says what it says of files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs, parquet
from pyspark.sql import SparkSession

from integration.spark.test_engines import Written, written
from spark.audit import __main__ as command
from spark.folder import open_folder

__all__ = ["written"]

BUCKET: Final = "audits"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The query part of a URI of the store."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        store = fs.S3FileSystem(
            endpoint_override=f"http://{host}:{port}", region="us-east-1", allow_bucket_creation=True
        )
        store.create_dir(BUCKET)
        yield f"region=us-east-1&scheme=http&endpoint_override={host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def store(server: str, tmp_path: Path) -> str:
    """A URI below which nothing is, with one place for a name."""
    return f"s3://{BUCKET}/{tmp_path.name}/%s?{server}"


def audit(session: SparkSession, engine: str, **folders: str) -> int:
    options = [f"--{name.replace('_', '-')}={folder}" for name, folder in folders.items()]
    return command.main([*options, "--engine", engine], session if engine == "spark" else None)


def read_report(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(summary, violations)."""
    folder = open_folder(name)
    with folder.filesystem.open_input_stream(f"{folder.path}/summary.json") as stream:
        summary = json.loads(stream.read())
    table: pyarrow.Table = parquet.read_table(f"{folder.path}/violations", filesystem=folder.filesystem)
    return summary, sorted(table.to_pylist(), key=repr)


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_an_audit_of_an_object_store_says_what_one_of_files_says(
    session: SparkSession, written: Written, store: str, tmp_path: Path, engine: str
) -> None:
    for name, folder in written._asdict().items():
        there = open_folder(store % name)
        fs.copy_files(folder, there.path, destination_filesystem=there.filesystem)
    code = audit(session, "local", **written._asdict(), report=str(tmp_path / "out"))
    uris = {name: store % name for name in (*written._fields, "report")}
    assert audit(session, engine, **uris, save_state=store % "state") == code == 5
    assert read_report(uris["report"]) == read_report(str(tmp_path / "out"))
    folder = open_folder(uris["report"])
    names = {info.base_name for info in folder.filesystem.get_file_info(fs.FileSelector(folder.path))}
    assert names == {"violations", "summary.json", "report.html"}


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_state_in_an_object_store_is_continued_where_it_is(
    session: SparkSession, written: Written, store: str, tmp_path: Path, engine: str
) -> None:
    """The second audit reads the same history again, after the state: all of it is there twice."""
    told = []
    for state in (store % "state", str(tmp_path / "state")):
        folders = {**written._asdict(), "report": str(tmp_path / "out"), "save_state": state}
        assert audit(session, engine, **folders) == 5
        assert audit(session, engine, **folders, state=state) == 5
        told.append(read_report(folders["report"]))
    assert told[0] == told[1]
    assert {row["kind"] for row in told[0][1]} >= {"archive_duplicate"}
