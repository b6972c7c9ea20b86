"""The installed application: what is checked where Django starts, and the one `Cache` of the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db.backends.signals import connection_created
from django.db.models import Model
from django.utils.module_loading import import_string

from appclient.cache import Cache, Explanation
from appclient.django.place import DjangoDatabases, find_places
from appclient.django.plan import ModelObject, check_columns, find_objects, find_refusal, has_other_table
from appclient.django.queryset import CachedQuerySet, have_read_cache
from appclient.django.session import watch
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError

_KNOWN: Final = ("CONFIG", "COOKIE_NAME", "TOKEN_SECONDS", "ON_READ", "MODELS")


@dataclass(frozen=True, slots=True)
class Options:
    """The setting FRESHNESS: the path of ``freshness.toml``, or a mapping with it and the options of the cookie.

    ``token_seconds``: how long a session reads its own commits. It is to be above the lag of the replicas.
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
    name, seconds = given.get("COOKIE_NAME", "freshness"), given.get("TOKEN_SECONDS", 60)
    on_read = given.get("ON_READ")
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
            raise ConfigError(f"FRESHNESS['ON_READ']: {error}", hint="expected the path of a function") from error
    if on_read is not None and not callable(on_read):
        raise ConfigError(f"FRESHNESS['ON_READ'] is {on_read!r}", hint="expected a function or its path")
    models = given.get("MODELS", ())
    if not isinstance(models, list | tuple) or not all(isinstance(each, str) for each in models):
        raise ConfigError(
            f"FRESHNESS['MODELS'] is {models!r}", hint='expected a list of labels, such as ["auth.Group"]'
        )
    config = load_config(Path(path), is_application=True)
    return Options(config, name, float(seconds), on_read, tuple(models))


log = logging.getLogger(__name__)


class FreshnessConfig(AppConfig):
    """``appclient.django`` in INSTALLED_APPS."""

    name = "appclient.django"
    label = "freshness"
    verbose_name = "freshness"

    def ready(self) -> None:
        """Read the setting and the file, and look at each cached model. Opens no connection. Raises `ConfigError` for
        a mistake in either, and for a field whose values would not be those of the ORM."""
        self._opening = threading.Lock()
        self._types: dict[tuple[ModelObject, str], tuple[Mapping[str, str], dict[str, type] | None]] = {}
        log.debug("%d models are cached", len(self.objects))
        connection_created.connect(watch, dispatch_uid="freshness")
        setting_changed.connect(self._forget, dispatch_uid="freshness")

    @cached_property
    def options(self) -> Options:
        """The setting FRESHNESS. Raises as `read_options`."""
        return read_options(getattr(settings, "FRESHNESS", None))

    @cached_property
    def places(self) -> DjangoDatabases:
        """The databases of DATABASES that are servers of the configuration."""
        return find_places(self.options.config, settings.DATABASES)

    @cached_property
    def objects(self) -> dict[tuple[str, str], ModelObject]:
        """The object of each cached model, by the model's label and the keyspace."""
        for label in self.options.models:
            have_read_cache(_find_model(label))
        cached = [model for model in apps.get_models() if _is_cached(model)]
        return find_objects(self.options.config, self.places, cached)

    @property
    def cache(self) -> Cache:
        """The cache of this process, opened at the first call. Raises `ConfigError`."""
        opened: Cache | None = self.__dict__.get("_cache")
        if opened is None:
            with self._opening:
                opened = self._cache
        return opened

    @cached_property
    def _cache(self) -> Cache:
        return Cache(self.options.config, on_read=self.options.on_read)

    def column_types(self, subject: ModelObject, lineages: Collection[str]) -> dict[str, type] | None:
        """By column of the model, the type of its values in these shards. None for a table that was changed under
        this process, so that the ORM must read it now, or is not the same in all of them. Raises `ConfigError` for a
        column whose values would not be those of the ORM, and as `Cache.column_types`."""
        first, *others = [self._types_in(subject, lineage) for lineage in lineages]
        return first if all(each == first for each in others) else None

    def _types_in(self, subject: ModelObject, lineage: str) -> dict[str, type] | None:
        columns = self.cache.column_types(lineage, subject.model._meta.db_table)
        known = self._types.get((subject, lineage))
        if known is not None and known[0] is columns:
            return known[1]
        types = None
        try:
            types = check_columns(subject, columns)
        except ConfigError as error:
            if known is None:
                raise
            log.error("from now on the ORM reads the model in place of the cache: %s", error)
        self._types[subject, lineage] = columns, types
        return types

    def describe(self) -> list[str]:
        """A line for each database of MySQL that the file does not name, and for each model that is cached, derived
        from `CachedModel`, or has a table in the file: its object, and which of its reads the database answers all
        the same."""
        from appclient.django.models import CachedModel

        lines = self.places.describe()
        for each in self.objects.values():
            apart = ", ".join(_find_apart(each.model))
            but = f", but {apart} read the database" if apart else ""
            lines.append(f"{each.model._meta.label} is the object {each.name}{but}")
        labels = {label for label, _ in self.objects}
        tables = {entry.table for entry in self.options.config.objects.values()}
        for model in apps.get_models():
            label = model._meta.label
            if label in labels:
                continue
            if issubclass(model, CachedModel):
                reason = find_refusal(model) or "has no manager that is derived from CachedManager"
                lines.append(f"{label} is read from the database: it {reason}")
            elif model._meta.db_table in tables:
                reason = f"{model._meta.db_table} is in the file, so derive its manager, or name it in"
                lines.append(f"{label} is read from the database: {reason} FRESHNESS['MODELS']")
        return lines

    def _forget(self, *, setting: str, **_: Any) -> None:
        """A test has changed the settings."""
        if setting in ("FRESHNESS", "DATABASES"):
            opened = self.__dict__.pop("_cache", None)
            if opened is not None:
                opened.close()
            self._types.clear()
            for name in ("options", "places", "objects"):
                self.__dict__.pop(name, None)


def _is_cached(model: type[Model]) -> bool:
    """Whether one of its managers reads the cache, not counting those that it has from a model with another table."""
    own = {manager.name for manager in model._meta.local_managers}
    others = {
        manager.name
        for parent in model._meta.get_parent_list()
        if has_other_table(model, parent)
        for manager in parent._meta.managers
    }
    return any(
        issubclass(manager._queryset_class, CachedQuerySet) and (manager.name in own or manager.name not in others)
        for manager in model._meta.managers
    )


def _find_model(label: str) -> type[Model]:
    try:
        found: type[Model] = apps.get_model(label)
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"FRESHNESS['MODELS'] has {label!r}: {error}", hint='expected labels such as "auth.Group"'
        ) from error
    return found


def _find_apart(model: type[Model]) -> Iterator[str]:
    """Reads by primary key of a cached model that the cache does not answer."""
    options: Any = model._meta
    for manager in options.managers:
        found = manager.all()
        if not isinstance(found, CachedQuerySet) or not found._is_whole():
            yield f"{manager.name}.get()"
    found = options.base_manager.all()
    if not isinstance(found, CachedQuerySet) or not found._is_whole():
        yield "foreign keys to it"
