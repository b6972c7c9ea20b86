"""What a hit costs by ``Session.get``, against the ORM's own read by primary key, and against plain `Cache.get`.

Each read has a session of its own, as a request of a web application has. ``python -m benchmarks.orm``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from sqlalchemy import BigInteger, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from appclient.sqlalchemy import CachedReads
from benchmarks.cores import Placement, placed
from benchmarks.hit import repeated, require_hits
from benchmarks.measure import ROUNDS, Criterion, Result, interleave, stopwatch
from benchmarks.shop import open_shop

READS: Final = 1000
"""In one round."""

CRITERION: Final = Criterion(at_most=0.5)


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
        engine = create_engine(f"{shop.pair.primary.url.replace('mysql:', 'mysql+pymysql:')}?charset=utf8mb4")
        plain, cached = sessionmaker(engine), sessionmaker(engine)
        CachedReads(shop.cache, cached)
        keys = repeated(shop.keys, READS)

        def reader(sessions: sessionmaker[Session]) -> Callable[[], None]:
            def read() -> None:
                for key in keys:
                    with sessions() as session:
                        session.get_one(Customer, key)

            return read

        def bare() -> None:
            for key in keys:
                shop.cache.get("customer", key)

        hits, selects = reader(cached), reader(plain)
        against_select = interleave(
            lambda _: require_hits(shop, hits), lambda _: stopwatch(selects), rounds
        ).microseconds("orm_hit", READS, "Session.get by a SELECT on the primary", CRITERION)
        against_get = interleave(
            lambda _: require_hits(shop, hits), lambda _: require_hits(shop, bare), rounds
        ).microseconds("orm_hit_over_get", READS, "Cache.get")
        engine.dispose()
        return [against_select, against_get]


def main() -> int:
    is_met = True
    for placement in Placement:
        with placed(placement):
            for result in measure_orm(ROUNDS):
                low, high = result.spread
                print(
                    f"{placement.value}: {result.name} {result.value:.0f} {result.unit}, {result.baseline} "
                    f"{result.baseline_value:.0f}: {result.ratio:.2f} ({low:.2f} to {high:.2f})"
                )
                is_met &= result.is_met
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
