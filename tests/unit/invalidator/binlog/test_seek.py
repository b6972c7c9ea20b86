"""Finding a position by time: nothing committed since is left out, whatever times the log claims."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.errors import HistoryPurged, StreamStopped
from freshness.position import MysqlGtidSet, Position, empty_position, parse_position
from invalidator.binlog import seek
from invalidator.binlog.seek import SECOND_US, BinaryLog, Mark, TimeIndex, find_start, search
from invalidator.binlog.wire.event import parse_event

UUID = "00000000-0000-0000-0000-000000000001"
MARGIN = 60


@dataclass(frozen=True)
class Entry:
    """A transaction: when it was committed, and the time that the log gives it; in seconds."""

    committed: float
    claimed: float


@dataclass
class LogFile:
    begun: float
    entries: list[Entry] = field(default_factory=list)


class FakeLog(BinaryLog):
    """Log files in memory. The first ``purged`` are gone."""

    def __init__(self, flavor: str, files: list[LogFile], purged: int = 0) -> None:
        self.flavor = flavor
        self.name = "fake"
        self.contents = files
        self.purged = purged

    def gtid(self, number: int) -> Position:
        return parse_position(self.flavor, f"{UUID}:{number}" if self.flavor == "mysql" else f"0-1-{number}")

    def prefix(self, count: int) -> Position:
        if count == 0:
            return empty_position(self.flavor)
        return parse_position(self.flavor, f"{UUID}:1-{count}" if self.flavor == "mysql" else f"0-1-{count}")

    def before(self, place: int) -> int:
        return sum(len(file.entries) for file in self.contents[:place])

    def files(self) -> list[str]:
        return [str(place) for place in range(self.purged, len(self.contents))]

    def start_of(self, file: str) -> Position:
        return self.prefix(self.before(int(file)))

    def marks(self, file: str) -> Generator[Mark]:
        number = self.before(int(file))
        for each in self.contents[int(file) :]:
            yield Mark(None, int(each.begun) * SECOND_US)
            for entry in each.entries:
                number += 1
                yield Mark(self.gtid(number), self.time_us(entry))

    def time_us(self, entry: Entry) -> int:
        return round(entry.committed * SECOND_US) if self.flavor == "mysql" else int(entry.claimed) * SECOND_US

    def find(self, since: float, margin: float = MARGIN) -> Position:
        return search(self, round((since - margin) * SECOND_US), self.now_us())

    def now_us(self) -> int:
        """A moment after the last transaction."""
        last = max((entry.committed for file in self.contents for entry in file.entries), default=0)
        return round((last + 1) * SECOND_US)

    def assert_all_since(self, since: float, position: Position) -> None:
        entries = [entry for file in self.contents for entry in file.entries]
        for number, entry in enumerate(entries, start=1):
            if entry.committed >= since:
                assert not position.contains(self.gtid(number)), f"{number} of {entry} is left out for {since}"


def simple(*times: list[float]) -> list[LogFile]:
    """Files whose transactions tell the truth, each begun with its first one."""
    return [LogFile(each[0], [Entry(time, time) for time in each]) for each in times]


# -- one search at a time -------------------------------------------------------------------------------


def test_mysql_finds_the_exact_place() -> None:
    log = FakeLog("mysql", simple([100, 200], [300, 400], [500, 600]))
    assert log.find(400, 0.5) == log.prefix(3)
    assert log.find(401, 0.5) == log.prefix(4)
    assert log.find(10_000, 0) == log.prefix(6)
    assert log.find(350, 100) == log.prefix(2)
    assert log.find(99, 0).is_empty


def test_a_clock_that_was_set_back_ends_the_search_at_the_first_later_time() -> None:
    log = FakeLog("mysql", simple([100, 500, 200, 300]))
    assert log.find(400, 0) == log.prefix(1)


def test_mariadb_begins_with_the_last_one_from_before() -> None:
    log = FakeLog("mariadb", simple([100, 200], [300, 400], [500, 600]))
    assert log.find(460) == log.prefix(3)
    assert log.find(400) == log.prefix(2)
    assert log.find(10_000) == log.prefix(5)
    assert log.find(99).is_empty


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_a_time_before_the_oldest_log_is_purged(flavor: str) -> None:
    log = FakeLog(flavor, simple([100, 200], [300, 400], [500, 600]), purged=1)
    log.assert_all_since(420, log.find(420))
    with pytest.raises(HistoryPurged, match="oldest log file, 1, may begin later") as caught:
        log.find(350)
    assert "keep binary logs" in caught.value.hint


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_files_without_transactions(flavor: str) -> None:
    empty = [LogFile(700), LogFile(800)]
    log = FakeLog(flavor, [LogFile(50), *simple([100, 200]), *empty])
    assert log.find(10_000) == log.prefix(2 if flavor == "mysql" else 1)
    log.assert_all_since(190, log.find(190))
    purged = FakeLog(flavor, [*simple([100, 200]), *empty], purged=1)
    assert purged.find(10_000) == purged.prefix(2)
    with pytest.raises(HistoryPurged):
        purged.find(650)
    assert FakeLog(flavor, [LogFile(50)]).find(20).is_empty


def test_a_server_without_a_log() -> None:
    with pytest.raises(StreamStopped, match="no binary log"):
        FakeLog("mysql", []).find(1)


def test_a_copied_mariadb_server_says_nothing_of_what_it_did_not_log() -> None:
    class Copied(FakeLog):
        def gtid(self, number: int) -> Position:
            return parse_position("mariadb", f"0-1-{number + 10}")

    with pytest.raises(HistoryPurged):
        Copied("mariadb", simple([100, 200])).find(50)


def test_a_rotation_with_a_false_time_does_not_decide() -> None:
    """A session set its time back by 9000 s, rotated, and wrote once more."""
    log = FakeLog(
        "mariadb",
        [
            *simple([float(second) for second in range(10_000, 10_200)]),
            LogFile(1_000, [Entry(10_200, 1_000), Entry(10_201, 10_201)]),
            *simple([10_300.0]),
        ],
    )
    position = log.find(10_150)
    log.assert_all_since(10_150, position)
    assert position == log.prefix(90), "no earlier than needed"


def test_a_long_statement_behind_others_is_streamed() -> None:
    entries = [Entry(second, second) for second in range(1_000, 1_100)]
    late = [*entries, Entry(1_100, 100), *(Entry(second, second) for second in range(1_101, 1_200))]
    log = FakeLog("mariadb", [LogFile(1_000, late)])
    for since in (1_050, 1_099, 1_100, 1_101, 1_170):
        log.assert_all_since(since, log.find(since))


def test_a_time_that_is_yet_to_come_does_not_end_the_search() -> None:
    entries = [Entry(second, second) for second in range(1_000, 1_200)]
    entries.insert(50, Entry(1_050, 10**9))
    log = FakeLog("mariadb", [LogFile(1_000, entries)])
    assert log.find(1_190) == log.prefix(131)
    log.assert_all_since(1_050, log.find(1_050))


def test_a_false_time_after_an_idle_gap_is_streamed() -> None:
    log = FakeLog("mariadb", [LogFile(0, [Entry(10, 10), Entry(20, 20), Entry(5_000, 1), Entry(5_001, 5_001)])])
    assert log.find(4_900) == log.prefix(1)


# -- whatever the log looks like ------------------------------------------------------------------------

GAPS = st.floats(0, 100)


@settings(max_examples=300)
@given(
    gaps=st.lists(GAPS, max_size=40), borders=st.sets(st.integers(0, 39)), since=st.floats(0, 4_000), data=st.data()
)
def test_mysql_leaves_out_exactly_what_is_from_before(
    gaps: list[float], borders: set[int], since: float, data: st.DataObject
) -> None:
    files, now = [LogFile(data.draw(st.floats(0, 4_000)))], 0.0
    for place, gap in enumerate(gaps):
        now += gap
        if place in borders:
            files.append(LogFile(data.draw(st.floats(0, 4_000))))
        files[-1].entries.append(Entry(now, data.draw(st.floats(0, 4_000))))
    log = FakeLog("mysql", files)
    cut_us = round(since * SECOND_US)
    times = [log.time_us(entry) for file in files for entry in file.entries]
    assert search(log, cut_us, log.now_us()) == log.prefix(sum(time <= cut_us for time in times))


@settings(max_examples=150)
@given(data=st.data(), seconds=st.integers(1, 60), since=st.floats(0, 80), purged=st.integers(0, 3))
def test_mariadb_leaves_out_nothing_while_somebody_commits_whatever_others_claim(
    data: st.DataObject, seconds: int, since: float, purged: int
) -> None:
    """One honest transaction a second, and others with any time at all, also in front of rotations."""
    any_time = st.integers(0, 100)
    files, begun = [LogFile(0)], [0]
    for second in range(seconds):
        if files[-1].entries and data.draw(st.integers(0, 4)) == 0:
            files.append(LogFile(data.draw(any_time)))
            begun.append(second)
        for _ in range(data.draw(st.integers(0, 2))):
            files[-1].entries.append(Entry(second + 0.2, data.draw(any_time)))
        files[-1].entries.append(Entry(second + 0.5, second))
        for _ in range(data.draw(st.integers(0, 2))):
            files[-1].entries.append(Entry(second + 0.7, data.draw(any_time)))
    log = FakeLog("mariadb", files, purged=min(purged, len(files) - 1))
    files[log.purged].begun = begun[log.purged]
    try:
        position = log.find(since, margin=2)
    except HistoryPurged:
        assert log.purged
        return
    # The honest one of the second in which the margin begins is in front of all since, if the log goes on to it
    if since <= seconds:
        log.assert_all_since(since, position)


@settings(max_examples=300)
@given(
    gaps=st.lists(st.tuples(st.integers(0, 200), st.integers(0, MARGIN - 2)), max_size=40),
    borders=st.dictionaries(st.integers(1, 39), st.integers(0, MARGIN - 2)),
    since=st.floats(0, 8_000),
)
def test_mariadb_leaves_out_nothing_while_statements_are_shorter_than_the_margin(
    gaps: list[tuple[int, int]], borders: dict[int, int], since: float
) -> None:
    """Whether anything else is committed or not."""
    files, now = [LogFile(1_000)], 1_000
    for place, (gap, duration) in enumerate(gaps):
        now += gap
        if place in borders:
            files.append(LogFile(now - borders[place]))
        files[-1].entries.append(Entry(now + 0.9, now - duration))
    log = FakeLog("mariadb", files)
    log.assert_all_since(since, log.find(since))


# -- the events -----------------------------------------------------------------------------------------


def gtid_event(*, body_bytes: int, committed_us: int, original_us: int) -> bytes:
    top = 1 << 55 if original_us != committed_us else 0
    body = bytes(1) + bytes(15) + b"\1" + (7).to_bytes(8, "little") + bytes(17)
    body += (committed_us | top).to_bytes(7, "little") + original_us.to_bytes(7, "little")
    body = body[:body_bytes]
    header = (5).to_bytes(4, "little") + bytes([33]) + bytes(4)
    header += (19 + len(body)).to_bytes(4, "little") + bytes(6)
    return b"\0" + header + body


def test_the_time_of_a_mysql_transaction_is_its_commit_here_and_not_the_original_one() -> None:
    packet = gtid_event(body_bytes=56, committed_us=2_000_000, original_us=1)
    mark = seek._read_mysql_mark(parse_event(packet, has_checksum=False))
    assert mark == Mark(MysqlGtidSet.of("00000000-0000-0000-0000-000000000001", 7), 2_000_000)


def test_a_mysql_that_writes_no_commit_time_is_refused() -> None:
    packet = gtid_event(body_bytes=42, committed_us=2, original_us=2)
    with pytest.raises(StreamStopped, match="no time of its commit"):
        seek._read_mysql_mark(parse_event(packet, has_checksum=False))


# -- what passed by -------------------------------------------------------------------------------------


def position(number: int) -> Position:
    return parse_position("mariadb", f"0-1-{number}")


def test_the_index_finds_what_was_received_before_the_time() -> None:
    index = TimeIndex(clock_error_seconds=0)
    for tenth in range(100):
        index.note(1_000 * SECOND_US + tenth * SECOND_US // 10, position(tenth + 1))
    assert index.find(1_000 * SECOND_US - 1) is None
    assert index.find(1_000 * SECOND_US) == position(1)
    assert index.find(1_003 * SECOND_US + 999_999) == position(31)
    assert index.find(9_999 * SECOND_US) == position(91)
    index.clear()
    assert index.find(9_999 * SECOND_US) is None
    assert index.size_bytes == len(index) == 0


def test_the_index_allows_for_clocks_that_differ() -> None:
    index = TimeIndex(clock_error_seconds=2)
    for second in range(10):
        index.note(second * SECOND_US, position(second + 1))
    assert index.find(7 * SECOND_US) == position(6)
    assert index.find(SECOND_US) is None


def test_the_index_keeps_seconds_then_minutes_and_then_forgets() -> None:
    index = TimeIndex(clock_error_seconds=0, seconds_kept=120, minutes_kept=10)
    for second in range(3_600):
        index.note(second * SECOND_US, position(second + 1))
    assert index.find(3_500 * SECOND_US) == position(3_501)
    assert index.find((3_500 - 100) * SECOND_US) == position(3_360 + 1), "a minute's"
    assert index.find(2_900 * SECOND_US) is None
    assert len(index) <= 121 + 11


def test_the_index_is_bounded_in_bytes() -> None:
    index = TimeIndex(clock_error_seconds=0, bytes_max=2_000)
    sets = ",".join(f"00000000-0000-0000-0000-0000000000{number:02}:1-5:7-9" for number in range(10, 20))
    large = parse_position("mysql", sets)
    for second in range(1_000):
        index.note(second * SECOND_US, large)
        assert index.size_bytes <= 2_000
    assert index.find(998 * SECOND_US) == large
    assert index.find(10 * SECOND_US) is None


def test_a_clock_that_goes_back_adds_nothing() -> None:
    index = TimeIndex(clock_error_seconds=0)
    index.note(100 * SECOND_US, position(1))
    index.note(50 * SECOND_US, position(2))
    assert index.find(60 * SECOND_US) is None
    assert index.find(100 * SECOND_US) == position(1)


@settings(max_examples=100)
@given(steps=st.lists(st.integers(0, 90 * SECOND_US), max_size=60), wanted=st.integers(0, 6_000 * SECOND_US))
def test_the_index_never_finds_what_came_later(steps: list[int], wanted: int) -> None:
    index = TimeIndex(clock_error_seconds=1, seconds_kept=60, minutes_kept=30)
    received, now = [], 0
    for number, step in enumerate(steps, start=1):
        now += step
        index.note(now, position(number))
        received.append(now)
    found = index.find(wanted)
    later = [number for number, time_us in enumerate(received, start=1) if time_us > wanted - SECOND_US]
    assert found is None or not any(found.contains(position(number)) for number in later)


def test_the_index_comes_first_and_the_log_second() -> None:
    asked: list[int] = []

    def search_log(timestamp_us: int) -> Position:
        asked.append(timestamp_us)
        return position(5)

    index = TimeIndex(clock_error_seconds=0)
    index.note(100 * SECOND_US, position(9))
    assert find_start(index, 101 * SECOND_US, search_log) == position(9)
    assert asked == []
    assert find_start(index, 99 * SECOND_US, search_log) == position(5)
    assert find_start(None, 98 * SECOND_US, search_log) == position(5)
    assert asked == [99 * SECOND_US, 98 * SECOND_US]
