"""Lines of the log that are kept for the page: the last ones, equal ones once, with the remedy apart."""

from __future__ import annotations

import logging

import pytest

from freshness.errors import SourceUnavailable
from invalidator.process.trouble import MESSAGE_CHARACTERS_MAX, TROUBLES_MAX, RecentTroubles

ERROR = SourceUnavailable("no server answers", hint="is it up?")


@pytest.fixture
def troubles() -> RecentTroubles:
    return RecentTroubles()


@pytest.fixture
def log(troubles: RecentTroubles) -> logging.Logger:
    logger = logging.Logger("a.b")
    logger.addHandler(troubles)
    return logger


def test_warnings_and_errors_are_kept_with_the_remedy_of_their_error(
    troubles: RecentTroubles, log: logging.Logger
) -> None:
    log.info("streaming")
    log.warning("%s; next try in %.0f s", ERROR, 1.0)
    log.error("a table is raised")
    later, first = troubles.list()
    assert (later.level, later.message, later.error, later.hint) == ("ERROR", "a table is raised", "", "")
    assert first.message == "no server answers (is it up?); next try in 1 s"
    assert (first.logger, first.error, first.hint) == ("a.b", "SourceUnavailable", "is it up?")


def test_equal_lines_are_one_with_a_count(troubles: RecentTroubles, log: logging.Logger) -> None:
    for _ in range(3):
        log.warning("again")
    log.warning("other")
    log.warning("again")
    again, other = troubles.list()
    assert (again.message, again.count, other.count) == ("again", 4, 1)
    assert again.first_at <= other.first_at <= again.last_at


def test_lines_that_differ_in_a_pause_are_one(troubles: RecentTroubles, log: logging.Logger) -> None:
    for pause in (0.2, 0.4):
        log.warning("node %s is out: %s; next try in %.1f s", "n:1", ERROR, pause)
    log.warning("node %s is out: %s; next try in %.1f s", "n:2", ERROR, 0.2)
    other, one = troubles.list()
    assert (one.count, other.count) == (2, 1)
    assert one.message.endswith("next try in 0.4 s"), "the latest is told"


def test_their_number_and_their_length_are_bounded(troubles: RecentTroubles, log: logging.Logger) -> None:
    for number in range(TROUBLES_MAX + 5):
        log.warning("%d %s", number, "x" * 2 * MESSAGE_CHARACTERS_MAX)
    kept = troubles.list()
    assert len(kept) == TROUBLES_MAX
    assert kept[0].message.startswith(f"{TROUBLES_MAX + 4} ")
    assert {len(each.message) for each in kept} == {MESSAGE_CHARACTERS_MAX + 1}


def test_a_line_that_cannot_be_made_ends_nothing(
    troubles: RecentTroubles, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log.warning("%d", "a text")
    assert troubles.list() == ()
    assert "Logging error" in capsys.readouterr().err
