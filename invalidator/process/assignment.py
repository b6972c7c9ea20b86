"""The task of one worker, and the parts that a worker makes from it: the source, the invalidator of the shard, what
puts stripes back. Made by ``invalidator.process.app``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import running_clock
from freshness.algorithm.envelope import LIFE_SIZE
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import ConfirmSuccession
from freshness.algorithm.witness import Witness
from freshness.config.cache import CacheConfig
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.config.stream import StreamConfig
from freshness.database.foreignkey import Cascades
from freshness.database.pulse import Pulse
from freshness.nodes.restoration import Restoration
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.nodepolicy import node_policy, placements_of
from freshness.objects.registry import ObjectDefinition
from freshness.position import empty_position
from freshness.stream.source import Source
from freshness.values.codec import encode_value
from freshness.values.compression import compressing
from invalidator.binlog.rows.layout import read_layouts
from invalidator.binlog.source import BinlogSource, Skips
from invalidator.loop.shard import ShardInvalidator, no_rows
from invalidator.process.row_finder import RowFinder
from invalidator.replica.candidate import ReplicaBounds
from invalidator.replica.source import ReplicaSource
from invalidator.replica.succession import confirm_succession
from invalidator.stream.layout_book import LayoutBook
from invalidator.vstream.open import make_source as make_vstream


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task of one worker. Two equal tasks need no restart when the configuration is loaded again: ``objects`` is
    all that matters of ``registry``, the fingerprint of each definition by its name. ``nodes``: the cache nodes that
    the worker looks after. ``registry`` is None if the schema could not be read: the worker reads it.
    ``topology``: the number of the configuration. ``altered``: see `NodePolicy`."""

    keyspace: str
    flavor: str
    shard: Shard
    cache: CacheConfig
    nodes: tuple[str, ...]
    stream: StreamConfig
    registry: Mapping[str, ObjectDefinition] | None = field(compare=False)
    topology: int = 1
    altered: Set[tuple[str, int]] = field(default=frozenset(), compare=False)
    objects: Mapping[str, int] = field(init=False)
    filled: frozenset[str] = field(init=False)
    """The objects with ``fill_from_log``."""

    def __post_init__(self) -> None:
        registry = self.registry or {}
        filled = frozenset(name for name, definition in registry.items() if definition.config.fill_from_log)
        object.__setattr__(self, "filled", filled)
        objects = {name: definition.policy.fingerprint for name, definition in registry.items()}
        object.__setattr__(self, "objects", objects)

    @property
    def definitions(self) -> Mapping[str, ObjectDefinition]:
        assert self.registry is not None, "the worker reads it first"
        return self.registry

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(table for each in self.definitions.values() for table in each.columns_by_table)

    def create_source(self, cascades: Cascades, on_skip: Callable[[], None]) -> Source:
        if self.shard.vtgate is not None:
            return make_vstream(self.shard, _columns_by_table(self.definitions.values()))

        def of(server: ServerAddress) -> Source:
            return BinlogSource(
                server,
                self.flavor,
                self.tables,
                cascades=cascades,
                definitions=None if self.filled else self.definitions,
                skips=Skips(self.shard.skip, on_skip),
            )

        if not self.shard.replicas:
            return of(self.shard.primary)
        # One that lags by more would keep the leases from being renewed
        lag_max = max(self.cache.heartbeat_age_max_seconds, 4 * self.stream.heartbeat_seconds)
        return ReplicaSource(
            [self.shard.primary, *self.shard.replicas],
            self.flavor,
            self.stream.replica_choice,
            of,
            bounds=ReplicaBounds(lag_max=lag_max),
        )

    def create_invalidator(self, instance: str, pulse: Pulse, witness: Witness | None) -> ShardInvalidator:
        cache = self.cache
        placement, *previous = placements_of(cache)
        return ShardInvalidator(
            members=create_members(
                self.nodes,
                self._make_policy(),
                running_clock,
                lambda: secrets.token_bytes(LIFE_SIZE),
                empty_position(self.flavor),
                witness,
            ),
            instance=instance,
            clock=running_clock,
            find_heartbeat=pulse.find_begun,
            find_primary=pulse.find_primary,
            hurry=pulse.hurry,
            find_rows=self._create_row_finder().find if self.filled else no_rows,
            streamed=empty_position(self.flavor),
            placement=placement,
            previous=tuple(previous),
            finder=KeyFinder(self.definitions),
        )

    def _create_row_finder(self) -> RowFinder:
        definitions = {name: self.definitions[name] for name in self.filled}
        layouts = LayoutBook(lambda _: read_layouts(self.shard.primary))
        encode = compressing(encode_value, self.cache.compress_above_bytes)
        payload_bytes_max = min(self.cache.part_bytes, self.cache.value_bytes_max)
        return RowFinder(self.shard.lineage, definitions, layouts, encode, payload_bytes_max)

    def create_restoration(self, invalidator: ShardInvalidator, pulse: Pulse) -> Restoration:
        """Also for a shard that does not serve: when it begins to, its stripes are there."""
        return Restoration(self.cache.access, self.nodes, self._make_policy(), invalidator.read_stream, pulse.hurry)

    def _make_policy(self) -> NodePolicy:
        return node_policy(
            self.cache,
            self.shard.lineage,
            self.definitions,
            topology=self.topology,
            is_serving=self.shard.serving,
            altered=self.altered,
        )

    def confirm_succession(self, step: ConfirmSuccession) -> bool:
        """By the operator's word, or by what the servers show; behind a vtgate no single server can be asked."""
        if self.shard.lossless_failover:
            return True
        if self.shard.vtgate is not None:
            return False
        return confirm_succession(step, self.shard.primary, self.shard.replicas, self.flavor)


def _columns_by_table(definitions: Iterable[ObjectDefinition]) -> dict[str, set[str]]:
    """The key columns of each table: the only ones that vttablet need send."""
    columns: dict[str, set[str]] = {}
    for definition in definitions:
        for table, keys in definition.columns_by_table.items():
            columns.setdefault(table, set()).update(column.name for column in keys)
    return columns
