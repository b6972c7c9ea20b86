"""How the shop reads rows, by each of the caches; the endpoints are the same for all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.scoreboard.shop import OURS
from examples.sqlalchemy_shop.models import Category, Product, Row, row_of
from examples.sqlalchemy_shop.place import CACHE, PRIMARY_PORT, REPLICA_PORT, url_of

Reading: Final = async_sessionmaker(create_async_engine(url_of("asyncmy", REPLICA_PORT)))
Writing: Final = async_sessionmaker(create_async_engine(url_of("asyncmy", PRIMARY_PORT)))


class Catalog:
    """What one request reads, by SQLAlchemy."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        async with Reading() as session:
            yield session

    async def read_page(self, key: int) -> tuple[Row, str]:
        """A product, and the name of its category."""
        async with self.reading() as session:
            product = await session.get_one(Product, key)
            return row_of(product), (await session.get_one(Category, product.category_id)).name

    async def read_products(self, keys: Iterable[int]) -> dict[int, Row]:
        async with self.reading() as session:
            found = await session.scalars(select(Product).where(Product.id.in_(list(keys))))
            return {product.id: row_of(product) for product in found}

    async def read_product(self, key: int) -> Row:
        async with self.reading() as session:
            return row_of(await session.get_one(Product, key))

    async def committed(self, session: AsyncSession, key: int) -> None:
        """The session has changed the product, and its transaction is over."""


async def open_catalog(request: Request) -> Catalog:
    """The catalog of a request: a dependency of the endpoints. FastAPI sends a plain function to a thread."""
    return Catalog()


def around(app: Any) -> Any:
    """What uvicorn is to serve."""
    return app


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
    yield {}


if CACHE in OURS:
    from appclient.sqlalchemy import CachedReads
    from appclient.starlette import ReadYourWrites, cache_lifespan, request_reads
    from appclient.web import AsyncRequestReads, TokenCookie
    from examples.scoreboard.tally import count

    class FreshCatalog(Catalog):
        """The same sessions read through the cache, with the commits of the client."""

        def __init__(self, cached: CachedReads, writes: CachedReads, reads: AsyncRequestReads) -> None:
            self._cached, self._writes, self._reads = cached, writes, reads

        @asynccontextmanager
        async def reading(self) -> AsyncIterator[AsyncSession]:
            async with Reading() as session:
                self._cached.demand(session, self._reads.token)
                yield session

        async def committed(self, session: AsyncSession, key: int) -> None:
            self._reads.add(self._writes.commit_token(session))

    class RowsCatalog(FreshCatalog):
        """The rows by the cache's own methods, as dicts: no ORM."""

        async def read_page(self, key: int) -> tuple[Row, str]:
            row = await self.read_product(key)
            return row, (await self._reads.get("category", row["category_id"]))["name"]

        async def read_products(self, keys: Iterable[int]) -> dict[int, Row]:
            found = await self._reads.get_many("product", keys)
            return {key: {**row, "price": str(row["price"])} for key, row in found.items()}

        async def read_product(self, key: int) -> Row:
            row: Row = await self._reads.get("product", key)
            return {**row, "price": str(row["price"])}

    async def open_fresh_catalog(request: Request) -> Catalog:
        kind = FreshCatalog if CACHE == "freshness" else RowsCatalog
        return kind(request.state.cached, request.state.writes, await request_reads(request))

    def fresh_around(app: Any) -> Any:
        """Outside of the whole application, so that it also sees the commit of an endpoint that fails
        afterwards."""
        return ReadYourWrites(app, cookie=TokenCookie([os.environ["SHOP_SECRET"]], secure=False))

    @asynccontextmanager
    async def fresh_lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with cache_lifespan(os.environ["SHOP_TOML"], on_read=count)(app) as state:
            cache = state["freshness_cache"]
            yield {**state, "cached": CachedReads(cache, Reading), "writes": CachedReads(cache, Writing)}

    open_catalog, around, lifespan = open_fresh_catalog, fresh_around, fresh_lifespan

elif CACHE == "aiocache":
    # The decorators of its documentation: rows under their keys in memcached, deleted after the commit.
    from aiocache import Cache, cached, multi_cached

    _host, _, _port = os.environ["SHOP_NODE"].rpartition(":")
    _node: dict[str, Any] = {
        "cache": Cache.MEMCACHED,
        "endpoint": _host,
        "port": int(_port),
        "pool_size": 8,
        "ttl": 3600,
    }

    @multi_cached("keys", namespace="product:", **_node)
    async def find_products(keys: list[str]) -> dict[str, Row]:
        found = await Catalog().read_products(map(int, keys))
        return {str(key): row for key, row in found.items()}

    @cached(key_builder=lambda _, key: str(key), namespace="category:", **_node)
    async def find_category(key: int) -> str:
        async with Reading() as session:
            return (await session.get_one(Category, key)).name

    class AiocacheCatalog(Catalog):
        async def read_page(self, key: int) -> tuple[Row, str]:
            row = await self.read_product(key)
            return row, await find_category(row["category_id"])

        async def read_products(self, keys: Iterable[int]) -> dict[int, Row]:
            found = await find_products([str(key) for key in keys])
            return {int(key): row for key, row in found.items()}

        async def read_product(self, key: int) -> Row:
            return (await self.read_products([key]))[key]

        async def committed(self, session: AsyncSession, key: int) -> None:
            await find_products.cache.delete(str(key))

    async def open_aiocache_catalog(request: Request) -> Catalog:
        return AiocacheCatalog()

    open_catalog = open_aiocache_catalog
