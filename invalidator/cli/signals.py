"""Signals that verbs obey: SIGTERM and SIGINT end them, SIGHUP loads the configuration again."""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path

from freshness.config.config import Config, load_config
from freshness.errors import ConfigError


def call_on_stop(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, in the middle of what the main thread does: it must take no lock."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def note_stop() -> Callable[[], bool]:
    """Whether SIGTERM or SIGINT has come. A flag without a lock: ``Event.set`` in a handler waits forever if it
    interrupts a ``wait`` or ``set`` of the same event."""
    came: list[None] = []
    call_on_stop(lambda: came.append(None))
    return lambda: bool(came)


def reload_on_hangup(path: Path, take: Callable[[Config], None], begin: Callable[[], None] = lambda: None) -> None:
    """Hand the configuration to ``take`` again on SIGHUP, after a call of ``begin``. A wrong one is logged, and
    nothing changes."""

    def reload(*_: object) -> None:
        begin()
        _reload(path, take)

    signal.signal(signal.SIGHUP, reload)


def load_on_hangup(path: Path) -> Callable[[], Config]:
    """The configuration of now, which SIGHUP loads again, with the primaries that `run` would adopt. Raises
    `ConfigError` for the first one."""
    from invalidator.replica.promotion import find_present

    loaded = deque([find_present(load_config(path))], maxlen=1)
    reload_on_hangup(path, lambda config: loaded.append(find_present(config)))
    return lambda: loaded[-1]


def _reload(path: Path, take: Callable[[Config], None]) -> None:
    try:
        take(load_config(path))
    except ConfigError as error:
        logging.getLogger(__name__).error("the configuration stays as it was: %s", error)
