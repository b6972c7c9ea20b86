"""The merged stream over reshards, crashes and purges: every row change of every primary comes exactly once.

Two shards with a replica each become four and two again, by replication, under the readers and the writer of
``test_reshard``. Consumers read the stream from the beginning, are cut at random moments and come back with the
resume text of the last whole transaction that they recorded. In the end what they were sent is counted: nothing is
dropped on their side but the rows of a transaction of which the last had not come when they were cut.

**What must come** is what the primaries' own logs say, read by a `BinlogSource` before anything is purged: each row
change of the keyspace's tables by GTID and place in its transaction, of the shards that serve and of the
destinations. A transaction that stands in several logs (a destination has its sources' GTIDs) counts once, and must
be the same in each. Not counted: rows of `freshness_heartbeat`, which are the invalidator's; and what takes the rows
of others out of a destination, which is in no log (``sql_log_bin = 0``, `drop_foreign_rows`). Were it logged, its
rows would lie outside the shard's key range, and the stream would leave them out.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import pytest

from freshness.config.config import Config, load_config
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import SourceUnavailable
from freshness.history.archive_file import find_files
from freshness.keys.keyrange import KeyRange
from freshness.position import Position, empty_position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from integration.configuration import write_config, write_sharded_config
from integration.harness import CUSTOMERS_TABLE, STREAM, WAIT_SECONDS, call_cli, wait_for_hits, wait_until
from integration.invalidator.test_process import purge_logs
from integration.invalidator.test_reshard import (
    CUSTOMERS,
    SOME,
    Deployment,
    Step,
    deployment,
    lineage_of,
    open_cache,
    reshard_under_load,
)
from integration.servers import Flavor, Pair
from integration.shards import Reshard, Shard, Writer, writing
from integration.stream.test_stream_service import (
    CHECKOUT,
    OPERATOR,
    Change,
    change_of,
    changes_in_log,
    head_of,
    is_change,
)
from integration.stream.test_stream_service import STREAM as STREAM_PATH
from invalidator.archive.record import record
from invalidator.stream.feed import PURGED_HINT
from invalidator.stream.open import StreamOpener
from invalidator.stream.query import StreamQuery

TWO: Final = ("-80", "80-")
FOUR: Final = ("-40", "40-80", "80-c0", "c0-")
SESSIONS_MAX: Final = 10_000
CUT_MESSAGES: Final = (1, 150)
"""After how many lines or messages a consumer is cut: from, to."""

RETRY_SECONDS: Final = 0.2
POLL_SECONDS: Final = 0.5
AWAY: Final = 503


# -- what must come --------------------------------------------------------------------------------------------------


class Ledger:
    """The row changes in the primaries' own logs, by GTID and place in the transaction."""

    def __init__(self) -> None:
        self.changes: dict[tuple[str, int], Change] = {}
        self._read: dict[int, Position] = {}

    def read(self, shards: Sequence[Shard]) -> None:
        """Take down what these primaries have logged by now and was not taken down yet."""
        for shard in shards:
            start = self._read.get(shard.number, empty_position(shard.primary.flavor))
            self._read[shard.number] = start.union(head_of(shard.primary))
            for change in changes_in_log(shard.primary, start):
                known = self.changes.setdefault((change[0], change[1]), change)
                assert change == known, "one transaction is the same in every log"


# -- consumers -------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """What one line or message brings. ``is_whole``: it ends a transaction, after which ``resume`` holds."""

    changes: list[Change]
    is_whole: bool
    resume: str | None


