"""The proof holds, and would not hold without one of the defences. ``make proof`` prints it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proof import language
from tests.proof.invariant import INVARIANT, PROPERTIES, acknowledged_means_settled
from tests.proof.language import Clause, Prover, Unknown, name_of, symbols
from tests.proof.obligations import LIVELY, broken_at_start, broken_by, explain, find_run, find_violation, prover
from tests.proof.state import ACTIONS, Next, State
from tests.proof.weakened import WEAKENED, Schedule, Weakened
from tests.simulation.bugs import PLANTED

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "proof.md"

BEYOND = {
    "fill without floor",
    "record read behind the entry",
    "record of step 3 from a copy",
    "a closed record is believed",
    "an old heartbeat opens the record",
    "a newer entry is filled from the log",
}
"""Weakened actions that no planted bug has the name of."""


def test_the_invariant_holds_at_the_start() -> None:
    assert broken_at_start() == []


@pytest.mark.parametrize("action", ACTIONS, ids=name_of)
def test_an_action_keeps_the_invariant(action: Callable[..., Next]) -> None:
    assert broken_by(action) == []


@pytest.mark.parametrize("clause", PROPERTIES, ids=name_of)
def test_the_invariant_implies_a_property(clause: Clause) -> None:
    assert prover().follows(clause)


def test_no_clause_holds_in_every_state() -> None:
    free = Prover[State]([], symbols(State))
    assert [name_of(clause) for clause in INVARIANT if free.follows(clause)] == []


def test_an_action_that_breaks_a_clause_is_explained() -> None:
    weakened = next(each for each in WEAKENED if each.name == "progress before acknowledge")
    (action,) = weakened.instead.values()
    lines = explain(action, acknowledged_means_settled)
    assert lines
    assert lines[-1].startswith("publish first (member ")
    assert any(line.startswith("at the start: streamed ") for line in lines)


def test_a_question_without_an_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "RESOURCES_MAX", 1)
    with pytest.raises(Unknown, match="gave up"):
        Prover(INVARIANT, symbols(State)).follows(PROPERTIES[1])


@pytest.mark.parametrize(("clause", "schedule"), LIVELY)
def test_the_model_lives(clause: Clause, schedule: Schedule) -> None:
    assert find_run(schedule, clause)


def test_every_action_is_done_in_a_lively_run() -> None:
    """No guard is a contradiction."""
    assert {action for _, schedule in LIVELY for action in schedule} == set(ACTIONS)


@pytest.mark.parametrize("weakened", WEAKENED, ids=lambda weakened: weakened.name)
def test_a_weakened_action_breaks_the_invariant(weakened: Weakened) -> None:
    assert any(broken_by(action) for action in weakened.instead.values())


@pytest.mark.parametrize("weakened", WEAKENED, ids=lambda weakened: weakened.name)
def test_a_weakened_action_breaks_a_property(weakened: Weakened) -> None:
    assert find_violation(weakened)
    assert not find_run(weakened.schedule, weakened.breaks), "and the whole one does not"


def test_weakened_actions_are_the_planted_bugs() -> None:
    names = [weakened.name for weakened in WEAKENED]
    assert len(names) == len(set(names))
    assert set(names) - PLANTED.keys() == BEYOND


def test_the_page_counts_what_there_is() -> None:
    page = PAGE.read_text()
    assert f"{len(INVARIANT)} clauses" in page
    assert f"{len(ACTIONS)} actions" in page
    assert f"{len(WEAKENED)} weakened actions" in page
