"""The writer to Kafka, on a client that this test plays: what it asks of the broker, and which errors stop it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException

from freshness.errors import BrokerUnavailable, ConfigError, PublishStopped
from freshness.keys.keyrange import KeyRange
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from invalidator.publish import kafka as module
from invalidator.publish.kafka import KafkaWriter, read_settings
from invalidator.publish.record import Record, encode_json

POSITIONS: Final = "p.positions"
GTIDS: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-"


def position(end: int) -> ResumeVector:
    token = EventToken("shop/-", "-", 1, 0, MysqlGtidSet.parse(f"{GTIDS}{end}"))
    return ResumeVector("shop", KeyRange(), {"shop/-": token})


class Client:
    """The producer, the admin client and the consumer of librdkafka. ``calls``: names of the producer's, in order.

    ``log``: the records of the positions topic, with whether they are committed; ``open_looks``: so often the last
    one's transaction is still open when the topic is read. ``raises``: by call, the error's code.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.produced: list[tuple[str, dict[str, Any]]] = []
        self.settings: dict[str, Any] = {}
        self.log: list[tuple[bytes, bool]] = []
        self.open_looks = 0
        self.raises: dict[str, int] = {}
        self.deliveries: list[KafkaError] = []
        self.callbacks: list[Callable[[Any, Any], None]] = []
        self.now = 0.0
        monkeypatch.setattr(module, "Producer", self._make)
        monkeypatch.setattr(module, "AdminClient", lambda _: self)
        monkeypatch.setattr(module, "Consumer", lambda settings: Reader(self, settings))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._pass))

    def _make(self, settings: dict[str, Any]) -> Client:
        self.settings = settings
        return self

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.raises:
            raise KafkaException(KafkaError(self.raises[name]))

    # -- the producer ------------------------------------------------------------------------------------

    def init_transactions(self, _: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        self._call("begin")

    def produce(self, topic: str, *, on_delivery: Callable[[Any, Any], None], **options: Any) -> None:
        self._call("produce")
        self.produced.append((topic, options))
        self.callbacks.append(on_delivery)

    def poll(self, _: float) -> None:
        for error in self.deliveries:
            self.callbacks[-1](error, None)
        self.deliveries.clear()

    def commit_transaction(self, _: float) -> None:
        self.poll(0)
        self._call("commit")

    def abort_transaction(self, _: float) -> None:
        self._call("abort")

    def purge(self) -> None:
        self._call("purge")

    # -- the admin client --------------------------------------------------------------------------------

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={POSITIONS: None, "p.shop.goods": None})

    def list_offsets(self, asked: Any, **_: Any) -> Any:
        found = SimpleNamespace(result=lambda: SimpleNamespace(offset=len(self.log)))
        return dict.fromkeys(asked, found)


class Reader:
    """A consumer of the positions: the committed ones alone, or all, as its settings say."""

    def __init__(self, client: Client, settings: dict[str, Any]) -> None:
        self.client, self.is_committed = client, settings["isolation.level"] == "read_committed"
        self.at = 0

    def assign(self, _: Any) -> None:
        """From the beginning."""

    def close(self) -> None:
        """Nothing is open."""

    def poll(self, _: float) -> Any:
        log = self.client.log
        end = len(log)
        if self.is_committed and self.at == end - 1 and self.client.open_looks:
            self.client.open_looks -= 1
            return self._end()
        while self.at < end:
            value, is_committed = log[self.at]
            self.at += 1
            if is_committed or not self.is_committed:
                return SimpleNamespace(error=lambda: None, value=partial(bytes, value))
        return self._end()

    def _end(self) -> Any:
        error, offset = KafkaError(KafkaError._PARTITION_EOF), self.at
        return SimpleNamespace(error=lambda: error, offset=lambda: offset)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def writer() -> KafkaWriter:
    return KafkaWriter("b:9092", "p", POSITIONS)


def resume(end: int) -> bytes:
    return encode_json({"resume": position(end).format()})


def test_it_takes_over_before_it_reads_or_writes(client: Client) -> None:
    """A writer before it can commit no more, and what that left open is settled."""
    with closing(writer()):
        assert client.calls == ["init"]
    assert client.settings["transactional.id"] == "freshness-publish-p"
    assert client.settings["acks"] == "all"
    assert client.settings["enable.idempotence"] is True


def test_the_position_is_the_last_that_was_committed(client: Client) -> None:
    assert writer().read_position() is None
    client.log = [(resume(5), True), (resume(7), True), (resume(9), False)]
    assert writer().read_position() == position(7)


def test_a_transaction_that_is_open_is_waited_for(client: Client) -> None:
    client.log, client.open_looks = [(resume(5), True), (resume(7), True)], 2
    assert writer().read_position() == position(7)


def test_rows_without_a_key_stay_in_one_partition(client: Client) -> None:
    """In another one they would come in another order; a key chooses its own."""
    made = writer()
    made.produce(Record("p.shop.goods", None, b"1"))
    made.produce(Record("p.shop.goods", b"k", b"2"))
    made.commit(position(5))
    assert [options.get("partition") for _, options in client.produced] == [0, None, 0]
    assert client.calls == ["init", "begin", "produce", "produce", "produce", "commit"]
    made.commit(position(6))
    assert client.calls[6:] == ["begin", "produce", "commit"], "the next transaction"


@pytest.mark.parametrize(
    "go_on",
    [
        lambda made: made.commit(position(5)),
        lambda made: [made.produce(Record("p.shop.goods", b"k", b"2")) for _ in range(2)],
    ],
)
def test_a_record_that_was_not_delivered_stops_the_transaction(
    client: Client, go_on: Callable[[KafkaWriter], Any]
) -> None:
    made = writer()
    made.produce(Record("p.shop.goods", b"k", b"1"))
    client.deliveries = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    with pytest.raises(BrokerUnavailable):
        go_on(made)


@pytest.mark.parametrize("call", ["produce", "commit"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TIMED_OUT, BrokerUnavailable),
        (KafkaError._FENCED, PublishStopped),
        (KafkaError.MSG_SIZE_TOO_LARGE, PublishStopped),
    ],
)
def test_what_may_succeed_later_and_what_never_will(
    client: Client, call: str, code: int, expected: type[Exception]
) -> None:
    made = writer()
    client.raises = {call: code}
    with pytest.raises(expected):
        made.commit(position(5))


def test_a_fenced_writer_stops_whatever_its_error_is_called(client: Client) -> None:
    """It would take over from the one that fenced it, and both would do so without end."""
    made = writer()
    client.raises = {"commit": KafkaError._STATE, "abort": KafkaError._FENCED}
    with pytest.raises(PublishStopped, match="another publisher with this prefix took over"):
        made.commit(position(5))


def test_a_refusal_is_told_by_the_record_and_not_by_the_commit(client: Client) -> None:
    made = writer()
    made.produce(Record("p.shop.goods", b"k", b"1"))
    client.deliveries = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    client.raises = {"commit": KafkaError._STATE}
    with pytest.raises(PublishStopped, match="TOPIC_AUTHORIZATION_FAILED"):
        made.commit(position(5))


@pytest.mark.parametrize("line", ["acks=1", " isolation.level = read_uncommitted", "no sign"])
def test_a_setting_that_the_guarantee_needs_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text(f"# of the client\n\nlinger.ms = 5\n{line}\n")
    with pytest.raises(ConfigError, match="line 4"):
        read_settings(path)
    path.write_text("# of the client\n\nlinger.ms = 5\n")
    assert read_settings(path) == {"linger.ms": "5"}
