"""Everything outside of this process that ``invalidator run`` and the applications need, looked at before they start:
the databases, the servers that applications read, the cache nodes.

It changes nothing, but for an item on each node that lives for seconds, and what `Checkup.mend` is asked to do. A
server that cannot be asked is a finding and hides no other. `invalidator check` calls it; a start asks the primary
alone (``invalidator.rules.primary``).
"""

from __future__ import annotations

import resource
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import Final

import pymysql

from freshness.algorithm.envelope import find_record, record_key, resume_key
from freshness.algorithm.node import CacheNode, DescribedNode
from freshness.algorithm.request import Add, Delete, Get, Item, Stored
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.object import ObjectConfig
from freshness.config.server import ServerAddress
from freshness.database.cluster import is_galera
from freshness.database.connection import (
    Connection,
    connect,
    executed_position,
    quote_name,
    read_rows,
    server_identity,
    translated,
)
from freshness.database.heartbeat import HeartbeatWriter, new_instance
from freshness.database.schema import load_registry
from freshness.errors import FreshnessError, NodeRefused, NodeUnavailable, missing_package
from freshness.network import BLOCKING
from freshness.nodes.open import open_node
from freshness.position import Position, parse_position
from invalidator.process.discovery import compare_nodes
from invalidator.replica.promotion import find_move, with_primary
from invalidator.rules.finding import CheckFinding, select_errors
from invalidator.rules.machine import check_machine, check_names
from invalidator.rules.node import NodeFacts, check_record
from invalidator.rules.primary import check_shard
from invalidator.rules.replica import ShardFacts
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts, ahead_of
from invalidator.rules.table import TableFacts, check_tables

ADOPTED_HINT: Final = "`run` adopts it if it has everything that was streamed; name it in the configuration"

PROBE_SECONDS: Final = 10
"""TTL of the item by which it is seen that two names mean one node."""

CONNECTIONS: Final = 4
"""Connections to each server by which it is seen whether a proxy spreads them."""

CLOCK_STEP_SECONDS: Final = 2.0
"""Nodes show whole seconds, and memcached looks at its clock once a second."""


