"""The files that a window needs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest

from freshness.history.archive_file import format_name
from spark.audit.input.window import ALL, SEVERAL, Footer, Window

HOUR_US: Final = 3_600_000_000
BEGIN_US: Final = 500_000 * HOUR_US


def name_file(shard: str, number: int, hour: int) -> str:
    """The file of the archive with the ``number``-th hundred transactions."""
    at = datetime.fromtimestamp((BEGIN_US + hour * HOUR_US) / 1e6, UTC)
    name = format_name("0123abcd", 100 * number + 1, 100 * number + 100)
    return f"archive/keyspace=shop/shard={shard}/hour={at:%Y-%m-%dT%H}/{name}"


def window(from_hour: float, to_hour: float, carry_hours: float = 0) -> Window:
    begin_us, end_us = (BEGIN_US + round(hour * HOUR_US) for hour in (from_hour, to_hour))
    return Window(begin_us, end_us, round(carry_hours * HOUR_US))


def test_the_archive_is_read_from_a_file_before_to_the_hour_after() -> None:
    hours = [name_file("-", hour, hour) for hour in range(24)]
    assert ALL.choose_changes(hours) == hours
    assert window(5.5, 6.5).choose_changes(hours) == hours[4:8]
    assert window(5.5, 6.5, carry_hours=3).choose_changes(hours) == hours[1:8]
    assert window(30, 31).choose_changes(hours) == hours[-1:]
    assert window(-5, -4).choose_changes(hours) == []


def test_a_shard_without_changes_in_the_window_has_its_last_file() -> None:
    quiet, busy = [name_file("-80", 0, 1)], [name_file("80-", hour, hour) for hour in range(24)]
    assert window(20.5, 21.5).choose_changes([*quiet, *busy]) == [*quiet, *busy[19:23]]


def test_a_file_whose_hour_is_wrong_leaves_no_gap() -> None:
    """The writer's clock stood in another hour for one file."""
    late = [name_file("-", number, hour) for number, hour in enumerate((0, 1, 9, 3, 4, 5, 6, 7))]
    assert window(2.5, 3.5).choose_changes(late) == sorted(late[1:5])
    early = [name_file("-", number, hour) for number, hour in enumerate((0, 1, 2, 3, 0, 5, 6, 7))]
    assert window(2.5, 3.5).choose_changes(early) == sorted(early[1:5])


def test_a_file_of_an_unknown_hour_is_read() -> None:
    odd = ["archive/part-0.parquet", "archive/hour=2026-01-01T00/part-0.parquet"]
    assert window(1, 2).choose_changes(odd) == sorted(odd)


def footer(client: str, number: int, first: float, last: float) -> Footer:
    first_us, last_us = (BEGIN_US + round(hour * HOUR_US) for hour in (first, last))
    return Footer(f"{client}-{number}", "", [1], client, number, first_us, last_us)


@pytest.mark.parametrize(
    ("of", "chosen"),
    [
        (window(2.5, 3.5), [2, 3]),
        (window(2.5, 3.5, carry_hours=1), [1, 2, 3]),
        (window(3, 3), [2, 3]),
        (window(9, 10), []),
        (ALL, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_the_history_is_read_by_the_times_of_its_files(of: Window, chosen: list[int]) -> None:
    files = [footer("app", number, number, number + 1) for number in range(6)]
    assert of.choose_actions(files) == [files[at] for at in chosen]


def test_files_between_two_that_are_needed_are_read() -> None:
    """An action that took long is in a later file."""
    files = [footer("app", 0, 0, 1), footer("app", 1, 2, 3), footer("app", 2, 0.5, 4), footer("app", 3, 4, 5)]
    other = [footer("other", 0, 2, 3)]
    assert window(0.1, 0.6).choose_actions([*files, *other]) == files[:3]


def test_a_file_that_does_not_tell_its_time_is_read() -> None:
    files = [footer("app", 0, 0, 1), Footer("merged", "", [1])]
    assert files[1].client == SEVERAL
    assert window(5, 6).choose_actions(files) == files[1:]


def test_an_unfinished_file_counts_if_it_may_have_actions_of_the_time() -> None:
    """A recorder has one at every moment, so an audit of yesterday must not wait until it ends."""
    told = footer("one", 1, 0, 5)._replace(path="h/one-00000007.parquet")
    files = [told, Footer("h/two-00000001.parquet", "")]
    unfinished = [f"h/{name}.parquet.unfinished" for name in ("one-00000008", "one-00000001", "two-00000002", "odd")]
    assert window(0, 4).choose_unfinished(unfinished, files) == unfinished[1:]
    assert window(0, 5).choose_unfinished(unfinished, files) == unfinished
    assert window(0, 9).choose_unfinished(unfinished, files) == unfinished
