"""Feeds a recorded stream back through the invalidator's own loop, so that an incident can be run again.

The nodes get what they got then: the same keys, appends, raised tables and acknowledgements. In a namespace of its
own, and its nodes never open: nobody is served from a replay (docs/update-stream.md). Speaks to cache nodes;
databases are asked for the schema of the keys and nothing else.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import BlockingDriver, drive, running_clock
from freshness.algorithm.envelope import LIFE_SIZE, record_key, resume_key
from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import MISSING, Get, Head, Streamed
from freshness.algorithm.restore import Restorer
from freshness.config.access import NodeAccess
from freshness.config.config import Config
from freshness.errors import ConfigError, FormatError, NodeUnavailable, SourceUnavailable
from freshness.nodes.open import open_node
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.nodepolicy import node_policy, placements_of
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, empty_position
from freshness.stream.source import RowChange, Transaction
from invalidator.archive.reader import open_archive
from invalidator.loop.loop import LoopObserver, LoopStep, OpenStream, Poll, RaiseEpoch, run_loop
from invalidator.loop.shard import ShardInvalidator
from invalidator.mailbox import TRANSACTION_ROWS_MAX
from invalidator.stream.json_lines import read_json_lines
from invalidator.stream.message import StreamMessage

log = logging.getLogger(__name__)

ABSENT_SECONDS_MAX: Final = 10.0
"""How long a replay waits, at its beginning and at its end, for nodes that are out."""

JOIN_PAUSE_SECONDS: Final = 0.05

NAMESPACE_SUFFIX: Final = ".replay"


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded messages of one lineage. ``messages`` reads them from the start, as often as it is called.
    ``start``: position of everything before them; empty if that is not known."""

    keyspace: str
    lineage: str
    start: Position
    messages: Callable[[], Iterator[StreamMessage]]


def open_recording(path: Path) -> list[Recording]:
    """An archive, a part or a file of it, or a file of JSON lines. Raises `FormatError`, also for a damaged file, as
    far as that shows without reading all."""
    if path.is_dir() or path.suffix == ".parquet":
        return [
            Recording(each.keyspace, each.lineage, each.before.position, each.messages) for each in open_archive(path)
        ]
    lineages: dict[str, Recording] = {}
    for message in read_json_lines(path):
        token = message.token
        if token.lineage not in lineages:
            nothing = empty_position(token.position.flavor)
            lineages[token.lineage] = Recording(
                message.keyspace, token.lineage, nothing, _reader_of_lines(path, token.lineage)
            )
    if not lineages:
        raise FormatError(f"{path}: no line of an update stream", hint="expected what `invalidator stream` prints")
    return [lineages[name] for name in sorted(lineages)]


def _reader_of_lines(path: Path, lineage: str) -> Callable[[], Iterator[StreamMessage]]:
    return lambda: (message for message in read_json_lines(path) if message.token.lineage == lineage)


class ReplaySource:
    """A `freshness.stream.source.Source` that delivers a recording. ``position``: the start and all that was
    delivered, which is what the primary had executed then; ``epoch`` likewise. ``is_exhausted``: everything was
    delivered."""

    def __init__(self, recording: Recording) -> None:
        self.position = recording.start
        self.epoch = 0
        self.is_exhausted = False
        self.transactions = 0
        self._recording = recording
        self._coming: Iterator[tuple[int, Transaction]] | None = None
        for epoch, _ in _transactions(recording.messages()):
            self.epoch = epoch
            break

    def open(self, start: Position) -> None:
        self.close()
        self.is_exhausted = False
        self._coming = (
            (epoch, transaction)
            for epoch, transaction in _transactions(self._recording.messages())
            if not start.contains(transaction.position)
        )

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """See `Source.poll`. Raises `FormatError` if the recording is damaged."""
        if self._coming is None:
            raise SourceUnavailable("the recording is not open")
        taken: list[Transaction] = []
        for epoch, transaction in self._coming:
            taken.append(transaction)
            self.position = self.position.union(transaction.position)
            self.epoch = max(self.epoch, epoch)
            self.transactions += 1
            if len(taken) == transactions_max:
                return taken
        self.is_exhausted = True
        return taken

    def close(self) -> None:
        self._coming = None


def _transactions(messages: Iterator[StreamMessage]) -> Iterator[tuple[int, Transaction]]:
    """Whole transactions with their epochs, as the invalidator's own source delivers them: one with more rows than it
    holds raises the tables instead."""
    changes: list[RowChange] = []
    raised: set[str] = set()
    reasons: list[str] = []
    for message in messages:
        transaction = message.transaction
        if message.first_row == 0:
            changes, raised, reasons = [], set(), []
        raised |= transaction.raised_tables
        reasons += transaction.reasons
        changes += transaction.changes
        if len(changes) > TRANSACTION_ROWS_MAX:
            raised |= {change.table for change in changes}
            reasons = [f"more than {TRANSACTION_ROWS_MAX} rows in one transaction"]
            changes = []
        if message.is_last:
            # Not only the tables of the rows that were dropped last
            kept = tuple(change for change in changes if change.table not in raised)
            yield (
                message.token.epoch,
                transaction._replace(
                    changes=kept, raised_tables=frozenset(raised), reasons=tuple(dict.fromkeys(reasons)), first_row=0
                ),
            )


