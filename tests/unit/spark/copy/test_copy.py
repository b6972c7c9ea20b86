"""What a copy refuses before it opens a Spark session or a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.configuration import write_config
from spark.copy import __main__ as command


def test_a_keyspace_of_vitess_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, "vitess", "mysql://app@127.0.0.1:1/shop", ["127.0.0.1:1"])
    text = path.read_text().replace("replicas = []", 'vtgate = "vitess://127.0.0.1:1/shop"')
    path.write_text(text)
    code = command.main(
        ["--config", str(path), "--out", str(tmp_path / "copy"), "--url", "http://127.0.0.1:1"]
    )
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert "keyspace shop is neither MySQL nor MariaDB" in told.err
    assert not (tmp_path / "copy").exists()
