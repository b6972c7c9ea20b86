"""What a simulated world would have left as recorded history: rows of CHANGES and ACTIONS
(`freshness.history.columns`).

`record` runs a world as it is and writes down what an archive and honest recorders would: each client its own
actions, with its own wall clock. `tests.simulation.planted` then spoils such a history on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow
from pyarrow import parquet

from freshness.algorithm import apply
from freshness.algorithm.apply import Batch
from freshness.algorithm.envelope import STUB, Filled
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.membership import Membership
from freshness.algorithm.request import Add, Cas, Get, Item, Procedure, Reply, Request, Stored
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read
from freshness.algorithm.witness import Action
from freshness.config.cache import PART_BYTES
from freshness.errors import NodeUnavailable
from freshness.history.arrow import make_schema
from freshness.history.columns import ACTIONS, ACTIONS_VERSION, CHANGES, CHANGES_VERSION
from freshness.position import Position
from tests.simulation.actor import Actor
from tests.simulation.database import Commit, Shard
from tests.simulation.keykind import NUMBERS
from tests.simulation.options import FAULTS, Options
from tests.simulation.upstream import Process
from tests.simulation.world import BEGINNING_SECONDS, NAMESPACE, SINGLE, Deployment, World

EPOCH_US: Final = 1_790_000_000_000_000
"""When worlds begin, by a clock that is right."""
CLOCK_ERROR_US: Final = 3_000
"""How much the clocks of clients are off, at most."""
LAG_US: Final = 20_000
"""How long the archive takes to receive a commit."""

UNEXCUSED: Final = frozenset(FAULTS) - {"failover"}
"""Faults under which nothing wrong is ever served. After a failover something may be, and the checker excuses it."""
CLOSING: Final = frozenset(("pause", "stall", "crash", "restart", "cut", "flush", "jump"))
"""Faults that close nodes, or let them forget."""

Row = dict[str, Any]


def digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def options_of(seed: int) -> Options:
    """A world of every kind, of which the audit must find nothing. In every second one much is cached, and in some of
    those nodes stay open."""
    options = Options.of_seed(seed)
    options = replace(
        options,
        steps=min(options.steps, 500),
        faults=options.faults & UNEXCUSED,
        key_kind=NUMBERS,
        holds_commits=False,
        sinks=0,  # a job records nothing
        part_bytes=PART_BYTES,  # what is recorded of a value is taken from its entry here
    )
    if seed % 2:
        return options
    if seed % 8 == 4:  # other nodes, other objects
        options = replace(
            options, nodes=2, has_extra_object=True, faults=options.faults | {"redeploy", "reshape"}, fault_share=0.01
        )
    return replace(
        options,
        faults=options.faults - CLOSING if seed % 8 == 2 else options.faults,
        steps=1000,
        keys=3,
        readers=3,
        think_seconds=0.1,
        quiet_seconds=1.0,
        lag_seconds=0.0,
        warm_seconds=2.0,
    )


@dataclass(slots=True)
class History:
    """The recorded history of one world, whose names all begin with ``name``."""

    name: str
    options: Options
    changes: list[Row] = field(default_factory=list)
    actions: list[Row] = field(default_factory=list)
    sequences: dict[str, int] = field(default_factory=dict)

    def add_action(self, client: str, **columns: Any) -> Row:
        """Append an action of ``client`` with its next number."""
        self.sequences[client] = self.sequences.get(client, 0) + 1
        row: Row = {
            "outcome": "",
            "object": None,
            "tables": [],
            "item": None,
            "item_hash": None,
            "node": None,
            "lineages": [],
            "epochs": [],
            "lives": [],
            "positions": [],
            "floors": [],
            "digest": None,
            "is_absent": False,
            "version": None,
            "observed": None,
            "count": 1,
            **columns,
            "client": client,
            "sequence": self.sequences[client],
        }
        if row["item"] is not None:
            hashed = hashlib.blake2b(row["item"], digest_size=8).digest()
            row["item_hash"] = int.from_bytes(hashed, "big", signed=True)
        self.actions.append(row)
        return row

    def clone(self, row: Row, **columns: Any) -> Row:
        """The same client did nearly the same once more."""
        return self.add_action(**{**row, **columns})


class RecordedWorld(World):
    """A world whose clients write down what they do."""

    def __init__(self, options: Options, name: str) -> None:
        self.history = History(name, options)
        self._seen: dict[tuple[str, bytes], tuple[int, bytes, float, float]] = {}
        super().__init__(options)
        self._by_item = {lookup.item: lookup for lookup in self.lookups()}

    # -- who and when -------------------------------------------------------------------------------------

    def _client(self, who: str) -> str:
        process = self.processes.get(who)
        instance = process.instance.rpartition(" ")[2] if process is not None else "1"
        version = "1.0" if len(who) % 2 else "1.1"
        return f"{self.history.name}.{who.replace(' ', '-')}/{instance}/{version}"

    def _time(self, client: str, seconds: float) -> int:
        return time_us(seconds) + int(digest(client.encode())[0] / 255 * CLOCK_ERROR_US)

    def _write(self, who: str, action: str, begin: float, end: float, **columns: Any) -> None:
        client = self._client(who)
        self.history.add_action(
            client, action=action, begin_us=self._time(client, begin), end_us=self._time(client, end), **columns
        )

    def named(self, text: str) -> str:
        return f"{self.history.name}.{text}"

    def item(self, item: bytes) -> bytes:
        return item.replace(NAMESPACE.encode(), self.history.name.encode(), 1)

    # -- what clients do ----------------------------------------------------------------------------------

    def carry_out(self, actor: Actor, node: str, request: Request) -> Reply:
        try:
            reply = super().carry_out(actor, node, request)
        except NodeUnavailable:
            self._record_fill(actor, node, request, None)
            raise
        if isinstance(request, Get) and isinstance(reply, Item) and request.key in self._by_item:
            self._seen[actor.name, request.key] = reply.version, reply.value, actor.step_began, self.now
        elif isinstance(request, Add | Cas) and isinstance(reply, Stored):
            self._record_fill(actor, node, request, reply)
        return reply

    def abandon(self, actor: Actor, node: str, requests: list[Request]) -> None:
        for request in requests:
            self._record_fill(actor, node, request, None)
        super().abandon(actor, node, requests)

    def read(
        self, name: str, known: Deployment, lookups: list[Lookup], *arguments: Any, **options: Any
    ) -> Generator[Any, Any, list[Read]]:
        reads = yield from super().read(name, known, lookups, *arguments, **options)
        served = arguments[1] if len(arguments) > 1 else None
        is_view = served is not None and all(read.outcome is ReadOutcome.HIT for read in reads)
        for lookup, read in zip(lookups, reads, strict=bool(reads)):
            if read.outcome is ReadOutcome.MOVED:
                continue  # recorded as a fill
            if read.is_hit:
                version, data, began, ended = self._seen[name, lookup.item]
                if is_view:
                    began = min(self._seen[name, each.item][2] for each in lookups)
                entry = Filled.decode(data)
                self._write(
                    name,
                    "hit",
                    began,
                    ended,
                    outcome=read.outcome.name,
                    version=version,
                    observed=served.view if served is not None and is_view else None,
                    **self._entry(lookup, entry),
                )
            elif read.outcome is not ReadOutcome.FILLED:
                columns: Row = {"object": self.named(lookup.policy.name), "tables": list(lookup.policy.tables)}
                columns["lineages"] = [self.named(lineage) for lineage in read.tokens]
                columns["epochs"] = [str(token.epoch) for token in read.tokens.values()]
                columns["lives"] = [b""] * len(read.tokens)
                columns["positions"] = [str(token.position) for token in read.tokens.values()]
                self._write(
                    name,
                    "refusal",
                    self.now,
                    self.now,
                    outcome=read.outcome.name,
                    item=self.item(lookup.item),
                    node=self.named(lookup.node),
                    **columns,
                )
        return reads

    def _entry(self, lookup: Lookup, entry: Filled) -> Row:
        return {
            "object": self.named(lookup.policy.name),
            "tables": list(lookup.policy.tables),
            "item": self.item(lookup.item),
            "node": self.named(lookup.node),
            "lineages": [self.named(stamp.lineage) for stamp in entry.stamps],
            "epochs": [str(stamp.epoch) for stamp in entry.stamps],
            "lives": [stamp.life for stamp in entry.stamps],
            "positions": [str(stamp.position) for stamp in entry.stamps],
            "digest": None if entry.value is None else digest(entry.value),
            "is_absent": entry.value is None,
        }

    def _record_fill(self, actor: Actor, node: str, request: Request, reply: Stored | None) -> None:
        """Also one that was sent and not answered."""
        if not isinstance(request, Cas) or request.value == STUB or request.key not in self._by_item:
            return
        lookup, entry = self._by_item[request.key], Filled.decode(request.value)
        floors = [""] * len(entry.stamps)
        self._write(
            actor.name,
            "fill",
            actor.step_began,
            self.now,
            outcome="NODE_DOWN" if reply is None else "FILLED",
            version=None if reply is None else reply.version,
            observed=request.version,
            **{**self._entry(lookup, entry), "node": self.named(node), "floors": floors},
        )

    def _create_members(self, shard: Shard, process: Process) -> Mapping[str, Membership]:
        members = super()._create_members(shard, process)
        for member in members.values():
            member.witness = PublishWitness(self, process.name)
        return members

    def published(self, who: str, action: Action) -> None:
        [(lineage, trace)] = action.traces.items()
        self.history.add_action(
            self._client(who),
            action="publish",
            begin_us=action.begin_us,
            end_us=action.end_us,
            outcome=action.outcome,
            node=self.named(action.node),
            lineages=[self.named(lineage)],
            epochs=[str(trace.epoch)],
            lives=[trace.life],
            positions=[str(trace.position)],
            floors=[str(trace.floor)],
        )

    def clock_of(self, who: str) -> int:
        """What the clock of a client says."""
        return self._time(self._client(who), self.now)

    def invalidated(self, member: Membership, keys: Mapping[bytes, Position], began: float) -> None:
        """All of a batch's keys are acknowledged."""
        assert self._last is not None
        record = member.joined_record()
        for key, position in keys.items():
            self._write(
                self._last.name,
                "invalidation",
                began,
                self.now,
                outcome="stored",
                item=self.item(key),
                node=self.named(member.node),
                lineages=[self.named(record.lineage)],
                epochs=[str(record.epoch)],
                lives=[record.life],
                positions=[str(position)],
            )

    # -- what the archive has -----------------------------------------------------------------------------

    def write_archive(self) -> None:
        for shard in self.shards:
            states: dict[tuple[str, int], int] = {}
            epoch = 1
            for ordinal, commit in enumerate(shard.log, 1):
                epoch = max(epoch, *(beat.epoch for beat in commit.transaction.heartbeats), 1)
                rows = list(self._rows(shard, commit, states))
                for place, row in enumerate(rows):
                    self.history.changes.append(
                        {
                            "keyspace": "sim",
                            "shard": "-",
                            "lineage": self.named(shard.lineage),
                            "epoch": epoch,
                            "ordinal": ordinal,
                            "row": -1 if row["op"] in ("raise", "heartbeat", "empty") else place,
                            "rows": len(commit.transaction.changes),
                            "gtid": str(commit.position),
                            "timestamp_us": EPOCH_US + int(commit.transaction.timestamp_us - BEGINNING_SECONDS * 1e6),
                            "received_us": time_us(commit.at) + LAG_US,
                            **row,
                        }
                    )

    def _rows(self, shard: Shard, commit: Commit, states: dict[tuple[str, int], int]) -> Iterator[Row]:
        nothing: Row = dict.fromkeys(("table", "key", "before", "after", "before_digest", "after_digest", "detail"))
        nothing = {**nothing, "items": [], "row_items": []}
        transaction = commit.transaction
        for change in transaction.changes:
            images = [image for image in (change.before, change.after) if image is not None]
            keys = list(dict.fromkeys(int(str(image["id"])) for image in images))
            concerned = [lookup for lookup in self._concerned(shard, change.table) if lookup.values[0] in keys]
            mine = [it for it in concerned if it.policy.name == SINGLE and it.values[0] == keys[-1]]
            before = states.get((change.table, keys[-1]), 0)
            yield {
                **nothing,
                "op": "update",
                "table": change.table,
                "items": [self.item(lookup.item) for lookup in concerned],
                "row_items": [self.item(lookup.item) for lookup in mine],
                "key": str(keys[-1]),
                "before_digest": digest(repr((before,)).encode()),
                "after_digest": digest(repr((commit.number,)).encode()),
            }
            states.update(((change.table, key), commit.number) for key in keys)
        for table in sorted(transaction.raised_tables):
            yield {**nothing, "op": "raise", "table": table, "detail": "TRUNCATE"}
            states.update(((table, key), commit.number) for key in range(shard.keys))
        if not transaction.changes and not transaction.raised_tables:
            yield {**nothing, "op": "heartbeat" if transaction.heartbeats else "empty"}

    def _concerned(self, shard: Shard, table: str) -> list[Lookup]:
        return [
            lookup
            for lookup in self._by_item.values()
            if table in lookup.policy.tables and shard.lineage in lookup.policy.lineages
        ]


