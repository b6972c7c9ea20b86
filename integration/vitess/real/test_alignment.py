"""The merged stream of two shards of a real Vitess with minimize_skew, and without. vtgate's own flag is not asked
for: each shard has a VStream of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from freshness.config.config import load_config
from freshness.database.heartbeat import HeartbeatWriter
from integration.configuration import write_sharded_config
from integration.servers.vitess import Vitess
from invalidator.stream.message import StreamMessage
from invalidator.stream.open import StreamOpener
from invalidator.stream.query import StreamQuery
from invalidator.stream.skew import LIMIT_US
from invalidator.stream.start import Start
from invalidator.stream.update_stream import UpdateStream

AHEAD, BEHIND = SHARDS = ("-80", "80-")
SECOND: Final = 1_000_000
BEGIN_SECONDS: Final = 1_000
"""The age of the transactions, by their own clock: no current heartbeat comes between them."""

POLL_SECONDS: Final = 0.5
BOUND_SECONDS: Final = 60.0
VSCHEMA: Final[Mapping[str, Any]] = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {
        "customers": {"column_vindexes": [{"column": "id", "name": "hash"}]},
        "freshness_heartbeat": {"type": "reference"},
    },
}


RELOAD_NEVER: Final = ("--queryserver-config-schema-reload-time", "1h")
"""A vttablet that finds another schema writes a transaction of its own, with the current time."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    with Vitess(SHARDS, vschema=VSCHEMA, vttablet_options=RELOAD_NEVER) as made:
        made.control("ApplySchema", "--sql", "CREATE TABLE customers (id BIGINT PRIMARY KEY)", made.keyspace)
        for shard in SHARDS:
            made.connect(shard).close()
            HeartbeatWriter(made.mysql_address(shard), "mysql", "me", 0).prepare()
            made.wait_caught_up(shard)
        made.control("ReloadSchemaKeyspace", "--include-primary", made.keyspace)
        for shard in SHARDS:
            made.wait_caught_up(shard)
        yield made


class Scene:
    """``begun``: the second of the log's clock at which the transactions begin."""

    def __init__(self, cluster: Vitess, folder: Path) -> None:
        self._cluster = cluster
        self.begun = int(time.time()) - BEGIN_SECONDS
        path = write_sharded_config(
            folder,
            "vitess",
            [
                {
                    "name": shard,
                    "primary": f"mysql://root@127.0.0.1:{cluster.vtgate.mysql_port}/{cluster.keyspace}",
                    "vtgate": f"vitess://127.0.0.1:{cluster.vtgate.grpc_port}/{cluster.keyspace}",
                }
                for shard in SHARDS
            ],
            ["127.0.0.1:1"],
            column="id",
        )
        self._opener = StreamOpener(lambda: load_config(path))
        with self.streaming("now") as stream:
            now = stream.resume
        begun_us = self.begun * SECOND
        tokens = {name: replace(token, timestamp_us=begun_us) for name, token in now.tokens.items()}
        self.since = replace(now, tokens=tokens)

    def commit(self, shard: str, seconds: Sequence[int]) -> None:
        """A transaction at each of these seconds by the log's clock, on all tablets of the shard."""
        primary = self._cluster.primary(shard)
        with closing(primary.mysql.connect(primary.database)) as connection, connection.cursor() as cursor:
            for second in seconds:
                cursor.execute(f"SET timestamp = {self.begun + second}")
                cursor.execute("INSERT INTO customers SELECT COALESCE(MAX(id), 0) + 1 FROM customers")
                connection.commit()
        self._cluster.wait_caught_up(shard)

    @contextmanager
    def streaming(self, since: Start, *, minimize_skew: bool = False) -> Iterator[UpdateStream]:
        opened = self._opener.open(StreamQuery(since=since, minimize_skew=minimize_skew))
        assert isinstance(opened.stream, UpdateStream)
        try:
            yield opened.stream
        finally:
            opened.stream.close()

    def read(self, stream: UpdateStream, count: int) -> list[tuple[str, int]]:
        """Shard and second of the next transactions with rows."""
        found: list[tuple[str, int]] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, (found, stream.status())
            message = stream.poll(POLL_SECONDS)
            found += [] if message is None else self._tell(message)
        return found

    def read_waiting(self, stream: UpdateStream) -> list[tuple[str, int]]:
        """What may come now."""
        message = stream.poll(POLL_SECONDS)
        return [] if message is None else self._tell(message)

    def _tell(self, message: StreamMessage) -> list[tuple[str, int]]:
        assert message.is_aligned
        if not message.transaction.changes:
            return []
        return [(message.shard, message.token.timestamp_us // SECOND - self.begun)]


def find_lead(found: Sequence[tuple[str, int]]) -> int:
    """The most seconds that a transaction came before an older one."""
    return max(second - min(later) for at, (_, second) in enumerate(found) if (later := [s for _, s in found[at:]]))


def test_minimize_skew_holds_the_shard_that_is_ahead_and_plain_streams_do_not(
    cluster: Vitess, tmp_path: Path
) -> None:
    scene = Scene(cluster, tmp_path)
    scene.commit(AHEAD, range(1, 11))
    scene.commit(BEHIND, [1])
    with scene.streaming(scene.since) as stream:
        plain = scene.read(stream, 11)
    assert sorted(plain) == sorted([(BEHIND, 1), *((AHEAD, second) for second in range(1, 11))])
    with scene.streaming(scene.since, minimize_skew=True) as stream:
        found = scene.read(stream, 4)
        assert sorted(found) == [(AHEAD, 1), (AHEAD, 2), (AHEAD, 3), (BEHIND, 1)]
        assert scene.read_waiting(stream) == [], "the others are more than 2 s ahead"
        scene.commit(BEHIND, [6])
        found = scene.read(stream, 6)
        assert sorted(found) == [*((AHEAD, second) for second in range(4, 9)), (BEHIND, 6)]
        assert scene.read_waiting(stream) == []
        scene.commit(BEHIND, [10])
        assert sorted(scene.read(stream, 3)) == [(AHEAD, 9), (AHEAD, 10), (BEHIND, 10)]


def test_no_transaction_comes_long_before_an_older_one_of_another_shard(cluster: Vitess, tmp_path: Path) -> None:
    """Plain streams take turns, transaction by transaction: the shard with fewer of them runs ahead."""
    scene = Scene(cluster, tmp_path)
    scene.commit(AHEAD, range(1, 21))
    scene.commit(BEHIND, [second for second in range(1, 21) for _ in range(10)])
    leads: dict[bool, int] = {}
    for minimize_skew in (False, True):
        with scene.streaming(scene.since, minimize_skew=minimize_skew) as stream:
            leads[minimize_skew] = find_lead(scene.read(stream, 220))
    assert leads[True] * SECOND <= LIMIT_US < leads[False] * SECOND
