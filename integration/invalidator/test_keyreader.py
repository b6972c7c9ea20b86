"""The key reader against real servers: random tables, rows and images; its items must be those of the full decoding,
and those of the keys that the server itself shows.

The log is read as bytes, so that the same events go through both decoders.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from freshness.database.connection import Connection, connect, executed_position, quote_name
from freshness.database.schema import key_columns
from freshness.errors import ConfigError, FormatError
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.keyfinder import KeyFinder, _items_of
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from integration.invalidator.test_binlog import Stream, address_of, definitions_of, head_of, run, streaming
from integration.servers import DatabaseServer, Pair
from invalidator.binlog.dump import request_stream
from invalidator.binlog.keys import plan as keyplan
from invalidator.binlog.keys.reader import KeyReader
from invalidator.binlog.rows.decoder import ChangedRows, RowDecoder
from invalidator.binlog.source import BinlogSource, Intake
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.packets import check_sum
from invalidator.binlog.wire.rowevent import OPERATIONS

HEARTBEATS = (27, 41)
GTID_EVENTS = {events.GTID: events.parse_mysql_gtid, events.MARIADB_GTID: events.parse_mariadb_gtid}
ROUNDS = 10
WIDE = ("utf16", "utf32", "ucs2", "utf16le")


# -- the log as bytes -------------------------------------------------------------------------------------


def read_log(server: DatabaseServer, start: Position) -> list[bytes]:
    """All packets from the position to the present end of the log."""
    address = replace(address_of(server), database="")
    with connect(address, read_timeout_seconds=20.0) as connection:
        position, end = start, executed_position(connection, server.flavor)
        reader, has_checksum = request_stream(connection, server.flavor, start, 0.05)
        assert has_checksum
        received: list[bytes] = []
        # MySQL sends heartbeats also while it looks for the start.
        while not (position.contains(end) and received and received[-1][5] in HEARTBEATS):
            packets = reader.read()
            received += packets
            for packet in packets:
                check_sum(packet)
                parse_gtid = GTID_EVENTS.get(packet[5])
                if parse_gtid is not None:
                    position = position.union(parse_gtid(events.parse_event(packet, has_checksum=True)).position)
    return received


@dataclass
class Decoded:
    """What both decoders make of the log of one statement, event by event."""

    keyed: list[ChangedRows] = field(default_factory=list)
    full: list[ChangedRows] = field(default_factory=list)

    @property
    def items(self) -> set[bytes]:
        return {item for rows in self.keyed for item in rows.items or ()}

    @property
    def problems(self) -> list[str]:
        return [rows.problem for rows in self.keyed if rows.problem]


def decode(flavor: str, packets: Sequence[bytes], definitions: Mapping[str, ObjectDefinition]) -> Decoded:
    tables = frozenset(("goods",))
    keys = KeyReader(flavor, "shop", tables, "beats", definitions)
    rows = RowDecoder(flavor, "shop", tables)
    decoded = Decoded()
    for packet in packets:
        kind = packet[5]
        if kind == events.FORMAT_DESCRIPTION:
            description = events.parse_format_description(packet)
            keys.start_file(description)
            rows.start_file(description)
        elif kind == events.TABLE_MAP:
            event = events.parse_event(packet, has_checksum=True)
            keys.map_table(event)
            rows.map_table(event)
        elif kind in OPERATIONS:
            event = events.parse_event(packet, has_checksum=True)
            decoded.keyed.append(keys.read_rows(event))
            if kind in events.ROW_EVENTS:
                decoded.full.append(rows.read_rows(event))
    return decoded


def items_of_full(rows: ChangedRows, definitions: Mapping[str, ObjectDefinition]) -> set[bytes] | None:
    """None if the full decoding gives no key for a row."""
    if rows.problem:
        return None
    try:
        return {
            item
            for change in rows.changes
            for definition in definitions.values()
            for item in _items_of(definition, change.table, change.before, change.after)
        }
    except FormatError:
        return None


# -- random tables ----------------------------------------------------------------------------------------

Value = Callable[[random.Random], str]


def number_between(low: int, top: int) -> Value:
    return lambda chance: str(chance.randrange(low, top))


def text_in(charset: str) -> Value:
    return lambda chance: random_text(chance, charset, 8)


KEY_TYPES: dict[str, Value] = {
    **{
        f"{kind}{sign}": number_between(low, top)
        for kind, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
        for sign, low, top in (("", -(1 << bits - 1), 1 << bits - 1), (" UNSIGNED", 0, 1 << bits))
    },
    "YEAR": lambda chance: str(chance.choice((0, chance.randrange(1901, 2156)))),
    "DECIMAL(5,2)": lambda chance: f"{chance.uniform(-999, 999):.2f}",
    "DECIMAL(30,10)": lambda chance: f"{chance.randrange(-(10**20), 10**20)}.{chance.randrange(10**10):010d}",
    "DECIMAL(18,0)": lambda chance: str(chance.randrange(-(10**18) + 1, 10**18)),
    "DECIMAL(9,9)": lambda chance: f"{chance.choice('-+')}0.{chance.randrange(10**9):09d}",
    "DATE": lambda chance: repr(chance.choice(("0000-00-00", random_date(chance), "2024-00-00"))),
    **{
        f"DATETIME({digits})": (lambda chance: f"'{random_date(chance)} {random_time(chance)}'")
        for digits in range(7)
    },
    **{
        f"{kind} CHARACTER SET {charset}": text_in(charset)
        for kind in ("CHAR(10)", "VARCHAR(70)", "VARCHAR(300)")
        for charset in ("utf8mb4", "latin1", "cp1251", "ascii", "gbk", *WIDE)
    },
    "TINYTEXT": lambda chance: random_text(chance, "latin1", 20),
    "MEDIUMTEXT CHARACTER SET utf8mb4": lambda chance: random_text(chance, "utf8mb4", 200),
    "BINARY(7)": lambda chance: f"x'{chance.randbytes(chance.randrange(7)).hex()}'",
    "VARBINARY(300)": lambda chance: f"x'{chance.randbytes(chance.randrange(200)).hex()}'",
    "BLOB": lambda chance: f"x'{chance.randbytes(chance.randrange(300)).hex()}'",
    "ENUM('a','Bé','c d') CHARACTER SET latin1": lambda chance: str(chance.randrange(1, 4)),
    "ENUM('x','€') CHARACTER SET utf8mb4": lambda chance: str(chance.randrange(1, 3)),
}
"""Types that can hold a key, with random values as SQL."""

OTHER_TYPES: dict[str, Value] = {
    "FLOAT": lambda chance: f"{chance.uniform(-9, 9)}",
    "DOUBLE": lambda chance: f"{chance.uniform(-9, 9)}",
    **{f"TIME({digits})": (lambda chance: f"'-{random_time(chance)}'") for digits in range(7)},
    **{
        f"TIMESTAMP({digits}) NULL": (lambda chance: f"'{chance.randrange(1990, 2030)}-01-02 {random_time(chance)}'")
        for digits in range(7)
    },
    "BIT(1)": lambda chance: "b'1'",
    "BIT(29)": lambda chance: str(chance.randrange(1 << 29)),
    "SET('p','q','r')": lambda chance: str(chance.randrange(8)),
    "LONGTEXT": lambda chance: f"REPEAT('z', {chance.choice((0, 5, 16000))})",
    "LONGBLOB": lambda chance: f"REPEAT('z', {chance.choice((0, 5, 70000))})",
    "JSON": lambda chance: f'\'{{"a": [{chance.randrange(99)}, 2], "b": "x"}}\'',
    "POINT": lambda chance: f"ST_GeomFromText('POINT({chance.randrange(9)} 1)')",
    "ENUM('e1','e2')": lambda chance: "'e2'",
}
ONLY: dict[str, dict[str, Value]] = {
    "mariadb": {
        "UUID": lambda chance: f"'{chance.randbytes(16).hex()}'",
        "INET6": lambda chance: f"'{chance.randrange(9999)}::'",
        "INET4": lambda chance: "'1.2.3.4'",
        "VARCHAR(255) COMPRESSED": lambda chance: f"REPEAT('y', {chance.randrange(250)})",
        "VARCHAR(60) COMPRESSED": lambda chance: "'y'",
        "LONGTEXT COMPRESSED": lambda chance: f"REPEAT('y', {chance.randrange(250)})",
        "BLOB COMPRESSED": lambda chance: "'y'",
    },
    "mysql": {"VECTOR(3)": lambda chance: "STRING_TO_VECTOR('[1,2,3]')"},
}
CHARACTERS = {
    "ascii": "abcXYZ01 _.-~%:!",
    "latin1": "abcXYZ01 _.-~%:!éÄß€\x81",
    "cp1251": "abcXYZ01 _.-~%:!жЩю",
    "gbk": "abcXYZ01 _.-~%:!汉字",
}


def random_date(chance: random.Random) -> str:
    return f"{chance.randrange(1000, 9999)}-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"


def random_time(chance: random.Random) -> str:
    hour, minute, second = chance.randrange(24), chance.randrange(60), chance.randrange(60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{chance.choice((0, chance.randrange(10**6))):06d}"


def random_text(chance: random.Random, charset: str, length_max: int) -> str:
    characters = CHARACTERS.get(charset, "abcXYZ01 _.-~%:!éß€汉" + ("" if charset == "ucs2" else "🚲"))
    text = "".join(chance.choices(characters, k=chance.randrange(length_max)))
    return f"_utf8mb4 x'{text.encode().hex()}'"


@dataclass(frozen=True)
class Column:
    name: str
    sql: str
    is_key: bool
    value: Value

    @property
    def definition(self) -> str:
        return f"{quote_name(self.name)} {self.sql}{' NOT NULL' if self.is_key else ''}"

    def random_value(self, chance: random.Random) -> str:
        return "NULL" if not self.is_key and chance.random() < 0.3 else str(self.value(chance))


def random_columns(chance: random.Random, flavor: str) -> list[Column]:
    kinds = {**OTHER_TYPES, **ONLY[flavor], **KEY_TYPES}
    indexed = {sql: value for sql, value in KEY_TYPES.items() if "TEXT" not in sql and "BLOB" not in sql}
    others = [
        Column(f"c{place}", sql, False, kinds[sql])
        for place, sql in enumerate(chance.choices(list(kinds), k=chance.choice((0, 1, 5, 9, 30))))
    ]
    keys = [
        Column(f"k{place}", sql, True, indexed[sql])
        for place, sql in enumerate(chance.choices(list(indexed), k=chance.choice((1, 1, 2, 3))))
    ]
    columns = [*others, *keys]
    chance.shuffle(columns)
    return columns


def define(connection: Connection, names: tuple[str, ...]) -> ObjectDefinition | None:
    """An object over the primary key, or over columns of any kind that can be a key."""
    try:
        columns = key_columns(connection, "shop", "goods", names)
    except ConfigError as error:
        if "it is in" not in str(error) and "is in" not in str(error):
            return None
        # A character set that the configuration refuses and the log reports.
        with connection.cursor() as cursor:
            cursor.execute("SHOW KEYS FROM shop.goods WHERE Key_name = 'PRIMARY'")
            names = names or tuple(str(row[4]) for row in cursor.fetchall())
        columns = tuple(_any_column(connection, each) for each in names)
    builder = KeyBuilder("n", "-".join(("o", *names)), columns)
    return ObjectDefinition(cast(Any, None), cast(Any, None), builder, {"goods": columns})


def _any_column(connection: Connection, name: str) -> KeyColumn:
    try:
        return key_columns(connection, "shop", "goods", (name,))[0]
    except ConfigError:
        return KeyColumn(name, ColumnKind.STRING, "utf8mb4_bin")


# -- the tests --------------------------------------------------------------------------------------------


def select_all(connection: Connection, columns: Sequence[Column]) -> Counter[tuple[Any, ...]]:
    shown = (f"HEX({column.name})" if "VECTOR" in column.sql else column.name for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(shown)} FROM goods")
        return Counter(cursor.fetchall())


def items_of_rows(rows: Iterator[tuple[Any, ...]], names: Sequence[str], definition: ObjectDefinition) -> set[bytes]:
    items = set()
    for row in rows:
        shown = dict(zip(names, row, strict=True))
        values = [shown[column.name] for column in definition.columns_by_table["goods"]]
        if None not in values:
            items.add(definition.builder.build(values).item)
    return items


def random_statements(chance: random.Random, columns: Sequence[Column]) -> Iterator[str]:
    def insert(verb: str, count: int) -> str:
        rows = ", ".join(f"({', '.join(column.random_value(chance) for column in columns)})" for _ in range(count))
        return f"{verb} goods VALUES {rows}"

    def insert_alike(count: int) -> str:
        """Rows that are laid out alike wherever their keys are."""
        same = {column.name: column.random_value(chance) for column in columns}
        rows = ", ".join(
            f"({', '.join(c.random_value(chance) if c.is_key else same[c.name] for c in columns)})"
            for _ in range(count)
        )
        return f"INSERT IGNORE goods VALUES {rows}"

    def update(count: int) -> str:
        changed = chance.sample(list(columns), min(len(columns), chance.choice((1, 1, 2, 5))))
        values = ", ".join(f"{quote_name(each.name)} = {each.random_value(chance)}" for each in changed)
        return f"UPDATE IGNORE goods SET {values} LIMIT {count}"

    yield insert("INSERT IGNORE", 12)
    yield update(1)
    yield update(6)
    yield insert("REPLACE", 3)
    yield update(2)
    yield insert_alike(30)
    yield update(25)
    yield f"DELETE FROM goods LIMIT {chance.choice((1, 20))}"


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
def test_items_are_those_of_the_full_decoding_and_of_the_server(
    pair: Pair, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pair.primary
    flavor = server.flavor
    chance = random.Random(f"{flavor} {image} 1")
    counts: Counter[str] = Counter()
    monkeypatch.setattr(keyplan, "EVENT_BYTES_MIN", 0)
    make_uniform_reader = keyplan.TablePlan.make_uniform_reader

    def counted(*arguments: Any) -> keyplan.Read:
        counts["by stride"] += 1
        return make_uniform_reader(*arguments)

    monkeypatch.setattr(keyplan.TablePlan, "make_uniform_reader", counted)
    address = address_of(server)
    with connect(address, read_timeout_seconds=20.0) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+02:00'")
        cursor.execute(f"SET binlog_row_image = {image}")
        for _ in range(ROUNDS):
            if flavor == "mysql":
                option = chance.choice(("''", "'PARTIAL_JSON'"))
                cursor.execute(f"SET binlog_row_value_options = {option}")
            columns = random_columns(chance, flavor)
            names = [column.name for column in columns]
            keys = ", ".join(quote_name(column.name) for column in columns if column.is_key)
            cursor.execute("DROP TABLE IF EXISTS goods")
            cursor.execute(f"CREATE TABLE goods ({', '.join(c.definition for c in columns)}, PRIMARY KEY ({keys}))")
            definitions = {
                key: definition
                for key in ((), *((name,) for name in names))
                if (definition := define(connection, key)) is not None
            }
            single = [name for key in definitions for name in key]
            for count in (2, 2, 3):
                key = tuple(chance.sample(single, min(count, len(single))))
                definition = define(connection, key)
                assert definition is not None
                definitions[key] = definition
                counts["keys of several columns"] += len(key) > 1
            for statement in random_statements(chance, columns):
                start = executed_position(connection, flavor)
                before = select_all(connection, columns)
                cursor.execute(statement)
                after = select_all(connection, columns)
                changed = [*(before - after), *(after - before)]
                packets = read_log(server, start)
                for definition in definitions.values():
                    name = definition.builder.object_name
                    decoded = decode(flavor, packets, {name: definition})
                    expected = items_of_rows(iter(changed), names, definition)
                    _compare(decoded, {name: definition}, expected, statement, counts)
    print(counts)
    assert counts["server"] > 200
    assert counts["full"] > 100
    assert counts["by stride"] > 5
    assert counts["keys of several columns"] > ROUNDS


def _compare(
    decoded: Decoded,
    definitions: Mapping[str, ObjectDefinition],
    expected: set[bytes],
    statement: str,
    counts: Counter[str],
) -> None:
    for keyed, full in zip(decoded.keyed, decoded.full, strict=True):
        of_full = items_of_full(full, definitions)
        if keyed.problem:
            assert of_full is None, (keyed.problem, of_full, statement)
            counts["no key"] += 1
        elif of_full is not None:
            items = set(keyed.items or ())
            # The library takes YEAR 0 for 1900; there the server decides.
            assert items == of_full or items <= expected, (statement, items, of_full)
            counts["full" if items == of_full else "not as the library"] += 1
    if not decoded.problems:
        # A REPLACE with one key twice logs a row that nobody sees.
        assert decoded.items == expected or (statement.startswith("REPLACE") and decoded.items >= expected), statement
        counts["server"] += 1


# -- character sets ---------------------------------------------------------------------------------------

CHARSETS = [
    *("ascii", "big5", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "cp932", "dec8"),
    *("euckr", "eucjpms", "gb2312", "gbk", "geostd8", "greek", "hebrew", "hp8", "armscii8", "keybcs2", "koi8r"),
    *("koi8u", "latin1", "latin2", "latin5", "latin7", "macce", "macroman", "sjis", "swe7", "tis620", "ucs2"),
    *("ujis", "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4"),
]
UNTOLD = {"armscii8", "eucjpms", "geostd8", "keybcs2", "swe7", "ujis"}
"""Character sets for which Python has no table, or another one: other than plain keys raise the table."""


def test_characters_of_every_character_set_are_told_as_the_server_shows_them(pair: Pair) -> None:
    server = pair.primary
    codes = [*range(0x20, 0x3000), *range(0x3000, 0xD800, 7), *range(0xE000, 0xFFFE, 5), *range(0x10000, 0x10050)]
    with connect(address_of(server), read_timeout_seconds=20.0) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("CREATE TEMPORARY TABLE every (id INT PRIMARY KEY, k VARCHAR(4) CHARACTER SET utf8mb4)")
        cursor.executemany(
            "INSERT INTO every VALUES (%s, %s)", [(number, chr(code)) for number, code in enumerate(codes)]
        )
        for charset in CHARSETS:
            cursor.execute("DROP TABLE IF EXISTS goods")
            cursor.execute(f"CREATE TABLE goods (id INT PRIMARY KEY, k VARCHAR(4) CHARACTER SET {charset})")
            start = executed_position(connection, server.flavor)
            # Only what the character set has: the rest becomes a question mark.
            cursor.execute(
                f"INSERT INTO goods SELECT id, k FROM every"
                f" WHERE CONVERT(CONVERT(k USING {charset}) USING utf8mb4) COLLATE utf8mb4_bin = k"
            )
            cursor.execute("SELECT id, k FROM goods")
            shown = cursor.fetchall()
            column = KeyColumn("k", ColumnKind.STRING, "utf8mb4_bin")
            definition = ObjectDefinition(
                cast(Any, None), cast(Any, None), KeyBuilder("n", "o", (column,)), {"goods": (column,)}
            )
            decoded = decode(server.flavor, read_log(server, start), {"o": definition})
            expected = {definition.builder.build((text,)).item for _, text in shown}
            if charset in UNTOLD:
                assert decoded.problems, charset
            else:
                assert decoded.problems == [], charset
            assert decoded.items <= expected, (charset, decoded.items - expected)
            if not decoded.problems:
                assert decoded.items == expected, charset
            assert len(shown) >= 90, charset


# -- the source as a whole --------------------------------------------------------------------------------

SCHEMA = (
    "CREATE TABLE goods (id BIGINT PRIMARY KEY, v LONGTEXT, owner INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, goods_id BIGINT, part CHAR(5), KEY (goods_id))",
    "CREATE TABLE other (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE loose (id INT PRIMARY KEY) ENGINE = MyISAM",
    "CREATE TRIGGER follow AFTER INSERT ON other FOR EACH ROW INSERT INTO child VALUES (NEW.id, NEW.v, 'trig')",
)
STATEMENTS = (
    "INSERT INTO goods VALUES (1, 'a', 5), (2, NULL, NULL)",
    "UPDATE goods SET v = 'b', owner = 6 WHERE id = 1",
    "BEGIN", "INSERT INTO child VALUES (1, 1, 'x')", "INSERT INTO goods VALUES (3, 'c', 7)",
    "SAVEPOINT here", "DELETE FROM child", "ROLLBACK TO here", "COMMIT",
    "BEGIN", "INSERT INTO loose VALUES (1)", "INSERT INTO goods VALUES (4, 'd', 8)", "ROLLBACK",
    "INSERT INTO other VALUES (20, 3), (21, 4)",
    "UPDATE goods, child SET goods.owner = 9, child.part = 'y' WHERE child.goods_id = goods.id",
    "XA START 'one'", "INSERT INTO goods VALUES (30, 'x', 1)", "XA END 'one'", "XA PREPARE 'one'", "XA COMMIT 'one'",
    "XA START 'two'", "UPDATE goods SET owner = 77 WHERE id = 30", "XA END 'two'", "XA COMMIT 'two' ONE PHASE",
    "ALTER TABLE goods ADD COLUMN extra VARCHAR(300) FIRST",
    "INSERT INTO goods VALUES (REPEAT('e', 280), 40, 'f', 1)",
    "REPLACE INTO goods VALUES (NULL, 40, 'g', 2)",
    "SET binlog_row_image = MINIMAL",
    "UPDATE goods SET owner = 11 WHERE id = 40", "UPDATE goods SET id = 41 WHERE id = 40", "DELETE FROM child",
    "SET binlog_row_image = FULL",
    "TRUNCATE child",
    "INSERT INTO other SELECT 100 + id, v FROM other",
    "INSERT INTO goods SELECT NULL, 1000 + a.id * 200 + b.id, NULL, a.id FROM child a, child b",
    "UPDATE goods SET id = id + 100000 WHERE id > 1000",
    "DELETE FROM goods WHERE id > 1000",
)  # fmt: skip


@pytest.mark.parametrize("piece_rows", [None, 3])
def test_both_kinds_of_source_find_the_same_keys(pair: Pair, piece_rows: int | None) -> None:
    server = pair.primary
    tables = frozenset(("goods", "child"))
    with connect(address_of(server), read_timeout_seconds=20.0) as connection:
        run(server, *SCHEMA)
        definitions = definitions_of(connection, "goods", "child")
        [owner] = key_columns(connection, "shop", "goods", ("owner",))
        [parent] = key_columns(connection, "shop", "child", ("goods_id",))
        for name, columns in (("by_owner", {"goods": (owner,)}), ("both", {"goods": (owner,), "child": (parent,)})):
            builder = KeyBuilder("n", name, [owner])
            named = SimpleNamespace(name=name)
            definitions[name] = ObjectDefinition(cast(Any, named), cast(Any, None), builder, columns)
        start = executed_position(connection, server.flavor)
        run(server, *STATEMENTS)
        end = executed_position(connection, server.flavor)
    finder = KeyFinder(definitions)
    found = []
    for is_keyed in (False, True):
        source = BinlogSource(
            address_of(server),
            server.flavor,
            tables,
            intake=Intake(piece_rows),
            definitions=definitions if is_keyed else None,
        )
        stream = Stream(source, start)
        stream.open()
        try:
            received = stream.read_up_to(end)
        finally:
            source.close()
        keys: dict[Position, tuple[set[bytes], set[str]]] = {}
        for transaction in received:
            items, reasons = finder.find(transaction)
            of_position = keys.setdefault(transaction.position, (set(), set()))
            of_position[0].update(items)
            of_position[1].update(reasons)
        found.append(keys)
        assert all(not each.items for each in received) is (not is_keyed)
        assert all(not each.changes for each in received) is is_keyed
    rows, keyed = found
    assert list(keyed) == list(rows)
    for position, (items_of_keys, raised) in keyed.items():
        by_rows, raised_by_rows = rows[position]
        # Pieces of keys are smaller, and what is raised is raised in each.
        assert raised == raised_by_rows or (piece_rows and raised > raised_by_rows), position
        # If a table is raised, nothing else about it matters.
        assert items_of_keys == by_rows or raised, position
    assert sum(len(items) for items, _ in keyed.values()) > 60


def test_an_event_over_several_packets_gives_its_key(pair: Pair) -> None:
    server = pair.primary
    run(server, "CREATE TABLE goods (v LONGTEXT, id INT PRIMARY KEY)", "SET GLOBAL max_allowed_packet = 67108864")
    with connect(address_of(server)) as connection:
        definitions = definitions_of(connection)
    with streaming(server, definitions=definitions) as stream:
        run(server, "INSERT INTO goods VALUES (REPEAT('x', 40000000), 7)", "UPDATE goods SET id = 8, v = NULL")
        received = stream.read_up_to(head_of(server))
    assert [each.items for each in received] == [(b"n:goods:7",), (b"n:goods:7", b"n:goods:8")]
