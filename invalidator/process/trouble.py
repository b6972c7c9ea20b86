"""Recent troubles in the log, for the page of the invalidator (``invalidator.process.overview``).

The code that handles a failure logs it in one line; so the lines of warnings and errors are the list of failures.
This keeps the last of them in memory, equal ones as one with a count. Set up by ``invalidator run``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from freshness.errors import FreshnessError

TROUBLES_MAX: Final = 50
"""Maximum number of troubles kept (I6)."""

MESSAGE_CHARACTERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Trouble:
    """A line of the log, and how often it came. ``first_at``, ``last_at``: in seconds since 1970. ``hint``: the
    remedy of the error that it is about, which the message may repeat."""

    level: str
    logger: str
    message: str
    error: str
    hint: str
    first_at: float
    last_at: float
    count: int = 1


class RecentTroubles(logging.Handler):
    """Safe for several threads, as each handler."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._by_line: dict[tuple[str, str], Trouble] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._note(record)
        except Exception:  # noqa: BLE001 - as every handler: a wrong call of the logger is reported on stderr
            self.handleError(record)

    def list(self) -> tuple[Trouble, ...]:
        """The latest first."""
        self.acquire()
        try:
            return tuple(reversed(self._by_line.values()))
        finally:
            self.release()

    def _note(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if len(message) > MESSAGE_CHARACTERS_MAX:
            message = f"{message[:MESSAGE_CHARACTERS_MAX]}…"
        error = find_error(record)
        line = record.name, _find_line(record)
        held = self._by_line.pop(line, None)
        if held is None:
            hint = error.hint if isinstance(error, FreshnessError) else ""
            name = "" if error is None else type(error).__name__
            at = record.created
            held = Trouble(record.levelname, record.name, message, name, hint, at, at)
        else:
            held = replace(held, message=message, last_at=record.created, count=held.count + 1)
        self._by_line[line] = held
        while len(self._by_line) > TROUBLES_MAX:
            del self._by_line[next(iter(self._by_line))]


def _find_line(record: logging.LogRecord) -> str:
    """Equal for lines that are counted as one: those that differ in numbers such as the pause before the next try."""
    told = (str(each) for each in _list_arguments(record) if not isinstance(each, float))
    return "\n".join((str(record.msg), *told))


def find_error(record: logging.LogRecord) -> BaseException | None:
    """The error that a line is about: its traceback's, or the first that the message was made of."""
    if record.exc_info and record.exc_info[1] is not None:
        return record.exc_info[1]
    return next((each for each in _list_arguments(record) if isinstance(each, BaseException)), None)


def _list_arguments(record: logging.LogRecord) -> Iterable[object]:
    return record.args.values() if isinstance(record.args, Mapping) else record.args or ()
