"""Cached models of Django without a server: the setting, the databases, the statements that write, the refusals.

Django is set up in a process of its own for each: other tests of this process must not meet it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import models
from django.db.backends.base.operations import BaseDatabaseOperations
from django.db.backends.signals import connection_created

from appclient import ConfigError
from appclient.django.apps import read_options
from appclient.django.place import find_places
from appclient.django.plan import ModelObject
from appclient.django.queryset import _spell
from appclient.django.session import has_own_rows, is_special, may_write, note_statement, watch
from freshness.config.config import load_config

FILE = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"

[keyspaces.shop]
flavor = "mariadb"

[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:3306/shop"
replicas = ["mysql://app@db2:3307/shop"]

[objects.thing]
table = "shop_thing"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "freshness.toml"
    file.write_text(FILE)
    return file


@pytest.mark.parametrize(
    ("sql", "writes", "writes_in_transaction"),
    [
        ("SELECT 1", False, False),
        ("  (select 1)", False, False),
        ("/* a */ -- b\n SELECT 1", False, False),
        ("SELECT * FROM t FOR UPDATE", False, True),
        ("SELECT * FROM t LOCK IN SHARE MODE", False, True),
        ("SHOW TABLES", False, False),
        ("SAVEPOINT a", False, False),
        ("ROLLBACK TO SAVEPOINT a", False, False),
        ("RELEASE SAVEPOINT a", False, False),
        ("SET SESSION x = 1", False, False),
        ("SET STATEMENT max_statement_time = 1 FOR DELETE FROM t", True, True),
        ("SELECT lock_row() FROM DUAL", True, True),
        ("/*!50000 DELETE */ SELECT 1", True, True),
        ("/*M! DELETE */ SELECT 1", True, True),
        ("UPDATE t SET a = 1", True, True),
        ("INSERT INTO t SELECT 1", True, True),
        ("WITH a AS (SELECT 1) DELETE FROM t", True, True),
        ("CALL p()", True, True),
        ("SELECT 1; DELETE FROM t", True, True),
        ("--\nDELETE FROM t -- \nSELECT 1", True, True),
        ("SELECT ';' ; ", False, False),
        ("selection", True, True),
        ("", True, True),
    ],
)
def test_a_statement_writes_unless_it_surely_reads(sql: str, writes: bool, writes_in_transaction: bool) -> None:
    assert may_write(sql, in_transaction=False) is writes
    assert may_write(sql, in_transaction=True) is writes_in_transaction


def test_the_setting_is_a_path_or_a_mapping(path: Path) -> None:
    assert read_options(path).config.path == path
    assert read_options(str(path)).token_seconds == 60
    options = read_options({"CONFIG": path, "COOKIE_NAME": "c", "TOKEN_SECONDS": 5, "ON_READ": "builtins.print"})
    assert (options.cookie_name, options.token_seconds, options.on_read) == ("c", 5.0, print)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "names no file"),
        ({}, "names no file"),
        ({"CONFIG": "x", "COOKY": 1}, "unknown key 'COOKY'"),
        ({"COOKIE_NAME": ""}, "the name of a cookie"),
        ({"TOKEN_SECONDS": 0}, "at least 1"),
        ({"TOKEN_SECONDS": True}, "at least 1"),
        ({"MODELS": "auth.Group"}, "expected a list of labels"),
        ({"ON_READ": "no.such.function"}, "the path of a function"),
        ({"ON_READ": 5}, "a function or its path"),
    ],
)
def test_a_wrong_setting_is_refused(path: Path, given: dict[str, object] | None, message: str) -> None:
    if given is not None and given and "CONFIG" not in given:
        given = {"CONFIG": path, **given}
    with pytest.raises(ConfigError, match=message):
        read_options(given)


def test_databases_are_found_by_host_port_and_name(path: Path) -> None:
    config = load_config(path)
    default = {"HOST": "localhost", "PORT": "", "NAME": "shop"}
    places = find_places(config, {"default": default, "other": {"HOST": "db2", "PORT": "3307", "NAME": "shop"}})
    assert places.primaries == {"shop": ("default",)}
    found = places.find(default)
    assert found is not None
    assert (found.keyspace, found.is_primary) == ("shop", True)
    assert places.find({**default, "NAME": "test_shop"}) is None
    mysql = {**default, "ENGINE": "django.db.backends.mysql", "HOST": "127.1"}
    named = find_places(config, {"replica": default, "default": mysql, "lite": {"NAME": "file"}})
    (line,) = named.describe()
    assert line.startswith("the database default is 127.1:3306/shop, which the file does not name: "), line
    for options in ({"database": "tenant_b"}, {"db": "tenant_b"}, {"host": "db3"}, {"unix_socket": "/s"}):
        assert places.find({**default, "OPTIONS": options}) is None, "as Django connects"
    assert places.find({"NAME": "other", "OPTIONS": {"host": "127.0.0.1", "database": "shop"}}) is found
    with pytest.raises(ConfigError, match=r"no database of DATABASES.*127\.0\.0\.1:3306/shop"):
        find_places(config, {"default": {**default, "NAME": "test_shop"}})
    with pytest.raises(ConfigError, match="port 'x'"):
        find_places(config, {"default": {**default, "PORT": "x"}})


SET_UP = """
import pymysql
pymysql.install_as_MySQLdb()
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["appclient.django", "shop"],
    FRESHNESS={path!r},
    DATABASES={{"default": {{"ENGINE": "django.db.backends.mysql", "HOST": "127.0.0.1", "NAME": "shop"}}}},
)
django.setup()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "shop.Thing is the object thing"),
        ("class Meta: db_table = 'other'", "shop.Thing has no object in"),
        ("id = models.DateField(primary_key=True)", "has a primary key of type DateField"),
        ("area = Area()", "has the field area, which Area selects by an expression"),
        (
            "pk = models.CompositePrimaryKey('a', 'b')\n    a = models.IntegerField()\n    b = models.IntegerField()",
            "has a primary key of type CompositePrimaryKey",
        ),
    ],
)
def test_models_that_cannot_be_cached_are_refused_at_the_start(
    path: Path, tmp_path: Path, fields: str, message: str
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(
        "from django.db import models\nfrom appclient.django.models import CachedModel\n"
        "class Area(models.TextField):\n    def select_format(self, compiler, sql, params):\n"
        "        return f'HEX({sql})', params\n"
        f"class Thing(CachedModel):\n    v = models.IntegerField()\n    {fields}\n"
    )
    program = SET_UP.format(path=str(path)) + (
        "from appclient.django.installed import get_app\n"
        "for each in get_app().objects.values(): print(each.model._meta.label, 'is the object', each.name)\n"
    )
    ended = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}")
    assert message in ended.stdout + ended.stderr


