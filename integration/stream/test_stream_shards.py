"""The stream of two shards with replicas, as the service and the archive open it: whole, cut to a key range that fits
no shard, recorded, and replayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from freshness.config.config import Config, load_config
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.sharding import keyspace_id
from freshness.history.archive_file import find_files
from freshness.history.footer import read_footer
from freshness.keys.keyrange import KeyRange
from freshness.position import Position
from freshness.position.token import EventToken
from integration.configuration import write_sharded_config
from integration.harness import WAIT_SECONDS, call_cli, wait_until
from integration.servers import Flavor, Memcached
from integration.shards import FUNCTION, Cluster, Shard, ShardRouter, start_shards, writing
from integration.stream.test_stream_service import Change, archived_changes, changes_in_log, head_of
from invalidator.archive.record import record
from invalidator.archive.writer import ArchiveWriter
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery

NAMES: Final = ("-80", "80-")
CUT: Final = "-40"
OBJECTS: Final = """[objects.customer]
table = "customers"
[objects.profile]
key = "customer_id"
members = { customers = "customer_id", orders = "customer_id" }
"""


@pytest.fixture
def cluster(flavor: Flavor) -> Iterator[Cluster]:
    with start_shards(flavor, NAMES) as started:
        for shard in started.shards:
            writer = HeartbeatWriter(address_of(shard), flavor, "test", 0)
            writer.prepare()
            writer.close()
        yield started


def address_of(shard: Shard) -> ServerAddress:
    return ServerAddress("127.0.0.1", shard.primary.port, "app", "app", "shop")


def configure(cluster: Cluster, folder: Path, nodes: list[str]) -> Config:
    shards = [
        {"name": shard.name, "primary": shard.primary.url, "replicas": [replica.url for replica in shard.replicas]}
        for shard in cluster.shards
    ]
    path = write_sharded_config(
        folder,
        cluster.flavor,
        shards,
        nodes,
        column="customer_id",
        objects=OBJECTS,
        stream={"replica_choice": "freshest"},
    )
    return load_config(path)


@contextmanager
def recording(opener: StreamOpener, folder: Path) -> Iterator[dict[str, EventToken]]:
    """`record`, started in a thread; its error is raised at the end. Yield the tokens that it wrote, by lineage."""
    stopping, errors = threading.Event(), list[BaseException]()
    written: dict[str, EventToken] = {}

    def report(_: ArchiveWriter, opened: OpenedStream) -> None:
        written.update(opened.stream.resume.tokens)

    def run() -> None:
        try:
            record(opener, folder, "shop", None, stopping.is_set, report)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: errors or len(find_files(folder)) == len(NAMES), "both shards have begun")
        yield written
    finally:
        stopping.set()
        thread.join(WAIT_SECONDS)
        for error in errors:
            raise error


def read_up_to(opened: OpenedStream, heads: dict[str, Position]) -> list[Change]:
    """All changes, until everything in ``heads`` has come."""
    found: list[Change] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while not all(opened.stream.resume.tokens[lineage].position.contains(head) for lineage, head in heads.items()):
        assert time.monotonic() < deadline, f"{heads} did not come: {opened.stream.status()}"
        message = opened.stream.poll(1.0)
        if message is not None:
            found += [
                (str(message.token.position), row, change.table, change.op, change.before, change.after)
                for row, change in zip(message.rows, message.transaction.changes, strict=True)
            ]
    return found


def in_any_order(changes: list[Change]) -> list[str]:
    return sorted(map(repr, changes))


def is_in_cut(change: Change) -> bool:
    row: dict[str, Any] = change[5] or change[4]
    return KeyRange.parse(CUT).contains(keyspace_id(FUNCTION, row["customer_id"]))


def test_two_shards_are_streamed_cut_recorded_and_replayed(cluster: Cluster, flavor: Flavor, tmp_path: Path) -> None:
    with Memcached() as one, Memcached() as two:
        config = configure(cluster, tmp_path, [one.address, two.address])
        opener, folder = StreamOpener(lambda: config), tmp_path / "archive"
        starts = {shard.name: head_of(shard.primary) for shard in cluster.shards}
        whole, part = (opener.open(StreamQuery("shop", key_range)) for key_range in ("-", CUT))
        try:
            with recording(opener, folder) as written:
                with writing(ShardRouter(cluster.shards)) as writer:
                    writer.wait_for(200)
                heads = {f"shop/{shard.name}": head_of(shard.primary) for shard in cluster.shards}
                expected = [
                    change for shard in cluster.shards for change in changes_in_log(shard.primary, starts[shard.name])
                ]
                found = read_up_to(whole, heads)
                cut = read_up_to(part, {"shop/-80": heads["shop/-80"]})
                wait_until(
                    lambda: all(written[each].position.contains(head) for each, head in heads.items()),
                    "everything is recorded",
                )
        finally:
            whole.stream.close()
            part.stream.close()
        assert len(expected) >= 150
        assert in_any_order(found) == in_any_order(expected)
        assert in_any_order(cut) == in_any_order([change for change in expected if is_in_cut(change)])
        assert 0 < len(cut) < len(expected) / 2
        assert in_any_order(archived_changes(folder)) == in_any_order(expected)
        lineages = {read_footer(file.path).before.shard for file in find_files(folder)}
        assert lineages == set(NAMES)
        result = call_cli("replay", folder, "-c", config.path)
        assert result.returncode == 0, result.stderr
        assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["shop/-80", "shop/80-"]
