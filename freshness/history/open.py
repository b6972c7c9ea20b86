"""Opens the recorder that the configuration asks for.

pyarrow is imported where something is recorded, so that an application without a history needs no pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from freshness.config.config import Config
from freshness.errors import ConfigError

if TYPE_CHECKING:
    from freshness.history.recorder import Recorder


def open_recorder(config: Config, on_drop: Callable[[int], None] | None = None) -> Recorder | None:
    """The recorder that ``[history]`` asks for; None if nothing is recorded. ``on_drop``: see `Recorder`."""
    history = config.history
    if history.path is None:
        return None
    try:
        from freshness.history.recorder import Recorder
    except ImportError as error:
        raise ConfigError(
            f"history.path = {history.path!r}: {error}", hint="pip install 'freshness[history]', or leave it out"
        ) from error
    folder = config.path.parent / history.path
    return Recorder(folder, sample=history.sample, rotate_seconds=history.rotate_seconds, on_drop=on_drop)
