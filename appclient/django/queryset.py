"""`CachedManager`: `get()` by primary key and `in_bulk()` from the cache; all else is the ORM's own.

The cache is asked by the manager itself and by its ``all()``, which foreign keys and ``get_object_or_404`` call. A
query set that was derived from it reads the database, and so does ``get_queryset()``, which the admin calls: what is
edited is not read from a cache. Inside a transaction that has written, and in doubt, the cache stands aside.
"""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import OperationalError, connections
from django.db.models import Field, Manager, Model, Q, QuerySet
from django.db.models.query import ModelIterable

from appclient.cache import Cache
from appclient.django.installed import get_app
from appclient.django.plan import InstancePlan, ModelObject
from appclient.django.session import get_session, has_own_rows, is_special, take_tokens
from freshness.errors import ConfigError, FreshnessError

log = logging.getLogger(__name__)

_ALL_FIELDS: Final = (frozenset[str](), True)
_KEY_TYPES: Final = (int, str, uuid.UUID)


class CachedQuerySet(QuerySet):
    """A query set of a `CachedManager`; a subclass of it can be given to ``CachedManager.from_queryset``."""

    _fetch_mode: Any = None  # Django 5.2 has none
    reads_cache = False
    """Whether the manager has just made it for reads of the cache. Copies of it do not have that."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """See Django's. A row by its primary key alone comes from the cache."""
        asked = self._find_key(args, kwargs) if self._is_whole() else []
        if not asked:
            return super().get(*args, **kwargs)
        found = self._find_cached(asked)
        if isinstance(found, str):
            return self.using(found).get(*args, **kwargs)
        [instance] = found.values()
        if instance is None:
            name = self.model._meta.object_name
            raise self.model.DoesNotExist(f"{name} matching query does not exist.")
        return instance

    def in_bulk(self, id_list: Any = None, *, field_name: str = "pk") -> dict[Any, Any]:
        """See Django's. Rows by their primary keys come from the cache, with one request for each node."""
        answer: dict[Any, Any]
        if id_list is None or field_name != "pk" or not self._is_whole():
            answer = super().in_bulk(id_list, field_name=field_name)
            return answer
        asked = list(id_list)
        if not asked:
            return {}
        found = self._find_cached(asked)
        if not isinstance(found, str):
            return {each.pk: each for each in found.values() if each is not None}
        answer = self.using(found).in_bulk(asked)
        return answer

    def _find_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The primary key that is asked for; nothing where anything else is."""
        asked = list(kwargs.items())
        for each in args:
            # A foreign key asks by Q
            if not isinstance(each, Q) or each.negated or (len(each) > 1 and each.connector != Q.AND):
                return []
            asked += each.children
        key = self.model._meta.pk
        if len(asked) != 1 or not isinstance(asked[0], tuple):
            return []
        [(name, value)] = asked
        return [value] if name.removesuffix("__exact") in ("pk", key.name, key.attname) else []

    def _is_whole(self) -> bool:
        """Whether the query is the whole table, of whole rows."""
        query = self.query
        return (
            self.reads_cache
            and self._db is None
            and not self._for_write
            and self._iterable_class is ModelIterable
            and not self._prefetch_related_lookups
            and not self._known_related_objects
            and self._fields is None
            and not getattr(self._fetch_mode, "track_peers", False)
            and not query.where
            and not query.is_sliced
            and not query.distinct
            and not query.select_related
            and query.deferred_loading == _ALL_FIELDS
            and not query.annotations
            and not query.extra
            and not query.extra_tables
            and not query.select_for_update
            and not query.combinator
            and not query.is_empty()
        )

    def _find_cached(self, keys: Sequence[Any]) -> dict[Any, Any] | str:
        """By key, the instance or None; or the database that the ORM must read: that of the transaction which has
        written, as no other one shows its rows."""
        app, alias = get_app(), str(self.db)
        connection = connections[alias]
        server = app.places.find(connection.settings_dict)
        subject = app.objects.get((self.model._meta.label, server.keyspace)) if server is not None else None
        if server is None or subject is None or is_special(connection):
            return alias
        primaries: tuple[str, ...] = app.places.primaries.get(server.keyspace, ())
        for each in (*primaries, alias):
            if has_own_rows(connection if each == alias else connections[each]):
                return each
        spelled = [_spell(subject, key, connection) for key in keys]
        if None in spelled:
            return alias
        session, cache = get_session(), app.cache
        session.is_asked = True
        try:
            if session.written:
                take_tokens(session, cache, app.places, app.options.token_seconds)
            token = session.find_token()
            if len(spelled) == 1:
                rows = {spelled[0]: cache.get(subject.name, spelled[0], at_least=token)}
            else:
                rows = cache.get_many(subject.name, spelled, at_least=token)
        except ConfigError:
            raise
        except FreshnessError as error:
            raise OperationalError(str(error)) from error
        # The ORM's own read must have the session's commits, too: the primary has
        stand_in = alias if token is None else next(iter(primaries), alias)
        plan = _find_plan(app, cache, subject, connection, spelled)
        if plan is None:
            return stand_in
        made = dict.fromkeys(rows)
        for key, row in rows.items():
            if row is not None:
                made[key] = plan.make(row, alias, self._fetch_mode)
                if made[key] is None:
                    return stand_in
        return made


def _spell(subject: ModelObject, key: Any, connection: Any) -> Any:
    """The key as the statement would have it; None if only the ORM knows it."""
    if type(key) is int and key in subject.numbers:
        return key
    if type(key) not in _KEY_TYPES:
        return None
    field = subject.key
    try:
        value = field.get_db_prep_value(field.get_prep_value(key), connection, prepared=True)
        str(value).encode()
    except (TypeError, ValueError, ValidationError):
        return None  # the ORM raises it, in its own words
    if type(value) is int:
        low, high = connection.ops.integer_field_range(_integer_type(field))
        if high is not None and type(field).__module__ == Field.__module__:
            subject.numbers = range(1, high + 1)  # a zero may be refused
        return value if (low is None or low <= value) and (high is None or value <= high) else None
    return value if type(value) is str else None


def _integer_type(field: Any) -> str:
    while field.remote_field is not None:
        field = field.target_field
    return str(field.get_internal_type())


def _find_plan(
    app: Any, cache: Cache, subject: ModelObject, connection: Any, keys: Sequence[Any]
) -> InstancePlan | None:
    """None if the ORM must read these rows. Asked after the rows were read: their reader has seen the floors."""
    lookups, name = cache.lookups, subject.name
    lineages: Collection[str] = lookups.definition(name).policy.lineages
    if len(lineages) > 1:
        lineages = {lineage: None for key in keys for lineage in lookups.find(name, key).policy.lineages}
    try:
        types = app.column_types(subject, lineages)
    except ConfigError:
        raise
    except FreshnessError as error:
        log.info("the ORM reads %s in place of the cache: %s", subject.model._meta.label, error)
        return None
    if types is None:
        return None
    plans: dict[ModelObject, InstancePlan] = connection.__dict__.setdefault("_freshness_plans", {})
    plan = plans.get(subject)
    if plan is None or plan.uses_time_zones != settings.USE_TZ or plan.types is not types:
        plan = plans[subject] = InstancePlan(subject, types, connection)
    return plan


_Manager: Any = Manager.from_queryset(CachedQuerySet)


class CachedManager(_Manager):
    """``objects = CachedManager()``: the manager of a model whose rows are read from the cache by primary key."""

    def all(self) -> Any:
        found = super().all()
        found.reads_cache = True
        return found

    @classmethod
    def from_queryset(cls, queryset_class: type[QuerySet], class_name: str | None = None) -> type[CachedManager]:
        """See Django's. Raises `ConfigError` for a query set that does not read the cache."""
        if not issubclass(queryset_class, CachedQuerySet):
            raise ConfigError(
                f"CachedManager.from_queryset({queryset_class.__name__}): it would read the database alone",
                hint=f"derive {queryset_class.__name__} from appclient.django.models.CachedQuerySet",
            )
        made: type[CachedManager] = super().from_queryset(queryset_class, class_name)
        return made

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The only object that is asked for: from the cache if that is by its primary key alone, else by the ORM.

        Inside a transaction that has written, it is read on that connection, past the cache. Raises DoesNotExist,
        MultipleObjectsReturned, ConfigError for a column whose values would not be those of the ORM, and
        OperationalError if no server answers.
        """
        return self.all().get(*args, **kwargs)

    def in_bulk(self, id_list: Any = None, *, field_name: str = "pk") -> dict[Any, Any]:
        """By primary key, those objects of the list that exist: from the cache, with one request for each node.
        Without a list, and by another field, the ORM reads them, as inside a transaction that has written. Raises
        ConfigError and OperationalError as `get` does."""
        found: dict[Any, Any] = self.all().in_bulk(id_list, field_name=field_name)
        return found

    def fetch_mode(self, mode: Any) -> Any:
        """Called by foreign keys from Django 6.1 on, as `all` was before."""
        found = super().fetch_mode(mode)
        found.reads_cache = True
        return found

    async def aget(self, *args: Any, **kwargs: Any) -> Any:
        return await self.all().aget(*args, **kwargs)

    async def ain_bulk(self, id_list: Any = None, *, field_name: str = "pk") -> dict[Any, Any]:
        found: dict[Any, Any] = await self.all().ain_bulk(id_list, field_name=field_name)
        return found


def have_read_cache(model: type[Model]) -> None:
    """Have the managers of a model read the cache, as if they were derived from `CachedManager`; and foreign keys to
    it, if its first manager has all rows. Its migrations stay as they are. Raises `ConfigError` for a manager or a
    query set with a ``get`` of its own, which a hit would pass by."""
    options: Any = model._meta
    local = {manager.name: manager for manager in options.local_managers}
    first = options.default_manager
    for manager in options.managers:
        kind = _derive(type(manager), f"{options.label}.{manager.name}")
        if manager.name in local:
            local[manager.name].__class__ = kind
        else:  # of an abstract model, which others are derived from
            own = copy.copy(manager)
            own.__class__ = kind
            own.contribute_to_class(model, manager.name)
    options.default_manager_name = options.default_manager_name or first.name
    if type(first).get_queryset is Manager.get_queryset:
        options.base_manager_name = options.base_manager_name or first.name
    options._expire_cache()


def _derive(kind: Any, where: str) -> type[CachedManager]:
    """The class of a manager, with the reads of `CachedManager`. It keeps the name by which migrations know it."""
    if issubclass(kind, CachedManager):
        return kind  # type: ignore[no-any-return]
    queries = kind._queryset_class
    for name in ("get", "in_bulk", "all"):
        for of, plain in ((kind, Manager), (queries, QuerySet)):
            if getattr(of, name) not in (getattr(plain, name), getattr(CachedQuerySet, name)):
                raise ConfigError(
                    f"{where} cannot read the cache: {of.__name__} has a method {name} of its own",
                    hint="leave the model out of FRESHNESS['MODELS']",
                )
    if queries is QuerySet:
        queries = CachedQuerySet
    elif not issubclass(queries, CachedQuerySet):
        queries = type(queries.__name__, (CachedQuerySet, queries), _pose_as(queries))

    def equals(self: Any, other: Any) -> bool:
        """The one of the migrations is equal."""
        return isinstance(other, kind) and self._constructor_args == other._constructor_args

    def duplicate(self: Any) -> Any:
        """Django copies managers, and not by pickling."""
        of: Any = type(self)
        made = of.__new__(of)
        made.__dict__.update(self.__dict__)
        return made

    known = {"__eq__": equals, "__hash__": kind.__hash__, "__copy__": duplicate, "_queryset_class": queries}
    made: type[CachedManager] = type(kind.__name__, (CachedManager, kind), {**_pose_as(kind), **known})
    return made


def _pose_as(kind: type) -> dict[str, Any]:
    def reduce(self: Any, protocol: Any) -> Any:
        """One that was pickled is the package's own again: no module has the derived class."""
        return kind.__new__, (kind,), self.__getstate__()

    spelled = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return {**spelled, "__reduce_ex__": reduce}
