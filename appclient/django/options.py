"""The setting FRESHNESS: the path of ``freshness.toml``, or a mapping with it and the options of the cookie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from django.utils.module_loading import import_string

from appclient.cache import Explanation
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError

_KNOWN: Final = ("CONFIG", "COOKIE_NAME", "TOKEN_SECONDS", "ON_READ", "MODELS")


@dataclass(frozen=True, slots=True)
class Options:
    """``token_seconds``: how long a session reads its own commits. It is to be above the lag of the replicas.
    ``models``: labels of models of other packages whose managers are to read the cache."""

    config: Config
    cookie_name: str = "freshness"
    token_seconds: float = 60
    on_read: Callable[[Explanation], None] | None = None
    models: tuple[str, ...] = ()


def read_options(setting: object) -> Options:
    """Raises `ConfigError` for anything else than a path or such a mapping, and for mistakes in the file."""
    given: Mapping[str, Any] = setting if isinstance(setting, Mapping) else {"CONFIG": setting}
    unknown = [name for name in given if name not in _KNOWN]
    if unknown:
        raise ConfigError(
            f"the setting FRESHNESS has an unknown key {unknown[0]!r}", hint=f"known: {', '.join(_KNOWN)}"
        )
    path = given.get("CONFIG")
    if not isinstance(path, (str, PathLike)):
        raise ConfigError(
            f"the setting FRESHNESS names no file, but {path!r}",
            hint='expected FRESHNESS = BASE_DIR / "freshness.toml", or {"CONFIG": BASE_DIR / "freshness.toml"}',
        )
    name, seconds, on_read = (
        given.get("COOKIE_NAME", "freshness"),
        given.get("TOKEN_SECONDS", 60),
        given.get("ON_READ"),
    )
    if not isinstance(name, str) or not name:
        raise ConfigError(f"FRESHNESS['COOKIE_NAME'] is {name!r}", hint="expected the name of a cookie")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 1:
        raise ConfigError(
            f"FRESHNESS['TOKEN_SECONDS'] is {seconds!r}",
            hint="expected seconds, at least 1, and above the lag of the replicas",
        )
    if isinstance(on_read, str):
        try:
            on_read = import_string(on_read)
        except ImportError as error:
            raise ConfigError(
                f"FRESHNESS['ON_READ']: {error}", hint="expected the path of a function"
            ) from error
    if on_read is not None and not callable(on_read):
        raise ConfigError(f"FRESHNESS['ON_READ'] is {on_read!r}", hint="expected a function or its path")
    models = given.get("MODELS", ())
    if not isinstance(models, list | tuple) or not all(isinstance(each, str) for each in models):
        raise ConfigError(
            f"FRESHNESS['MODELS'] is {models!r}", hint='expected a list of labels, such as ["auth.Group"]'
        )
    config = load_config(Path(path), is_application=True)
    return Options(config, name, float(seconds), on_read, tuple(models))
