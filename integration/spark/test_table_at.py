"""Real tables as they were: at positions and times before and after their copy, as SELECT gave them then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from integration.configuration import CUSTOMER
from integration.harness import System, running_system
from integration.servers import Pair
from integration.shards import Shard
from integration.spark.script import CUSTOMERS, Script, Seen, look, wait_archive_shown, wait_archived
from integration.spark.seats import SEAT, SEATS_TABLE, in_frame
from spark.copy import __main__ as copy_command
from spark.table_at import __main__ as command

TABLES: Final = ("customers", "seats")
STATEMENTS: Final = 20
"""In each round."""


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    extra = '[archive]\npath = "archive"\nrotate_seconds = 1\n'
    tables = (CUSTOMERS, SEATS_TABLE)
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + SEAT, extra=extra) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("flavor", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def test_tables_are_what_select_gave_then(
    system: System, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, copy = tmp_path / "archive", tmp_path / "copy"
    [shard] = system.config.keyspaces["shop"].shards
    lineage, primary = shard.lineage, system.pair.primary

    def look_now() -> Seen:
        return look({lineage: primary}, TABLES)

    wait_archived(archive, look_now(), system.describe)
    wait_archive_shown(archive, system.config.keyspaces["shop"], system.describe)
    seen = []
    with closing(Script([Shard("-", 1, primary, ())], seed=5, tables=TABLES)) as script:
        for number in range(4):
            # Which one row has
            system.execute("REPLACE INTO customers VALUES (99, 'round', 0, %s)", number)
            for _ in range(STATEMENTS):
                script.change()
            seen.append(look_now())
            if number == 1:
                options = ["--config", str(system.config_path), "--out", str(copy), "--archive", str(archive)]
                assert copy_command.main(options, session) == 0, capsys.readouterr().err
    wait_archived(archive, look_now(), system.describe)

    def run(table: str, at: str, out: Path) -> int:
        options = ["--archive", str(archive), "--copy", str(copy), "--table", table, "--json"]
        return command.main([*options, "--at", at, "--out", str(out)], session)

    directions = set()
    for number, each in enumerate(seen):
        vector = each.vector(archive)
        # The log of MariaDB has whole seconds
        places = [str(vector.tokens[lineage]), each.time if primary.flavor == "mysql" else vector.format()]
        for table, at in zip(TABLES, places[:: 1 if number % 2 else -1], strict=True):
            capsys.readouterr()
            out = tmp_path / f"{table}{number}"
            assert run(table, at, out) == 0, capsys.readouterr().err
            told = json.loads(capsys.readouterr().out)
            assert in_frame(session.read.parquet(str(out))) == each.rows[table]
            directions |= {way for way in ("applied", "undone") if told[way][lineage]}
    assert directions == {"applied", "undone"}
    assert len({str(each.rows) for each in seen}) == len(seen), "the tables did not change"

    system.execute("ALTER TABLE customers ADD COLUMN extra INT DEFAULT 5")
    last = look_now()
    wait_archived(archive, last, system.describe)
    after = str(last.vector(archive).tokens[lineage])
    capsys.readouterr()
    assert run("customers", after, tmp_path / "altered") == 4
    assert "changed customers as a whole" in capsys.readouterr().err
    assert not (tmp_path / "altered").exists()
    assert run("seats", after, tmp_path / "other") == 0, capsys.readouterr().err
    assert in_frame(session.read.parquet(str(tmp_path / "other"))) == last.rows["seats"]
