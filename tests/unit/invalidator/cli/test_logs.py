"""A line of the log as JSON: one line whatever is in it, with the class and the hint of an error apart."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from freshness.errors import SourceUnavailable
from invalidator.cli.run import FORMATTERS, JsonFormatter

ERROR = SourceUnavailable("no server answers", hint="is it up?")


def format_line(message: str, *arguments: Any, exc_info: Any = None) -> dict[str, Any]:
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, arguments, exc_info)
    record.created, record.threadName = 1_790_000_000.1234, "worker"
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


def test_a_line_has_its_fields() -> None:
    assert format_line("node %s is\nout — “%s”", "n:1", "why") == {
        "time": "2026-09-21T14:13:20.123Z",
        "level": "WARNING",
        "logger": "a.b",
        "message": "node n:1 is\nout — “why”",
        "thread": "worker",
    }


@pytest.mark.parametrize("arguments", [("shop/-", ERROR), ({"name": "shop/-", "error": ERROR},)])
def test_an_error_of_the_message_is_named_with_its_hint(arguments: tuple[Any, ...]) -> None:
    message = "%s: %s" if len(arguments) == 2 else "%(name)s: %(error)s"
    line = format_line(message, *arguments)
    assert (line["error"], line["hint"]) == ("SourceUnavailable", "is it up?")
    assert "exception" not in line


def test_a_traceback_is_in_the_same_line() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        line = format_line("it ended", exc_info=sys.exc_info())
    assert line["error"] == "ZeroDivisionError"
    assert line["exception"].startswith("Traceback")
    assert "hint" not in line


def test_no_error_is_no_field() -> None:
    assert "error" not in format_line("it ended", exc_info=(None, None, None))
    assert {*FORMATTERS} == {"text", "json"}
