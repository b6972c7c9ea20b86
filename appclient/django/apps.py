"""The installed application: what is checked where Django starts, and the one `Cache` of the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db.backends.signals import connection_created
from django.db.models import Model

from appclient.cache import Cache
from appclient.django.options import Options, read_options
from appclient.django.place import DjangoDatabases, find_places
from appclient.django.plan import (
    ModelObject,
    check_columns,
    find_objects,
    find_refusal,
    has_other_table,
)
from appclient.django.queryset import CachedQuerySet, have_read_cache
from appclient.django.session import watch
from freshness.errors import ConfigError

log = logging.getLogger(__name__)


class FreshnessConfig(AppConfig):
    """``appclient.django`` in INSTALLED_APPS."""

    name = "appclient.django"
    label = "freshness"
    verbose_name = "freshness"

    def ready(self) -> None:
        """Read the setting and the file, and look at each cached model. Opens no connection.

        Raises `ConfigError` for a mistake in either, and for a field whose values would not be those of the ORM.
        """
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
        with self._opening:
            return self._cache

    @cached_property
    def _cache(self) -> Cache:
        return Cache(self.options.config, on_read=self.options.on_read)

    def column_types(self, subject: ModelObject, lineages: Collection[str]) -> dict[str, type] | None:
        """By column of the model, the type of its values in these shards. None for a table that was changed under
        this process, so that the ORM must read it now, or is not the same in all of them.

        Raises `ConfigError` for a column whose values would not be those of the ORM, and as `Cache.column_types`.
        """
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
        """A line for each model that is cached, derived from `CachedModel`, or has a table in the file: its object,
        and which of its reads the database answers all the same."""
        from appclient.django.models import CachedModel

        lines = []
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
        issubclass(manager._queryset_class, CachedQuerySet)
        and (manager.name in own or manager.name not in others)
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
