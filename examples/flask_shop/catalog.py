"""How the shop reads rows, by each of the caches; the views are the same for all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from flask import Flask
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from examples.scoreboard.shop import OURS
from examples.sqlalchemy_shop.models import Category, Product, Row, row_of
from examples.sqlalchemy_shop.place import CACHE, PLAIN, PRIMARY_PORT, REPLICA_PORT, url_of

Reading: Final = sessionmaker(create_engine(url_of("pymysql", REPLICA_PORT), connect_args=PLAIN))
Writing: Final = sessionmaker(create_engine(url_of("pymysql", PRIMARY_PORT), connect_args=PLAIN))


class Catalog:
    """What the shop reads, by SQLAlchemy."""

    def __init__(self, app: Flask) -> None:
        """``app``: has its settings."""

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with Reading() as session:
            yield session

    def read_page(self, key: int) -> tuple[Row, str]:
        """A product, and the name of its category."""
        with self.reading() as session:
            product = session.get_one(Product, key)
            return row_of(product), session.get_one(Category, product.category_id).name

    def read_products(self, keys: Iterable[int]) -> dict[int, Row]:
        with self.reading() as session:
            found = session.scalars(select(Product).where(Product.id.in_(list(keys))))
            return {product.id: row_of(product) for product in found}

    def read_product(self, key: int) -> Row:
        with self.reading() as session:
            return row_of(session.get_one(Product, key))

    def committed(self, session: Session, key: int) -> None:
        """The session has changed the product, and its transaction is over."""


def open_catalog(app: Flask) -> Catalog:
    return Catalog(app)


if CACHE in OURS:
    from appclient.flask import Freshness
    from appclient.sqlalchemy import CachedReads
    from examples.scoreboard.tally import count

    class FreshCatalog(Catalog):
        """The same sessions read through the cache, with the commits of the client."""

        def __init__(self, app: Flask) -> None:
            app.config.update(FRESHNESS_CONFIG=os.environ["SHOP_TOML"], FRESHNESS_OPTIONS={"on_read": count})
            self._fresh = Freshness(app)
            self._cached = CachedReads(self._fresh.cache, Reading)
            self._writes = CachedReads(self._fresh.cache, Writing)

        @contextmanager
        def reading(self) -> Iterator[Session]:
            with Reading() as session:
                self._cached.demand(session, self._fresh.reads.token)
                yield session

        def committed(self, session: Session, key: int) -> None:
            self._fresh.reads.add(self._writes.commit_token(session))

    class RowsCatalog(FreshCatalog):
        """The rows by the cache's own methods, as dicts: no ORM."""

        def read_page(self, key: int) -> tuple[Row, str]:
            row = self.read_product(key)
            return row, self._fresh.reads.get("category", row["category_id"])["name"]

        def read_products(self, keys: Iterable[int]) -> dict[int, Row]:
            found = self._fresh.reads.get_many("product", keys)
            return {key: {**row, "price": str(row["price"])} for key, row in found.items()}

        def read_product(self, key: int) -> Row:
            row: Row = self._fresh.reads.get("product", key)
            return {**row, "price": str(row["price"])}

    def open_fresh_catalog(app: Flask) -> Catalog:
        return FreshCatalog(app) if CACHE == "freshness" else RowsCatalog(app)

    open_catalog = open_fresh_catalog

elif CACHE == "dogpile":
    # A region on memcached, with the lock for several processes; a key is deleted after the commit.
    from dogpile.cache import make_region

    class DogpileCatalog(Catalog):
        def __init__(self, app: Flask) -> None:
            self._region: Any = make_region().configure(
                "dogpile.cache.pymemcache",
                expiration_time=3600,
                arguments={"url": [os.environ["SHOP_NODE"]], "distributed_lock": True, "lock_timeout": 30},
            )

        def read_page(self, key: int) -> tuple[Row, str]:
            row = self.read_product(key)
            number = row["category_id"]
            return row, self._region.get_or_create(f"category:{number}", lambda: self._read_category(number))

        def read_products(self, keys: Iterable[int]) -> dict[int, Row]:
            wanted = list(keys)
            found = self._region.get_or_create_multi([f"product:{key}" for key in wanted], self._read_missing)
            return dict(zip(wanted, found, strict=True))

        def read_product(self, key: int) -> Row:
            row: Row = self._region.get_or_create(
                f"product:{key}", lambda: super(DogpileCatalog, self).read_product(key)
            )
            return row

        def committed(self, session: Session, key: int) -> None:
            self._region.delete(f"product:{key}")

        def _read_missing(self, *names: str) -> list[Row]:
            keys = [int(name.rpartition(":")[2]) for name in names]
            found = super().read_products(keys)
            return [found[key] for key in keys]

        def _read_category(self, number: int) -> str:
            with self.reading() as session:
                return session.get_one(Category, number).name

    def open_dogpile_catalog(app: Flask) -> Catalog:
        return DogpileCatalog(app)

    open_catalog = open_dogpile_catalog
