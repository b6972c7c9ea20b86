"""Equal for the database, so the same item: every type and collation that can be a key, on real servers.

Tables are filled with whatever a server makes of values of all kinds. Then rows are read by every spelling that the
library accepts: one by one, many at once, by composites, over a primary key, an index, and no index. If a key has
exact columns, each row that it finds must have its item; otherwise "no such row", or a composite, would be stored
out of reach of any invalidation. The invalidator's items of the same rows, from the binary log, are those of the
rows' keys.

All exact columns come first. Then columns and groups of them are drawn for FRESHNESS_KEYS_SECONDS (5) on each server,
from the seed FRESHNESS_KEYS_SEED ("1").
"""

from __future__ import annotations

import os
import random
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from appclient.connection.query import LoaderConnection
from appclient.database.database import Database
from appclient.reading import loader
from appclient.reading.loader import ObjectLoader
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.rule import ReadOutcome
from freshness.config.config import Config, load_config
from freshness.config.object import ObjectConfig
from freshness.database.connection import Connection, connect, executed_position
from freshness.database.schema import key_columns, keyspace_id
from freshness.errors import ConfigError, FormatError, SourceUnavailable, SourceUnsuitable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition, build_registry
from integration.configuration import write_config
from integration.invalidator.test_binlog import address_of
from integration.invalidator.test_keyreader import read_log
from integration.servers import DatabaseServer, Flavor, Pair
from invalidator.binlog.keys.reader import KeyReader
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.rowevent import OPERATIONS

SECONDS: Final = float(os.environ.get("FRESHNESS_KEYS_SECONDS", "5"))
SEED: Final = os.environ.get("FRESHNESS_KEYS_SEED", "1")
ROWS: Final = 10
SPELLINGS_MAX: Final = 16
"""Asked of one object, besides the stored ones."""
TABLES_PER_LOG: Final = 32
"""How many tables are filled before the log is read."""

