"""The lines of the log: as text, and as JSON for programs that collect logs. Used by ``invalidator run``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from freshness.errors import FreshnessError
from invalidator.process.trouble import find_error


class TextFormatter(logging.Formatter):
    """Time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """One object a line; its fields: docs/cli.md. A line that is about an error has its class and its hint apart."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        error = find_error(record)
        if error is not None:
            line["error"] = type(error).__name__
            if isinstance(error, FreshnessError) and error.hint:
                line["hint"] = error.hint
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


FORMATTERS: Final[Mapping[str, Callable[[], logging.Formatter]]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}
"""By the value of ``--log-format``."""
