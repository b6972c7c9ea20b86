"""Who reads and writes what: a small shop whose popular customers are read far more than the others.

Reads follow a Zipf-like law; writes follow a flatter one over the same ranking, so that popular customers change
more often, too. Everything is drawn from the seed, though threads make the interleaving differ from run to run.
Every row carries a version that its writer raises by one under the row's lock: versions rise in commit order.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from appclient import LoaderConnection
from examples.demo.databases import Topology
from examples.demo.measurement import (
    CUSTOMER,
    ORDER_IDS_PER_CUSTOMER,
    PROFILE,
    ObjectKey,
    Request,
    Row,
    Write,
    owner_of,
)

TABLES: Final = (
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(60) NOT NULL, balance DECIMAL(12,2) NOT NULL,"
    " transfers BIGINT NOT NULL, version BIGINT NOT NULL, changed_us BIGINT NOT NULL)",
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT NOT NULL, total DECIMAL(10,2) NOT NULL,"
    " version BIGINT NOT NULL, changed_us BIGINT NOT NULL, KEY (customer_id))",
)
ORDERS_PER_CUSTOMER_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the workload, which leaves two cores idle most of the time: else the lags would be the machine's.
    Rates are of the whole run, over all threads. ``interrupted``: number of
    additional processes that each read as much as one reader, interrupted by signals. ``fills_from_log``:
    single rows have ``fill_from_log``. ``has_replica``: False if all is read from the primary. ``customers``: an even
    number, since each has a partner. ``topology``: None for a primary and its replica."""

    seconds: float
    seed: int
    customers: int = 500
    writers: int = 2
    writes_per_second: float = 30.0
    readers: int = 4
    requests_per_second: float = 125.0
    interrupted: int = 0
    fills_from_log: bool = False
    has_replica: bool = True
    topology: Topology | None = None
    keys_per_batch: int = 8
    read_skew: float = 0.9
    write_skew: float = 0.3

    @property
    def pause_seconds(self) -> float:
        """How long the replica's applier stands still in the middle of the run."""
        return min(3.0, self.seconds / 8) if self.has_replica else 0.0


class Popularity:
    """Customers drawn by rank: the weight of rank n is ``n ** -skew``."""

    def __init__(self, plan: Plan, skew: float) -> None:
        self._customers = list(range(1, plan.customers + 1))
        random.Random(plan.seed).shuffle(self._customers)  # the same ranking for reads and writes
        self._weights = list(accumulate(rank**-skew for rank in range(1, plan.customers + 1)))

    def draw(self, generator: random.Random, count: int = 1) -> list[int]:
        drawn = generator.choices(self._customers, cum_weights=self._weights, k=count)
        return list(dict.fromkeys(drawn))


def partner_of(number: int) -> int:
    """Each customer's transfers are with one other."""
    return (number - 1 ^ 1) + 1


def draw_requests(plan: Plan, generator: random.Random) -> Iterator[Request]:
    """Endless: mostly single customers, some batches, some pairs of partners, some composite profiles."""
    popularity = Popularity(plan, plan.read_skew)
    while True:
        kind = generator.random()
        if kind < 0.70:
            yield Request(((CUSTOMER, popularity.draw(generator)[0]),))
        elif kind < 0.75:
            (number,) = popularity.draw(generator)
            yield Request(((CUSTOMER, number), (CUSTOMER, partner_of(number))), is_pair=True)
        elif kind < 0.85:
            yield Request(tuple((CUSTOMER, number) for number in popularity.draw(generator, plan.keys_per_batch)))
        else:
            yield Request(((PROFILE, popularity.draw(generator)[0]),))


def load_profile(db: LoaderConnection, customer_id: int) -> dict[str, Any]:
    """The composite object, built alike by all strategies."""
    return {
        "customer": db.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,)),
        "orders": db.query("SELECT * FROM orders WHERE customer_id = %s ORDER BY id", (customer_id,)),
    }


def create_tables(connection: Any, plan: Plan) -> None:
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(table)
        rows = [(number, f"customer {number}", 100, 0, 1, 0) for number in range(1, plan.customers + 1)]
        cursor.executemany("INSERT INTO customers VALUES (%s, %s, %s, %s, %s, %s)", rows)


