"""The fast track gives what the general way gives, for any packets in any pieces; and compressed events."""

from __future__ import annotations

import random
import struct
import sys
import uuid
import zlib
from collections.abc import Sequence
from typing import Any, cast

import pytest
import zstandard

from freshness.config.keyspace import SkippedTransaction
from freshness.database.foreignkey import Cascades, Cause
from freshness.errors import FreshnessError, StreamStopped
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from freshness.position import MariadbPosition, MysqlGtidSet, Position
from freshness.stream.source import Transaction, keyed_transaction
from invalidator.binlog import fasttrack
from invalidator.binlog.decoder import EventDecoder
from invalidator.binlog.fasttrack import FastTrack
from invalidator.binlog.fasttrack import make_decoder as make_source_decoder
from invalidator.binlog.transaction import Subscription
from invalidator.binlog.wire.event import LogEvent
from tests.unit.invalidator.binlog.rowevents import (
    Made,
    image,
    integer,
    packed,
    rows_body,
    table_map,
    tagged_gtid,
    varchar,
)

SID = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
NUMBER = KeyColumn("id", ColumnKind.INTEGER)
ID = integer("id", is_nullable=False)
COLUMNS = [ID, varchar("v")]
FLAVORS = ["mysql", "mariadb"]
ROWS_MAX = 50
STRANGE_FROM = 20
NONE: Cascades = {}
CASCADES: tuple[Cascades, ...] = (
    {"child": frozenset((Cause("shop", "goods"), Cause("shop", "goods", "id"), Cause("shop", "other")))},
    {"goods": frozenset((Cause("shop", "goods"), Cause("shop", "goods", "v")))},
)
"""A child of other tables, and a table that refers to itself."""


def make_decoder(
    flavor: str,
    *,
    is_fast: bool = True,
    has_checksum: bool = True,
    cascades: Cascades = NONE,
    skips: Sequence[int] = (),
    **options: Any,
) -> FastTrack:
    """``skips``: numbers of the transactions that are skipped."""
    definitions = {
        "o": ObjectDefinition(cast(Any, None), cast(Any, None), KeyBuilder("n", "o", (NUMBER,)), {"goods": (NUMBER,)})
    }
    subscription = Subscription(flavor, "shop", frozenset(("goods", "child")), "beats", skip(flavor, *skips))
    made = make_source_decoder(
        subscription, find_cascades=lambda: cascades, definitions=definitions, rows_max=ROWS_MAX, **options
    )
    assert isinstance(made, FastTrack)
    made.restart(has_checksum=has_checksum)
    if not is_fast:
        made._steps.clear()
        made._usual_packets = 1 << 30
    return made


def position(flavor: str, number: int) -> Position:
    return MysqlGtidSet.of(str(SID), number) if flavor == "mysql" else MariadbPosition.of(0, 7, number)


def skip(flavor: str, *numbers: int) -> dict[Position, SkippedTransaction]:
    gtids = [position(flavor, number) for number in numbers]
    return {gtid: SkippedTransaction(gtid=str(gtid), reason="it is broken") for gtid in gtids}


def run(made: EventDecoder | FastTrack, pieces: Sequence[Sequence[bytes]]) -> tuple[list[Transaction], str]:
    """What came, and the error that ended it."""
    found: list[Transaction] = []
    try:
        for piece in pieces:
            made.decode(piece, found)
    except FreshnessError as error:
        return found, str(error)
    return found, ""


def packet(kind: int, body: bytes, *, flags: int = 0, has_checksum: bool = True) -> bytes:
    size = 19 + len(body) + 4 * has_checksum
    event = struct.pack("<IBIIIH", 1000, kind, 7, size, 4711, flags) + body
    return b"\0" + event + (zlib.crc32(event).to_bytes(4, "little") if has_checksum else b"")


def of(event: LogEvent) -> bytes:
    return packet(event.kind, event.body)


def gtid(flavor: str, number: int, *, flags: int = 0) -> bytes:
    if flavor == "mariadb":
        return packet(162, struct.pack("<QIB", number, 0, flags) + bytes(6))
    times = (1_700_000_000_000_000 + number).to_bytes(7, "little")
    return packet(33, b"\1" + SID.bytes + struct.pack("<QBQQ", number, 2, 1, 2) + times)


