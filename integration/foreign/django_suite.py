"""Applications of Django's own suite on a private server, with or without cached models.

``python -m integration.foreign.django_suite TESTS PORT RESULT plain|cached APPLICATION …``; TESTS is the
folder of Django's ``runtests.py``. A TestCase commits, in place of a transaction around each test, in which the cache
would stand aside. Called by ``__main__``.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest import TextTestResult, mock

import pymysql

pymysql.install_as_MySQLdb()

from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management.color import no_style  # noqa: E402
from django.db import connections  # noqa: E402
from django.db.models import Model, QuerySet  # noqa: E402
from django.test import TestCase, TransactionTestCase  # noqa: E402
from django.test.runner import DiscoverRunner  # noqa: E402

from appclient import Explanation  # noqa: E402
from integration.foreign.outcome import PASSED, Outcome  # noqa: E402
from integration.foreign.system import running_cache  # noqa: E402

SCHEMA: Final = "foreign_default"
# Tables that a migration fills
KEPT: Final = frozenset(("auth_permission", "django_content_type", "django_site"))
outcome: Final = Outcome()
servers: Final = ExitStack()


class Recorder(TextTestResult):
    """Notes how each test ended; a subtest that failed counts as its test."""

    def stopTest(self, test: Any) -> None:
        outcome.tests.setdefault(test.id(), PASSED)
        super().stopTest(test)

    def _note(self, test: Any, error: Any) -> None:
        outcome.note(test.id(), "".join(traceback.format_exception_only(error[0], error[1])))

    def addError(self, test: Any, err: Any) -> None:
        self._note(test, err)
        super().addError(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(test, err)
        super().addFailure(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note(test, err)
        super().addSubTest(test, subtest, err)

    def addSkip(self, test: Any, reason: str) -> None:
        outcome.tests[test.id()] = "skipped"
        super().addSkip(test, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        outcome.tests[test.id()] = "expected failure"
        super().addExpectedFailure(test, err)


class PlainRunner(DiscoverRunner):
    """Django's own runner, with its results noted."""

    def get_resultclass(self) -> type[Recorder]:
        return Recorder


class CachedRunner(PlainRunner):
    """The same, with all models cached that can be."""

    def setup_databases(self, **kwargs: Any) -> Any:
        made = super().setup_databases(**kwargs)
        cache_models()
        return made


def cache_models() -> None:
    """Install the application, with the models of the suite in its setting."""
    from appclient.django import queryset

    models = list(_find_cacheable())
    of = settings.DATABASES["default"]
    url = f"mysql://app:app@127.0.0.1:{of['PORT']}/{SCHEMA}"
    tables = [model._meta.db_table for model in models]
    path = servers.enter_context(running_cache(url, tables))
    settings.FRESHNESS = {"CONFIG": path, "MODELS": [model._meta.label for model in models]}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "appclient.django"]
    apps.set_installed_apps(settings.INSTALLED_APPS)
    installed = apps.get_app_config("freshness")
    # Tests that say which applications there are cannot name this one
    mock.patch.object(queryset, "get_app", return_value=installed).start()
    installed.cache.on_read = _count
    compare_reads(queryset.CachedQuerySet, models)


def _count(read: Explanation) -> None:
    outcome.hits += read.is_hit


def _find_cacheable() -> Iterator[type[Model]]:
    from appclient.django.plan import find_refusal
    from appclient.django.queryset import _derive
    from freshness.errors import ConfigError

    connection = connections["default"]
    there = set(connection.introspection.table_names())
    for model in apps.get_models():
        if find_refusal(model) is not None or model._meta.db_table not in there:
            continue
        try:
            for manager in model._meta.managers:
                _derive(type(manager), manager.name)
        except ConfigError:
            continue
        yield model


