"""What a copy refuses before it opens a Spark session or a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.configuration import write_config
from spark.copy import __main__ as command
from spark.copy.job import TABLET_SECONDS, bound_range


def test_replicas_of_vitess_are_not_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vtgate chooses among them for each statement, and the file names none."""
    path = write_config(tmp_path, "vitess", "mysql://app@127.0.0.1:1/shop", ["127.0.0.1:1"])
    text = path.read_text().replace("replicas = []", 'vtgate = "vitess://127.0.0.1:1/shop"')
    path.write_text(text)
    arguments = ["--config", str(path), "--out", str(tmp_path / "copy"), "--url", "http://127.0.0.1:1"]
    code = command.main([*arguments, "--dump-from", "replica"])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert "shard - has no replica" in told.err
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ([], "give either --out or --database"),
        (["--out", "copy", "--database", "mysql://app@127.0.0.1:1/kept"], "give either --out or --database"),
        (["--database", "mysql://app@127.0.0.1:1/kept", "--format", "orc"], "leave it out with --database"),
        (["--database", "kept"], "--database: not a mysql:// or mariadb:// URL"),
        (["--database", "mysql://app:${NOT_SET_HERE}@127.0.0.1:1/kept"], "not set: NOT_SET_HERE"),
    ],
)
def test_where_the_copy_is_kept_must_be_clear(
    place: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path, "mysql", "mysql://app@127.0.0.1:1/shop", ["127.0.0.1:1"])
    assert command.main(["--config", str(path), "--url", "http://127.0.0.1:1", *place]) == 2
    assert told in capsys.readouterr().err


def test_ranges_of_vitess_are_read_at_the_rate_before_their_transaction_is_ended() -> None:
    for tasks in (1, 8):
        rows = bound_range(100_000, 1_000, tasks)
        assert 1_000 < rows * tasks <= TABLET_SECONDS * 1_000
    assert bound_range(100_000, 0.1, 8) == 1
    assert bound_range(50, 1_000, 1) == 50
    assert bound_range(100_000, None, 8) == 100_000
