"""``[cache]``: the nodes, and the times and sizes on which both sides agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from freshness.config.access import NodeAccess, NodeLogin, expand
from freshness.config.hostport import parse_host_port
from freshness.config.login import LoginConfig, read_login
from freshness.config.setting import setting, settings_of
from freshness.config.table import Table, shown
from freshness.errors import ConfigError

Backend: TypeAlias = Literal["memcached", "redis", "memory"]


TTL_SECONDS_MAX = 30 * 86_400
"""memcached takes a longer TTL for a point in time (F50)."""

PARTS_MAX = 256
"""The most items that one value is split into. A reader asks for no more, whatever an entry says."""

VALUE_BYTES_MAX = 64 << 20
"""The largest value, as stored and as unpacked, that any reader takes."""

STORED_BYTES_MAX = 16 << 20
PART_BYTES = 1_000_000

FLOW_SECONDS_MAX = 1.0
"""How long one flow may take that reads a node record. An answer that comes later may hold an entry of a time for
which the record does not vouch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """``[cache]``: the nodes, and the times on which the algorithm's safety rests."""

    backend: Backend = setting('Where entries are kept; "memory" is embedded in one process, for tests.', "memcached")
    nodes: tuple[str, ...] = setting(
        'The cache nodes, each "host:port", written alike on both sides; their order does not matter. '
        'With backend "memory" any distinct names.'
    )
    previous_nodes: tuple[str, ...] = setting(
        "The nodes before a change of `nodes`: keys are invalidated on both, and entries move from these to those. "
        "Each change of the two comes with a higher `topology`.",
        (),
    )
    nodes_from: str = setting(
        'Where `invalidator nodes discover` looks for nodes to add: "file:PATH" with a HOST:PORT in each '
        'line, or "srv:NAME" of SRV records (extra srv).',
        "",
    )
    namespace: str = setting("Prefix of every key. Two namespaces on the same nodes share no key.")
    value_ttl_seconds: int = setting(
        "TTL of a filled entry. Freshness does not depend on it.", 86_400, bounds=(1, TTL_SECONDS_MAX)
    )
    value_bytes_max: int = setting(
        "The largest value that is stored, as encoded and compressed. A larger one is read from the database.",
        STORED_BYTES_MAX,
        bounds=(1024, VALUE_BYTES_MAX),
    )
    part_bytes: int = setting(
        "A larger value is stored in parts of this size. A node must take items of this size and 48 kB "
        "more: memcached's limit is 1 MiB by default (-I).",
        PART_BYTES,
        bounds=(1024, VALUE_BYTES_MAX),
    )
    compress_above_bytes: int | None = setting(
        "Larger values are compressed with zstd, if that makes them smaller. Readers need the extra "
        "compression then.",
        None,
        bounds=(64, VALUE_BYTES_MAX),
    )
    stripes: int = setting(
        "Stripes of each shard on each node, of about 100 bytes. More of them refuse fewer fills.",
        65_536,
        bounds=(1, 1 << 24),
    )
    lease_seconds: int = setting(
        "L: TTL of the node record, which the invalidator renews. Without a record nothing is stored.",
        3,
        bounds=(2, 3600),
    )
    max_staleness_seconds: float = setting(
        "A hit is served only while it is known to be no older than this.", 10.0, bounds=(1, 86_400)
    )
    on_stale: Literal["bypass", "serve"] = setting(
        'A hit that may be older than max_staleness_seconds: "bypass" reads the database, "serve" returns the hit.',
        "bypass",
    )
    node_refresh_seconds: float = setting(
        "The largest age of the copy of the node record that hits trust: so late a change of a whole table shows.",
        1.0,
        bounds=(0, 3600),
    )
    clock_skew_seconds: float = setting(
        "How far the clocks of applications and invalidators may differ. A heartbeat that is older than "
        "max_staleness_seconds and this is not trusted.",
        60.0,
        bounds=(0, 86_400),
    )
    fill_lease_ttl_seconds: int = setting(
        "TTL of the stub that the first reader of a missing key leaves, so that the others wait for its fill.",
        10,
        bounds=(1, 3600),
    )
    fill_wait_ms: int = setting(
        "How long another reader waits for that fill before it reads the database itself.", 250, bounds=(0, 60_000)
    )
    primary_reads_per_second: float = setting(
        "Reads of primaries by a process, because the replicas lack what the rows must show, and those of "
        "on_unknown. Beyond it a replica is read, and nothing stored.",
        100.0,
        bounds=(0, 1_000_000),
    )
    on_unknown: Literal["replica", "primary"] = setting(
        "The server for a miss if the node does not say what its rows must show: it is down or closed, or"
        " does not cover the object.",
        "replica",
    )
    overload_wait_ms: int = setting(
        "How long a read waits where database_reads_per_second of its object is reached.", 100, bounds=(0, 60_000)
    )
    local_copies_bytes: int = setting(
        "The memory for copies of hits in a process, of objects with local_copy_seconds or "
        "stale_while_revalidate_seconds.",
        16 * 2**20,
        bounds=(0, 2**40),
    )
    shadow: float = setting(
        "The share of hits that are compared with the database: 0.05 is one of twenty.", 0.0, bounds=(0, 1)
    )
    zone: str = setting(
        "The place where this application runs. Replicas whose URL says ?zone= the same are read before others.", ""
    )
    login: NodeLogin = NodeLogin()
    """As `LoginConfig` says it."""

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The present nodes, and behind them those that were nodes before and are no more."""
        return tuple(dict.fromkeys((*self.nodes, *self.previous_nodes)))

    @property
    def access(self) -> NodeAccess:
        """How the nodes are opened."""
        return NodeAccess(self.backend, self.login)

    node_timeout_ms: int = setting(
        "How long a read waits for the next bytes of a cache node. A node that takes longer is left alone "
        "until it answers again.",
        500,
        bounds=(1, 60_000),
    )
    node_connect_timeout_ms: int = setting(
        "How long a read waits for a connection to a cache node.", 250, bounds=(1, 60_000)
    )
    connections_max: int = setting(
        "How many reads of one process run at the same time. Further reads wait.", 32, bounds=(1, 10_000)
    )

    @property
    def heartbeat_age_max_seconds(self) -> float:
        """The age of the heartbeat at which a lease is no longer renewed, so that I7 holds: heartbeat age + 2 L +
        `trust_seconds` <= max_staleness. One L for the lease, and one for a renewal that arrives late (F104)."""
        return self.max_staleness_seconds - 2 * self.lease_seconds - self.trust_seconds

    @property
    def trust_seconds(self) -> float:
        """How long a hit may trust a record: a copy of it, or the one that the same flow has read."""
        return max(self.node_refresh_seconds, FLOW_SECONDS_MAX)


def read_cache(table: Table) -> CacheConfig | None:
    of_login = {item.name for item, _ in settings_of(LoginConfig)}
    values = table.values(CacheConfig, also=of_login)
    login = read_login(table.part(of_login), values.get("backend", "memcached"))
    if table.reading.is_application and "zone" in values:  # other programs need not know the variable
        try:
            values["zone"] = expand(values["zone"], table.reading.environ)
        except ConfigError as error:
            table.report("zone", error.message, "a name, or a variable that is set")
    if not table.is_valid:
        return None
    cache = CacheConfig(**values, login=login)
    table.check_name("namespace", cache.namespace)
    bytes_max = PARTS_MAX * cache.part_bytes
    if cache.value_bytes_max > bytes_max:
        table.report(
            "value_bytes_max",
            f"{cache.value_bytes_max}, which is more than {PARTS_MAX} parts of {cache.part_bytes} bytes",
            f"at most {bytes_max}, or part_bytes of at least {-(-cache.value_bytes_max // PARTS_MAX)}",
        )
    _check_nodes(table, cache)
    return cache


def _check_nodes(table: Table, cache: CacheConfig) -> None:
    if not cache.nodes:
        table.report("nodes", "an empty array", "at least one node")
    _check_names(table, cache, "nodes", cache.nodes)
    _check_names(table, cache, "previous_nodes", cache.previous_nodes)
    kind, _, place = cache.nodes_from.partition(":")
    if cache.nodes_from and (kind not in ("file", "srv") or not place):
        table.report("nodes_from", shown(cache.nodes_from), '"file:PATH" or "srv:NAME"')


def _check_names(table: Table, cache: CacheConfig, name: str, nodes: tuple[str, ...]) -> None:
    seen: dict[object, int] = {}
    for index, node in enumerate(nodes):
        key = f"{name}[{index}]"
        place: object = node
        if cache.backend != "memory":
            try:
                host, port = parse_host_port(node)
                place = (host.lower(), port)
            except ConfigError as error:
                table.report(key, shown(node), f"HOST:PORT; {error.message}")
                continue
        elif not node:
            table.report(key, shown(node), "a name")
        if place in seen:
            table.report(key, shown(node), f"each node once; it is cache.{name}[{seen[place]}] already")
        seen.setdefault(place, index)