NUMBERS: Final = (
    *(0, 1, -1, 5, 26, 99, 100, 2026, 255, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1),
    *("5", "+5", "005", "-0", " 5", "5 ", "5.0", "5e0", "0x5", "2026", "26", str(2**53 + 1)),
    *(Decimal(5), Decimal("5.0"), 5.0, 5.4, True, b"5", "", "a"),
)
DECIMALS: Final = (
    *("1.5", "1.50", "01.5", "1.5e0", "15e-1", "1.49999999999999999999999999999999999999", "-0.0", "0", ".5", "5."),
    *("100000000000000000000", "100000000000000000001", "1e20", "12345678901234567890.0123456789"),
    *("12345678901234567890.0123456788", "0.1", "0.10000000000000000001", "9" * 65, "9" * 66, "1" + "0" * 65),
    *("0." + "0" * 29 + "1", "0." + "0" * 30 + "1", "0." + "0" * 37 + "1", "0." + "0" * 40 + "1"),
    *("9" * 35 + "." + "9" * 30, "9" * 35 + "." + "9" * 31, "1e-50", "1e70", "9999", "9" * 99),
    *(0.1, 1.5, 10**20, 10**20 + 1, 3, -3, True, Decimal("100000000000000000000.000000000000001")),
    *(Decimal("1.5"), Decimal("1E+20"), Decimal("1E+20") + 1, Decimal("-0"), Decimal("0.1"), Decimal(1) / 3),
    *(Decimal("1e-30"), Decimal("1e-38"), Decimal("1e64")),
)
MOMENTS: Final = (
    *("2026-01-31", "2026-01-31 00:00:00", "2026-01-31T00:00:00", "2026-01-31 10:00:00", "2026-01-31 10:00:00.5"),
    *("2026-01-31 10:00:00.500000", "2026-01-31 10:00:00.499999", "2026-01-31 23:59:59.9999995", "2026-02-30"),
    *("2026-01-31 23:59:59.999999", "0000-00-00", "0000-00-00 00:00:00", "2026-00-10", "2026-01-00", "0001-01-01"),
    *("0000-01-01", "2026-1-31", "20260131", "26-01-31", "2026-01-31 24:00:00", "9999-12-31 23:59:59.999999", ""),
    *(date(2026, 1, 31), datetime(2026, 1, 31), datetime(2026, 1, 31, 10), 20260131, 0),  # noqa: DTZ001
    *(datetime(2026, 1, 31, 10, 0, 0, 500_000), datetime(2026, 1, 31, 10, 0, 1)),  # noqa: DTZ001
    *(datetime(9999, 12, 31, 23, 59, 59, 999_999), timedelta(hours=10)),  # noqa: DTZ001
)
BINARIES: Final = (
    *(b"", b"\0", b"\0\0", b"a", b"A", b"a ", b"a\0", b"a\0\0\0\0", b"\\", b"'", b"%s", b"\xff", b"1"),
    *("a", 1, bytearray(b"a"), memoryview(b"a\0")),
)
TEXTS: Final = (
    *("", " ", "  ", "a", "a ", "a  ", "A", "A ", "b", "á", "a\u0301", "Á", "à", "a\0", "\0", "a\t", "\t", "a\n"),
    *("ß", "ss", "SS", "ẞ", "ı", "I", "i", "İ", "1", "2", "01", "1 ", "0", "%s", "\\", "'", '"', "~", ":", "é", "e"),
    *("Å", "\u212b", "ﬀ", "ff", "ｱ", "ア", "あ", "\u3000", "a\u3000", "\u00a0", "a\u00a0", "\u00ad", "a\u00ad"),
    *("€", "汉", "\u6659", "\u6661", "🚲", "🚗", "\U00010041", "\u200d", "\ufffd", "?", "？", "\u203e", "¥", "−"),
    *("ς", "σ", "Σ", "я", "Я", "ё", "е", "ї", "ñ", "n", "ll", "l", "ch", "č", "ö", "oe", "ø", "æ", "ae", "þ", "th"),
    *(1, 1.0, b"a", "x" * 30),
)
LABELS: Final = ("a", "a ", "A", "Bb", "bb", "c d", "c d ", "1", "2", "01", "3", "0", "", " ", 0, 1, 2, "-1", "1e0")
ENUMS: Final = ("ENUM('a','Bb','c d','1','2')", "ENUM('2','1')")
LETTERS: Final = tuple(
    map(
        chr,
        (
            *range(0x20, 0x600),
            *range(0x1E00, 0x2700),
            *range(0x3000, 0x3200),
            *range(0x4E00, 0xA000),
            *range(0xAC00, 0xD7A0),
            *range(0xFF00, 0xFFEF),
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Type:
    """A column's type, and values of all kinds to fill it with and to ask for."""

    sql: str
    pool: Sequence[Any]

    @property
    def is_indexed_whole(self) -> bool:
        return not self.sql.startswith(("TEXT", "BLOB"))


PLAIN_TYPES: Final = (
    *(
        Type(f"{kind}{sign}", NUMBERS)
        for kind in ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
        for sign in ("", " UNSIGNED")
    ),
    *(Type(f"DECIMAL({size})", DECIMALS) for size in ("65,30", "30,10", "38,0", "18,0", "5,2", "9,9", "65,0")),
    Type("DECIMAL(10,4) UNSIGNED ZEROFILL", DECIMALS),
    Type("DATE", MOMENTS),
    *(Type(f"DATETIME({digits})", MOMENTS) for digits in range(7)),
    *(Type(kind, BINARIES) for kind in ("BINARY(1)", "BINARY(5)", "VARBINARY(20)", "VARBINARY(300)", "BLOB")),
)
REFUSED_TYPES: Final = (
    *("YEAR", "FLOAT", "DOUBLE", "TIMESTAMP(6)", "TIME(2)", "BIT(8)", "SET('a','b')"),
    *(f"VARCHAR(30) CHARACTER SET {name}" for name in ("ucs2", "utf16", "utf16le", "utf32")),
    "ENUM('a','b') CHARACTER SET binary",
)


def text_types(connection: Connection, chance: random.Random) -> tuple[list[Type], list[Type]]:
    """(binary collations, others): each collation of the server that can be a key's."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW COLLATION")
        # MariaDB has collations of several character sets.
        collations = sorted((str(row[0]), str(row[1] or "utf8mb4")) for row in cursor.fetchall())
    found: tuple[list[Type], list[Type]] = [], []
    for name, charset in collations:
        if charset in ("binary", "ucs2", "utf16", "utf16le", "utf32"):
            continue
        of_charset = f"CHARACTER SET {charset} COLLATE {name}"
        place = found[not name.endswith("_bin")]
        sql = chance.choice(("CHAR(30)", "VARCHAR(30)"))
        place.append(Type(f"{sql} {of_charset}", TEXTS))
        if name.endswith("_bin") and charset in ("utf8mb4", "latin1", "cp932"):
            sizes = ("CHAR(30)", "VARCHAR(30)", "TEXT", "VARCHAR(300)")
            place += [Type(f"{sql} {of_charset}", TEXTS) for sql in sizes]
            place += [Type(f"{sql} {of_charset}", LABELS) for sql in ENUMS]
    return found


@dataclass(frozen=True)
class Table:
    """A table with the columns ``types`` as its primary key, and the first of them twice more: ``i`` has an index,
    ``n`` has none. A composite has the key of each of these two; with several types, another one has the columns of
    the primary key in the other order."""

    name: str
    types: Sequence[Type]
    definitions: Mapping[str, ObjectDefinition]

    @property
    def columns(self) -> str:
        return ", ".join(each.sql for each in self.types)


@dataclass
class World:
    """One server, its tables, what was counted, and what is wrong."""

    server: DatabaseServer
    connection: Connection
    config: Config
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = Database(self.config.keyspaces["shop"])

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def check(self, drawn: Sequence[Sequence[Type]]) -> None:
        """A table for each of these, filled, found in the log, and asked."""
        start = executed_position(self.connection, self.server.flavor)
        tables = [self.create(f"t{number}", types) for number, types in enumerate(drawn)]
        for table in tables:
            self.fill(table)
        named = {name: each for table in tables for name, each in table.definitions.items()}
        logged, raised = find_items(self.server.flavor, read_log(self.server, start), named)
        for table in tables:
            for definition in table.definitions.values():
                names = [column.name for column in definition.columns_by_table[table.name]]
                stored = list(dict.fromkeys(self.run(f"SELECT {', '.join(names)} FROM {table.name}")))
                items = {definition.builder.build(row).item for row in stored}
                prefix = definition.builder.prefix
                found = {item for item in logged if item.startswith(prefix)}
                if table.name not in raised and found != items:
                    self.wrong.append(f"{table.columns}: other items in the log: {found ^ items}")
                self.ask(table, definition, stored)

    def create(self, name: str, types: Sequence[Type]) -> Table:
        keys = [f"k{place}" for place in range(len(types))]
        is_whole = all(each.is_indexed_whole for each in types)
        lines = [f"{key} {each.sql} NOT NULL" for key, each in zip(keys, types, strict=True)]
        lines += [f"{each} {types[0].sql} NOT NULL" for each in ("i", "n")]
        lines += [f"PRIMARY KEY ({', '.join(keys)})"] if is_whole else []
        lines.append("KEY (i)" if types[0].is_indexed_whole else "KEY (i(20))")
        self.run(f"DROP TABLE IF EXISTS {name}")
        self.run(f"CREATE TABLE {name} ({', '.join(lines)})")
        row = ObjectConfig(name=f"row_{name}", keyspace="shop", table=name)
        composites = [
            ObjectConfig(
                name=f"{columns[0]}_{name}",
                keyspace="shop",
                key=tuple(f"of_{each}" for each in columns),
                members={name: columns},
            )
            for columns in (("i",), ("n",), tuple(reversed(keys)))
        ]
        definitions: dict[str, ObjectDefinition] = {}
        for entry in (*([row] if is_whole else []), *composites):
            with suppress(ConfigError):
                definitions |= self.define(entry)
        return Table(name, types, definitions)

    def define(self, entry: ObjectConfig) -> dict[str, ObjectDefinition]:
        return build_registry(
            replace(self.config, objects={entry.name: entry}),
            lambda _, table, names, *rest: key_columns(self.connection, "shop", table, names, *rest),
            keyspace_id,
        )

    def draw(self, of: Type) -> Any:
        if of.pool is TEXTS and self.chance.random() < 0.2:
            return "".join(self.chance.choices(LETTERS, k=self.chance.choice((1, 1, 2))))
        return self.chance.choice(of.pool)

    def fill(self, table: Table) -> None:
        """Insert what the server makes of some values. A label of an ENUM must be one."""
        is_strict = any("ENUM" in each.sql for each in table.types)
        self.run(f"SET sql_mode = '{'STRICT_ALL_TABLES' if is_strict else ''},ALLOW_INVALID_DATES'")
        sql = f"INSERT INTO {table.name} VALUES ({', '.join(['%s'] * (len(table.types) + 2))})"
        for _ in range(ROWS):
            values = [self.draw(each) for each in table.types]
            with suppress(pymysql.MySQLError):
                self.run(sql, (*values, values[0], values[0]))

    def lookup(self, definition: ObjectDefinition, values: tuple[Any, ...]) -> Lookup | None:
        """As `Cache` makes it; None for a key that is refused."""
        try:
            key = definition.builder.build(values)
            asked = definition.builder.parse(key.identity)
        except FormatError:
            self.counts["refused"] += 1
            return None
        return Lookup(definition.policy, "", key.item, definition.identity(key), asked, key.is_exact)

    def load(self, definition: ObjectDefinition, lookups: Sequence[Lookup]) -> list[Loaded] | None:
        """None if the server refuses the query, which stores nothing."""
        ((table, columns),) = definition.columns_by_table.items()
        names = [column.name for column in columns]
        condition = " AND ".join(f"{name} = %s" for name in names)

        def composite(opened: LoaderConnection, *key: Any) -> Any:
            return opened.query(f"SELECT {', '.join(names)} FROM {table} WHERE {condition}", key)

        try:
            return ObjectLoader(definition, self.database, composite).load(lookups)
        except SourceUnsuitable:
            self.counts["no answer"] += 1
        except SourceUnavailable as error:
            self.wrong.append(f"a key makes the server seem away: {[each.values for each in lookups]}: {error}")
        return None

    def ask(self, table: Table, definition: ObjectDefinition, stored: Sequence[tuple[Any, ...]]) -> None:
        chance, by_name = self.chance, dict.fromkeys(("i", "n"), table.types[0])
        by_name |= {f"k{place}": each for place, each in enumerate(table.types)}
        types = [by_name[column.name] for column in definition.columns_by_table[table.name]]
        spelled = [tuple(map(self.draw, types)) for _ in range(SPELLINGS_MAX)]
        for row in stored:
            choices = [list(spellings_of(value)) for value in row]
            spelled += [tuple(map(chance.choice, choices)) for _ in range(4)]
        chance.shuffle(spelled)
        own: dict[bytes, tuple[Any, ...]] = {}
        for row in stored:
            own[definition.identity(definition.builder.build(row))] = row
        asked: dict[bytes, Lookup] = {}
        alone: dict[bytes, Loaded] = {}
        for values in (*stored, *spelled[:SPELLINGS_MAX]):
            lookup = self.lookup(definition, values)
            if lookup is None or lookup.identity in alone:
                continue
            answer = self.load(definition, [lookup])
            if answer is None:
                continue
            (loaded,) = answer
            asked[lookup.identity], alone[lookup.identity] = lookup, loaded
            self.judge(table, definition, values, lookup, loaded, own.get(lookup.identity))
        if not definition.config.is_composite and alone:
            many = self.load(definition, list(asked.values()))
            for loaded, (identity, single) in zip(many or (), alone.items(), strict=many is not None):
                if (loaded.value, loaded.refusal) != (single.value, single.refusal):
                    told = f"{asked[identity].values}: {single} alone, {loaded} among many"
                    self.wrong.append(f"{table.columns}: {told}")

    def judge(
        self,
        table: Table,
        definition: ObjectDefinition,
        spelled: tuple[Any, ...],
        lookup: Lookup,
        loaded: Loaded,
        own: tuple[Any, ...] | None,
    ) -> None:
        """``own``: the stored row, if any, whose own key has the identity that was asked for."""
        names = [column.name for column in definition.columns_by_table[table.name]]
        rows = loaded.value if definition.config.is_composite else [loaded.value] if loaded.value else []
        found = {tuple(row[name] for name in names) for row in rows}
        self.counts["found" if found else "nothing found"] += 1
        if found and definition.config.is_composite and len(names) > 1:
            self.counts["composites of several columns"] += 1
        told = f"{table.columns}: {spelled} of {definition.config.name}, asked as {lookup.values}, finds {found}"
        if lookup.is_exact:
            keys = {definition.builder.build(row) for row in found}
            if {(key.item, definition.identity(key)) for key in keys} - {(lookup.item, lookup.identity)}:
                self.wrong.append(f"{told}, which have other items")
            if own is not None and not found:
                self.wrong.append(f"{told}, and there is {own}")
        elif loaded.value and not definition.config.is_composite:
            has_item = definition.builder.build([loaded.value[name] for name in names]).item == lookup.item
            if not has_item and loaded.refusal is not ReadOutcome.KEY:
                self.wrong.append(f"{told}, stored under another item")


def find_items(
    flavor: str, packets: Sequence[bytes], definitions: Mapping[str, ObjectDefinition]
) -> tuple[set[bytes], set[str]]:
    """(items, tables that are raised), as the invalidator reads them from these packets."""
    tables = frozenset(table for each in definitions.values() for table in each.columns_by_table)
    keys = KeyReader(flavor, "shop", tables, "beats", definitions)
    items: set[bytes] = set()
    raised: set[str] = set()
    for packet in packets:
        kind = packet[5]
        if kind == events.FORMAT_DESCRIPTION:
            keys.start_file(events.parse_format_description(packet))
        elif kind == events.TABLE_MAP:
            keys.map_table(events.parse_event(packet, has_checksum=True))
        elif kind in OPERATIONS:
            rows = keys.read_rows(events.parse_event(packet, has_checksum=True))
            items.update(rows.items or ())
            if rows.problem:
                assert rows.table is not None
                raised.add(rows.table.name)
    return items, raised


def spellings_of(value: Any) -> Iterator[Any]:
    """Values that somebody may take for the same."""
    yield value
    if isinstance(value, str):
        yield from (value + " ", value.rstrip(), value.swapcase(), value + "\0", value + "\u0301", value + "0")
        yield from (unicodedata.normalize(form, value) for form in ("NFC", "NFD", "NFKC", "NFKD"))
    elif isinstance(value, bytes):
        yield from (value + b"\0", value.rstrip(b"\0"), value + b" ", value.hex())
    elif isinstance(value, (int, Decimal)):
        yield from (str(value), f"+{value}", f"{value}.0", f"{value}e0", Decimal(value), float(value))
        yield from (value + 1, value - 1, Decimal(value) + Decimal("1e-9"), f"{value}.4", f"{value}1")
    elif isinstance(value, date):
        yield from (str(value), value.isoformat(), f"{value}.0", f"{value} 00:00:00", f"{value}.4", f"{value}1")


@contextmanager
def opened(server: DatabaseServer, folder: Path) -> Iterator[World]:
    config = load_config(write_config(folder, server.flavor, server.url, ["127.0.0.1:1"]))
    with connect(address_of(server), read_timeout_seconds=60.0) as connection:
        world = World(server, connection, config, random.Random(f"{server.flavor} {SEED}"))
        try:
            yield world
        finally:
            world.database.close()


@pytest.mark.timeout(SECONDS * 3 + 600)
def test_a_row_that_a_key_finds_has_the_item_of_the_key(pair: Pair, tmp_path: Path) -> None:
    with opened(pair.primary, tmp_path) as world:
        exact, others = text_types(world.connection, world.chance)
        drawn: list[Sequence[Type]] = [[each] for each in (*PLAIN_TYPES, *exact)]
        drawn += [world.chance.sample([*PLAIN_TYPES, *exact], 2) for _ in range(TABLES_PER_LOG)]
        for start in range(0, len(drawn), TABLES_PER_LOG):
            world.check(drawn[start : start + TABLES_PER_LOG])
        every = [*PLAIN_TYPES, *PLAIN_TYPES, *exact, *others]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            world.check([world.chance.sample(every, world.chance.choice((1, 2, 2, 3))) for _ in range(8)])
        print(world.counts)
        assert not world.wrong, "\n".join(world.wrong)
        assert min(world.counts[each] for each in ("found", "nothing found", "refused")) > 500
        assert world.counts["composites of several columns"] > 50


def test_types_whose_equal_values_have_several_spellings_are_refused(pair: Pair, tmp_path: Path) -> None:
    with opened(pair.primary, tmp_path) as world:
        for sql in REFUSED_TYPES:
            world.run("DROP TABLE IF EXISTS t")
            world.run(f"CREATE TABLE t (id INT PRIMARY KEY, k {sql})")
            with pytest.raises(ConfigError, match="cannot be a key") as caught:
                key_columns(world.connection, "shop", "t", ("k",))
            assert caught.value.hint, sql


def test_many_keys_of_several_character_sets_are_found(
    pair: Pair, flavor: Flavor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB converts the text of a row constructor to the character set of another column."""

    def with_row_constructors(columns: Sequence[str], count: int) -> str:
        one = f"({', '.join(['%s'] * len(columns))})"
        return f"({', '.join(columns)}) IN ({', '.join([one] * count)})"

    def column(charset: str) -> Type:
        return Type(f"VARCHAR(9) CHARACTER SET {charset} COLLATE {charset}_bin", TEXTS)

    with opened(pair.primary, tmp_path) as world:
        table = world.create("t", [column("swe7"), column("latin1")])
        world.run("INSERT INTO t VALUES ('a', 'é', '', ''), ('a', 'e', '', '')")
        definition = table.definitions["row_t"]

        def find() -> list[bool]:
            lookups = [world.lookup(definition, key) for key in (("a", "é"), ("a", "e"))]
            answers = world.load(definition, [lookup for lookup in lookups if lookup is not None])
            return [loaded.value is not None for loaded in answers or ()]

        assert find() == [True, True]
        monkeypatch.setattr(loader, "match_keys", with_row_constructors)
        assert find() == [flavor == "mysql", True]


def test_every_character_of_an_exact_column_comes_back_as_it_was_stored(pair: Pair, tmp_path: Path) -> None:
    """A character that a server stores as another one can be asked for, and finds a row under another key."""
    codes = [*range(1, 0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 0x83), *range(0x10000, 0x10200)]
    with opened(pair.primary, tmp_path) as world:
        world.run("SET sql_mode = ''")
        world.run("CREATE TABLE letters (k VARCHAR(1) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)")
        for start in range(0, len(codes), 5000):
            letters = [chr(code) for code in codes[start : start + 5000]]
            world.run(f"INSERT INTO letters VALUES {', '.join(['(%s)'] * len(letters))}", letters)
        changed: dict[str, list[str]] = {}
        for charset in sorted(str(row[0]) for row in world.run("SHOW CHARACTER SET")):
            there = f"CONVERT(k USING {charset})"
            back = f"CONVERT({there} USING utf8mb4) COLLATE utf8mb4_bin"
            rows = world.run(f"SELECT k FROM letters WHERE {back} <> k AND {there} <> _utf8mb4'?'")
            if rows:
                changed[charset] = [letter for (letter,) in rows]
        for charset, letters in changed.items():
            for collation in (f"{charset}_bin", f"{charset}_nopad_bin"):
                assert not KeyColumn("k", ColumnKind.STRING, collation).is_exact, (charset, letters)
        assert {"cp932", "tis620"} <= changed.keys()