def query(sql: bytes, status: bytes = b"\0\0\0\0\0") -> bytes:
    return packet(2, struct.pack("<IIBHH", 1, 0, 4, 0, len(status)) + status + b"shop\0" + sql)


def begin(flavor: str) -> list[bytes]:
    return [query(b"BEGIN")] if flavor == "mysql" else []


XID = packet(16, bytes(8))


def line(number: int) -> bytes:
    return image([number.to_bytes(4, "little"), b"\1x"])


def row_event(kind: int, *numbers: int, **options: Any) -> bytes:
    lines = b"".join(line(number) * (2 if kind in (24, 31) else 1) for number in numbers)
    return packet(kind, rows_body(kind, 2, lines, **options))


def description(*, has_checksum: bool = True) -> bytes:
    lengths = bytearray(40)
    lengths[2 - 1], lengths[19 - 1] = 13, 8
    lengths[22:25], lengths[29:32] = b"\x08" * 3, b"\x0a" * 3
    body = struct.pack("<H50sIB", 4, b"9.9", 0, 19) + bytes(lengths) + bytes((has_checksum,))
    return packet(15, body)


def simple(flavor: str, number: int) -> list[bytes]:
    kinds = (30, 31, 32) if flavor == "mysql" else (23, 24, 25)
    return [
        gtid(flavor, number),
        *begin(flavor),
        of(table_map(COLUMNS, flavor=flavor)),
        row_event(kinds[number % 3], number, number + 1),
        XID,
    ]


def usual_transaction(chance: random.Random, flavor: str, number: int) -> list[bytes]:
    """Of one row event or two, with a few rows or too many."""
    kinds = (30, 31, 32) if flavor == "mysql" else (23, 24, 25)
    numbers = [chance.randrange(99) for _ in range(chance.choice((1, 1, 3, ROWS_MAX - 1, ROWS_MAX + 1)))]
    start = [gtid(flavor, number), *begin(flavor), of(table_map(COLUMNS, flavor=flavor))]
    more = [row_event(chance.choice(kinds), 7, 8, flags=0)] if chance.random() < 0.2 else []
    return [*start, *more, row_event(chance.choice(kinds), *numbers), XID]


def random_transaction(chance: random.Random, flavor: str, number: int) -> list[bytes]:
    """With anything that may stand in a log; from a number on also with what stops the stream."""
    kinds = (30, 31, 32) if flavor == "mysql" else (23, 24, 25)
    parts = [gtid(flavor, number), *begin(flavor)]
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        name = chance.choice(("goods", "goods", "goods", "other", "child", "beats"))
        table_id = chance.choice((77, 77, 78))
        columns = chance.choice((COLUMNS, COLUMNS, [varchar("w"), ID], [ID, Made("c", 200)]))
        maps = [of(table_map(columns, flavor=flavor, name=name, table_id=table_id))]
        if chance.random() < 0.1:
            maps.append(of(table_map(COLUMNS, flavor=flavor, name="child", table_id=90)))
        parts += maps
        count = chance.choice((1, 1, 2))
        for place in range(count):
            numbers = [chance.randrange(99) for _ in range(chance.choice((0, 1, 1, 3, 60)))]
            flags = int(place == count - 1 and chance.random() < 0.95) | chance.choice((0, 0, 2, 16))
            parts.append(row_event(chance.choice(kinds), *numbers, table_id=table_id, flags=flags))
    parts.append(chance.choice((XID, XID, XID, query(b"COMMIT"))))
    strange = chance.random() if number > STRANGE_FROM else 1.0
    if strange < 0.25:
        other = chance.choice(
            (
                packet(29, b"\3abc"), packet(4, b"x" * 20), packet(27, b"x"), description(), query(b"SAVEPOINT x"),
                query(b"TRUNCATE goods"), query(b"BEGIN", b"\x01\x02"), query(b"X \0BEGIN"), packet(5, bytes(9)),
                packet(99, b"", flags=0x80), row_event(kinds[0], 1, table_id=0xFFFFFF), packet(160, b"abc"),
            )
        )  # fmt: skip
        parts.insert(chance.randrange(len(parts) + 1), other)
    elif strange < 0.28:
        parts.insert(chance.randrange(len(parts) + 1), chance.choice((packet(99, b""), XID, gtid(flavor, number))))
    elif strange < 0.3:
        del parts[chance.randrange(len(parts))]
    elif strange < 0.32:
        place = chance.randrange(len(parts))
        parts[place] = parts[place][: chance.randrange(1, len(parts[place]))]
    return parts


