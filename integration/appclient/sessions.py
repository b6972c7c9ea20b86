"""A shop beside another tenant's, for tests of what a row depends on in a session; and pools that an application has
used before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from appclient import Cache, OwnPool
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system
from integration.servers import Pair

STAMPS = """CREATE TABLE stamps (id INT PRIMARY KEY, at TIMESTAMP NULL, fixed CHAR(10), name VARCHAR(20))
    CHARSET utf8mb4"""
OBJECTS = (
    CUSTOMER + '[objects.stamp]\ntable = "stamps"\n[objects.report]\nkey = ["id"]\nmembers = { stamps = ["id"] }\n'
)
ZONE_FUNCTION = """CREATE FUNCTION shift_zone() RETURNS INT DETERMINISTIC NO SQL
    BEGIN SET SESSION time_zone = '-05:00'; RETURN 1; END"""
LEAVES_FUNCTION = """CREATE FUNCTION leave_all() RETURNS INT DETERMINISTIC NO SQL BEGIN
    SET @left = 1, SESSION group_concat_max_len = 4, SESSION div_precision_increment = 0;
    RETURN GET_LOCK('left by a loader', 0); END"""
LEFT_FUNCTION = "CREATE FUNCTION what_is_left() RETURNS INT NO SQL RETURN @left"
ODD_PROCEDURE = """CREATE PROCEDURE be_odd() BEGIN
    SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
    SET SESSION time_zone = '+05:00', SESSION sql_select_limit = 2, SESSION sql_auto_is_null = 1,
        SESSION sql_mode = 'PAD_CHAR_TO_FULL_LENGTH', SESSION character_set_connection = latin1; END"""
KEYS = range(1, 9)


@contextmanager
def running_tenants(pair: Pair, folder: Path) -> Iterator[System]:
    """``tenant_b`` has a table of customers, too; the functions ``shift_zone`` and ``leave_all``, and the view
    ``leaving``, change the session that calls them."""
    for name in ("shop", "tenant_b"):
        pair.primary.execute(f"DROP DATABASE IF EXISTS {name}")
        pair.primary.execute(f"CREATE DATABASE {name}")
    pair.primary.execute("GRANT ALL ON tenant_b.* TO app@'%'")
    pair.primary.execute(CUSTOMERS_TABLE, database="tenant_b")
    with running_system(pair, folder, tables=(CUSTOMERS_TABLE, STAMPS), objects=OBJECTS) as system:
        with pair.primary.setting("log_bin_trust_function_creators", 1):
            for routine in (ZONE_FUNCTION, LEAVES_FUNCTION, LEFT_FUNCTION, ODD_PROCEDURE):
                system.execute(routine)
        system.execute("CREATE VIEW leaving AS SELECT leave_all() AS done")
        system.execute("GRANT EXECUTE ON shop.* TO app@'%'")
        yield system


def fill_tables(system: System) -> None:
    """The same rows in both tables of the shop, and other ones in the tenant's."""
    for table in ("stamps", "customers", "tenant_b.customers"):
        system.execute(f"DELETE FROM {table}")
    for number in KEYS:
        system.execute(f"INSERT INTO stamps VALUES ({number}, '2026-06-01 12:00:00', 'x', 'n')")
        system.execute(f"INSERT INTO customers VALUES ({number}, 'shop', 0)")
        system.execute(f"INSERT INTO tenant_b.customers VALUES ({number}, 'tenant b', 0)")
    system.settle()


@contextmanager
def opened(system: System, **options: Any) -> Iterator[Cache]:
    cache = Cache.open(system.config_path, **options)
    try:
        yield cache
    finally:
        cache.close()


def own_pool(
    system: System, *statements: str, kind: Callable[..., Any] = pymysql.Connection
) -> tuple[dict[str, OwnPool], Any]:
    """A pool of one connection to the replica, on which the application sent these before; and the connection."""
    port = system.pair.replica.port
    connection = kind(host="127.0.0.1", port=port, user="app", password="app", database="shop", charset="utf8mb4")
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    closed: list[Any] = []
    pool = OwnPool(lambda: connection, lambda _: None, closed.append, pymysql.Error)
    return {f"127.0.0.1:{port}": pool}, connection
