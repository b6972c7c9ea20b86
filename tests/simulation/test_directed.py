"""Every planted bug breaks a directed schedule: the table of ``directed``, held to what really happens."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.simulation.bugs import PLANTED
from tests.simulation.directed import DIRECTED, SCHEDULE_FILES, planted


def test_the_table_names_every_planted_bug() -> None:
    assert DIRECTED.keys() == PLANTED.keys()
    assert {f"tests/schedules/test_{place.partition('::')[0]}.py" for place in DIRECTED.values()} <= set(
        SCHEDULE_FILES
    )


@pytest.mark.parametrize("bug", [*PLANTED])
def test_the_schedule_fails_with_the_bug_and_holds_without(bug: str) -> None:
    run(bug)
    with pytest.raises(AssertionError), planted(bug):
        run(bug)


def run(bug: str) -> None:
    """Run the test of a bug. Its patches are undone before the planted bug is removed."""
    file, _, name = DIRECTED[bug].partition("::")
    schedule = getattr(importlib.import_module(f"tests.schedules.test_{file}"), name)
    patch = pytest.MonkeyPatch()
    try:
        schedule(**({"monkeypatch": patch} if "monkeypatch" in inspect.signature(schedule).parameters else {}))
    finally:
        patch.undo()
