"""Finds our errors behind Spark's, even if several tasks failed at once."""

from __future__ import annotations

import pytest

from freshness.errors import ConfigError, FormatError
from spark.failure import find_failure, tell_failure

ONE = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "worker.py", line 1, in main
freshness.errors.FormatError: a change has no column (name it)
"""
SEVERAL = f"""[STAGE_MATERIALIZATION_MULTIPLE_FAILURES] Multiple failures (2) in stage materialization:
  1. PythonException: {ONE.replace("freshness.", "  freshness.")}
  2. PythonException: {ONE}
"""


@pytest.mark.parametrize("text", [ONE, SEVERAL, SEVERAL.replace("\nfresh", "\nother.fresh")])
def test_what_failed_on_an_executor_is_told_in_our_words(text: str) -> None:
    found = find_failure(RuntimeError(text))
    assert isinstance(found, FormatError)
    assert str(found) == "a change has no column (name it)"


def test_our_own_errors_come_back_and_others_are_none() -> None:
    own = ConfigError("x", hint="y")
    assert find_failure(own) is own
    assert find_failure(RuntimeError("java.lang.OutOfMemoryError: Java heap space")) is None


def test_mains_tell_our_errors_and_raise_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    ours = ConfigError("no such folder", hint="name another")
    assert tell_failure(ours) == ours.exit_code
    assert "no such folder" in capsys.readouterr().err
    foreign = RuntimeError("java.lang.OutOfMemoryError: Java heap space")
    with pytest.raises(RuntimeError) as caught:
        tell_failure(foreign)
    assert caught.value is foreign
