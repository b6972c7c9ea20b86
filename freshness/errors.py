"""Every failure this project raises on purpose.

    FreshnessError
    ├── ConfigError           the configuration file or an argument is wrong (exit code 2)
    ├── FormatError           bytes or text that do not parse (a token, a position, an envelope)
    │   └── FlavorMismatch    a MySQL position instead of a MariaDB one, or the reverse
    ├── NodeUnavailable       a cache node did not answer, or not to the request (retryable)
    ├── NodeUnsuitable        a cache node can never serve: no CAS, too old, a proxy (exit code 4)
    ├── SourceUnavailable     a database did not answer or closed the stream (retryable, exit code 3)
    │   └── QueryTimedOut     one statement took longer than it may; it is not tried on another server
    ├── SourceUnsuitable      a database is set up so that invalidations would be lost (exit code 4)
    ├── StorageUnavailable    a file could not be written: the disk is full or fails (retryable, exit code 3)
    ├── BrokerUnavailable     Kafka did not answer, or an outcome is not known (retryable, exit code 3)
    ├── PublishStopped        Kafka refuses what is published, or another publisher took over (exit code 4)
    ├── StateChanged          values that are read together changed between two reads of them (retryable)
    ├── StreamStopped         an event that must not be skipped cannot be handled (exit code 4)
    ├── StepRefused           a step of a guided procedure may not be done yet (exit code 4)
    ├── HistoryLost           the position is from another history than the server's (exit code 4)
    │   └── HistoryPurged     the server no longer has the log from the position on
    └── InvalidationFailed    an invalidation was not acknowledged within its bounds (retryable)
        └── MembershipLost    the node's record lapsed or is another's: join it again (retryable)

Third-party exceptions are translated once, at the adapter, with ``from``. Every error says what happened and
where, and carries a ``hint`` on what to do. All survive pickling, since Spark executors send them home.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

_OWN_PACKAGES: Final = frozenset(("freshness", "invalidator", "appclient", "spark"))
_EXTRAS: Final = {
    "redis": "redis",
    "zstandard": "compression",
    "grpc": "vitess",
    "google": "vitess",
    "confluent_kafka": "kafka",
    "deltalake": "delta",
    "pyiceberg": "iceberg",
    "greenlet": "async",
    "dns": "srv",
}
"""Packages that have an extra of their own."""


class FreshnessError(Exception):
    """Root of all errors. ``hint``: advice to the reader. ``exit_code``: exit code of the CLI."""

    is_retryable = False
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.message, hint=self.hint), ()


class ConfigError(FreshnessError):
    """The configuration file or an argument is wrong."""

    exit_code = 2


class FormatError(FreshnessError, ValueError):
    """Bytes or a text, such as a token, that do not parse."""

    exit_code = 2


class FlavorMismatch(FormatError):
    pass


class NodeUnavailable(FreshnessError):
    """A cache node did not answer, or not to the request. Trying again may help."""

    is_retryable = True
    exit_code = 3


class NodeRefused(NodeUnavailable):
    """It answers, and does not let this user do what was asked."""


class NodeTimedOut(NodeUnavailable):
    """It was waited for, for as long as the time-out allows."""


class NodeUnsuitable(FreshnessError):
    """A cache node that can never serve: it is too old, or a proxy."""

    exit_code = 4


class SourceUnavailable(FreshnessError):
    """A database did not answer, or closed the stream. Trying again may help."""

    is_retryable = True
    exit_code = 3


class QueryTimedOut(SourceUnavailable):
    """One statement took longer than it may. It is not tried on another server."""


class ConnectionsExhausted(SourceUnavailable):
    """All connections of this process are in use."""


class Overloaded(SourceUnavailable):
    """The limit of this process's reads of the database is reached."""


class SourceUnsuitable(FreshnessError):
    """A database, a driver or a statement that cannot give right values."""

    exit_code = 4


class StorageUnavailable(FreshnessError):
    is_retryable = True
    exit_code = 3


class BrokerUnavailable(FreshnessError):
    is_retryable = True
    exit_code = 3


class PublishStopped(FreshnessError):
    exit_code = 4


class StateChanged(FreshnessError):
    """Values that are read together changed between two reads of them. Trying again may help."""

    is_retryable = True


class StreamStopped(FreshnessError):
    exit_code = 4


class StepRefused(FreshnessError):
    exit_code = 4


class HistoryLost(FreshnessError):
    exit_code = 4


class HistoryPurged(HistoryLost):
    pass


class InvalidationFailed(FreshnessError):
    is_retryable = True
    exit_code = 3


class MembershipLost(InvalidationFailed):
    pass


def missing_package(error: ImportError, extra: str) -> ConfigError | None:
    """The package to install, of ``extra`` unless it has one of its own, or of another version; None if no package is
    missing, but a module of this project or of Python."""
    name = (error.name or "").partition(".")[0]
    if not name or name in _OWN_PACKAGES or name in sys.stdlib_module_names:
        return None
    hint = f"pip install 'freshness[{_EXTRAS.get(name, extra)}]'"
    if getattr(sys.modules.get(name), "__file__", None):
        return ConfigError(f"another version of the Python package {name} is needed: {error}", hint=hint)
    return ConfigError(f"the Python package {name} is not installed", hint=hint)


@contextmanager
def required_extra(extra: str) -> Iterator[None]:
    """For the imports of a module of ours that needs an extra: the error of a package that is missing names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_package(error, extra)
        if missing is None:
            raise
        raise ModuleNotFoundError(str(missing), name=error.name) from error


@contextmanager
def required_packages(program: str, extra: str) -> Iterator[None]:
    """For the imports of a program: a package that is missing, or of a version that lacks what is imported, ends it
    with one line and the code of `ConfigError`."""
    try:
        yield
    except ImportError as error:
        missing = missing_package(error, extra)
        if missing is None:
            raise
        sys.stderr.write(f"{program}: {missing}\n")
        sys.exit(missing.exit_code)
