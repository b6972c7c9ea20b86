"""The applications as values: how each is made and started, which caches it has, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OURS: Final = ("freshness", "rows")
"""The caches that are this library: by the adapter of the ORM, and its rows as dicts."""


@dataclass(frozen=True, slots=True)
class Shop:
    """``caches``: their names on the page, by the value of ``SHOP_CACHE``; each has "freshness" and "none".
    ``migrate`` and ``serve``: arguments of Python; ``{port}`` is where to listen."""

    name: str
    caches: Mapping[str, str]
    migrate: tuple[str, ...]
    serve: tuple[str, ...]
    categories: str
    products: str

    @property
    def objects(self) -> str:
        """Of ``freshness.toml``."""
        return (
            f'\n[objects.category]\ntable = "{self.categories}"\n'
            f'\n[objects.product]\ntable = "{self.products}"\nfill_from_log = true\n'
        )


_GUNICORN: Final = (
    "-m",
    "gunicorn",
    "--workers=2",
    "--threads=4",
    "--bind=127.0.0.1:{port}",
    "--graceful-timeout=20",
)
_SQLALCHEMY: Final = ("-m", "examples.sqlalchemy_shop.schema")

SHOPS: Final = {
    shop.name: shop
    for shop in (
        Shop(
            "django",
            {
                "freshness": "`appclient.django`",
                "signals": "Django's cache framework, by signals",
                "cachalot": "django-cachalot",
                "none": "no cache",
            },
            ("-m", "django", "migrate", "--run-syncdb", "--verbosity=0"),
            (*_GUNICORN, "examples.django_shop.wsgi:application"),
            "django_shop_category",
            "django_shop_product",
        ),
        Shop(
            "fastapi",
            {
                "freshness": "`appclient.sqlalchemy`",
                "rows": "`AsyncCache.get_many`",
                "aiocache": "aiocache",
                "none": "no cache",
            },
            _SQLALCHEMY,
            (
                "-m",
                "uvicorn",
                "--workers=2",
                "--port={port}",
                # By default a worker that does not answer for 5 s is killed: too short on a busy machine. One that is
                # killed while it is asked is found dead after this time only
                "--timeout-worker-healthcheck=20",
                "--log-level=warning",
                "examples.fastapi_shop.app:application",
            ),
            "categories",
            "products",
        ),
        Shop(
            "flask",
            {
                "freshness": "`appclient.sqlalchemy`",
                "rows": "`Cache.get_many`",
                "dogpile": "dogpile.cache",
                "none": "no cache",
            },
            _SQLALCHEMY,
            (*_GUNICORN, "examples.flask_shop.app:application"),
            "categories",
            "products",
        ),
    )
}
