"""``[keyspaces.NAME]``: a database, the shards over which it is spread, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from freshness.config.setting import setting
from freshness.config.shard import Shard, read_shards
from freshness.config.table import Table, shown
from freshness.errors import FormatError
from freshness.keys.keyrange import KeyRange

Flavor: TypeAlias = Literal["mysql", "mariadb", "vitess"]
GtidFlavor: TypeAlias = Literal["mysql", "mariadb"]
ShardingFunction: TypeAlias = Literal[
    "hash",
    "xxhash",
    "numeric",
    "binary",
    "binary_md5",
    "reverse_bits",
    "unicode_loose_md5",
    "unicode_loose_xxhash",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """``[keyspaces.NAME.sharding]``: which shard a row lives in. Names and meaning are Vitess's."""

    column: str = setting(
        "The column whose value decides over the shard. Every cached table of the keyspace needs it."
    )
    function: ShardingFunction = setting("The function from the value to a keyspace id.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """``[keyspaces.NAME]``: a database, possibly spread over shards."""

    name: str
    flavor: Flavor = setting('The kind of binlog and GTIDs; "vitess": vtgate\'s VStream.')
    shards: tuple[Shard, ...]
    sharding: Sharding | None = None
    query_timeout_seconds: float = setting(
        "How long one statement of an application may take. The server ends it then, it is not tried on another "
        "one, and the read raises QueryTimedOut.",
        5.0,
        bounds=(0.05, 3600),
    )
    at_least_wait_ms: int = setting(
        "How long a read with at_least waits for a replica that lacks the commit, before it goes to the primary. "
        "Behind Vitess it does not wait.",
        50,
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
        shards = read_shards(table, name, values.get("flavor"))
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
            keyspace.report(
                "shards", f"{len(shards)} shards", 'a sharding, { column = "...", function = "hash" }'
            )
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
            keyspace.report(
                "shards", f"the serving shard {name}", f"{wanted}: together they hold every key once"
            )
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