@dataclass(slots=True)
class ReplayResult(LoopObserver):
    """The work of a replay on one lineage. ``nodes_left_out``: the nodes that have not acknowledged everything."""

    lineage: str
    transactions: int = 0
    keys: int = 0
    raised: dict[str, int] = field(default_factory=dict)
    position: str = ""
    nodes_left_out: list[str] = field(default_factory=list)
    report: Callable[[ReplayResult], None] = lambda _: None

    def applied(self, transactions: Any, keys: int, begun: float) -> None:
        self.transactions += len(transactions)
        self.keys += keys
        for transaction in transactions:
            for table in transaction.raised_tables:
                self.raised[table] = self.raised.get(table, 0) + 1
        self.report(self)

    def __str__(self) -> str:
        return (
            f"{self.lineage}: {self.transactions} transactions, {self.keys} keys invalidated,"
            f" tables raised: {self.raised or 'none'}, up to {self.position}"
        )

    def describe_progress(self) -> str:
        """The state of a replay that still runs."""
        return f"{self.lineage}: {self.transactions} transactions, {self.keys} keys"

    def to_json(self) -> dict[str, Any]:
        return {
            "lineage": self.lineage,
            "transactions": self.transactions,
            "keys": self.keys,
            "raised": self.raised,
            "position": self.position,
            "nodes_left_out": self.nodes_left_out,
        }


def require_acknowledged(results: Iterable[ReplayResult]) -> None:
    """Raise `NodeUnavailable` that names the nodes which have not acknowledged everything."""
    left_out = sorted({node for result in results for node in result.nodes_left_out})
    if left_out:
        raise NodeUnavailable(
            f"not everything was acknowledged by {', '.join(left_out)}",
            hint="see `invalidator status`; replay again with --force",
        )


class StripesOfReplay:
    """Puts the stripes of each new life back before more is sent. Nothing is waited for: a replay is the only sender,
    so whatever was sent is in what the shard has streamed."""

    def __init__(self, shard: ShardInvalidator, nodes: Mapping[str, CacheNode]) -> None:
        self._shard = shard
        self._driver = BlockingDriver(nodes, time.sleep, read_stream=self._read_stream)
        self._restorers = {
            name: Restorer(name, member.policy, member.clock, member.nonce) for name, member in shard.members.items()
        }
        self._lives: dict[str, bytes] = {}

    def put_back(self) -> None:
        """On each joined node. One that does not answer is tried again the next time."""
        for member in self._shard.joined:
            restorer, life = self._restorers[member.node], member.joined_record().life
            with suppress(NodeUnavailable):
                if self._lives.get(member.node) != life:
                    self._driver.run(restorer.look())
                    self._lives[member.node] = life
                if not restorer.is_complete:
                    self._driver.run(restorer.look())

    def _read_stream(self, begun_at: float) -> Streamed:
        return Streamed(self._shard.streamed, self._shard.streamed_epoch, begun_at)


LoadRegistry: TypeAlias = Callable[[Config], dict[str, ObjectDefinition]]
OpenNode: TypeAlias = Callable[[NodeAccess, str], CacheNode]


