"""A Django project on private servers, inside the process of the tests.

Django is set up once in a process, with its own driver, mysqlclient; `use` points its settings to other servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import django
from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections

from appclient.django import session
from integration.configuration import write_config
from integration.harness import CACHE, STREAM, System
from integration.servers import Memcached, Pair
from integration.servers.program import InvalidatorProcess

OBJECTS: Final = "".join(f'[objects.{name}]\ntable = "shop_{name}"\n' for name in ("owner", "thing", "code"))
OF_PACKAGES: Final[Mapping[str, str]] = {"auth.Group": "auth_group", "package.Tag": "package_tag"}
"""Tables by the labels of cached models that know nothing of the cache."""
SETTINGS: Final[Mapping[str, Any]] = {
    "INSTALLED_APPS": [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "appclient.django",
        "integration.django.shop",
        "integration.django.package",
    ],
    "MIDDLEWARE": [
        "appclient.django.middleware.ReadYourWritesMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "ROOT_URLCONF": "integration.django.shop.urls",
    "SECRET_KEY": "a secret of the tests, which sign nothing of value",
    "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    "ALLOWED_HOSTS": ["*"],
    "USE_TZ": True,
    "TIME_ZONE": "Europe/Berlin",
    "DATABASE_ROUTERS": ["integration.django.shop.router.ReplicaRouter"],
}


def databases_of(pair: Pair) -> dict[str, dict[str, Any]]:
    """``default`` is the primary, ``replica`` its replica."""
    return {
        alias: {
            "ENGINE": "django.db.backends.mysql",
            "HOST": "127.0.0.1",
            "PORT": server.port,
            "NAME": "shop",
            "USER": "app",
            "PASSWORD": "app",
            "OPTIONS": {"ssl_mode": "DISABLED"},
            "TEST": {"NAME": "shop"},
        }
        for alias, server in (("default", pair.primary), ("replica", pair.replica))
    }


def use(pair: Pair, config: Path, given: Mapping[str, Any] = SETTINGS, models: Collection[str] = ()) -> None:
    """Set up Django with the settings ``given``, or point it to these servers. ``models``: labels of others."""
    databases = databases_of(pair)
    freshness = {"CONFIG": config, "MODELS": list(models)}
    if not settings.configured:
        settings.configure(DATABASES=databases, FRESHNESS=freshness, **given)
        django.setup()
        return
    session.forget()
    connections.close_all()
    for alias in databases:
        if hasattr(connections._connections, alias):
            del connections[alias]
    settings.DATABASES, settings.FRESHNESS = databases, freshness
    connections._settings = databases
    connections.__dict__["settings"] = connections.configure_settings(databases)
    setting_changed.send(None, setting="FRESHNESS", value=freshness, enter=True)


@contextmanager
def running_shop(pair: Pair, folder: Path) -> Iterator[System]:
    """A system with the tables of the models, and Django pointed to it."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Memcached()) for _ in range(2)]
        path = write_config(
            folder,
            pair.primary.flavor,
            pair.primary.url,
            [node.address for node in nodes],
            replicas=[pair.replica.url],
            objects=OBJECTS + "".join(f'[objects.{table}]\ntable = "{table}"\n' for table in OF_PACKAGES.values()),
            cache=CACHE,
            stream=STREAM,
        )
        pair.primary.execute("ALTER DATABASE shop CHARACTER SET utf8mb4")
        use(pair, path, models=OF_PACKAGES)
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        pair.wait_caught_up()
        invalidator = stack.enter_context(InvalidatorProcess(path))
        system = System(pair, nodes, path, invalidator)
        system.wait_open()
        yield system
        connections.close_all()
        apps.get_app_config("freshness").cache.close()
