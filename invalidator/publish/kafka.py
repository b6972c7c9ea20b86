"""Kafka as the publisher sees it: transactions that hold records and the position behind them.

A success is trusted, a failure never: a commit that failed, or did not answer, may have happened. So a `KafkaWriter`
that has raised is used no more. The next one settles what it left open (`init_transactions` waits for the outcome,
and no writer before it can commit afterwards) and reads back the position that was committed.

All errors of the client become `BrokerUnavailable` (another attempt may succeed) or `PublishStopped` (it cannot).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from freshness.errors import BrokerUnavailable, ConfigError, FormatError, FreshnessError, PublishStopped
from freshness.stream.resume import ResumeVector
from invalidator.publish.record import Record, encode_json

ANSWER_SECONDS: Final = 30.0
"""How long one request may take, with the client's own repetitions."""

LEADER_SECONDS: Final = 5.0
"""How long the client may look for the leader of a new topic, before it is asked again."""

TAKE_OVER_SECONDS: Final = 60.0
"""How long a broker that was just started may take until the topic of the positions has a leader, and is read."""

ABORT_SECONDS: Final = 2.0

TRANSACTION_MILLISECONDS: Final = 600_000
"""How long a transaction of Kafka may be open: a huge transaction of the source is one. The broker allows 15 minutes
unless it is configured otherwise."""

QUEUE_KBYTES: Final = 65_536
ROOM_SECONDS: Final = 0.1

OWN_SETTINGS: Final = frozenset(
    ("bootstrap.servers", "transactional.id", "enable.idempotence", "isolation.level", "acks", "group.id", "logger")
)
"""Settings of the client that the guarantee needs, and that nobody else sets."""

_FENCED: Final = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
_REFUSED: Final = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
)

log = logging.getLogger(__name__)


