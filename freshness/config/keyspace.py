"""``[keyspaces.NAME]``: a database, the shards over which it is spread and how, and the servers of each shard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from freshness.config.access import VARIABLE
from freshness.config.login import read_password
from freshness.config.server import ServerAddress, read_servers
from freshness.config.setting import setting
from freshness.config.table import Table, kind_of, shown
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import ConfigError, FormatError
from freshness.keys.keyrange import KeyRange
from freshness.position import FLAVORS, Position, parse_gtid

Flavor: TypeAlias = Literal["mysql", "mariadb", "vitess"]
GtidFlavor: TypeAlias = Literal["mysql", "mariadb"]
ShardingFunction: TypeAlias = Literal[
    "hash", "xxhash", "numeric", "binary", "binary_md5", "reverse_bits", "unicode_loose_md5", "unicode_loose_xxhash"
]

_LINEAGE = re.compile(r"[A-Za-z0-9_./-]{1,122}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """``[keyspaces.NAME.sharding]``: which shard a row lives in. Names and meaning are Vitess's."""

    column: str = setting(
        "The column whose value decides over the shard. Every cached table of the keyspace needs it."
    )
    function: ShardingFunction = setting("The function from the value to a keyspace id.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTransaction:
    """``[[keyspaces.NAME.shards.skip]]``: a transaction whose events are passed over, at the operator's word."""

    gtid: str = setting(
        "The GTID of one transaction that cannot be handled. Its events are passed over, and its tables "
        "are invalidated as a whole. Not with flavor vitess."
    )
    tables: tuple[str, ...] = setting(
        "The cached tables that the transaction can have changed; by default all of the keyspace. A table that is "
        "wrongly left out keeps old values in the cache.",
        (),
    )
    reason: str = setting("Why it is skipped: for the log, and for readers of the update stream.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """``[[keyspaces.NAME.shards]]``: one replication topology, a primary and its replicas."""

    name: str = setting('The key range of the shard, such as "-80"; "-" is all keys.', "-")
    serving: bool = setting(
        "Whether applications read the shard. One that does not serve is followed too, so that it "
        "can take over; no value from it is stored.",
        True,
    )
    continues: tuple[str, ...] = setting(
        "Lineages whose GTIDs are in this shard's log too, since it was made from them by replication: there "
        "consumers of the update stream continue in this shard.",
        (),
    )
    primary: ServerAddress = setting(
        'The server that takes writes: "mysql://USER:PASSWORD@HOST:PORT/DATABASE". ${VARIABLE} is replaced '
        "from the environment; other special characters are percent-encoded. Options behind a question mark: "
        "password_file, zone, tls, tls_ca, tls_cert, tls_key. "
        "With flavor vitess: the MySQL port of vtgate, and the keyspace as the database."
    )
    primary_for_reads: ServerAddress | None = setting(
        "The primary with the account of applications, written like primary. Left out: the account of primary.", None
    )
    vtgate: VtgateAddress | None = setting(
        "Required with flavor vitess: the gRPC port of vtgate, whose VStream is followed, "
        '"vitess://USER:PASSWORD@HOST:PORT/KEYSPACE?tablet_type=replica", with the options of docs/vitess.md.',
        None,
    )
    replicas: tuple[ServerAddress, ...] = setting("Servers that applications read, written like primary.", ())
    lossless_failover: bool = setting(
        "Whether a failover of this shard surely loses no commit that a reader can have seen. Otherwise "
        "it costs the cache, unless the servers show that nothing is lost.",
        False,
    )
    adopt_promotions: bool = setting(
        "Whether the invalidator follows a promotion of another of these servers, if it is the only one "
        "that is not read_only. Not with flavor vitess.",
        False,
    )
    lineage: str = setting(
        "Name of the replication topology in tokens and node records. Never reuse it for another topology.",
        default_text="KEYSPACE/SHARD",
    )
    password_file: str | None = setting("File with the password of the shard's servers whose URL has none.", None)
    password_command: tuple[str, ...] = setting(
        "In place of password_file: a program and its arguments; the first line that it prints is the "
        "password. {host}, {port} and {user} in the arguments are those of the server.",
        (),
        is_secret=True,
    )
    skip: tuple[SkippedTransaction, ...] = ()

    @property
    def writable(self) -> ServerAddress:
        """Where heartbeats are written and the head is asked: the primary, also behind a vtgate."""
        if self.vtgate is None:
            return self.primary
        return replace(self.primary, database=f"{self.vtgate.keyspace}:{self.name}@primary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """``[keyspaces.NAME]``: a database, possibly spread over shards."""

    name: str
    flavor: Flavor = setting('The kind of binlog and GTIDs; "vitess": vtgate\'s VStream.')
    shards: tuple[Shard, ...]
    sharding: Sharding | None = None
    query_timeout_seconds: float = setting(
        "How long one statement of an application may take, before the server ends it and the read raises"
        " QueryTimedOut.",
        5.0,
        bounds=(0.05, 3600),
    )
    at_least_wait_ms: int = setting(
        "How long a read with at_least waits for a replica that lacks the commit, before it goes to the "
        "primary. Not with flavor vitess.",
        50,
        bounds=(0, 60_000),
    )
    miss_wait_ms: int = setting(
        "How long a miss waits for a replica that lacks what its rows must show, before it goes to the "
        "primary. Not with flavor vitess.",
        0,
        bounds=(0, 60_000),
    )

    @property
    def gtid_flavor(self) -> GtidFlavor:
        """The flavor of the positions: behind Vitess there is MySQL."""
        return "mysql" if self.flavor == "vitess" else self.flavor

    @property
    def serving_shards(self) -> tuple[Shard, ...]:
        """The shards that applications read. Together they hold every key once."""
        return tuple(shard for shard in self.shards if shard.serving)


def read_keyspaces(tables: Table) -> dict[str, Keyspace]:
    keyspaces: dict[str, Keyspace] = {}
    if not tables.found:
        tables.report("", "none", "at least one [keyspaces.NAME]")
    for name, table in tables.named_tables():
        values = table.values(Keyspace, also=("shards", "sharding"))
        before = len(table.reading.problems)
        sharding = None
        if table.found.get("sharding") is not None:
            expected = 'a table, { column = "...", function = "hash" }'
            sharding = table.read("sharding", _read_sharding, expected=expected)
        shards = _read_shards(table, name, values.get("flavor"))
        if len(table.reading.problems) == before:
            _check_shards(table, shards, sharding)
        if "flavor" in values:
            keyspaces[name] = Keyspace(**values, name=name, shards=shards, sharding=sharding)
    _check_lineages(tables, keyspaces)
    return keyspaces


def _read_sharding(table: Table) -> Sharding | None:
    sharding = table.build(Sharding)
    if sharding:
        table.check_identifier("column", sharding.column)
    return sharding


def _check_shards(keyspace: Table, shards: tuple[Shard, ...], sharding: Sharding | None) -> None:
    """The serving shards hold every key exactly once (shards that do not serve may overlap them)."""
    if sharding is None:
        if len(shards) > 1:
            keyspace.report("shards", f"{len(shards)} shards", 'a sharding, { column = "...", function = "hash" }')
        return
    ranges: list[tuple[KeyRange, str]] = []
    for index, shard in enumerate(shards):
        try:
            key_range = KeyRange.parse(shard.name)
        except FormatError as error:
            keyspace.report(f"shards[{index}].name", shown(shard.name), f"a key range; {error.hint}")
            return
        if shard.serving:
            ranges.append((key_range, shard.name))
    end = b""
    for place, (key_range, name) in enumerate(sorted(ranges, key=lambda each: each[0].start)):
        if key_range.start != end or (place > 0 and not end):
            wanted = f"one that starts at {end.hex()}" if end or place == 0 else "none after it"
            keyspace.report("shards", f"the serving shard {name}", f"{wanted}: together they hold every key once")
            return
        end = key_range.end
    if end or not ranges:
        found = f"serving shards up to {end.hex()}" if ranges else "no serving shard"
        keyspace.report("shards", found, "serving shards that together hold every key once")


def _check_lineages(tables: Table, keyspaces: Mapping[str, Keyspace]) -> None:
    seen: dict[str, str] = {}
    for keyspace in keyspaces.values():
        for index, shard in enumerate(keyspace.shards):
            place = f"{keyspace.name}.shards[{index}]"
            if shard.lineage in seen:
                expected = f"one of its own: it is the lineage of keyspaces.{seen[shard.lineage]}"
                tables.report(f"{place}.lineage", shown(shard.lineage), expected)
            seen.setdefault(shard.lineage, place)


def _read_shards(keyspace: Table, name: str, flavor: str | None) -> tuple[Shard, ...]:
    """``name``: name of the keyspace."""
    expected = f"one table with a primary for each shard, written [[{keyspace.where}.shards]]"
    if not keyspace.found.get("shards"):
        keyspace.report("shards", "nothing", expected)
        return ()
    shards = (_read_shard(table, name, flavor) for table in keyspace.array("shards", expected))
    return tuple(shard for shard in shards if shard)


def _read_shard(table: Table, keyspace: str, flavor: str | None) -> Shard | None:
    raw = ("primary", "primary_for_reads", "replicas", "vtgate")
    values = table.values(Shard, also=("skip",), raw=raw)
    values["skip"] = _read_skips(table, flavor)
    name = values.get("name", "-")
    table.check_name("name", name)
    lineage = values.setdefault("lineage", f"{keyspace}/{name}")
    table.check_text("lineage", lineage, _LINEAGE, "1 to 122 of A-Z a-z 0-9 _ . - /")
    servers, unused = read_servers(table, flavor, read_password(table, values))
    vtgate = _read_vtgate(table, flavor)
    if vtgate and servers:
        _check_behind_vtgate(table, vtgate, list(servers.values()))
    has_replicas = isinstance(table.found.get("replicas"), list) and table.found["replicas"]
    if values.get("adopt_promotions") and (flavor == "vitess" or not has_replicas):
        found = "flavor vitess" if flavor == "vitess" else "no replicas"
        table.report("adopt_promotions", found, "replicas that may be promoted, of a plain server")
    if not table.is_valid:
        return None
    primary, *replicas = servers.values()
    for_reads = servers.get("primary_for_reads", unused)
    return Shard(**values, primary=primary, primary_for_reads=for_reads, replicas=tuple(replicas), vtgate=vtgate)


def _read_skips(shard: Table, flavor: str | None) -> tuple[SkippedTransaction, ...]:
    tables = list(shard.array("skip", 'one table for each transaction, { gtid = "...", reason = "..." }'))
    if tables and flavor == "vitess":
        shard.report("skip", "transactions", 'none with flavor "vitess": no transaction of vtgate is skipped')
        return ()
    skips: dict[Position, SkippedTransaction] = {}
    for table in tables:
        skip = table.build(SkippedTransaction)
        if skip is None or flavor not in FLAVORS:
            continue
        try:
            gtid = parse_gtid(flavor, skip.gtid)
        except FormatError as error:
            table.report("gtid", shown(skip.gtid), f"one GTID; {error.hint}")
            continue
        if gtid in skips:
            table.report("gtid", shown(skip.gtid), "each transaction once")
        skips[gtid] = skip
    return tuple(skips.values())


def _read_vtgate(table: Table, flavor: str | None) -> VtgateAddress | None:
    url = table.found.get("vtgate")
    expected = '"vitess://USER:PASSWORD@HOST:PORT/KEYSPACE?tablet_type=replica"'
    if flavor != "vitess":
        if url is not None and flavor is not None:
            table.report("vtgate", f'a vtgate in a keyspace of flavor "{flavor}"', 'flavor "vitess" for it')
        return None
    if not isinstance(url, str):
        table.report("vtgate", "nothing" if url is None else kind_of(url), expected)
        return None
    environ = table.reading.environ
    # An application speaks to vtgate as to a server, and needs no password of its stream.
    unused = dict.fromkeys(VARIABLE.findall(url), "-") if table.reading.is_application else {}
    try:
        return VtgateAddress.parse(url, {**unused, **environ} if unused else environ, table.folder)
    except ConfigError as error:
        table.report("vtgate", error.message, error.hint or expected)
        return None


def _check_behind_vtgate(table: Table, vtgate: VtgateAddress, servers: list[ServerAddress]) -> None:
    if servers[0].database != vtgate.keyspace:
        table.report("primary", "another database", f"/{vtgate.keyspace}, the keyspace of vtgate")
    if len(servers) > 1:
        expected = "none with flavor vitess: vtgate chooses them by the tablet_type of its URL"
        table.report("replicas", "servers", expected)
