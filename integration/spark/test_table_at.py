"""Real tables as they were: at positions and times before and after their copy, as SELECT gave them then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from freshness.database.connection import executed_position
from freshness.keys.keyrange import KeyRange
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_until
from integration.servers import Pair
from integration.spark.seats import SEAT, SEATS_TABLE, in_database, in_frame
from invalidator.archive.writer import find_resume
from spark.copy import __main__ as copy_command
from spark.copy.job import find_floor
from spark.copy.state import read_state
from spark.stream.archive_folder import ArchiveFolder
from spark.table_at import __main__ as command

TABLES: Final = ("customers", "seats")


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    extra = '[archive]\npath = "archive"\nrotate_seconds = 1\n'
    tables = (CUSTOMERS_TABLE, SEATS_TABLE)
    with running_system(pair, tmp_path, tables=tables, objects=CUSTOMER + SEAT, extra=extra) as started:
        yield started


@dataclass(frozen=True, slots=True)
class Seen:
    """What SELECT gave when the primary had executed this and nothing else was written."""

    position: Position
    time: str
    rows: dict[str, list[str]]


def look(system: System) -> Seen:
    with closing(system.pair.primary.connect("shop")) as connection:
        head = executed_position(connection, system.pair.primary.flavor)
    now = datetime.fromtimestamp(time.time(), UTC).isoformat()
    return Seen(head, now, {table: in_database(system, table) for table in TABLES})


def change(system: System, chance: Random, number: int) -> None:
    """Some transactions of all kinds; rows of both tables come, change, get other keys, and go. ``number``: of the
    round, which one row has."""
    system.execute("REPLACE INTO customers VALUES (99, 'round', %s)", number)
    for _ in range(6):
        key, other = chance.sample(range(12), 2)
        statements: list[tuple[Any, ...]] = [
            ("REPLACE INTO customers VALUES (%s, %s, %s)", key, f"näme {chance.random()}", other),
            ("UPDATE customers SET v = v + 1 WHERE id <= %s", key),
            ("UPDATE IGNORE customers SET id = %s WHERE id = %s", other, key),
            ("DELETE FROM customers WHERE id = %s", key),
            (
                "REPLACE INTO seats VALUES ('A', %s, %s, '2026-01-31 10:00:00.125', '2026-02-01', %s, %s, %s, "
                "'2026-03-01 00:00:00', 0.1, 'bad')",
                bytes((key, 0, 0)),
                chance.randrange(100) / 4,
                2**63 + key,
                None if key % 2 else "ü 'quoted'",
                b"\0\xff",
            ),
            (
                "UPDATE IGNORE seats SET seat = %s, note = NULL WHERE seat = %s",
                bytes((other, 0, 0)),
                bytes((key, 0, 0)),
            ),
            ("DELETE FROM seats WHERE seat = %s", bytes((key, 0, 0))),
        ]
        sql, *values = chance.choice(statements)
        system.execute(sql, *values)


@pytest.mark.parametrize("flavor", ["mysql", pytest.param("mariadb", marks=pytest.mark.slow)])
def test_tables_are_what_select_gave_then(
    system: System, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, archive, copy = Random(5), tmp_path / "archive", tmp_path / "copy"
    keyspace = system.config.keyspaces["shop"]
    shard = keyspace.shards[0]
    lineage = shard.lineage

    def wait_archived(position: Position) -> None:
        def is_archived() -> bool:
            return find_resume(archive, "shop")[lineage].position.contains(position)

        wait_until(lambda: lineage in find_resume(archive, "shop"), "the archive has begun", system.describe)
        wait_until(is_archived, f"the archive has {position}", system.describe)

    wait_archived(look(system).position)
    [archived] = ArchiveFolder(str(archive)).list_shards("shop")
    wait_until(
        lambda: find_floor(keyspace, shard, shard.primary).position.contains(archived.begin.position),
        "a heartbeat shows all from before the archive",
        system.describe,
    )
    seen = []
    for number in range(4):
        change(system, chance, number)
        seen.append(look(system))
        if number == 1:
            options = ["--config", str(system.config_path), "--out", str(copy), "--archive", str(archive)]
            assert copy_command.main(options, session) == 0, capsys.readouterr().err
    wait_archived(look(system).position)
    state = read_state(copy)
    assert state is not None
    epoch = EventToken.parse(state.begin[lineage]).epoch

    def run(table: str, at: str, out: Path) -> int:
        options = ["--archive", str(archive), "--copy", str(copy), "--table", table, "--json"]
        return command.main([*options, "--at", at, "--out", str(out)], session)

    directions = set()
    for number, each in enumerate(seen):
        token = EventToken(lineage, "-", epoch, 0, each.position)
        vector = ResumeVector("shop", KeyRange.parse("-"), {lineage: token})
        # The log of MariaDB has whole seconds
        places = [str(token), each.time if system.pair.primary.flavor == "mysql" else vector.format()]
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
    last = look(system)
    wait_archived(last.position)
    after = str(EventToken(lineage, "-", epoch, 0, last.position))
    capsys.readouterr()
    assert run("customers", after, tmp_path / "altered") == 4
    assert "changed customers as a whole" in capsys.readouterr().err
    assert not (tmp_path / "altered").exists()
    assert run("seats", after, tmp_path / "other") == 0, capsys.readouterr().err
    assert in_frame(session.read.parquet(str(tmp_path / "other"))) == last.rows["seats"]