class Consumer(threading.Thread, ABC):
    """Reads the stream, is cut at random moments, and comes back, until it is stopped.

    ``times``: how often each row change was recorded; ``changes``: its last state.
    """

    def __init__(self, start: str, seed: int) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.resume = start
        self.times: Counter[tuple[str, int]] = Counter()
        self.changes: dict[tuple[str, int], Change] = {}
        self.sessions = 0
        self.error: BaseException | None = None
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._may_read = threading.Event()
        self._may_read.set()

    @abstractmethod
    def read(self, since: str) -> Iterator[Part]:
        """One session. It ends when nobody reads on, or at any moment by `SourceUnavailable`."""

    def run(self) -> None:
        try:
            for _ in range(SESSIONS_MAX):
                self._may_read.wait()
                if self._ending.is_set():
                    return
                try:
                    self._record(self._random.randint(*CUT_MESSAGES))
                except SourceUnavailable:
                    self._ending.wait(RETRY_SECONDS)
            raise AssertionError(f"nobody stopped the consumer within {SESSIONS_MAX} sessions")
        except BaseException as error:  # noqa: BLE001 - raised again in check()
            self.error = error

    def _record(self, parts_max: int) -> None:
        """Record whole transactions, each together with its resume text, as a database would in one commit."""
        open_rows: list[Change] = []
        session = self.read(self.resume)
        try:
            for count, part in enumerate(session, 1):
                open_rows += part.changes
                if part.is_whole:
                    for change in open_rows:
                        self.times[change[0], change[1]] += 1
                        self.changes[change[0], change[1]] = change
                    open_rows.clear()
                    self.resume = part.resume or self.resume
                if count >= parts_max or self._is_to_break():
                    break
        finally:
            self.sessions += 1
            session.close()  # type: ignore[attr-defined]

    def covers(self, heads: dict[str, Position]) -> bool:
        self.check()
        tokens = ResumeVector.parse(self.resume).tokens
        return all(lineage in tokens and tokens[lineage].position.contains(heads[lineage]) for lineage in heads)

    def _is_to_break(self) -> bool:
        return self._ending.is_set() or not self._may_read.is_set()

    def leave(self) -> None:
        """Be away from the next message on, until `come_back`."""
        self._may_read.clear()

    def come_back(self) -> None:
        self._may_read.set()

    def stop(self) -> None:
        self._ending.set()
        self._may_read.set()
        wait_until(lambda: not self.is_alive(), "the consumer has stopped")
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class HttpConsumer(Consumer):
    """Of the service that the invalidator brings along, and so cut off by its crashes, too."""

    def __init__(self, port: int, start: str, seed: int) -> None:
        super().__init__(start, seed)
        self._port = port

    def read(self, since: str) -> Iterator[Part]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_SECONDS)
        try:
            with closing(connection):
                connection.request("GET", f"{STREAM_PATH}?since={since}")
                response = connection.getresponse()
                if response.status == AWAY:
                    raise SourceUnavailable(response.read().decode())
                assert response.status == 200, response.read()
                while (raw := response.readline()).endswith(b"\n"):  # else it was cut off in the midst of a line
                    line = json.loads(raw)
                    if line["event"] == "end":
                        self.resume = line["resume"]
                        return
                    if line["event"] == "heartbeat":
                        self.resume = line["resume"]
                        yield Part([], False, None)
                        continue
                    if line["event"] == "schema":
                        continue
                    assert line["event"] == "update", line
                    assert line["op"] != "raise", line
                    yield Part([change_of(line)] if is_change(line) else [], line["last"], line["resume"])
        except (OSError, http.client.HTTPException) as error:
            raise SourceUnavailable(f"the service is away: {error!r}") from error


class ProcessConsumer(Consumer):
    """In a process of its own right, as `invalidator record`, which takes each configuration over."""

    def __init__(self, read_config: Callable[[], Config], start: str, seed: int) -> None:
        super().__init__(start, seed)
        self._opener = StreamOpener(read_config)

    def read(self, since: str) -> Iterator[Part]:
        opened = self._opener.open(StreamQuery("shop", since=since))
        try:
            while True:
                opened.follow()
                message = opened.stream.poll(POLL_SECONDS)
                if message is None:
                    if self._is_to_break():
                        return
                    continue
                assert not message.transaction.raised_tables, message
                changes: list[Change] = [
                    (str(message.token.position), row, change.table, change.op, change.before, change.after)
                    for row, change in zip(message.rows, message.transaction.changes, strict=True)
                ]
                yield Part(changes, message.is_last, message.vector.format())
        finally:
            opened.stream.close()


@contextmanager
def consumers(made: Deployment, port: int) -> Iterator[list[Consumer]]:
    """One of each kind, from the beginning of all shards; nobody may have written yet."""
    opener = StreamOpener(lambda: made.config)
    tokens = {lineage_of(shard): opener.read_token("shop", shard.name) for shard in made.cluster.shards}
    start = ResumeVector("shop", KeyRange(), tokens).format()
    started: list[Consumer] = [HttpConsumer(port, start, seed=1), ProcessConsumer(lambda: made.config, start, seed=2)]
    for consumer in started:
        consumer.start()
    try:
        yield started
    finally:
        for consumer in started:
            consumer.stop()


# -- events during a reshard -----------------------------------------------------------------------------------------