MODELS = """
from django.db import models
from appclient.django.models import CachedManager, CachedModel, CachedQuerySet

class Thing(CachedModel):
    v = models.IntegerField()

class Plain(models.Model):
    pass

class Child(Thing):
    w = models.IntegerField()

class Asking(Plain):
    objects = CachedManager()

class Proxy(Thing):
    class Meta:
        proxy = True

class OwnManager(CachedModel):
    objects = models.Manager()

class ThingQuerySet(CachedQuerySet):
    pass

class OwnQuerySet(CachedModel):
    objects = CachedManager.from_queryset(ThingQuerySet)()
    class Meta:
        db_table = "shop_thing"
"""


def describe_models(
    path: Path,
    tmp_path: Path,
    models: str,
    of_packages: tuple[str, ...] = (),
    apps: str = '"appclient.django", "shop"',
    then: str = "",
) -> subprocess.CompletedProcess[str]:
    package = tmp_path / "shop"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(models)
    setting = {"CONFIG": str(path), "MODELS": of_packages}
    set_up = SET_UP.format(path=setting).replace('"appclient.django", "shop"', apps)
    program = set_up + (
        f"from appclient.django.installed import get_app\nprint('\\n'.join(get_app().describe()))\n{then}\n"
    )
    return run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}")


def test_each_model_is_described(path: Path, tmp_path: Path) -> None:
    """A child asks for nothing by its parent's manager, so it does not stop Django from starting."""
    several = "inherits from a model with a table of its own: its rows are in several tables"
    ended = describe_models(
        path,
        tmp_path,
        MODELS.replace(
            "class Asking(Plain):", "class Asking(models.Model):\n    class Meta: db_table = 'shop_thing'"
        ),
    )
    assert ended.stdout.splitlines() == [
        "shop.Thing is the object thing",
        "shop.Asking is the object thing, but foreign keys to it read the database",
        "shop.Proxy is the object thing",
        "shop.OwnQuerySet is the object thing",
        f"shop.Child is read from the database: it {several}",
        "shop.OwnManager is read from the database: it has no manager that is derived from CachedManager",
    ], ended.stderr