@dataclass(slots=True)
class Replay:
    """One run. ``namespace``: namespace to replay into; by default the configured one with `NAMESPACE_SUFFIX`.
    ``is_forced``: flag, True to replay even if the namespace is in use; its nodes then begin new lives."""

    config: Config
    recordings: list[Recording]
    load_registry: LoadRegistry
    namespace: str = ""
    is_forced: bool = False
    open_node: OpenNode = open_node
    report: Callable[[ReplayResult], None] = lambda _: None
    _is_stopping: bool = False

    def __post_init__(self) -> None:
        name = self.namespace or self.config.cache.namespace + NAMESPACE_SUFFIX
        self.config = replace(self.config, cache=replace(self.config.cache, namespace=name))
        for recording in self.recordings:
            keyspace = self.config.keyspaces.get(recording.keyspace)
            if keyspace is None:
                raise ConfigError(
                    f"the recording is of keyspace {recording.keyspace!r}",
                    hint=f"{self.config.path} has {', '.join(self.config.keyspaces)}",
                )
            if keyspace.gtid_flavor != recording.start.flavor:
                raise ConfigError(
                    f"the recording of {recording.lineage} is of {recording.start.flavor}, the keyspace is"
                    f" {keyspace.gtid_flavor}",
                    hint="replay it with the configuration with which it was recorded",
                )

    def stop(self) -> None:
        """End after the batch in hand. Safe in a signal handler."""
        self._is_stopping = True

    def run(self) -> list[ReplayResult]:
        """Replay one lineage after the other. Raises `ConfigError` if the namespace is in use, `FormatError` for a
        damaged recording, `NodeUnavailable` if a node cannot be asked, and what reading the schema raises."""
        registry = self.load_registry(self.config)
        cache = self.config.cache
        nodes = {name: self.open_node(cache.access, name) for name in cache.all_nodes}
        try:
            if not self.is_forced:
                self._refuse_used(nodes)
            results = []
            for recording in self.recordings:
                if self._is_stopping:
                    break
                objects = {
                    name: each for name, each in registry.items() if each.config.keyspace == recording.keyspace
                }
                results.append(self._replay(recording, objects, nodes))
            return results
        finally:
            for node in nodes.values():
                node.close()

    def _refuse_used(self, nodes: Mapping[str, CacheNode]) -> None:
        namespace = self.config.cache.namespace
        for name, node in nodes.items():
            for recording in self.recordings:
                keys = (record_key(namespace, recording.lineage), resume_key(namespace, recording.lineage))
                if any(reply is not MISSING for reply in node.perform([Get(key) for key in keys])):
                    raise ConfigError(
                        f"namespace {namespace!r} is in use: node {name} has a record of {recording.lineage}",
                        hint="give another one with --namespace; --force begins new lives there: all in it is lost",
                    )

    def _replay(
        self, recording: Recording, objects: Mapping[str, ObjectDefinition], nodes: Mapping[str, CacheNode]
    ) -> ReplayResult:
        source = ReplaySource(recording)
        shard = self._create_invalidator(recording, objects)
        result = ReplayResult(recording.lineage, report=self.report)
        driver = BlockingDriver(nodes, time.sleep, read_head=lambda: Head(source.position, source.epoch))
        stripes = StripesOfReplay(shard, nodes)
        shard.end_lives()
        exhausted_at: list[float] = []

        def is_stopping() -> bool:
            if self._is_stopping:
                return True
            if not source.is_exhausted:
                return False
            if all(
                member.is_joined and member.applied.contains(source.position) for member in shard.members.values()
            ):
                return True
            exhausted_at.append(running_clock())
            return exhausted_at[-1] - exhausted_at[0] > ABSENT_SECONDS_MAX

        loop = run_loop(
            shard,
            transactions_max=self.config.stream.batch_transactions_max,
            is_stopping=is_stopping,
            observer=result,
        )

        def answer(step: LoopStep) -> Any:
            match step:
                case Poll():
                    stripes.put_back()
                    return source.poll(step.timeout_seconds, step.transactions_max)
                case OpenStream():
                    return source.open(step.start)
                case RaiseEpoch():
                    raise NodeUnavailable(
                        "a node has acknowledged what is not in the recording: another process writes its record",
                        hint="stop the other process, or replay into another namespace",
                    )
                case _:
                    return driver.answer(step)

        absent = self._join_all(shard, answer)
        drive(loop, answer)
        result.position = str(source.position)
        result.nodes_left_out = [
            name
            for name, member in shard.members.items()
            if name in absent or not member.is_joined or not member.applied.contains(source.position)
        ]
        return result

    def _join_all(self, shard: ShardInvalidator, answer: Callable[[Any], Any]) -> set[str]:
        """Join all nodes before anything is sent: one that joins later begins there. Returns the nodes that stayed
        away."""
        deadline = running_clock() + ABSENT_SECONDS_MAX
        while not self._is_stopping:
            drive(shard.join_missing(), answer)
            absent = {name for name, member in shard.members.items() if not member.is_joined}
            if not absent or running_clock() > deadline:
                return absent
            time.sleep(JOIN_PAUSE_SECONDS)
        return set(shard.members)

    def _create_invalidator(self, recording: Recording, objects: Mapping[str, ObjectDefinition]) -> ShardInvalidator:
        cache = self.config.cache
        placement, *previous = placements_of(cache)
        policy = node_policy(cache, recording.lineage, objects, topology=self.config.topology, is_serving=False)
        return ShardInvalidator(
            members=create_members(
                cache.all_nodes,
                policy,
                running_clock,
                lambda: secrets.token_bytes(LIFE_SIZE),
                empty_position(recording.start.flavor),
            ),
            instance=f"replay.{secrets.token_hex(4)}",
            clock=running_clock,
            find_heartbeat=lambda _: None,
            streamed=empty_position(recording.start.flavor),
            placement=placement,
            previous=tuple(previous),
            finder=KeyFinder(objects),
        )