@dataclass(frozen=True, slots=True)
class PublishWitness:
    """Writes down an invalidator's publishes; the world writes down its other actions itself."""

    world: RecordedWorld
    who: str

    def wants(self, _: bytes) -> bool:
        return False

    def now_us(self) -> int:
        return self.world.clock_of(self.who)

    def tell(self, action: Action) -> None:
        self.world.published(self.who, action)


def time_us(seconds: float) -> int:
    """Microseconds since 1970 of a moment of a world."""
    return EPOCH_US + int((seconds - BEGINNING_SECONDS) * 1e6)


@contextmanager
def _recording(world: RecordedWorld) -> Iterator[None]:
    original = apply._send

    def recorded(member: Membership, batch: Batch) -> Procedure[Sequence[int]]:
        began = world.now
        stripes = yield from original(member, batch)
        world.invalidated(member, batch.keys, began)
        return stripes

    apply._send = recorded
    try:
        yield
    finally:
        apply._send = original


def record(seed: int, name: str = "") -> History:
    """Run the world of a seed to its end. Raises what its checker raises."""
    world = RecordedWorld(options_of(seed), name or f"w{seed}")
    with _recording(world):
        try:
            world.run()
        finally:
            world.stop()
    world.write_archive()
    return world.history


# -- files -----------------------------------------------------------------------------------------------


def arrow_schema(kind: str) -> pyarrow.Schema:
    """The schema of files of ``kind``, "changes" or "actions", with the metadata that readers demand."""
    columns, version = (CHANGES, CHANGES_VERSION) if kind == "changes" else (ACTIONS, ACTIONS_VERSION)
    return make_schema(columns, kind, version)


def write_rows(kind: str, rows: Sequence[Row], folder: Path, files: int = 2) -> str:
    """Write rows as Parquet files of a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        table = pyarrow.Table.from_pylist(list(rows[number::files]), schema=arrow_schema(kind))
        parquet.write_table(table, folder / f"{number}.parquet")
    return str(folder)