# -- writing -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OrderBook:
    """Which orders exist, shared by the writers. Never two writers get the same new order."""

    _counts: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def place(self, customer_id: int) -> int | None:
        """The id of a new order, None if the customer has enough."""
        with self._lock:
            count = self._counts.get(customer_id, 0)
            if count >= ORDERS_PER_CUSTOMER_MAX:
                return None
            self._counts[customer_id] = count + 1
            return customer_id * ORDER_IDS_PER_CUSTOMER + count


@dataclass(slots=True)
class Writer:
    """One connection that changes rows. ``known``: the orders that this writer has committed itself."""

    connection: Any
    book: OrderBook
    popularity: Popularity
    generator: random.Random
    known: dict[int, list[int]] = field(default_factory=dict)

    def write(self) -> tuple[Write, Any]:
        """One transaction: a customer changes, places an order or makes a transfer with another, or an order changes.

        The write, its time taken as soon as the commit has returned, and the cursor that committed.
        """
        (customer_id,) = self.popularity.draw(self.generator)
        kind = self.generator.random()
        mine = self.known.get(customer_id)
        if kind < 0.15 and mine:
            return self._change_order(customer_id, self.generator.choice(mine))
        if kind < 0.30:
            order_id = self.book.place(customer_id)
            if order_id is not None:
                return self._place_order(customer_id, order_id)
        if kind < 0.45:
            return self._transfer(customer_id)
        return self._change_customer(customer_id)

    def _change_customer(self, customer_id: int) -> tuple[Write, Any]:
        cursor = self.connection.cursor()
        version = self._raise_version(cursor, "customers", "balance", customer_id)
        at = time.monotonic()
        return _write_of({("customers", customer_id): version}, at), cursor

    def _change_order(self, customer_id: int, order_id: int) -> tuple[Write, Any]:
        cursor = self.connection.cursor()
        version = self._raise_version(cursor, "orders", "total", order_id)
        at = time.monotonic()
        return _write_of({("orders", order_id): version}, at), cursor

    def _place_order(self, customer_id: int, order_id: int) -> tuple[Write, Any]:
        cursor = self.connection.cursor()
        cursor.execute("START TRANSACTION")
        version = self._raise_version(cursor, "customers", "balance", customer_id)
        total = self.generator.randrange(1, 500)
        cursor.execute("INSERT INTO orders VALUES (%s, %s, %s, 1, %s)", (order_id, customer_id, total, _now_us()))
        cursor.execute("COMMIT")
        at = time.monotonic()
        self.known.setdefault(customer_id, []).append(order_id)
        return _write_of({("customers", customer_id): version, ("orders", order_id): 1}, at), cursor

    def _transfer(self, customer_id: int) -> tuple[Write, Any]:
        """Both rows count it. They are locked in one order by all writers."""
        cursor = self.connection.cursor()
        cursor.execute("START TRANSACTION")
        versions = {
            ("customers", number): self._raise_version(cursor, "customers", "transfers", number, 1)
            for number in sorted((customer_id, partner_of(customer_id)))
        }
        cursor.execute("COMMIT")
        return _write_of(versions, time.monotonic()), cursor

    def _raise_version(self, cursor: Any, table: str, column: str, number: int, by: int = 0) -> int:
        """LAST_INSERT_ID(…) brings the new version back in the UPDATE's own answer. ``by``: how much the column
        rises; 0 for chance."""
        cursor.execute(
            f"UPDATE {table} SET {column} = {column} + %s, version = LAST_INSERT_ID(version + 1),"
            " changed_us = %s WHERE id = %s",
            (by or self.generator.randrange(1, 100), _now_us(), number),
        )
        assert cursor.rowcount == 1, f"{table} {number} is gone"
        version: int = cursor.lastrowid
        return version


def _write_of(versions: dict[Row, int], at: float) -> Write:
    owners = dict.fromkeys(map(owner_of, versions))
    objects: list[ObjectKey] = [(PROFILE, owner) for owner in owners]
    objects += [(CUSTOMER, number) for table, number in versions if table == "customers"]
    return Write(versions, tuple(objects), at)


def _now_us() -> int:
    return time.time_ns() // 1000


# -- pace ----------------------------------------------------------------------------------------------


def repeat(per_second: float, is_stopping: Callable[[], bool], work: Callable[[], None]) -> None:
    """Do ``work`` at this rate until ``is_stopping``. Time lost to slow work is not made up for."""
    interval = 1 / per_second
    due = time.monotonic()
    while not is_stopping():
        work()
        due = max(due + interval, time.monotonic() - interval)
        time.sleep(max(0.0, due - time.monotonic()))