def test_a_child_that_asks_for_the_cache_is_refused(path: Path, tmp_path: Path) -> None:
    ended = describe_models(path, tmp_path, MODELS)
    assert "shop.Asking" in ended.stderr
    assert "shop.Child" not in ended.stderr


def test_a_query_set_that_does_not_read_the_cache_is_refused(path: Path, tmp_path: Path) -> None:
    ended = describe_models(
        path, tmp_path, MODELS.replace("ThingQuerySet(CachedQuerySet)", "ThingQuerySet(models.QuerySet)")
    )
    assert "CachedManager.from_queryset(ThingQuerySet): it would read the database alone" in ended.stderr


PACKAGE = """
from django.db import models

class ThingQuerySet(models.QuerySet):
    pass

class Live(models.Manager):
    def get_queryset(self):
        return super().get_queryset().filter(v=1)

class Thing(models.Model):
    v = models.IntegerField()
    objects = Live()
    others = ThingQuerySet.as_manager()
"""


@pytest.mark.parametrize(
    ("models", "package", "message"),
    [
        ((), PACKAGE, "shop.Thing is read from the database: shop_thing is in the file, so derive its manager"),
        (
            ("shop.Thing",),
            PACKAGE,
            "shop.Thing is the object thing, but objects.get(), foreign keys to it read the database",
        ),
        (("shop.Thing",), PACKAGE.replace("objects = Live()", ""), "shop.Thing is the object thing\n"),
        (
            ("shop.Thing",),
            PACKAGE.replace("    pass", "    def get(self, *args, **kwargs):\n        return 5"),
            "shop.Thing.others cannot read the cache: ThingQuerySet has a method get of its own",
        ),
        (("shop.Other",), PACKAGE, "FRESHNESS['MODELS'] has 'shop.Other': App 'shop' doesn't have a 'Other' model"),
        (("Thing",), PACKAGE, "FRESHNESS['MODELS'] has 'Thing'"),
    ],
)
def test_models_of_packages_are_named_in_the_setting(
    path: Path, tmp_path: Path, models: tuple[str, ...], package: str, message: str
) -> None:
    """Wherever the package is in INSTALLED_APPS."""
    for apps in ('"appclient.django", "shop"', '"shop", "appclient.django"'):
        ended = describe_models(path, tmp_path, package, models, apps)
        assert message in ended.stdout + ended.stderr


def test_a_manager_of_a_model_of_a_package_can_be_pickled(path: Path, tmp_path: Path) -> None:
    then = (
        "import pickle\nfrom shop.models import Live, Thing\n"
        "restored = pickle.loads(pickle.dumps(Thing.objects))\n"
        "print(type(restored) is Live, restored.model is Thing, restored.name)"
    )
    ended = describe_models(path, tmp_path, PACKAGE, ("shop.Thing",), then=then)
    assert ended.stdout.splitlines()[-1:] == ["True True objects"], ended.stderr


def test_methods_of_the_manager_have_docstrings_of_their_own(path: Path) -> None:
    ended = run(
        SET_UP.format(path=str(path)).replace(', "shop"]', "]")
        + "from appclient.django.models import CachedManager\n"
        "assert 'cache' in CachedManager.get.__doc__ and 'cache' in CachedManager.in_bulk.__doc__\n"
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "from appclient.django import get_cache, wrote",
        "from appclient.django.installed import get_cache",
        "from appclient.django.middleware import ReadYourWritesMiddleware",
        "from appclient.django.models import CachedManager, CachedModel, CachedQuerySet",
        "from appclient.django.session import forget, wrote",
        "from appclient.testing.django import CachedTestCase",
    ],
)
def test_a_module_that_applications_import(path: Path, imports: str) -> None:
    ended = run(SET_UP.format(path=str(path)).replace(', "shop"]', "]") + imports)
    assert ended.returncode == 0, ended.stderr


def test_errors_of_the_server_are_told_apart_where_pymysql_stands_in_for_mysqldb() -> None:
    """Django imports submodules of MySQLdb, which puts copies of them in the place of PyMySQL's own."""
    ended = run(
        "import pymysql\n"
        "pymysql.install_as_MySQLdb()\n"
        "import MySQLdb.converters, MySQLdb.constants\n"
        "from pymysql import ProgrammingError\n"
        "from freshness.config.server import ServerAddress\n"
        "from freshness.database.connection import translated\n"
        "assert pymysql.err.ProgrammingError is not ProgrammingError\n"
        "found = translated(ProgrammingError(1113, 'no columns'), ServerAddress('h'), 'reading')\n"
        "print(type(found).__name__)\n"
    )
    assert ended.stdout == "SourceUnsuitable\n", ended.stderr