def read_settings(path: Path) -> dict[str, str]:
    """Settings of the client library in a file, one ``name=value`` a line; ``#`` begins a comment line. Raises
    `ConfigError`."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="is it a file of text?") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, sign, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not sign:
            raise ConfigError(f"{path}: line {number} has no =", hint="expected name=value")
        if name in OWN_SETTINGS:
            raise ConfigError(f"{path}: line {number}: {name} cannot be set", hint="what was published depends on it")
        settings[name] = value
    return settings


class KafkaWriter:
    """A producer that no other of the same prefix outlives. Used by one thread, and not again after an error."""

    def __init__(
        self, brokers: str, prefix: str, positions_topic: str, settings: Mapping[str, str] | None = None
    ) -> None:
        """Take over from any writer of the prefix before. Raises `ConfigError` for a setting that the client does not
        know, `BrokerUnavailable`, `PublishStopped`."""
        self._positions_topic = positions_topic
        self._common: dict[str, Any] = {**(settings or {}), "bootstrap.servers": brokers, "logger": log}
        self._failure: KafkaError | None = None
        self._is_open = False
        self._known: set[str] = set()
        transactional = {
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "transaction.timeout.ms": TRANSACTION_MILLISECONDS,
            # As the Java clients place keys.
            "partitioner": "murmur2_random",
        }
        with _translated("taking over"):
            try:
                self._producer = Producer(
                    {
                        **transactional,
                        **self._common,
                        "transactional.id": f"freshness-publish-{prefix}",
                        "enable.idempotence": True,
                        "acks": "all",
                    }
                )
                self._admin = AdminClient({**self._common})
            except KafkaException as error:
                if error.args[0].code() == KafkaError._INVALID_ARG:
                    raise ConfigError(
                        f"Kafka's client: {error.args[0].str()}", hint="see the settings of librdkafka"
                    ) from error
                raise
            self._producer.init_transactions(ANSWER_SECONDS)
            self._known.update(self._admin.list_topics(timeout=ANSWER_SECONDS).topics)
            self._require_topic(positions_topic, 1, {"cleanup.policy": "compact"})

    def close(self) -> None:
        """Give up what is not committed. Harmless when closed."""
        self._producer.purge()

    def read_position(self) -> ResumeVector | None:
        """The position that was committed last; None if there is none. Raises `BrokerUnavailable`, `PublishStopped`,
        `FormatError`."""
        deadline = time.monotonic() + TAKE_OVER_SECONDS
        while True:
            try:
                found = self._read_last_position(deadline)
                return None if found is None else _parse_position(found, self._positions_topic)
            except BrokerUnavailable:
                # Kafka refuses a new topic, and one whose leader has changed, for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(ROOM_SECONDS)

    def _read_last_position(self, deadline: float) -> bytes | None:
        place = TopicPartition(self._positions_topic, 0, OFFSET_BEGINNING)
        found: bytes | None = None
        with _translated("reading the position"):
            latest = self._admin.list_offsets(
                {TopicPartition(self._positions_topic, 0): OffsetSpec.latest()},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=LEADER_SECONDS,
            )
            end = next(iter(latest.values())).result().offset
            consumer = Consumer(
                {
                    **self._common,
                    "group.id": "freshness-publish",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 10,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                }
            )
            try:
                consumer.assign([place])
                while True:
                    message = consumer.poll(1.0)
                    if message is None:
                        if time.monotonic() > deadline:
                            raise BrokerUnavailable(
                                f"topic {self._positions_topic} was not read within {TAKE_OVER_SECONDS:g} s",
                                hint="is the broker up?",
                            )
                        continue
                    error = message.error()
                    if error is None:
                        found = message.value()
                    elif error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    elif (message.offset() or 0) >= end:
                        break
                    elif time.monotonic() > deadline:
                        raise BrokerUnavailable(
                            f"topic {self._positions_topic} has a transaction that is open",
                            hint="a transaction of another program: nobody else may write to this topic",
                        )
            finally:
                consumer.close()
        return found

    def produce(self, record: Record) -> None:
        """Add a record to the transaction, and begin one if none is open. Raises `BrokerUnavailable`,
        `PublishStopped`."""
        with self._transacting(f"writing to {record.topic}"):
            self._begin()
            self._require_topic(record.topic, -1, {})
            # A key chooses its partition. Without one, all rows of a table stay in one, and in their order.
            where = {} if record.key is not None else {"partition": 0}
            while True:
                self._raise_failure()
                try:
                    self._producer.produce(
                        record.topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        on_delivery=self._note_delivery,
                        **where,
                    )
                    break
                except BufferError:
                    self._producer.poll(ROOM_SECONDS)
            self._producer.poll(0)

    def commit(self, position: ResumeVector) -> None:
        """End the transaction, with the position behind all its records. Raises `BrokerUnavailable` if it may or may
        not have been committed, and `PublishStopped`."""
        key = encode_json({"position": position.keyspace})
        value = encode_json(
            {"keyspace": position.keyspace, "key_range": str(position.key_range), "resume": position.format()}
        )
        with self._transacting("committing"):
            self._begin()
            self._producer.produce(
                self._positions_topic, value=value, key=key, partition=0, on_delivery=self._note_delivery
            )
            try:
                self._producer.commit_transaction(ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in _FENCED:
                    self._raise_failure()
                raise
            self._raise_failure()
            self._is_open = False

    @contextmanager
    def _transacting(self, doing: str) -> Iterator[None]:
        """As `_translated`. An error of a writer that another one has fenced may have any name: the transaction is
        asked, or else two publishers would take over from one another without end."""
        with _translated(doing):
            try:
                yield
            except KafkaException as error:
                if error.args[0].code() in _FENCED | _REFUSED:
                    raise
                try:
                    self._producer.abort_transaction(ABORT_SECONDS)
                except KafkaException as fenced:
                    if fenced.args[0].code() in _FENCED:
                        raise fenced from error
                raise

    def _begin(self) -> None:
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True

    def _note_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise KafkaException(self._failure)

    def _require_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        if name in self._known:
            return
        for made in self._admin.create_topics(
            [NewTopic(name, num_partitions=partitions, config=config)], request_timeout=ANSWER_SECONDS
        ).values():
            try:
                made.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._known.add(name)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _translate(doing, error.args[0]) from error


def _translate(doing: str, error: KafkaError) -> FreshnessError:
    where = f"Kafka, {doing}: {error.name()}: {error.str()}"
    if error.code() in _FENCED:
        return PublishStopped(
            where,
            hint="another publisher with this prefix took over; or one transaction was open for longer than"
            " transaction.timeout.ms. Run one publisher for each prefix",
        )
    if error.code() in _REFUSED:
        return PublishStopped(
            where, hint="the broker or the client refuses it: see its limits (message.max.bytes), and rights"
        )
    return BrokerUnavailable(where, hint="is the broker up? what was not committed is published again")


def _parse_position(value: bytes, topic: str) -> ResumeVector:
    try:
        return ResumeVector.parse(json.loads(value)["resume"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"the last record of {topic} holds no position: {error}",
            hint="only the publisher writes to this topic: choose another --prefix, with --since",
        ) from error