def split(chance: random.Random, packets: Sequence[bytes]) -> list[list[bytes]]:
    pieces, place = [], 0
    while place < len(packets):
        count = chance.choice((1, 2, 5, 100))
        pieces.append(list(packets[place : place + count]))
        place += count
    return pieces


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("seed", range(100))
def test_both_ways_give_the_same(flavor: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(f"{flavor} {seed}")
    packets = [description()]
    for number in range(1, 40):
        make = usual_transaction if chance.random() < 0.8 else random_transaction
        packets += make(chance, flavor, number)
    pieces = split(chance, packets)
    options: dict[str, Any] = {"piece_rows": chance.choice((None, None, 7))}
    if chance.random() < 0.3:
        options["cascades"] = chance.choice(CASCADES)
    taken, finish = [], FastTrack._finish

    def note(self: FastTrack, position: Position, *rest: Any) -> None:
        taken.append(position)
        finish(self, position, *rest)

    monkeypatch.setattr(FastTrack, "_finish", note)
    fast = run(make_decoder(flavor, **options), pieces)
    assert taken or "cascades" in options, "nothing took the fast track"
    assert fast == both_ways(flavor, pieces, **options)


def both_ways(flavor: str, pieces: Sequence[Sequence[bytes]], **options: Any) -> tuple[list[Transaction], str]:
    """What came, with the fast track and without."""
    fast = run(make_decoder(flavor, **options), pieces)
    general = run(make_decoder(flavor, is_fast=False, **options), pieces)
    assert fast == general
    assert [each.size_bytes for each in fast[0]] == [each.size_bytes for each in general[0]]
    assert len(fast[0]) > 0 or fast[1]
    return fast


@pytest.mark.parametrize("is_usual", [True, False])
@pytest.mark.parametrize("number", [8, 7, 1])
def test_a_number_of_a_domain_that_comes_again_stops_the_stream(is_usual: bool, number: int) -> None:
    """F59: two servers write one history. The order of the two transactions does not matter."""
    again = simple("mariadb", number)
    if not is_usual:
        again.insert(1, query(b"SAVEPOINT x"))
    # The first three, one of each kind of rows, go the general way.
    packets = [description(), *(each for first in range(1, 9) for each in simple("mariadb", first)), *again]
    found, error = both_ways("mariadb", [packets])
    assert len(found) == 8
    assert f"GTID 0-7-{number} comes after sequence number 8" in error


@pytest.mark.parametrize("held", [1, 2, 3])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_number_of_a_transaction_that_was_cut_off_is_given_again(flavor: str, held: int) -> None:
    """F29: a crash ended its log file, and the next file has another transaction under its number."""
    packets = [description(), *(each for number in range(1, 7) for each in simple(flavor, number))]
    packets += [*simple(flavor, 7)[:held], description(), *simple(flavor, 7), *simple(flavor, 8)]
    found, error = both_ways(flavor, [packets])
    assert ([each.position for each in found], error) == ([position(flavor, number) for number in range(1, 9)], "")


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_transaction_inside_another_one_stops_the_stream(flavor: str) -> None:
    """F61: even if the inner one has the usual form."""
    packets = [description(), *(each for number in (1, 2, 3) for each in simple(flavor, number))]
    packets += [gtid(flavor, 4), *begin(flavor), query(b"SAVEPOINT x"), *simple(flavor, 5)]
    found, error = both_ways(flavor, [packets])
    assert len(found) == 3
    assert "starts inside" in error


@pytest.mark.parametrize("flavor", FLAVORS)
def test_an_error_names_the_transaction_before_it(flavor: str) -> None:
    packets = [description(), *(each for number in range(1, 7) for each in simple(flavor, number))]
    found, error = both_ways(flavor, [[*packets, packet(99, b"")]])
    assert f"after GTID {found[-1].position}, cannot be handled" in error


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_table_that_refers_to_itself_is_raised(flavor: str) -> None:
    """F23: the server deletes the children in the same table, and logs no rows of them."""
    kind = 32 if flavor == "mysql" else 25
    rows = [of(table_map(COLUMNS, flavor=flavor)), row_event(kind, 5), XID]
    found, error = both_ways(
        flavor,
        [[description(), gtid(flavor, 1), *begin(flavor), *rows]],
        cascades={"goods": frozenset((Cause("shop", "goods"),))},
    )
    assert ([set(each.raised_tables) for each in found], error) == ([{"goods"}], "")


@pytest.mark.parametrize("name", ["goods", "other"])
def test_what_mysql_says_of_its_cascades_counts(name: str) -> None:
    """F23: rows of a parent, cached or not, raise the child unless their event is marked or no key changed."""
    cascades = {"child": frozenset((Cause("shop", name), Cause("shop", name, "id")))}

    def raised(kind: int, flags: int, *lines: bytes) -> set[str]:
        rows = packet(kind, rows_body(kind, 2, b"".join(lines), flags=flags))
        table = of(table_map(COLUMNS, flavor="mysql", name=name))
        packets = [description(), gtid("mysql", 1), *begin("mysql"), table, rows, XID]
        # The first table map is not known yet and always goes the general way.
        again = [gtid("mysql", 2), *packets[2:]]
        found, error = both_ways("mysql", [packets, again], cascades=cascades)
        assert (len(found), error) == (2, "")
        assert found[0].raised_tables == found[1].raised_tables
        return set(found[1].raised_tables)

    assert raised(32, 1, line(5)) == {"child"}
    assert raised(32, 1 | 16, line(5)) == set(), "its cascades are logged"
    assert raised(32, 1 | 2, line(5)) == set(), "foreign keys were not checked"
    assert raised(30, 1, line(5)) == set()
    assert raised(31, 1, line(5), line(6)) == {"child"}
    assert raised(31, 1, line(5), line(5)) == set(), "no key changed"


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("events", [1, 2])
@pytest.mark.parametrize("is_known", [True, False])
def test_rows_of_another_table_than_was_announced_last(flavor: str, events: int, is_known: bool) -> None:
    """By their own number: another table, or none, which stops the stream (F61)."""
    kind = 30 if flavor == "mysql" else 23
    other = of(table_map([varchar("w"), ID], flavor=flavor, name="other", table_id=78))
    first, *rest = simple(flavor, 1)
    packets = [description(), first, *rest[:-1], *([other] if is_known else []), *rest[-1:]]
    strange = [row_event(kind, 5, table_id=78, flags=int(place == events)) for place in range(1, events + 1)]
    packets += simple(flavor, 2) + simple(flavor, 3) + simple(flavor, 6)[:-2] + strange + [XID]
    found, error = both_ways(flavor, [packets])
    assert [len(each.items) for each in found[:3]] == [2, 2, 2]
    assert [each.items for each in found[3:]] == ([()] if is_known else [])
    assert bool(error) is not is_known


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("has_checksum", [True, False])
def test_the_usual_form_takes_the_fast_track(
    flavor: str, has_checksum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = [each for number in range(1, 30) for each in simple(flavor, number)]
    if not has_checksum:
        packets = [packet(each[5], each[20:-4], has_checksum=False) for each in packets]
    made = make_decoder(flavor, has_checksum=has_checksum)
    found: list[Transaction] = []
    # The first transactions bring table and bitmaps; from then on nothing may go the general way.
    made.decode(packets[:25], found)
    monkeypatch.setattr(made._general, "decode_packet", lambda _, __: pytest.fail("the general way was taken"))
    made.decode(packets[25:], found)
    assert [each.items for each in found] == [(b"n:o:%d" % n, b"n:o:%d" % (n + 1)) for n in range(1, 30)]
    assert found[4].size_bytes > 0


def test_what_is_held_of_a_transaction_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HELD_PACKETS_MAX", 10), ("HELD_BYTES_MAX", 500)):
        monkeypatch.setattr(fasttrack, name, value)
        made = make_decoder("mysql", piece_rows=1000)
        packets = simple("mysql", 1)
        for number in range(2, 6):
            packets += simple("mysql", number)[:-1]
            packets += [row_event(30, place % 9, flags=0) for place in range(30)]
            packets += [row_event(30, 1), XID]
            found: list[Transaction] = []
            made.decode(packets, found)
            packets = []
            assert len(made._held) <= 12
            assert all(each.items for each in found)
        monkeypatch.undo()


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_wrong_checksum_stops_the_stream_wherever_it_is(flavor: str) -> None:
    # The last two are of kinds of rows that came before, so they have the usual form.
    packets = [
        description(),
        *(each for number in (1, 2, 3) for each in simple(flavor, number)),
        packet(29, b"\3abc"),
        packet(4, b"x" * 30),
        *simple(flavor, 4),
        *simple(flavor, 5),
    ]
    assert run(make_decoder(flavor), [packets])[1] == ""
    for place in range(len(packets)):
        for offset in (21, -7):  # in the head, and in the last row
            damaged = bytearray(packets[place])
            damaged[offset] ^= 1
            for is_fast in (True, False):
                found, error = run(
                    make_decoder(flavor, is_fast=is_fast), [[*packets[:place], bytes(damaged), *packets[place + 1 :]]]
                )
                assert "checksum" in error
                assert len(found) == packets[:place].count(XID)


SKIPPED_ENDS: list[list[bytes]] = [[XID], [], [description()], [packet(27, b"x"), XID]]
"""The packets behind a skipped transaction's own. If they do not end it, the next one does."""


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("end", SKIPPED_ENDS)
@pytest.mark.parametrize("kind", [99, 19, 30, 40, 26, 38, 2])
def test_a_transaction_that_cannot_be_read_is_skipped_where_it_is_named(
    flavor: str, is_fast: bool, end: list[bytes], kind: int
) -> None:
    broken = [gtid(flavor, 2), *begin(flavor), packet(kind, b"\xff" * 30)]
    packets = [*simple(flavor, 1), *broken, *end, *simple(flavor, 3), *simple(flavor, 4)]
    wanted, _ = run(make_decoder(flavor), [[*simple(flavor, number)] for number in (1, 3, 4)])
    for split_up in ([packets], [[each] for each in packets]):
        found, error = run(make_decoder(flavor, is_fast=is_fast, skips=[2, 9]), split_up)
        assert not error
        assert [found[0], *found[2:]] == wanted
        skipped = found[1]
        assert skipped.position == position(flavor, 2)
        assert skipped.is_last
        assert (skipped.raised_tables, skipped.items) == (frozenset(("goods", "child")), ())
        assert any("it is broken" in reason for reason in skipped.reasons)
    found, error = run(make_decoder(flavor, is_fast=is_fast, skips=[1, 3]), [packets])
    assert len(found) == 1
    assert f"transaction {position(flavor, 2)}: " in error
    assert f'gtid = "{position(flavor, 2)}"' in error


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_skipped_transaction_is_not_read_even_where_it_can_be(flavor: str) -> None:
    packets = [each for number in range(1, 6) for each in simple(flavor, number)]
    found, error = run(make_decoder(flavor, skips=[3, 5]), [packets])
    rows_found, rows_error = run(make_row_decoder(flavor, skips=[3, 5]), [[description(), *packets]])
    assert not error
    assert not rows_error
    for transactions in (found, rows_found):
        assert [each.position for each in transactions] == [position(flavor, n) for n in range(1, 6)]
        assert [bool(each.raised_tables) for each in transactions] == [False, False, True, False, True]
        assert [bool(each.items or each.changes) for each in transactions] == [True, True, False, True, False]


@pytest.mark.parametrize("kind", [34, 42])
def test_behind_a_skipped_transaction_one_without_a_name_stops_the_stream(kind: int) -> None:
    packets = [gtid("mysql", 1), packet(99, b"x"), packet(kind, b"x" * 30)]
    found, error = run(make_decoder("mysql", skips=[1]), [packets])
    assert [each.position for each in found] == [position("mysql", 1)]
    assert f"event {kind}" in error
    assert "skip" not in error, "no GTID names it"


def test_tagged_and_plain_gtids_in_turn() -> None:
    packets = [description()]
    for number in range(1, 9):
        start, *rest = simple("mysql", number)
        packets += [packet(42, tagged_gtid(str(SID), number, "a_tag", 5, None)) if number % 3 else start, *rest]
    found, error = both_ways("mysql", [packets])
    assert error == ""
    assert [each.position for each in found] == [
        MysqlGtidSet.of(str(SID), number, "a_tag" if number % 3 else "") for number in range(1, 9)
    ]
    assert [len(each.items) for each in found] == [2] * 8


def test_a_damaged_packet_is_not_skipped() -> None:
    """Nobody knows whether it was of the skipped transaction."""
    damaged = gtid("mysql", 2)[:-5] + b"?" + gtid("mysql", 2)[-4:]
    packets = [gtid("mysql", 1), packet(99, b"x"), damaged, XID]
    found, error = run(make_decoder("mysql", skips=[1]), [packets])
    assert not found
    assert "checksum" in error


def make_row_decoder(flavor: str, skips: Sequence[int] = ()) -> EventDecoder:
    """Where rows are asked for, and not keys: the fast track has no part in it."""
    subscription = Subscription(flavor, "shop", frozenset(("goods",)), "beats", skip(flavor, *skips))
    made = make_source_decoder(subscription, find_cascades=dict)
    assert isinstance(made, EventDecoder)
    made.restart(has_checksum=True)
    return made


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_wrong_checksum_stops_a_stream_of_rows_too(flavor: str) -> None:
    packets = [description(), *simple(flavor, 1), *simple(flavor, 2)]
    for place in range(len(packets)):
        damaged = bytearray(packets[place])
        damaged[-7] ^= 1
        found: list[Transaction] = []
        with pytest.raises(StreamStopped, match="checksum"):
            make_row_decoder(flavor).decode([*packets[:place], bytes(damaged), *packets[place + 1 :]], found)
        assert len(found) == packets[:place].count(XID)


def test_an_artificial_event_may_lack_its_checksum() -> None:
    """A server that is about to change its checksums announces the next file in the old way."""
    made = make_decoder("mysql")
    rotate = packet(4, b"x" * 30, flags=0x20, has_checksum=False)
    found, error = run(made, [[rotate, description(), *simple("mysql", 1)]])
    assert (len(found), error) == (1, "")
    assert "checksum" in run(make_decoder("mysql"), [[packet(4, b"x" * 30, has_checksum=False)]])[1]


def test_a_new_connection_starts_over() -> None:
    made = make_decoder("mariadb")
    run(made, [[description(), *simple("mariadb", 1), *simple("mariadb", 2)[:3]]])
    made.restart(has_checksum=True)
    found, error = run(made, [[description(), *simple("mariadb", 2)]])
    assert ([each.items for each in found], error) == ([(b"n:o:2", b"n:o:3")], "")


def test_a_transaction_of_keys_is_what_the_constructor_makes() -> None:
    position = MysqlGtidSet.of(str(SID), 5)
    made = keyed_transaction(position, 7, (b"a",), 9)
    expected = Transaction(position, 7, items=(b"a",), size_bytes=9)
    assert (type(made), made, hash(made)) == (Transaction, expected, hash(expected))


# -- compressed events ------------------------------------------------------------------------------------


def payload(content: bytes, *, method: int = 0, length: int | None = None, frames: int = 1) -> bytes:
    if method == 0:
        step = max(1, len(content) // frames)
        parts = [content[place : place + step] for place in range(0, len(content), step)]
        squeezed = b"".join(zstandard.compress(part) for part in parts)
    else:
        squeezed = content

    def field(kind: int, number: int) -> bytes:
        value = packed(number)
        return packed(kind) + packed(len(value)) + value

    head = field(2, method) + field(3, len(content) if length is None else length) + field(1, len(squeezed))
    return packet(40, head + packed(0) + squeezed)


def inner(*packets: bytes) -> bytes:
    """The events of the packets without checksums."""
    return b"".join(packet(each[5], each[20:-4], has_checksum=False)[1:] for each in packets)


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize(("method", "frames"), [(0, 1), (0, 5), (255, 1)])
def test_a_compressed_transaction(is_fast: bool, method: int, frames: int) -> None:
    made = make_decoder("mysql", is_fast=is_fast)
    first, *rest = simple("mysql", 1)
    squeezed = payload(inner(*rest), method=method, frames=frames)
    expected = run(make_decoder("mysql"), [[description(), first, *rest, *simple("mysql", 2)]])
    assert run(made, [[description(), first, squeezed, *simple("mysql", 2)]]) == expected
    assert expected[0][0].items == (b"n:o:1", b"n:o:2")


def test_a_compressed_transaction_in_pieces() -> None:
    made = make_decoder("mysql", piece_rows=3)
    first, start, table, *_ = simple("mysql", 1)
    events = [row_event(30, number, number + 1, flags=0) for number in range(5)]
    found, error = run(made, [[description(), first, payload(inner(start, table, *events, XID))]])
    assert error == ""
    assert [(len(each.items), each.is_last) for each in found] == [(4, False), (4, False), (2, True)]


@pytest.mark.parametrize(
    "squeezed",
    [
        payload(b"x" * 30),
        payload(inner(XID), length=500),
        payload(inner(XID), length=10),
        payload(inner(XID), method=7),
        packet(40, b"\1\1\5"),
        packet(40, b"\0" + zstandard.compress(inner(XID))),
        payload(inner(XID))[:-9],
        payload(inner(description())),
        payload(inner(payload(inner(XID)))),
        payload(inner(XID)[:-1]),
        payload(inner(XID), method=255) + b"more",
    ],
)
def test_a_compressed_transaction_that_cannot_be_unpacked_stops_the_stream(squeezed: bytes) -> None:
    made = make_decoder("mysql")
    whole = packet(40, squeezed[20:-4])
    _, error = run(made, [[description(), *simple("mysql", 1)[:1], whole]])
    assert "event 40 at 4711" in error or "in a TRANSACTION_PAYLOAD" in error


def test_without_its_package_a_compressed_transaction_stops_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    made = make_decoder("mysql")
    with pytest.raises(StreamStopped, match="zstandard is not installed"):
        made.decode([description(), simple("mysql", 1)[0], payload(inner(XID))], [])


def squeeze(content: bytes, *, missing: int = 0) -> bytes:
    """As MariaDB does; it announces ``missing`` bytes less than there are."""
    return b"\x82" + (len(content) - missing).to_bytes(2, "big") + zlib.compress(content)


@pytest.mark.parametrize("is_fast", [True, False])
def test_compressed_events_of_mariadb(is_fast: bool) -> None:
    table = of(table_map(COLUMNS, flavor="mariadb"))
    head = rows_body(166, 2, b"")
    group = [gtid("mariadb", 1), table, packet(166, head + squeeze(line(4) + line(5))), XID]
    made = make_decoder("mariadb", is_fast=is_fast)
    assert [each.items for each in run(made, [[description(), *group]])[0]] == [(b"n:o:4", b"n:o:5")]
    sql = packet(165, struct.pack("<IIBHH", 1, 0, 4, 0, 3) + b"\xfa\xfb\xfcshop\0" + squeeze(b"TRUNCATE goods"))
    [found] = run(made, [[gtid("mariadb", 2, flags=1), sql]])[0]
    assert found.raised_tables == {"goods"}


@pytest.mark.parametrize("missing", [-1, 1, 5])
def test_a_compressed_event_of_another_size_than_it_says_stops_the_stream(missing: int) -> None:
    start = [description(), gtid("mariadb", 1), of(table_map(COLUMNS, flavor="mariadb"))]
    rows = packet(166, rows_body(166, 2, b"") + squeeze(line(4) + line(5), missing=missing))
    head = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0"
    sql = packet(165, head + squeeze(b"TRUNCATE goods", missing=missing))
    for squeezed in (rows, sql):
        found, error = run(make_decoder("mariadb"), [[*start, squeezed, XID]])
        assert found == []
        assert "cannot be unpacked" in error
        assert "bytes came out, not" in error


def test_rows_are_the_same_from_compressed_events() -> None:
    made = make_row_decoder("mysql")
    first, *rest = simple("mysql", 1)
    found: list[Transaction] = []
    made.decode([description(), first, payload(inner(*rest)), *simple("mysql", 1)], found)
    assert found[0].changes == found[1].changes != ()