def test_the_library_itself_imports_no_django() -> None:
    ended = run("import sys, appclient, appclient.cache; print('django' in sys.modules)")
    assert ended.stdout == "False\n", ended.stderr


def test_a_missing_django_is_one_clear_line() -> None:
    ended = run("import sys; sys.modules['django'] = None\nimport appclient.django")
    assert ended.stderr.strip().endswith("pip install 'freshness[django]')")


def test_a_driver_that_cannot_choose_a_database_by_a_call_is_watched() -> None:
    """As mysql-connector, whose backend for Django is one of MySQL, too."""
    raw = SimpleNamespace(cmd_query=lambda _: None)
    connection = open_database()
    connection.connection = raw
    watch(connection=connection)
    assert connection.execute_wrappers == [note_statement]
    raw.cmd_query(b"USE tenant_b")
    assert is_special(connection)


class Driver:
    """A connection of a driver. ``database``: the one that a receiver has chosen."""

    def __init__(self, database: str = "shop") -> None:
        self.database = database

    def query(self, sql: str) -> None:
        """As drivers have it."""

    def cursor(self) -> Any:
        return SimpleNamespace(execute=lambda _: None, fetchone=lambda: (self.database,), close=lambda: None)


class Opening(SimpleNamespace):
    """A connection of Django that is not made yet."""

    connection: Any

    def ensure_connection(self) -> None:
        if self.connection is None:
            self.connection = Driver("tenant_b")
            watch(connection=self)


def open_database(**options: Any) -> Any:
    return Opening(
        vendor="mysql",
        execute_wrappers=[],
        connection=None,
        settings_dict={"NAME": "shop", "OPTIONS": options},
        in_atomic_block=False,
        autocommit=True,
    )


def test_a_session_that_begins_in_another_database_is_special() -> None:
    """A read from the cache needs no connection, and so makes none, unless a receiver may choose another database."""
    plain = open_database()
    assert not is_special(plain)
    assert plain.connection is None
    assert not is_special(open_database(init_command="SET sql_mode = 'STRICT_TRANS_TABLES'"))
    assert is_special(open_database(init_command="SET sql_mode = ''; USE tenant_b"))
    own = connection_created.receivers
    try:
        connection_created.receivers = [*own, None, None]
        assert is_special(open_database())
        made = open_database()
        made.connection = Driver()
        assert not is_special(made)
    finally:
        connection_created.receivers = own


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["START TRANSACTION", "UPDATE t SET v = 1"], True),
        (["/* why */ START TRANSACTION", "UPDATE t SET v = 1"], True),
        (["/*!50000 BEGIN */", "UPDATE t SET v = 1"], True),
        (["-- why\nBEGIN", "UPDATE t SET v = 1", "COMMIT"], False),
        (["BEGIN", "COMMIT AND CHAIN", "UPDATE t SET v = 1"], True),
        (["SET autocommit = 0", "UPDATE t SET v = 1", "COMMIT", "UPDATE t SET v = 1"], True),
        (["SET autocommit = 0"], False),
        (["UPDATE t SET v = 1"], False),
    ],
)
def test_a_transaction_that_django_does_not_see(statements: list[str], expected: bool) -> None:
    connection = open_database()
    connection.connection = Driver()
    watch(connection=connection)
    for each in statements:
        note_statement(
            lambda sql, *_: connection.connection.query(sql), each, None, False, {"connection": connection}
        )
    assert has_own_rows(connection) is expected


def test_a_field_of_the_applications_own_spells_each_key() -> None:
    class Shifted(models.IntegerField):  # type: ignore[misc]
        def get_prep_value(self, value: Any) -> Any:
            return value + 1

    connection = SimpleNamespace(ops=BaseDatabaseOperations(None))
    for field, expected in ((models.IntegerField(), [1, 2, None]), (Shifted(), [2, 3, None])):
        subject = ModelObject(models.Model, "thing", "shop", field)
        assert [_spell(subject, key, connection) for key in (1, 2, 2**31)] == expected