class Trouble:
    """Kills, rotates and purges while shards are split and merged."""

    def __init__(self, made: Deployment, writer: Writer, ledger: Ledger, consumers: Sequence[Consumer]) -> None:
        self._made = made
        self._writer = writer
        self._ledger = ledger
        self._consumers = consumers
        self.purged: list[int] = []

    def at_split(self, step: Step, reshard: Reshard) -> None:
        if step == "prepared":
            self.rotate_and_purge(reshard.sources, reshard.destinations)
            self.send_away(self._consumers[0])
            reshard.sources[0].replicas[0].kill()
        elif step == "swapped":
            self.kill_invalidator()
        else:
            self.restart_replica(reshard.destinations[1])
            self._consumers[0].come_back()
            self._ledger.read(reshard.sources)  # they will be stopped

    def at_merge(self, step: Step, reshard: Reshard) -> None:
        if step == "prepared":
            self.kill_invalidator()
            self.rotate_and_purge(reshard.sources, reshard.destinations)
            self.send_away(self._consumers[1])
        elif step == "swapped":
            self.restart_replica(reshard.destinations[0])
        else:
            self.kill_invalidator()
            self._consumers[1].come_back()
            self._ledger.read(reshard.sources)

    def send_away(self, consumer: Consumer) -> None:
        """Before the sources' end: it comes back when they serve no longer, and learns the rest from the others."""
        consumer.leave()
        self._writer.wait_for(SOME)

    def kill_invalidator(self) -> None:
        invalidator = self._made.invalidator
        assert invalidator is not None
        invalidator.kill()
        invalidator.launch()
        wait_until(lambda: invalidator.is_streaming() and invalidator.is_ready(), "it is back", self._made.describe)

    def restart_replica(self, shard: Shard) -> None:
        [replica] = shard.replicas
        replica.kill()
        replica.start()
        replica.start_replication()

    def rotate_and_purge(self, shards: Sequence[Shard], followers: Sequence[Shard] = ()) -> None:
        """A new log on all these primaries; the old ones go when consumers, invalidator, replicas and ``followers``
        have read them. The followers keep theirs, which are read from the start later."""
        for shard in (*shards, *followers):
            shard.primary.execute("FLUSH BINARY LOGS")
        heads = {lineage_of(shard): head_of(shard.primary) for shard in shards}
        self._ledger.read(shards)
        for shard in shards:
            shard.wait_caught_up()
            for follower in followers:
                if follower.key_range.overlaps(shard.key_range):
                    follower.primary.wait_caught_up(shard.primary)
        self._made.wait_covered(shards)
        for consumer in self._consumers:
            wait_until(lambda consumer=consumer: consumer.covers(heads), "the consumer has read it")  # type: ignore[misc]
        for shard in shards:
            wait_until(lambda shard=shard: purge_logs(shard.primary), "all but the last log are purged")  # type: ignore[misc]
            self.purged.append(shard.number)


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_every_row_change_comes_once_over_reshards_crashes_and_purges(
    flavor: Flavor, port: int, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        made, router = stack.enter_context(
            deployment(
                flavor,
                tmp_path,
                TWO,
                stream={**STREAM, "replica_choice": "freshest"},
                sections=f'[http]\nlisten = "127.0.0.1:{port}"\n',
            )
        )
        ledger = Ledger()
        reading = stack.enter_context(consumers(made, port))
        writer = stack.enter_context(writing(router))
        trouble = Trouble(made, writer, ledger, reading)
        writer.wait_for(SOME)
        for names, disturb in ((FOUR, trouble.at_split), (TWO, trouble.at_merge)):
            reshard_under_load(made, router, writer, names, keeps_gtids=True, disturb=disturb, is_patient=True)
            with writer.paused():
                made.assert_none_stale(router.shards, writer)
        trouble.rotate_and_purge(router.shards)
        trouble.kill_invalidator()
        writer.wait_for(SOME)
        writer.stop()
        made.assert_none_stale(router.shards, writer)
        heads = {lineage_of(shard): head_of(shard.primary) for shard in router.shards}
        ledger.read(router.shards)
        for consumer in reading:
            wait_until(lambda consumer=consumer: consumer.covers(heads), "all has come", made.describe)  # type: ignore[misc]
            consumer.stop()
            lost = ledger.changes.keys() - consumer.times.keys()
            doubled = {key: count for key, count in consumer.times.items() if count > 1}
            assert (len(lost), doubled) == (0, {}), consumer.name
            assert consumer.changes == ledger.changes
            assert consumer.sessions > 3, "a consumer that was never cut proves little"
        assert len(ledger.changes) >= writer.writes
        assert any(row > 0 for _, row in ledger.changes), "some transactions have several rows"
        assert len(trouble.purged) == 8, "every primary was purged once"
        cache = open_cache(made.path)
        try:
            for name in ("customer", "profile"):
                wait_for_hits(cache, name, CUSTOMERS, made.describe)
        finally:
            cache.close()
        wait_until(
            lambda: made.assert_none_stale(router.shards, writer) >= 2 * len(CUSTOMERS),
            "all are there and may be served",
        )


# -- history that is gone --------------------------------------------------------------------------------------------


def prepare(pair: Pair) -> None:
    """A table, and the heartbeat table that says which epoch it is."""
    primary = pair.primary
    primary.execute(CUSTOMERS_TABLE, database="shop")
    heartbeats = HeartbeatWriter(
        ServerAddress("127.0.0.1", primary.port, "app", "app", "shop"), primary.flavor, "test", 0
    )
    heartbeats.prepare()
    heartbeats.close()
    pair.wait_caught_up()


def test_history_that_is_gone_everywhere_needs_an_operator(own_pair: Pair, tmp_path: Path) -> None:
    """For a consumer that was away: exit code 4 and what to do, for the stream and for the archive."""
    primary, archive = own_pair.primary, tmp_path / "archive"
    prepare(own_pair)
    path = write_config(
        tmp_path, primary.flavor, primary.url, ["127.0.0.1:1"], replicas=[own_pair.replica.url], stream=STREAM
    )
    config = load_config(path)
    opener = StreamOpener(lambda: config)
    token = opener.read_token("shop", None)
    is_begun: list[bool] = []
    record(opener, archive, "shop", None, lambda: bool(is_begun), lambda *_: is_begun.append(True))
    primary.execute("INSERT INTO customers VALUES (1, 'one', 1)", database="shop")
    own_pair.wait_caught_up()
    for server in (primary, own_pair.replica):
        server.execute("FLUSH BINARY LOGS")
        wait_until(lambda server=server: purge_logs(server), "all but the last log are purged")  # type: ignore[misc]
    primary.execute("INSERT INTO customers VALUES (2, 'two', 2)", database="shop")
    for arguments in (("stream", "--since", str(token), "--count", "1"), ("record", "--out", str(archive))):
        ended = call_cli(*arguments, "-c", path)
        assert ended.returncode == OPERATOR, ended.stderr
        assert PURGED_HINT in ended.stderr.replace("\n", " ")
        assert ended.stdout == "", "nothing from after the hole"
    assert [row for file in find_files(archive) for row in pq.read_table(file.path).to_pylist()] == []


def test_a_start_by_time_is_found_in_the_log_of_a_replica(own_pair: Pair, tmp_path: Path) -> None:
    """The primary has purged it."""
    primary = own_pair.primary
    prepare(own_pair)
    path = write_config(
        tmp_path, primary.flavor, primary.url, ["127.0.0.1:1"], replicas=[own_pair.replica.url], stream=STREAM
    )
    config = load_config(path)
    begun = datetime.now(UTC).isoformat()
    primary.execute("INSERT INTO customers VALUES (1, 'one', 1)", database="shop")
    own_pair.wait_caught_up()
    primary.execute("FLUSH BINARY LOGS")
    wait_until(lambda: purge_logs(primary), "all but the last log are purged")
    primary.execute("INSERT INTO customers VALUES (2, 'two', 2)", database="shop")
    with closing(StreamOpener(lambda: config).open(StreamQuery("shop", since=begun)).stream) as stream:
        found: list[Any] = []

        def have_come() -> bool:
            message = stream.poll(0.2)
            found.extend(message.transaction.changes if message is not None else ())
            return len(found) >= 2

        wait_until(have_come, "both rows", lambda: f"{found} {stream.status()}")
    assert [change.after["id"] for change in found] == [1, 2]


# -- the verbs -------------------------------------------------------------------------------------------------------


def test_a_verb_takes_another_topology_over_on_sighup(flavor: Flavor, own_pair: Pair, tmp_path: Path) -> None:
    """The replica becomes a shard of its own, with the GTIDs of the primary: nothing is missing and nothing twice."""

    def configure(**shard: Any) -> Path:
        return write_sharded_config(
            tmp_path, flavor, [{"name": "-", **shard}], ["127.0.0.1:1"], column="id", stream=STREAM
        )

    prepare(own_pair)
    path = configure(primary=own_pair.primary.url, lineage="shop/one")
    config = load_config(path)
    token = StreamOpener(lambda: config).read_token("shop", None)
    command = [sys.executable, "-m", "invalidator.cli", "stream", "--since", str(token), "-c", str(path)]
    own_pair.primary.execute("INSERT INTO customers VALUES (1, 'one', 1)", database="shop")
    own_pair.wait_caught_up()
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            lines = map(json.loads, process.stdout)
            found = [next(line for line in lines if is_change(line))]
            own_pair.replica.remove_sources()
            configure(primary=own_pair.replica.url, lineage="shop/two", continues=["shop/one"])
            process.send_signal(signal.SIGHUP)
            own_pair.replica.execute("INSERT INTO customers VALUES (2, 'two', 2)", database="shop")
            found.append(next(line for line in lines if is_change(line)))
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if is_change(line)] == []
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()
    assert [line["key"] for line in found] == [{"id": 1}, {"id": 2}]
    assert [EventToken.parse(line["token"]).lineage for line in found] == ["shop/one", "shop/two"]
