"""``format("freshness")``: a streaming sink whose executors send the invalidations (docs/spark.md).

`open_sink` starts the keeper in the driver's process and makes the format known to the session. For each
micro-batch Spark plans the writers on the driver (there the keeper joins the nodes and gives leave), runs them on
the executors, and commits on the driver (there the keeper acknowledges). Spark does the first and the last in
processes of its own, so they ask the keeper over loopback, with a key that only they have.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from freshness.algorithm.driver import BlockingDriver
from freshness.config.config import Config
from freshness.database.schema import load_registry
from freshness.errors import ConfigError, FreshnessError
from freshness.nodes.open import open_node
from freshness.position import FLAVORS
from spark.session import require_encryption
from spark.sink.keeper import Keeper
from spark.sink.sender import COLUMNS, Part, Sender, SinkPlan, Ticket

NAME: Final = "freshness"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperAddress:
    """The address of the keeper, for processes on the driver's machine."""

    port: int
    key: bytes

    def ask(self, *question: Any) -> Any:
        """Raises what the keeper raised."""
        with Client(("127.0.0.1", self.port), authkey=self.key) as connection:
            connection.send(question)
            is_answered, answer = connection.recv()
        if not is_answered:
            raise answer
        return answer


@dataclass
class Sent(WriterCommitMessage):  # type: ignore[misc]
    ticket: Ticket
    parts: list[Part]


class FreshnessWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """On the driver it has the keeper's address; on an executor only the plan and the ticket."""

    def __init__(self, plan: SinkPlan, keeper: KeeperAddress) -> None:
        self._plan = plan
        self._keeper: KeeperAddress | None = keeper
        self._ticket: Ticket | None = None

    def __getstate__(self) -> dict[str, Any]:
        """On its way to the executors: before anything is sent."""
        assert self._keeper is not None, "pickled on the driver, once"
        return {"_plan": self._plan, "_keeper": None, "_ticket": self._keeper.ask("begin")}

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Sent:
        assert self._ticket is not None, "given on the way"
        nodes = {name: open_node(self._plan.access, name) for name in self._plan.all_nodes}
        driver = BlockingDriver(nodes, time.sleep)
        sender = Sender(self._plan, self._ticket)
        try:
            for batch in iterator:
                driver.run(sender.take(batch.select(list(COLUMNS)).to_pylist()))
            driver.run(sender.flush())
        finally:
            for node in nodes.values():
                node.close()
        return Sent(self._ticket, list(sender.parts.values()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sent = [message for message in messages if isinstance(message, Sent)]
        if sent:
            assert self._keeper is not None, "commits are made on the driver"
            parts = [part for message in sent for part in message.parts]
            self._keeper.ask("commit", sent[0].ticket, parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Invalidations that were sent do no harm, and nothing was acknowledged."""


def _make_source(plan: SinkPlan, keeper: KeeperAddress, path: str) -> type:
    class FreshnessSink(DataSource):  # type: ignore[misc]
        """Made here so that Spark pickles it whole, with the keeper's address."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def streamWriter(self, schema: StructType, overwrite: bool) -> FreshnessWriter:
            config = self.options.get("config", path)
            if config != path:
                raise ConfigError(
                    f"the sink of this session was opened with {path}, not with {config}",
                    hint="one configuration for each session",
                )
            missing = [name for name in COLUMNS if name not in schema.names]
            if missing:
                raise ConfigError(
                    f"the stream has no column {missing[0]!r}",
                    hint='hand on what readStream.format("updatestream") gives, all of its rows and columns',
                )
            return FreshnessWriter(plan, keeper)

    return FreshnessSink


@contextmanager
def open_sink(session: SparkSession, config: Config) -> Iterator[Keeper]:
    """While it is open, ``writeStream.format("freshness")`` works in this session. Stop the query before it ends.
    Raises `ConfigError`, and what connecting to the primaries raises."""
    if config.cache.backend == "memory":
        raise ConfigError('cache.backend = "memory" has no nodes that executors could reach')
    unknown = [name for name, each in config.keyspaces.items() if each.flavor not in FLAVORS]
    if unknown:
        raise ConfigError(
            f"keyspace {unknown[0]} is neither MySQL nor MariaDB",
            hint="`invalidator run` follows it; the sink does not",
        )
    require_encryption(session, [config.cache.login])
    keeper = Keeper(config, {name: each.portable() for name, each in load_registry(config).items()})
    try:
        with _listening(keeper) as address:
            session.dataSource.register(_make_source(keeper.plan, address, str(config.path)))
            yield keeper
    finally:
        keeper.close()


@contextmanager
def _listening(keeper: Keeper) -> Iterator[KeeperAddress]:
    key = secrets.token_bytes(32)
    listener = Listener(("127.0.0.1", 0), authkey=key)
    address = KeeperAddress(int(listener.address[1]), key)
    is_stopping = threading.Event()
    thread = threading.Thread(
        target=_serve, args=(listener, keeper, is_stopping.is_set), name="sink keeper", daemon=True
    )
    thread.start()
    try:
        yield address
    finally:
        is_stopping.set()
        address.ask("stop")
        thread.join(timeout=10)
        listener.close()


def _serve(listener: Listener, keeper: Keeper, is_stopping: Callable[[], bool]) -> None:
    """One question at a time, as Spark asks."""
    while not is_stopping():
        try:
            with listener.accept() as connection:
                _answer(connection, keeper)
        except (OSError, EOFError) as error:  # also a wrong key
            log.warning("a question to the sink's keeper failed: %s", error or type(error).__name__)


def _answer(connection: Connection[Any, Any], keeper: Keeper) -> None:
    question, *arguments = connection.recv()
    try:
        answer: Any = None
        if question == "begin":
            answer = keeper.begin()
        elif question == "commit":
            keeper.commit(*arguments)
        connection.send((True, answer))
    except Exception as error:
        log.exception("the sink's keeper cannot go on")
        connection.send((False, error if isinstance(error, FreshnessError) else RuntimeError(repr(error))))
