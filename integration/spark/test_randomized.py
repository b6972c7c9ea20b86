"""Thousands of random statements of all kinds: every way out of the log ends with what the servers had.

The ways: a consumer's lines, a refresh in the middle, records as Kafka gets them in both formats, the archive,
the copies that follow it, and tables in the past. Among the statements are transactions that are rolled back in part
or whole, XA transactions with either end, keys that change, rows that move between the two shards, definitions. In
the middle one shard is split, and the log is purged. Each row has a version that only rises: none may go back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from freshness.errors import HistoryPurged
from integration.configuration import CUSTOMER
from integration.harness import wait_until
from integration.invalidator.test_reshard import Deployment, deployment, lineage_of
from integration.servers import DatabaseServer, Flavor
from integration.shards import Reshard, ShardRouter, catch_up, prepare_replicated, promote, stop_writes, switch
from integration.spark.consumers import POLL_SECONDS, Consumer, Reader, make_publications, read_archive
from integration.spark.script import KEY, TABLES, Script, Seen, look, wait_archive_shown, wait_archived
from integration.spark.seats import SEAT, in_frame
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import RefreshRequest, StreamQuery
from spark.copy import __main__ as copy_command
from spark.copy.state import read_copy
from spark.table_at import __main__ as table_at_command

STATEMENTS: Final = 600
"""In each round."""

KEPT: Final = ("customers", "seats")
"""Tables whose definition stays."""

SPLIT: Final = "80-"
REFRESHED_ROWS_PER_SECOND: Final = 20
"""So slow that the reshard comes in between."""


class Run:
    """The shards under the script, and what is made of their logs."""

    def __init__(self, made: Deployment, router: ShardRouter, folder: Path, session: SparkSession, seed: int) -> None:
        self.made, self.router = made, router
        self.archive = folder / "archive"
        self.script = Script(router.shards, seed)
        self._folder, self._session = folder, session
        self._copied = Consumer()

    def look(self) -> Seen:
        """Nothing is written during the look."""
        return look({lineage_of(shard): shard.primary for shard in self.router.shards}, KEY)

    def wait_archived(self, seen: Seen) -> None:
        wait_archived(self.archive, seen, self.made.describe)

    def open_stream(self, since: str = "now", refresh: RefreshRequest | None = None) -> OpenedStream:
        opener = StreamOpener(lambda: self.made.config)
        return opener.open(StreamQuery(since=since, tables=("*",), refresh=refresh))

    def copy(self, name: str) -> int:
        """Make a copy, or bring it up to date; no row of it goes back. The exit code."""
        options = ["--config", str(self.made.path), "--archive", str(self.archive), "--tables", ",".join(KEY)]
        code = copy_command.main([*options, "--out", str(self._folder / name)], self._session)
        for table in KEY if code == 0 else ():
            for row in read_copy(self._session, self._folder / name, table).collect():
                self._copied.take(table, None, row.asDict(), is_change=False)
        return code

    def copied(self, name: str, table: str) -> list[str]:
        return in_frame(read_copy(self._session, self._folder / name, table))

    def table_at(self, name: str, table: str, seen: Seen) -> tuple[int, list[str]]:
        """By the copy of that name: the exit code and the rows."""
        number = len(list(self._folder.glob("then*")))
        out = self._folder / f"then{number}"
        options = ["--archive", str(self.archive), "--copy", str(self._folder / name), "--table", table]
        options += ["--at", seen.vector(self.archive).format(), "--out", str(out)]
        code = table_at_command.main(options, self._session)
        return code, in_frame(self._session.read.parquet(str(out))) if code == 0 else []

    def split(self, refresh: ExitStack) -> tuple[Seen, Reader]:
        """One shard becomes two, as docs/topology.md says. Return the rows at its end, and a consumer whose refresh
        began just before."""
        sources = [shard for shard in self.router.shards if shard.name == SPLIT]
        reshard: Reshard = prepare_replicated(self.made.cluster, sources, ["80-c0", "c0-"])
        for shard in reshard.destinations:
            self.made.continues[shard.number] = tuple(map(lineage_of, reshard.sources_of(shard)))
        self.made.reload(self.router.shards, reshard.destinations)
        self.script.run(STATEMENTS)
        stop_writes(reshard)
        catch_up(reshard)
        promote(reshard)
        request = RefreshRequest(KEPT, rows_per_second=REFRESHED_ROWS_PER_SECOND)
        refreshed = refresh.enter_context(Reader(self.open_stream(refresh=request)))
        seen = self.look()
        switch(reshard, self.router)
        self.made.reload(self.router.shards, sources)
        self.script.switch(self.router.shards)
        self.wait_archived(seen)
        self.wait_archived(self.look())
        self.made.reload(self.router.shards)
        self.made.cluster.stop(sources)
        return seen, refreshed


@pytest.fixture
def run(flavor: Flavor, tmp_path: Path, session: SparkSession) -> Iterator[Run]:
    sections = '[archive]\npath = "archive"\nrotate_seconds = 4\ntables = ["*"]\n'
    with deployment(
        flavor, tmp_path, ["-80", SPLIT], sections=sections, replicas=0, tables=TABLES, objects=CUSTOMER + SEAT
    ) as (made, router):
        begun = Run(made, router, tmp_path, session, seed=11)
        with closing(begun.script):
            yield begun


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavor", [pytest.param("mariadb", marks=pytest.mark.long), "mysql"])
def test_every_way_out_of_the_log_ends_with_what_the_servers_had(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    made, script, seen = run.made, run.script, list[Seen]()
    run.wait_archived(run.look())
    wait_archive_shown(run.archive, made.config.keyspaces["shop"], made.describe)
    with ExitStack() as stack:
        stream = run.open_stream()
        publications = make_publications(stream, made.cluster.flavor)
        reader = stack.enter_context(Reader(stream, publications))
        early = reader.resume

        def require(now: Seen) -> None:
            """The consumer has just that."""
            seen.append(now)
            reader.wait(run.look().positions)
            for table in KEPT:
                assert reader.consumer.shown(table) == now.rows[table], table

        for _ in range(2):
            script.run(STATEMENTS)
            require(run.look())
        assert run.copy("previous") == 0, capsys.readouterr().err
        at_end, refreshed = run.split(stack)
        require(at_end)
        split_at = len(seen)
        assert run.copy("previous") == 2
        assert "is a copy of other shards" in capsys.readouterr().err

        script.run(STATEMENTS)
        require(run.look())
        wait_archive_shown(run.archive, made.config.keyspaces["shop"], made.describe)
        assert run.copy("later") == 0, capsys.readouterr().err
        purge(run)
        script.run(STATEMENTS)
        require(run.look())
        last = seen[-1]

        refreshed.wait(last.positions)
        refreshed.wait_refreshed()
        assert refreshed.consumer.shown("customers") == last.rows["customers"]
        assert refreshed.consumer.shown("seats") == last.rows["seats"]
        for name, publication in publications.items():
            # All of its values are numbers and texts, which Debezium's envelope has as they are
            assert publication.consumer.shown("customers") == last.rows["customers"], name
            assert len(publication.consumer.rows["seats"]) == len(last.rows["seats"]), name
            assert all(topic.tombstones for topic in publication.topics.values()), name
    assert script.counts.keys() == {"ddl", "xa", "rolled back", "moved"}
    with pytest.raises(HistoryPurged), closing(run.open_stream(since=early).stream) as purged:
        wait_until(lambda: purged.poll(POLL_SECONDS), "a transaction, or the end")

    run.wait_archived(last)
    archived = read_archive(run.archive, {**seen[0].positions, **last.positions})
    for consumer in (reader.consumer, refreshed.consumer, archived):
        assert not consumer.raised.intersection(KEPT)
    assert "things" in reader.consumer.raised
    assert archived.changes == reader.consumer.changes
    for table in KEPT:
        assert archived.shown(table) == last.rows[table], table
    assert run.copy("later") == 0, capsys.readouterr().err
    for table in KEY:
        assert run.copied("later", table) == last.rows[table], table

    told = set[str]()
    for number, each in enumerate(seen):
        for table in list(KEY)[number % 2 :: 2]:
            capsys.readouterr()
            code, rows = run.table_at("previous" if number < split_at else "later", table, each)
            if code == 0:
                told.add(table)
                assert rows == each.rows[table], (table, number)
            else:
                assert (code, table) == (4, "things"), capsys.readouterr().err
                assert "changed things as a whole" in capsys.readouterr().err
    assert told.issuperset(KEPT)
    for name, each in (("previous", last), ("later", seen[0])):
        assert run.table_at(name, "customers", each) == (2, [])
        assert "copies end with a reshard" in capsys.readouterr().err


def purge(run: Run) -> None:
    """Only the last log is left, on all primaries, of what was written by now."""
    run.made.wait_covered(run.router.shards)
    run.wait_archived(run.look())
    for shard in run.router.shards:
        shard.primary.execute("FLUSH BINARY LOGS")
        wait_until(partial(has_purged, shard.primary), "the previous logs are gone")


def has_purged(server: DatabaseServer) -> bool:
    [*_, last] = server.execute("SHOW BINARY LOGS")
    server.execute(f"PURGE BINARY LOGS TO '{last[0]}'")
    return len(server.execute("SHOW BINARY LOGS")) == 1