def compare_reads(kind: Any, models: Sequence[type[Model]]) -> None:
    """Compare each answer of the cache with the rows, read by the ORM on a connection whose queries nobody counts;
    ask the cache twice, since the second read of a row is a hit. At the end of each test, do so with all of its
    rows."""
    from appclient.django import get_cache, session

    find, beside = kind._find_cached, connections["default"].copy()
    database = get_cache().database("shop")

    def find_compared(self: Any, keys: Sequence[Any]) -> Any:
        # Tests write by threads, whose commits another session need not show at once
        with beside.cursor() as cursor:
            cursor.execute("SELECT @@global.gtid_executed")
            [gtids] = cursor.fetchone()
        token = database.commit_token_of(gtids)
        assert token is not None, "the tables were made"
        session.get_session().add(token, 60)
        found = find(self, keys)
        for answer in (found, found if isinstance(found, str) else find(self, keys)):
            for key, instance in () if isinstance(answer, str) else answer.items():
                _compare(self.model, key, instance, beside)
        return found

    def compare_all() -> None:
        for model in models:
            if model._meta.db_table in KEPT:
                continue
            keys = [key for (key,) in _read(QuerySet(model).values_list("pk"), beside)]
            if keys:
                kind(model)._find_cached(keys)

    kind._find_cached = find_compared
    for case in (TestCase, TransactionTestCase):
        case._fixture_teardown = _before(case._fixture_teardown, compare_all)


def _before(then: Callable[[Any], None], first: Callable[[], None]) -> Callable[[Any], None]:
    def do_both(test: Any) -> None:
        first()
        then(test)

    return do_both


def _read(query_set: Any, beside: Any) -> list[tuple[Any, ...]]:
    compiler = query_set.query.get_compiler(connection=beside)
    return [tuple(row) for row in compiler.results_iter(tuple_expected=True)]


def _compare(model: Any, key: Any, instance: Any, beside: Any) -> None:
    names = [field.attname for field in model._meta.concrete_fields]
    rows = _read(QuerySet(model).filter(pk=key).values_list(*names), beside)
    cached = [] if instance is None else [tuple(instance.__dict__.get(name) for name in names)]
    outcome.compared += 1
    if list(map(_spell, rows)) != list(map(_spell, cached)):
        outcome.different.append(f"{model._meta.label} {key!r}: the cache has {cached}, the database {rows}")


def _spell(row: tuple[Any, ...]) -> list[Any]:
    """Values of a field of the suite's own may have no equality."""
    return [(type(each), each if _has_equality(each) else getattr(each, "__dict__", each)) for each in row]


def _has_equality(value: Any) -> bool:
    return any("__eq__" in vars(kind) for kind in type(value).__mro__[:-1])


def end_by_deleting(test: Any) -> None:
    """In the place of a rollback. The tables of `KEPT` stay as they are."""
    for alias in test._databases_names(include_mirrors=False):
        connection = connections[alias]
        there = connection.introspection.django_table_names(only_existing=True, include_views=False)
        connection.ops.execute_sql_flush(
            connection.ops.sql_flush(no_style(), [table for table in there if table not in KEPT])
        )


def main(tests: str, port: str, result: str, mode: str, *labels: str) -> int:
    sys.path.insert(0, tests)
    databases = {
        alias: {
            "ENGINE": "django.db.backends.mysql",
            "HOST": "127.0.0.1",
            "PORT": int(port),
            "NAME": f"foreign_{alias}",
            "USER": "app",
            "PASSWORD": "app",
            "OPTIONS": {"ssl_disabled": True},
            "TEST": {"NAME": f"foreign_{alias}", "CHARSET": "utf8mb4"},
        }
        for alias in ("default", "other")
    }
    settings.configure(
        DATABASES=databases,
        SECRET_KEY="a secret of the tests, which sign nothing of value",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=False,
        TEST_RUNNER=f"{__name__}.{'CachedRunner' if mode == 'cached' else 'PlainRunner'}",
    )
    TestCase._databases_support_transactions = classmethod(lambda _: False)
    TestCase._fixture_teardown = end_by_deleting
    with servers, tempfile.TemporaryDirectory(prefix="django_") as folder:
        os.environ["TMPDIR"] = folder
        runtests = importlib.import_module("runtests")
        runtests.django_tests(
            verbosity=0,
            interactive=False,
            failfast=False,
            keepdb=False,
            reverse=False,
            test_labels=list(labels),
            debug_sql=False,
            parallel=1,
            tags=None,
            exclude_tags=None,
            test_name_patterns=None,
            start_at=None,
            start_after=None,
            pdb=False,
            buffer=False,
            timing=False,
            shuffle=False,
        )
    outcome.write(Path(result))
    return 0


if __name__ == "__main__":
    # Django imports its runner by name: that must be this module, not a second one
    sys.exit(importlib.import_module("integration.foreign.django_suite").main(*sys.argv[1:]))
