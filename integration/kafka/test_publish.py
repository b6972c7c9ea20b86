"""The publisher on real servers and a real broker: each row change once, whatever dies in between."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from freshness.config.settings import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, wait_until
from integration.servers import DatabaseServer, Pair
from integration.servers.kafka import Kafka
from integration.servers.program import PythonProgram

READ_SECONDS: Final = 60.0
KEYS: Final = 12


class Publisher(PythonProgram):
    """``invalidator publish``, ready when a position is committed (its first act)."""

    technology = "publisher"

    def __init__(self, kafka: Kafka, config_path: Path, prefix: str, *arguments: str) -> None:
        super().__init__(
            "-m",
            "invalidator.cli",
            "publish",
            *("--brokers", kafka.address, "--prefix", prefix, "--config", str(config_path)),
            *arguments,
        )
        self._kafka, self._positions = kafka, f"{prefix}.positions"

    def is_ready(self) -> bool:
        return bool(read_topic(self._kafka, self._positions))


def read_topic(kafka: Kafka, topic: str) -> list[Message]:
    """All that is committed, partition by partition. None of a topic that is not there."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        found = consumer.list_topics(timeout=READ_SECONDS).topics.get(topic)
        if found is None:
            return []
        left = set(found.partitions)
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in left])
        messages = []
        deadline = time.monotonic() + READ_SECONDS
        while left:
            assert time.monotonic() < deadline, f"{topic}: partitions {left} do not end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(error)
        return messages
    finally:
        consumer.close()


def values(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [json.loads(value) for each in messages if (value := each.value()) is not None]


@pytest.fixture
def config_path(pair: Pair, tmp_path: Path) -> Path:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    pair.primary.execute("CREATE TABLE goods (id INT PRIMARY KEY, v INT, name VARCHAR(20))", database="shop")
    address = ServerAddress("127.0.0.1", pair.primary.port, "app", "app", "shop")
    writer = HeartbeatWriter(address, pair.primary.flavor, "me", 0)
    writer.prepare()
    writer.close()
    return write_config(tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"])


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "_" for each in request.node.name)[-60:]


class Load:
    """Transactions of several rows, each row change with a number of its own in ``v``."""

    def __init__(self, server: DatabaseServer, seed: int) -> None:
        self._server, self._random = server, random.Random(seed)
        self.written: list[int] = []
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def wait_more(self, count: int) -> None:
        goal = len(self.written) + count
        wait_until(lambda: len(self.written) >= goal or self._error is not None, "rows are written")

    def _run(self) -> None:
        try:
            with self._server.connect(database="shop") as connection, connection.cursor() as cursor:
                number, there = 0, set[int]()
                while not self._stopping.is_set():
                    cursor.execute("BEGIN")
                    numbers = []
                    for _ in range(self._random.randrange(1, 6)):
                        number += 1
                        key = self._random.randrange(KEYS)
                        if key in there and self._random.random() < 0.3:
                            # The image of a delete tells the number that was last
                            cursor.execute("UPDATE goods SET v = %s WHERE id = %s", (number, key))
                            cursor.execute("DELETE FROM goods WHERE id = %s", (key,))
                            there.discard(key)
                        else:
                            cursor.execute("REPLACE INTO goods VALUES (%s, %s, 'x')", (key, number))
                            there.add(key)
                        numbers.append(number)
                    cursor.execute("COMMIT")
                    self.written += numbers
                    time.sleep(0.002)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._error = error


def table_rows(server: DatabaseServer) -> dict[int, int]:
    with server.connect(database="shop") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, v FROM goods")
        return dict(cursor.fetchall())


def is_there(kafka: Kafka, topic: str, number: int) -> bool:
    rows = (each.get("after") or each.get("before") or {} for each in values(read_topic(kafka, topic)))
    return any(row.get("v") == number for row in rows)


def finish(kafka: Kafka, topic: str, pair: Pair) -> None:
    """Write a last row, and wait until it is published."""
    pair.primary.execute("REPLACE INTO goods VALUES (100, 1000000, 'end')", database="shop")
    wait_until(lambda: is_there(kafka, topic, 1_000_000), "the last row is published", seconds=READ_SECONDS)


def assert_exactly_once(kafka: Kafka, topic: str, pair: Pair, written: Sequence[int]) -> None:
    """Each change of a row is there once; the keys are in order; and the last values are the table's."""
    messages = read_topic(kafka, topic)
    changes = values(messages)
    # A changed key would be two events of one row; here none is.
    seen = [(each.get("source", each)["gtid"], each.get("source", each)["row"]) for each in changes]
    assert len(seen) == len(set(seen))
    told: dict[int, list[int]] = defaultdict(list)
    latest: dict[int, dict[str, Any] | None] = {}
    for each in messages:
        raw_key, raw = each.key(), each.value()
        assert raw_key is not None
        key = json.loads(raw_key)["id"]
        if raw is None:
            latest[key] = None
            continue
        latest[key] = json.loads(raw)["after"]
        row = latest[key]
        if row is not None:
            told[key].append(row["v"])
    assert all(numbers == sorted(numbers) for numbers in told.values())
    assert sorted(number for numbers in told.values() for number in numbers) == [*written, 1_000_000]
    assert {key: row["v"] for key, row in latest.items() if row is not None} == table_rows(pair.primary)


def publish_through(
    kafka: Kafka,
    config_path: Path,
    prefix: str,
    pair: Pair,
    disturb: Callable[[Publisher], None],
    *options: str,
) -> Sequence[int]:
    """Publish rows that are written all the while that ``disturb`` does its work, and a last one."""
    tables = ("--tables", "goods", *options)
    with Publisher(kafka, config_path, prefix, *tables, "--since", "now"):
        pass
    publisher = Publisher(kafka, config_path, prefix, *tables)
    with Load(pair.primary, seed=1) as load, publisher:
        load.wait_more(100)
        disturb(publisher)
        load.wait_more(100)
    with Publisher(kafka, config_path, prefix, *tables):
        finish(kafka, f"{prefix}.shop.goods", pair)
    return load.written


def test_rows_come_once_though_the_publisher_is_killed(
    pair: Pair, kafka: Kafka, config_path: Path, prefix: str
) -> None:
    pauses = random.Random(7)

    def kill(publisher: Publisher) -> None:
        for _ in range(4):
            time.sleep(pauses.uniform(0.1, 1.0))
            publisher.restart()

    written = publish_through(kafka, config_path, prefix, pair, kill)
    assert_exactly_once(kafka, f"{prefix}.shop.goods", pair, written)


def test_rows_come_once_though_the_broker_is_killed(
    pair: Pair, kafka: Kafka, config_path: Path, prefix: str
) -> None:
    def kill(publisher: Publisher) -> None:
        for _ in range(2):
            kafka.restart()
            time.sleep(1)
        assert publisher.is_running(), publisher.log_tail()

    written = publish_through(kafka, config_path, prefix, pair, kill, "--format", "debezium")
    assert_exactly_once(kafka, f"{prefix}.shop.goods", pair, written)
