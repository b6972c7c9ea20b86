"""Settings of the shop. Servers come from the environment, as in production."""

from __future__ import annotations

import os

CACHE = os.environ["SHOP_CACHE"]
SECRET_KEY = os.environ["SHOP_SECRET"]
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "examples.django_shop.urls"
WSGI_APPLICATION = "examples.django_shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

INSTALLED_APPS = ["examples.django_shop"]
MIDDLEWARE: list[str] = []
DATABASE_ROUTERS = ["examples.django_shop.router.ReplicaRouter"]
DATABASES = {
    alias: {
        "ENGINE": "django.db.backends.mysql",
        "HOST": "127.0.0.1",
        "PORT": int(os.environ[variable]),
        "NAME": "shop",
        "USER": "app",
        "PASSWORD": "app",
        "CONN_MAX_AGE": None,
        "OPTIONS": {"ssl_disabled": True},
    }
    for alias, variable in (("default", "SHOP_PRIMARY_PORT"), ("replica", "SHOP_REPLICA_PORT"))
}

if CACHE == "freshness":
    INSTALLED_APPS.append("appclient.django")
    MIDDLEWARE.append("appclient.django.middleware.ReadYourWritesMiddleware")
    FRESHNESS = {"CONFIG": os.environ["SHOP_TOML"], "ON_READ": "examples.scoreboard.tally.count"}
else:
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
            "LOCATION": os.environ["SHOP_NODE"],
            "TIMEOUT": 3600,
        }
    }
if CACHE == "cachalot":
    INSTALLED_APPS.append("cachalot")
    CACHALOT_TIMEOUT = 3600
