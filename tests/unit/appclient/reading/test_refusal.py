"""The log of refused fills: how often it has a line, what the line says, and that each cause has a remedy."""

from __future__ import annotations

import logging

import pytest

from appclient.reading.refusal import LOG_SECONDS, ORDINARY, REMEDIES, Refusals
from appclient.telemetry.observer import NOT_REFUSED
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.state import Read


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(clock)


def note(refusals: Refusals, outcome: ReadOutcome, name: str = "customer") -> None:
    policy = ObjectPolicy(name, 1, (name,), ("shop/-",), 60)
    refusals.note([Lookup(policy, "node", b"secret item", b"secret", ("secret",))], [Read(outcome)])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "appclient.refusal"]
    caplog.clear()
    return found


def test_a_cause_and_object_have_one_line_in_a_while(
    refusals: Refusals, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        note(refusals, ReadOutcome.NO_RECORD)
    (line,) = lines(caplog)
    assert line.startswith("customer: a value was read from the database and not stored, NO_RECORD: ")
    assert line.endswith("many of these mean: no invalidator runs, or it is catching up: see its log")
    assert "secret" not in line
    note(refusals, ReadOutcome.CLOSED)
    note(refusals, ReadOutcome.NO_RECORD, "profile")
    assert len(lines(caplog)) == 2, "another cause, and another object"
    clock.now += LOG_SECONDS - 1
    note(refusals, ReadOutcome.NO_RECORD)
    assert lines(caplog) == []
    clock.now += 1
    note(refusals, ReadOutcome.NO_RECORD)
    (line,) = lines(caplog)
    assert "(5 more since the last such line)" in line


@pytest.mark.parametrize("outcome", ReadOutcome)
def test_each_refusal_has_a_remedy_and_nothing_else_has_a_line(
    refusals: Refusals, caplog: pytest.LogCaptureFixture, outcome: ReadOutcome
) -> None:
    caplog.set_level(logging.INFO)
    note(refusals, outcome)
    if outcome in NOT_REFUSED:
        assert lines(caplog) == []
        assert outcome not in REMEDIES
        return
    (record,) = caplog.records
    assert record.levelno == (logging.INFO if outcome in ORDINARY else logging.WARNING)
    assert outcome.name in record.getMessage()