class Checkup:
    """``findings``: findings in the order of discovery. ``refusals``: the errors that prevented a look; they are
    among the findings. ``mended``: findings that `mend` has put right."""

    def __init__(self, config: Config) -> None:
        self.findings: list[CheckFinding] = []
        self.refusals: list[FreshnessError] = []
        self.mended: list[CheckFinding] = []
        self._config = config
        self._primaries: dict[str, str] = {}  # their identities, by lineage
        self._addresses: dict[str, tuple[ServerAddress, str]] = {}  # with the flavor, by where findings are

    def run(self) -> None:
        """Look at everything. Raises nothing that a server, a node or the schema is at fault for."""
        for keyspace in self._config.keyspaces.values():
            tables: set[str] = set()
            sound = []
            for entry in self._config.objects.values():
                if entry.keyspace == keyspace.name:
                    with self.noting():
                        for definition in load_registry(replace(self._config, objects={entry.name: entry})).values():
                            tables.update(definition.columns_by_table)
                        sound.append(entry)
            for shard in keyspace.shards:
                with self.noting(shard.writable):
                    self._check_shard(keyspace, shard, sorted(tables), sound)
        if self._config.cache.backend != "memory":
            self.check_nodes()
        self.findings += _check_source(self._config)
        self.findings += check_names(self._config, _look_up)
        self.findings += check_machine(self._config, resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def mend(self) -> None:
        """Do what is safe of what the findings want, and look again. An error of it becomes a finding."""
        refused = Checkup(self._config)
        for finding in self.findings:
            address, flavor = self._addresses.get(finding.where, (None, ""))
            if not finding.rule.is_safe or address is None or finding in self.mended:
                continue
            with refused.noting(address):
                if finding.rule is Rule.HEARTBEAT_TABLE:
                    with closing(HeartbeatWriter(address, flavor, new_instance(), 0)) as heartbeats:
                        heartbeats.create()
                elif finding.statements:
                    with closing(connect(address)) as connection, connection.cursor() as cursor:
                        for statement in finding.statements:
                            cursor.execute(statement)
                else:
                    continue
                self.mended.append(finding)
        self.findings, self.refusals = [], []
        self.run()
        self.findings += refused.findings
        self.refusals += refused.refusals

    @contextmanager
    def noting(self, server: ServerAddress | None = None) -> Iterator[None]:
        """Errors of ours in this block and missing packages become findings; with ``server``, its driver's errors."""
        try:
            yield
        except FreshnessError as error:
            self._refuse(error)
        except ModuleNotFoundError as error:
            missing = missing_package(error, "invalidator")
            if missing is None:
                raise
            self._refuse(missing)
        except pymysql.MySQLError as error:
            if server is None:
                raise
            self._refuse(translated(error, server, "checking"))

    def _refuse(self, error: FreshnessError) -> None:
        finding = CheckFinding(Rule.REFUSED, error.message, error.hint)
        if finding not in self.findings:  # a server that is down is asked for several things
            self.findings.append(finding)
            self.refusals.append(error)

    def _check_shard(
        self, keyspace: Keyspace, shard: Shard, tables: Collection[str], objects: Collection[ObjectConfig]
    ) -> None:
        flavor = keyspace.gtid_flavor
        if (moved := find_move(shard, flavor)) is not None:
            where = f"{shard.primary.host}:{shard.primary.port}"
            self.findings.append(CheckFinding(Rule.PRIMARY_READ_ONLY, moved.message, ADOPTED_HINT, where))
            shard = with_primary(shard, moved.address)
        for address in (*shard.replicas, shard.writable):
            self._addresses[f"{address.host}:{address.port}"] = address, flavor
        with closing(connect(shard.writable)) as connection:
            found = check_shard(connection, shard, flavor, tables)
            self.findings += found
            if shard.vtgate is not None:
                return  # it does not prepare statements, and chooses the tablets that are read
            if any(each.rule in (Rule.FLAVOR, Rule.SEVERAL_WRITERS) for each in found):
                return  # it would not understand the rest, or the rest does not fit it
            head = executed_position(connection, flavor)
            self._primaries[shard.lineage] = server_identity(connection, flavor)
        if shard.serving and not select_errors(found):
            with self.noting(), closing(HeartbeatWriter(shard.primary, flavor, new_instance(), 0)) as heartbeats:
                heartbeats.rehearse()
        replicas = []
        for server in (*shard.replicas, shard.primary):
            with self.noting(server), closing(connect(server)) as reader:
                is_read_first = server != shard.primary or not shard.replicas
                self.findings += _check_reader(reader, server, tables)
                rule = Rule.SEVERAL_ADDRESSES if server != shard.primary else Rule.PRIMARY_SPREAD
                self.findings += _check_spread(server, flavor, rule)
                facts = ServerFacts.look(reader, server, flavor)
                if facts.replication is None and self._config.stream.replica_choice == "primary":
                    facts = _look_as_invalidator(shard.primary, server, flavor) or facts
                if shard.serving and is_read_first:
                    is_origin = server == shard.primary or facts.replication == () or is_galera(facts.variables)
                    domains = {facts.heartbeat_domain} if is_origin else set()
                    self.findings += _compare_positions(reader, server, domains, flavor, head)
                if server != shard.primary:
                    replicas.append(facts)
                    continue
                # The last one: an ordinary transaction that a replica has executed is known to it by now
                self.findings += ShardFacts(self._config, shard, facts, replicas).check()
                self.findings += check_tables(facts, objects, TableFacts.look(reader))

    def check_nodes(self) -> None:
        """Whether each node answers and can serve, and is one node under one name (F94)."""
        cache = self._config.cache
        key = f"{cache.namespace}:!check-{secrets.token_hex(8)}".encode()
        with ExitStack() as stack:
            nodes = [open_node(cache.access, name) for name in cache.all_nodes]
            for node in nodes:
                stack.callback(node.close)
            for node in nodes:
                try:
                    facts = _look_at_node(node, cache.backend)
                    self.findings += facts.check(self._config)
                    if not select_errors(facts.check(self._config)):
                        self.findings += _check_node(node, key, self._config, self._primaries)
                except NodeRefused as error:
                    self.findings.append(CheckFinding(Rule.NODE_RIGHT, error.message, error.hint, node.name))
                except NodeUnavailable as error:
                    told = f"{error.message}: its reads go to the database"
                    self.findings.append(CheckFinding(Rule.NODE_DOWN, told, error.hint, node.name))
                except FreshnessError as error:
                    self._refuse(error)
            for node in nodes:
                with suppress(FreshnessError):
                    node.perform([Delete(key)])


def _check_source(config: Config) -> Iterator[CheckFinding]:
    source, rule = config.cache.nodes_from, Rule.NODES_FROM
    try:
        added, missing = compare_nodes(config) if source else ([], [])
    except FreshnessError as error:
        yield CheckFinding(rule, error.message, error.hint)
        return
    if added:
        yield CheckFinding(rule, f"{source} names {', '.join(added)}, which cache.nodes lacks", rule.remedy)
    if missing:
        message = f"{source} does not name {', '.join(missing)} of cache.nodes"
        yield CheckFinding(rule, message, f"if it is to go: `invalidator nodes remove {missing[0]}`")


def _look_up(host: str, port: int) -> set[str]:
    """The addresses of a name; none of a name without any: the connection to it fails, too."""
    try:
        return {str(address[0]) for *_, address in BLOCKING.resolve(host, port)}
    except (OSError, UnicodeError):
        return set()


def _look_as_invalidator(primary: ServerAddress, server: ServerAddress, flavor: str) -> ServerFacts | None:
    """The facts that a server shows the primary's account, which may ask for more; None if that fails."""
    address = replace(primary, host=server.host, port=server.port, tls=server.tls)
    with suppress(FreshnessError), closing(connect(address)) as connection:
        return ServerFacts.look(connection, address, flavor)
    return None


def _check_reader(connection: Connection, server: ServerAddress, tables: Collection[str]) -> Iterator[CheckFinding]:
    """Whether the account may read the tables there."""
    for table in tables:
        try:
            read_rows(connection, f"SELECT * FROM {quote_name(table)} LIMIT 0")
        except pymysql.MySQLError as error:
            problem = translated(error, server, f"reading {table}")
            where = f"{server.host}:{server.port}"
            yield CheckFinding(Rule.TABLE_UNREADABLE, problem.message, problem.hint, where)


def _check_spread(server: ServerAddress, flavor: str, rule: Rule) -> Iterator[CheckFinding]:
    """Whether connections to one address reach several servers."""
    reached = set()
    for _ in range(CONNECTIONS):
        with closing(connect(server)) as connection:
            reached.add(server_identity(connection, flavor))
    if len(reached) > 1:
        where = f"{server.host}:{server.port}"
        told = f"{where} leads to several servers, one connection to each: {', '.join(sorted(reached))}"
        yield CheckFinding(rule, told, where=where)


def _compare_positions(
    connection: Connection, server: ServerAddress, domains: Set[str], flavor: str, head: Position
) -> Iterator[CheckFinding]:
    """Whether reads of the server can ever contain what the primary demands (F113). ``domains``: domains of
    heartbeats there, whose watermarks count."""
    [(shown,)] = read_rows(
        connection, "SELECT @@global." + ("gtid_executed" if flavor == "mysql" else "gtid_slave_pos")
    )
    names = domains | parse_position(flavor, str(shown)).by_source().keys()
    lacking = {name: part for name, part in head.by_source().items() if name not in names}
    if not lacking:
        return
    kind = "source" if flavor == "mysql" else "domain"
    parts = ", ".join(map(str, lacking.values()))
    yield CheckFinding(
        Rule.NEVER_CONTAINED,
        f"nothing will be stored from {server.host}:{server.port}: it shows nothing of"
        f" {kind} {', '.join(lacking)}, of which the primary has executed {parts[:200]}",
        "if it does not replicate that at all, replicate it"
        + (
            "; a domain that is over can be taken out of the primary's log with FLUSH BINARY LOGS DELETE_DOMAIN_ID"
            " and out of its gtid_slave_pos with SET GLOBAL"
            if flavor == "mariadb"
            else " or take the server out of the configuration"
        ),
        f"{server.host}:{server.port}",
    )


def _look_at_node(node: CacheNode, backend: str) -> NodeFacts:
    assert isinstance(node, DescribedNode)
    before = time.time()
    told = node.describe()
    after = time.time()
    facts = NodeFacts(node.name, backend, told)
    shown = facts.number("stats", "time") or facts.number("TIME", "seconds")
    ahead = ahead_of(shown, before, after, step=CLOCK_STEP_SECONDS) if shown else 0.0
    return replace(facts, clock_ahead_seconds=ahead)


def _check_node(node: CacheNode, key: bytes, config: Config, primaries: Mapping[str, str]) -> Iterator[CheckFinding]:
    namespace = config.cache.namespace
    for lineage in config.lineages:
        keys = record_key(namespace, lineage), resume_key(namespace, lineage)
        replies = node.perform([Get(each, is_bound=True) for each in keys])
        record, resume = (find_record(reply, node.name) for reply in replies)
        yield from check_record(node.name, record, resume, lineage, primaries.get(lineage, ""), config)
    [found] = node.perform([Get(key)])
    if isinstance(found, Item):
        yield CheckFinding(
            Rule.TWO_NAMES,
            f"{node.name} and {found.value.decode(errors='replace')} are one cache node under two names: only one of"
            " them is trusted, and the keys of the other are never stored",
            where=node.name,
        )
        return
    [stored] = node.perform([Add(key, node.name.encode(), PROBE_SECONDS)])
    if not isinstance(stored, Stored):
        yield CheckFinding(Rule.NODE_FULL, f"{node.name} does not store an item ({stored})", where=node.name)
