"""How a cached row becomes an instance of its model: as the ORM's own SELECT would make it, or not at all.

The converters are those that the ORM's compiler gives for the same columns of the same connection. A model with a
field whose values would differ is refused where Django starts; a column of such a type, at the model's first read. A
value of another type than its column's (a zero date) has no instance, and the ORM reads the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

from django.conf import settings
from django.db.models import Field, Model, QuerySet

from appclient.django.place import DjangoDatabases
from freshness.config.config import Config
from freshness.errors import ConfigError

_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), int),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "json"), str),
    **dict.fromkeys(("uuid", "inet4", "inet6"), str),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), bytes),
    "decimal": Decimal,
    "float": float,
    "double": float,
    "date": date,
    "datetime": datetime,
    "time": timedelta,
}
"""The type in which the library has the values of a column."""

_REFUSED: Final[Mapping[str, str]] = {
    "timestamp": "the library reads it in UTC, Django in the time zone of its session: make it DATETIME(6)",
    "bit": "drivers disagree over its type",
    "set": "drivers disagree over its type",
}
_KEYS: Final = frozenset(
    (
        "AutoField", "BigAutoField", "SmallAutoField",
        "IntegerField", "BigIntegerField", "SmallIntegerField",
        "PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField",
        "CharField", "SlugField", "UUIDField",
    )
)  # fmt: skip
_DAY: Final = timedelta(days=1)
_MIDNIGHT: Final = datetime.combine(date.min, time())


@dataclass(slots=True, eq=False)
class ModelObject:
    """The object of ``freshness.toml`` that is the rows of a model. ``key``: the field of the primary key.
    ``numbers``: numbers that the field is known to leave as they are."""

    model: type[Model]
    name: str
    keyspace: str
    key: Any
    numbers: range = range(0)


def find_objects(
    config: Config, places: DjangoDatabases, models: Sequence[type[Model]]
) -> dict[tuple[str, str], ModelObject]:
    """By the model's label and the keyspace. Raises `ConfigError` with all models that cannot be cached."""
    found: dict[tuple[str, str], ModelObject] = {}
    problems: list[str] = []
    for model in models:
        label, table = model._meta.label, model._meta.db_table
        entries = [
            entry
            for entry in config.objects.values()
            if entry.table == table and entry.keyspace in {each.keyspace for each in places.servers.values()}
        ]
        if not entries:
            problems.append(
                f'{label} has no object in {config.path}: add [objects.{model._meta.model_name}] table = "{table}"'
            )
            continue
        refused = find_refusal(model)
        if refused is not None:
            problems.append(f"{label} {refused}")
            continue
        for entry in entries:
            found.setdefault((label, entry.keyspace), ModelObject(model, entry.name, entry.keyspace, model._meta.pk))
    if problems:
        raise ConfigError("models cannot be cached:\n  " + "\n  ".join(problems))
    return found


def has_other_table(model: type[Model], parent: type[Model]) -> bool:
    """Whether the parent is more than a proxy's."""
    return bool(parent._meta.db_table != model._meta.db_table)


def find_refusal(model: type[Model]) -> str | None:
    """Why rows of the model cannot be cached, behind its name; None if they can be."""
    options = model._meta
    if any(has_other_table(model, parent) for parent in options.get_parent_list()):
        return "inherits from a model with a table of its own: its rows are in several tables"
    key = options.pk
    while getattr(key, "remote_field", None) is not None:
        key = key.target_field
    if key.get_internal_type() not in _KEYS:
        return f"has a primary key of type {key.get_internal_type()}: expected integers, a text or a UUID"
    for field in options.concrete_fields:
        if type(field).select_format is not Field.select_format:
            return f"has the field {field.name}, which {type(field).__name__} selects by an expression"
    return None


def check_columns(subject: ModelObject, types: Mapping[str, str]) -> dict[str, type]:
    """By column, the type of its values. ``types``: the columns of the table. Raises `ConfigError`."""
    found: dict[str, type] = {}
    for field in subject.model._meta.concrete_fields:
        kind = types.get(field.column, "")
        if not kind:
            continue  # a migration is under way: a row without the column is read by the ORM
        if kind not in _TYPES:
            raise ConfigError(
                f"{subject.model._meta.label}.{field.name} is a column of type {kind}, whose values would not be "
                "those of the ORM",
                hint=_REFUSED.get(kind, "read this model without the cached manager"),
            )
        found[field.column] = _TYPES[kind]
    return found


class InstancePlan:
    """The plan of one model on one connection of Django: converters can belong to the connection."""

    def __init__(self, subject: ModelObject, types: Mapping[str, type], connection: Any) -> None:
        model = subject.model
        # A manager of the model's own may add to the columns, or leave some out
        compiler = QuerySet(model).query.get_compiler(connection=connection)
        compiler.setup_query()
        expressions = [column for column, _, _ in compiler.select]
        fields = [expression.target for expression in expressions]
        self.uses_time_zones, self.types = settings.USE_TZ, types
        self._model, self._connection = model, connection
        self._names = [field.attname for field in fields]
        columns = [field.column for field in fields]
        self._take: Callable[[Mapping[str, Any]], tuple[Any, ...]] = (
            itemgetter(*columns) if len(columns) > 1 else lambda row: (row[columns[0]],)
        )
        self._types = [types.get(column) for column in columns]
        self._times = [place for place, kind in enumerate(self._types) if kind is timedelta]
        self._converters = [
            (place, converters, expression)
            for place, (converters, expression) in compiler.get_converters(expressions).items()
        ]
        self._right: set[tuple[type, ...]] = set()

    def make(self, row: Mapping[str, Any], alias: str, fetch_mode: Any) -> Any:
        """The instance, as read from the database ``alias``; None if the ORM must read the row. ``fetch_mode``: mode
        of the query, or None before Django 6.1."""
        try:
            values = list(self._take(row))
        except KeyError:
            return None
        types = tuple(map(type, values))
        if types not in self._right:
            if not all(kind in (expected, type(None)) for kind, expected in zip(types, self._types, strict=True)):
                return None
            self._right.add(types)
        for place in self._times:
            value = values[place]
            if value is not None:
                if not timedelta() <= value < _DAY:
                    return None
                values[place] = (_MIDNIGHT + value).time()
        for place, converters, expression in self._converters:
            value = values[place]
            for convert in converters:
                value = convert(value, expression, self._connection)
            values[place] = value
        made = self._model.from_db(alias, self._names, values)
        if fetch_mode is not None:
            made._state.fetch_mode = fetch_mode
        return made
