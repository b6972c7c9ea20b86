"""`CachedTestCase`: a test case of a Django application whose cached models are read from the testing kit, in memory.

Django's own backend for SQLite runs on the files of a `FakeSystem`, and the application's cache is the system's. The
commits of a test are replicated and invalidated as those of others. Needs the extra ``django``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

from freshness.errors import ConfigError, required_extra

with required_extra("django"):
    from django.apps import apps
    from django.core.management.sql import emit_post_migrate_signal
    from django.db import connections, router
    from django.db.backends.base.base import NO_DB_ALIAS
    from django.db.backends.sqlite3.base import DatabaseWrapper
    from django.db.backends.sqlite3.features import DatabaseFeatures
    from django.test import TransactionTestCase

    from appclient.django import session
    from appclient.django.installed import get_app
    from appclient.django.place import place_of

from appclient.testing.server import FakeServer, translate
from appclient.testing.system import FakeSystem
from freshness.config.server import ServerAddress


class CachedTestCase(TransactionTestCase):
    """Each test has a system of its own, ``system``, with the tables of the models. At its end the test fails if the
    cache has a hit that differs from the primary. The databases of DATABASES that are servers of ``freshness.toml``,
    by host and port, are those of the system."""

    databases: frozenset[str] = frozenset()
    """None of the settings: the runner makes none, and Django refuses connections to the others."""
    system: ClassVar[FakeSystem]
    _installed: ClassVar[ExitStack] = ExitStack()

    @classmethod
    def _pre_setup(cls) -> None:
        cls._installed.close()
        cls.system = cls._installed.enter_context(installed())
        super()._pre_setup()

    @classmethod
    def _databases_names(cls, include_mirrors: bool = True) -> list[str]:
        """For fixtures."""
        return [alias for alias in connections if isinstance(connections[alias], FakeDatabase)]

    def _fixture_teardown(self) -> None:
        """The databases end with the test."""

    def _post_teardown(self) -> None:
        try:
            super()._post_teardown()
        finally:
            self._installed.close()

    @classmethod
    def tearDownClass(cls) -> None:
        cls._installed.close()  # of a test that was skipped
        super().tearDownClass()

    def run(self, result: Any = None) -> Any:
        self.addCleanup(self._require_fresh)
        return super().run(result)

    def _require_fresh(self) -> None:
        stale = self.system.find_stale()
        if stale:
            self.fail("stale hits:\n" + "\n".join(stale))


@contextmanager
def installed() -> Iterator[FakeSystem]:
    """A system in the place of the application's cache and of its databases, for this thread."""
    app = get_app()
    session.forget()
    previous = {alias: connections[alias] for alias in connections}
    opened = app.__dict__.get("_cache")
    addresses = _addresses(app)
    servers = {_host_and_port({"HOST": each.host, "PORT": each.port}): each for each in addresses}
    fakes = {alias: servers.get(_host_and_port(each.settings_dict)) for alias, each in previous.items()}
    primary = next((alias for alias, address in fakes.items() if address is addresses[0]), None)
    if primary is None:
        raise ConfigError(
            f"no database of DATABASES is the primary of {app.options.config.path}",
            hint="expected one with its HOST and PORT, also in the settings of tests",
        )
    system = FakeSystem(app.options.config.path, _schema(previous[primary]))
    try:
        for alias, address in fakes.items():
            if address is not None:
                server = system.servers[address]
                connections[alias] = FakeDatabase(previous[alias].settings_dict, alias, address, server)
        app.__dict__["_cache"] = system.cache
        app.__dict__["column_types"] = lambda subject, _: dict.fromkeys(_columns(subject), _Converted)
        if app.options.on_read is not None:
            system.on_read = app.options.on_read
        emit_post_migrate_signal(verbosity=0, interactive=False, db=primary)
        session.forget()
        yield system
    finally:
        for alias, connection in previous.items():
            if connections[alias] is not connection:
                connections[alias].close()
                connections[alias] = connection
        app.__dict__.pop("_cache", None)
        if opened is not None:
            app.__dict__["_cache"] = opened
        app.__dict__.pop("column_types", None)
        session.forget()
        system.close()


class _Features(DatabaseFeatures):
    """An INSERT with RETURNING ends when its rows are fetched, which no wrapper of statements sees."""

    can_return_columns_from_insert = False
    can_return_rows_from_bulk_insert = False


class FakeDatabase(DatabaseWrapper):
    """One of Django's databases, on a server of a `FakeSystem`."""

    features_class = _Features

    def __init__(self, settings: Mapping[str, Any], alias: str, address: ServerAddress, server: FakeServer) -> None:
        place = {"HOST": address.host, "PORT": address.port, "NAME": address.database}
        super().__init__({**settings, **place, "OPTIONS": {}}, alias)
        self.server = server
        self.execute_wrappers.append(self._note)

    def ensure_connection(self) -> None:
        """Past the refusal of the databases that a test case does not name."""
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()

    def _start_transaction_under_autocommit(self) -> None:
        """As no statement of the application's: it is Django that ends this transaction."""
        self.connection.execute("BEGIN")

    def get_connection_params(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        return {**parameters, "database": str(self.server.path), "factory": partial(_Raw, self.server)}

    def _note(self, execute: Any, sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        try:
            return session.note_statement(execute, sql, params, many, context)
        finally:
            if session.may_write(str(sql), in_transaction=False):
                self._tell()

    def _commit(self) -> None:
        super()._commit()
        self._tell()

    def _tell(self) -> None:
        if not self.connection.in_transaction:
            self.server.tell()


class _Raw(sqlite3.Connection):
    """It knows the variables of its server."""

    def __init__(self, server: FakeServer, *arguments: Any, **options: Any) -> None:
        self.server = server
        super().__init__(*arguments, **options)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_RawCursor if factory is None else factory)


class _RawCursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> Any:
        connection: Any = self.connection
        return super().execute(translate(sql, connection.server), parameters)


class _EqualsAll(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__ = type.__hash__


class _Converted(metaclass=_EqualsAll):
    """The type of each column: Django's own backend converts whatever SQLite has."""


def _addresses(app: Any) -> list[ServerAddress]:
    """The primary first. `FakeSystem` refuses several shards."""
    (keyspace, *_) = app.options.config.keyspaces.values()
    shard = keyspace.serving_shards[0]
    return [shard.primary, *shard.replicas]


def _host_and_port(database: Mapping[str, Any]) -> tuple[str, int]:
    """The runner of tests gives databases another name."""
    return place_of(database)[:2]


def _columns(subject: Any) -> list[str]:
    return [field.column for field in subject.model._meta.concrete_fields]


def _schema(connection: Any) -> str:
    """The tables of all models that Django would make on this database."""
    place = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}
    empty = DatabaseWrapper({**connection.settings_dict, **place}, NO_DB_ALIAS)
    with empty.schema_editor(collect_sql=True, atomic=False) as editor:
        for model in apps.get_models():
            if model._meta.can_migrate(empty) and router.allow_migrate_model(connection.alias, model):
                editor.create_model(model)
    empty.close()
    return "\n".join(str(sql) for sql in editor.collected_sql)
