"""What a hit costs by ``Session.get`` of SQLAlchemy and by ``objects.get`` of Django, against the ORM's own read by
primary key, and against plain `Cache.get`.

The database is on loopback, with all rows in memory, and has nothing else to do: a read of it costs no less anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import BigInteger, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from appclient.sqlalchemy import CachedReads
from benchmarks.hit import repeated, require_hits
from benchmarks.measure import Criterion, Result, interleave, stopwatch
from benchmarks.shop import Shop, open_shop
from integration.django.project import use

READS: Final = 1000
"""In one round."""

CRITERION: Final = Criterion(at_most=0.5)
DJANGO: Final = {"INSTALLED_APPS": ["appclient.django", "benchmarks"], "USE_TZ": True}

Reads = Callable[[], None]


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    email: Mapped[str] = mapped_column(String(80))
    visits: Mapped[int]
    city: Mapped[str] = mapped_column(String(40))


def measure_orm(rounds: int) -> list[Result]:
    with open_shop(node_count=1) as shop:
        keys = repeated(shop.keys, READS)

        def bare() -> None:
            for key in keys:
                shop.cache.get("customer", key)

        def compare(name: str, hits: Reads, selects: Reads, what: str, criterion: Criterion | None) -> list[Result]:
            against_select = interleave(lambda _: require_hits(shop, hits), lambda _: stopwatch(selects), rounds)
            against_get = interleave(lambda _: require_hits(shop, hits), lambda _: require_hits(shop, bare), rounds)
            return [
                against_select.microseconds(name, READS, f"{what} by a SELECT on the primary", criterion),
                against_get.microseconds(f"{name}_over_get", READS, "Cache.get"),
            ]

        return [
            *compare("django_hit", *by_django(shop, keys), "objects.get of Django", CRITERION),
            *compare("sqlalchemy_hit", *by_sessions(shop, keys), "Session.get, one in a session,", CRITERION),
            *compare("sqlalchemy_hits", *by_one_session(shop, keys), "Session.get, many in a session,", None),
        ]


def by_django(shop: Shop, keys: list[int]) -> tuple[Reads, Reads]:
    """Reads of the cache, and of the database."""
    use(shop.pair, shop.cache.config.path, DJANGO)
    from benchmarks.models import Customer as Model

    def hits() -> None:
        for key in keys:
            Model.objects.get(pk=key)

    def selects() -> None:
        for key in keys:
            Model.plain.get(pk=key)

    return hits, selects


def by_sessions(shop: Shop, keys: list[int]) -> tuple[Reads, Reads]:
    """The same by a session for each read, which rolls back at its end."""

    def reader(sessions: sessionmaker[Session]) -> Reads:
        def read() -> None:
            for key in keys:
                with sessions() as session:
                    session.get_one(Customer, key)

        return read

    plain, cached = open_sessions(shop)
    return reader(cached), reader(plain)


def by_one_session(shop: Shop, keys: list[int]) -> tuple[Reads, Reads]:
    """The same by one session for all reads of a round."""

    def reader(sessions: sessionmaker[Session]) -> Reads:
        def read() -> None:
            with sessions() as session:
                for key in keys:
                    session.get_one(Customer, key)

        return read

    plain, cached = open_sessions(shop)
    return reader(cached), reader(plain)


def open_sessions(shop: Shop) -> tuple[sessionmaker[Session], sessionmaker[Session]]:
    """Sessions of the database, and of the cache."""
    url = shop.pair.primary.url.replace("mysql:", "mysql+pymysql:")
    engine = create_engine(f"{url}?charset=utf8mb4")
    plain, cached = sessionmaker(engine), sessionmaker(engine)
    CachedReads(shop.cache, cached)
    return plain, cached
