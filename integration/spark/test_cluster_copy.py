"""A copy of a table, and the table as it was, on a cluster whose executors, processes of tasks and drivers are
killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from freshness.position import parse_position
from integration.configuration import CUSTOMER, write_config
from integration.harness import System, running_system
from integration.servers import Pair
from integration.spark.cluster import CRASHED, LOST_EXECUTOR, Cluster, Done, run, run_until
from integration.spark.script import Seen, look, wait_archived
from integration.spark.seats import in_database
from integration.spark.test_copy import Writer
from spark.copy.state import CopyState, read_state
from spark.copy.table import KEY

TABLE: Final = "customers"
ROWS: Final = 1_000
ROWS_PER_RANGE: Final = 100


@pytest.fixture
def flavor() -> str:
    """One flavor is enough: positions and rows of the other are under test elsewhere."""
    return "mariadb"


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    extra = f'[http]\nlisten = "127.0.0.1:{port}"\n[archive]\npath = "archive"\nrotate_seconds = 1\n'
    folder = tmp_path / "system"
    folder.mkdir()
    tables = ("CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(50), v INT)", SEATS)
    with running_system(pair, folder, tables=tables, objects=CUSTOMER, extra=extra) as started:
        rows = ", ".join(f"({key}, 'name {key}', 0)" for key in range(1, ROWS + 1))
        started.execute(f"INSERT INTO {TABLE} VALUES {rows}")
        yield started


SEATS: Final = "CREATE TABLE seats (hall VARCHAR(20), seat BINARY(3), price DECIMAL(8,2), PRIMARY KEY (hall, seat))"
"""The writer has it too; it is not copied."""


def in_copy(out: Path, folder: str) -> list[str]:
    rows = pq.read_table(out / folder).drop_columns([KEY]).to_pylist()
    return sorted(str(tuple(row.values())) for row in rows)


def assert_struck(done: Done) -> None:
    assert done.exit_code == 0, done.told
    assert LOST_EXECUTOR in done.told or CRASHED in done.told, done.told


def has(state: CopyState, seen: Seen, lineage: str) -> bool:
    return parse_position(state.flavor, state.position[lineage]).contains(seen.positions[lineage])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_copy_and_its_past_are_what_select_gave_though_processes_are_killed(
    system: System, cluster: Cluster, port: int, tmp_path: Path
) -> None:
    primary = system.pair.primary
    primary.execute("CREATE USER IF NOT EXISTS copier@'127.0.0.1'")
    primary.execute("GRANT SELECT, REPLICATION CLIENT, BINLOG MONITOR ON *.* TO copier@'127.0.0.1'")
    url = f"mysql://copier@127.0.0.1:{primary.port}/shop"
    config = write_config(tmp_path, primary.flavor, url, [node.address for node in system.nodes])
    out, archive = tmp_path / "copy", system.config_path.parent / "archive"
    [shard] = system.config.keyspaces["shop"].shards
    command = ["spark.copy", "--master", cluster.address, "--config", str(config), "--out", str(out)]
    command += ["--url", f"http://127.0.0.1:{port}", "--rows-per-range", str(ROWS_PER_RANGE)]

    def count_generations() -> int:
        return len(list((out / TABLE).glob("0*")))

    def find_state() -> CopyState:
        state = read_state(out)
        assert state is not None
        return state

    with Writer(system) as writer:
        run_until(command, tmp_path / "1", lambda: count_generations() == 1, "the dump is being written")
        assert find_state().tables[TABLE].published == ""
        assert_struck(run(command, tmp_path / "2", kills=cluster, may_kill=lambda: count_generations() > 0))
    assert writer.count > 5, "nothing was written meanwhile"
    made = find_state().tables[TABLE]
    assert made.generation > 1, "the stream was not applied"
    held = in_copy(out, made.published)

    before = look({shard.lineage: primary}, [TABLE])
    system.execute("UPDATE customers SET v = v + 1, name = 'again' WHERE id % 2 = 0")
    system.execute("UPDATE customers SET id = id + 100000 WHERE id % 3 = 0")
    after = look({shard.lineage: primary}, [TABLE])
    merged = out / TABLE / f"{made.generation + 1:09d}"
    run_until(command, tmp_path / "3", merged.exists, "changes are being merged")
    cut = find_state()
    expected = after.rows[TABLE] if has(cut, after, shard.lineage) else held
    assert in_copy(out, cut.tables[TABLE].published) == expected

    assert_struck(run(command, tmp_path / "4", kills=cluster))
    state = find_state()
    assert has(state, after, shard.lineage)
    assert in_copy(out, state.tables[TABLE].published) == after.rows[TABLE] == in_database(TABLE, primary)

    wait_archived(archive, after, system.describe)
    then = tmp_path / "then"
    options = ["--archive", str(archive), "--copy", str(out), "--table", TABLE, "--out", str(then)]
    at = str(before.vector(archive).tokens[shard.lineage])
    told = run(["spark.table_at", "--master", cluster.address, *options, "--at", at], tmp_path / "5", kills=cluster)
    assert_struck(told)
    assert told.result["undone"][shard.lineage] > ROWS / 2
    rows = pq.read_table(then).to_pylist()
    assert sorted(str(tuple(row.values())) for row in rows) == before.rows[TABLE]
