"""The installed application and its cache, for all that runs after Django has started."""

from __future__ import annotations

from typing import Any

from django.apps import apps

from appclient.cache import Cache


def get_app() -> Any:
    """The `FreshnessConfig`. Raises LookupError where ``appclient.django`` is not in INSTALLED_APPS."""
    return apps.get_app_config("freshness")


def get_cache() -> Cache:
    """The cache of this process, for objects of several tables: opened at the first call. Raises `ConfigError` as
    `Cache.open` does, and LookupError as `get_app`."""
    cache: Cache = get_app().cache
    return cache
