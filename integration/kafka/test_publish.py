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

from freshness.config.config import load_config
from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import ConfigError
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, wait_until
from integration.servers import DatabaseServer, Pair
from integration.servers.kafka import Kafka
from integration.servers.program import PythonProgram
from invalidator.publish.publish import Publication, publish
from invalidator.stream.open import StreamOpener

READ_SECONDS: Final = 120.0
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
            # The end arrives in an empty answer, for which a writer that never rests would otherwise leave no time.
            "fetch.wait.max.ms": 10,
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
                            # The image of a delete has the last number
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


def finish(kafka: Kafka, topic: str, pair: Pair, number: int = 1_000_000) -> None:
    """Write a last row, and wait until it is published."""
    pair.primary.execute(f"REPLACE INTO goods VALUES (100, {number}, 'end')", database="shop")
    wait_until(lambda: is_there(kafka, topic, number), "the last row is published", seconds=READ_SECONDS)


def assert_exactly_once(kafka: Kafka, topic: str, pair: Pair, written: Sequence[int], last: int = 1_000_000) -> None:
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
    assert sorted(number for numbers in told.values() for number in numbers) == [*written, last]
    assert {key: row["v"] for key, row in latest.items() if row is not None} == table_rows(pair.primary)


def publish_through(
    kafka: Kafka, config_path: Path, prefix: str, pair: Pair, disturb: Callable[[Publisher], None], *options: str
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


def test_rows_come_once_though_the_broker_is_killed(pair: Pair, kafka: Kafka, config_path: Path, prefix: str) -> None:
    def kill(publisher: Publisher) -> None:
        kafka.restart()
        assert publisher.is_running(), publisher.log_tail()

    written = publish_through(kafka, config_path, prefix, pair, kill, "--format", "debezium")
    assert_exactly_once(kafka, f"{prefix}.shop.goods", pair, written)


def test_a_second_publisher_fences_the_first(pair: Pair, kafka: Kafka, config_path: Path, prefix: str) -> None:
    first = Publisher(kafka, config_path, prefix, "--tables", "goods", "--since", "now")
    with first, Load(pair.primary, seed=1) as load:
        load.wait_more(30)
        with Publisher(kafka, config_path, prefix, "--tables", "goods"):
            wait_until(lambda: not first.is_running(), "the first publisher ends", first.log_tail)
            load.wait_more(30)
            finish(kafka, f"{prefix}.shop.goods", pair)
        assert "another publisher with this prefix took over" in first.log()
        assert "Traceback" not in first.log()
        with Publisher(kafka, config_path, prefix, "--tables", "goods"):
            load.wait_more(30)
            finish(kafka, f"{prefix}.shop.goods", pair, 1_000_001)
    with Publisher(kafka, config_path, prefix, "--tables", "goods"):
        finish(kafka, f"{prefix}.shop.goods", pair, 1_000_002)
    written = [*load.written, 1_000_000, 1_000_001]
    assert_exactly_once(kafka, f"{prefix}.shop.goods", pair, written, 1_000_002)


def test_a_publication_begins_where_it_is_told_and_then_goes_on(
    pair: Pair, kafka: Kafka, config_path: Path, prefix: str
) -> None:
    publication = Publication(brokers=kafka.address, prefix=prefix, tables=("goods",))
    opener = StreamOpener(lambda: load_config(config_path))
    with pytest.raises(ConfigError, match="where is the publication to begin"):
        publish(opener, publication, None, lambda: False)
    publish(opener, publication, "now", iter((False, True)).__next__)
    with pytest.raises(ConfigError, match="goes on where it ends"):
        publish(opener, publication, "now", lambda: False)
    assert values(read_topic(kafka, f"{prefix}.positions"))[0]["keyspace"] == "shop"


TYPES: Final = """CREATE TABLE everything (id BIGINT UNSIGNED PRIMARY KEY, d DECIMAL(30,10), at DATETIME(6),
  day DATE, lasts TIME(3), seen TIMESTAMP(6) NULL, bits BIT(10), flag BIT(1), raw BINARY(4), bytes_ VARBINARY(9),
  text_ VARCHAR(20), chosen SET('a', 'b', 'c'), one ENUM('x', 'y'), born YEAR, f DOUBLE, place POINT, nothing INT,
  raw_text BINARY(5))"""
ROW: Final = """INSERT INTO everything VALUES (18446744073709551615, '-12345678901234567890.0000000001',
  '2026-01-31 12:00:00.123456', '1969-12-31', '-838:59:58.999', '2026-01-31 12:00:00.5', b'1000000001', b'1',
  x'ab00cd01', x'0001', 'Grüße', 'c,a', 'y', 1999, 0.1, ST_GeomFromText('POINT(1 2)'), NULL, 'ab')"""
AFTER: Final = {
    "id": 18446744073709551615,
    "d": "-12345678901234567890.0000000001",
    "at": 1769860800123456,
    "day": -1,
    "lasts": -3020398999000,
    "seen": "2026-01-31T12:00:00.500000Z",
    "bits": "AQI=",
    "flag": True,
    "raw": "qwDNAQ==",
    "bytes_": "AAE=",
    "text_": "Grüße",
    "chosen": "a,c",
    "one": "y",
    "born": 1999,
    "f": 0.1,
    "place": {"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": None},
    "nothing": None,
    "raw_text": "YWIAAAA=",
}


def test_the_envelope_of_debezium(pair: Pair, kafka: Kafka, config_path: Path, prefix: str) -> None:
    pair.primary.execute(TYPES, database="shop")
    server = pair.primary
    with Publisher(
        kafka, config_path, prefix, "--tables", "goods,everything", "--since", "now", "--format", "debezium"
    ):
        with server.connect(database="shop") as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(ROW)
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO goods VALUES (1, 1, 'a'), (2, 2, 'b')")
            cursor.execute("UPDATE goods SET id = 3 WHERE id = 1")
            cursor.execute("DELETE FROM goods WHERE id = 2")
            cursor.execute("COMMIT")
        server.execute("TRUNCATE TABLE goods", database="shop")
        finish(kafka, f"{prefix}.shop.goods", pair)
    (everything,) = values(read_topic(kafka, f"{prefix}.shop.everything"))
    assert everything["after"] == AFTER
    assert everything["source"]["connector"] == server.flavor
    assert everything["source"]["name"] == prefix

    goods = read_topic(kafka, f"{prefix}.shop.goods")
    told: dict[int, list[Any]] = defaultdict(list)
    for each in goods:
        key, raw = each.key(), each.value()
        assert key is not None
        told[json.loads(key)["id"]].append(None if raw is None else json.loads(raw)["op"])
    assert told == {1: ["c", "d", None], 2: ["c", "d", None], 3: ["c"], 100: ["c"]}
    boundaries = values(read_topic(kafka, f"{prefix}.transaction"))
    (end,) = (each for each in boundaries if each["event_count"] == 5)
    assert [each["status"] for each in boundaries if each["id"] == end["id"]] == ["BEGIN", "END"]
    assert end["data_collections"] == [{"data_collection": "shop.goods", "event_count": 5}]
    inside = [each for each in values(goods) if each["transaction"]["id"] == end["id"]]
    assert sorted(each["transaction"]["total_order"] for each in inside) == [1, 2, 3, 4, 5]
    (truncated,) = values(read_topic(kafka, f"{prefix}.raises"))
    assert (truncated["op"], truncated["table"]) == ("raise", "goods")
