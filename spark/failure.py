"""Errors inside Spark, in the words of the project's own errors.

Spark hands an error of a Python worker on as text, with the worker's traceback; a user wants its last line, and a
scheduler the exit code of the error that it was.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from freshness import errors
from freshness.errors import FreshnessError

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
"""The errors that Spark raises: the second one if several tasks failed at once, or if a class is missing."""

_NAMED = re.compile(r"^\s*(?:freshness\.errors\.)(\w+): (.*)$", re.MULTILINE)


def find_failure(error: BaseException) -> FreshnessError | None:
    """The error of ours that is behind one of Spark's; None if there is none."""
    if isinstance(error, FreshnessError):
        return error
    found = _NAMED.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, FreshnessError)
    return kind(message.strip()) if issubclass(kind, FreshnessError) else FreshnessError(message)


def tell_failure(error: Exception) -> int:
    """Write what went wrong to standard error; the exit code. Raises ``error`` again if it is not one of ours."""
    failure = find_failure(error)
    if failure is None:
        raise error
    sys.stderr.write(f"error: {failure}\n")
    return failure.exit_code
