"""Objects change in the file while something is read all the time: only entries of the object that changed are cold.

Readers of the previous file and of the next one are side by side, as two releases of an application are.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from appclient import Cache, ReadOutcome
from integration.configuration import CUSTOMER
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    PATIENT,
    System,
    reading,
    running_system,
    wait_for_hits,
    wait_until,
)
from integration.servers import Pair
from integration.servers.program import InvalidatorProcess

KEYS: Final = tuple(range(1, 21))
ORDERS: Final = """
[objects.orders]
table = "orders"
key = "customer_id"
order_by = "id"
limit = 5
"""


def deploy(system: System, topology: int, objects: str) -> None:
    """Give the invalidator the next file."""
    text = re.sub(r"topology = \d+\n", "", system.config_path.read_text())
    following = system.config_path.with_suffix(".next")
    following.write_text(f"topology = {topology}\n{text.partition('[objects')[0]}{objects}")
    os.replace(following, system.config_path)
    system.invalidator.reload(system.config)


def outcome(cache: Cache, key: int = 1) -> ReadOutcome:
    found: ReadOutcome = cache.get("orders", key, explain=True).outcome
    return found


def test_objects_come_and_go_while_the_others_stay_warm(own_pair: Pair, tmp_path: Path) -> None:
    with running_system(
        own_pair, tmp_path, tables=[CUSTOMERS_TABLE, ORDERS_TABLE], objects=CUSTOMER + ORDERS, cache=PATIENT
    ) as system:
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 1)", key)
            system.execute("INSERT INTO orders VALUES (%s, 1, %s)", key, key)
        system.wait_covered()
        with closing(system.open_cache()) as before, reading(before, "customer", KEYS) as seen:
            wait_for_hits(before, "customer", KEYS, system.describe)
            wait_for_hits(before, "orders", [1], system.describe)
            lives = system.lives()
            seen.clear()

            deploy(system, 2, CUSTOMER + ORDERS.replace("limit = 5", "limit = 6"))
            with closing(system.open_cache()) as after:
                wait_until(lambda: outcome(after) is ReadOutcome.HIT, "it is covered", system.describe)
                assert len(after.get("orders", 1)) == 6
                assert outcome(before) is ReadOutcome.OBJECT
            system.execute("INSERT INTO orders VALUES (0, 1, 0)")
            system.wait_covered()

            deploy(system, 3, CUSTOMER + ORDERS)
            wait_until(lambda: outcome(before) is not ReadOutcome.OBJECT, "it is covered", system.describe)
            assert [row["id"] for row in before.get("orders", 1)] == [0, 1, 2, 3, 4], "the first entry is old"

            # Under another name both releases have their own
            deploy(system, 3, CUSTOMER + ORDERS + ORDERS.replace("orders]", "orders_v2]").replace("5", "6"))
            with closing(system.open_cache()) as after:
                wait_for_hits(after, "orders_v2", [1], system.describe)
                wait_for_hits(before, "orders", [1], system.describe)
                assert len(after.get("orders_v2", 1)) == 6

            deploy(system, 4, CUSTOMER)
            wait_until(lambda: outcome(before) is ReadOutcome.OBJECT, "it is gone", system.describe)
            assert system.lives() == lives
        assert set(seen) == {ReadOutcome.HIT}


@pytest.mark.parametrize("has_second", [False, True])
def test_a_statement_that_alters_keys_costs_the_entries_of_its_table_alone(
    own_pair: Pair, tmp_path: Path, has_second: bool
) -> None:
    """Also beside a second invalidator, which sees it a little earlier or later."""
    with ExitStack() as stack:
        system = stack.enter_context(
            running_system(
                own_pair, tmp_path, tables=[CUSTOMERS_TABLE, ORDERS_TABLE], objects=CUSTOMER + ORDERS, cache=PATIENT
            )
        )
        if has_second:
            stack.enter_context(InvalidatorProcess(system.config_path))
        for key in KEYS:
            system.execute("INSERT INTO customers VALUES (%s, 'first', 1)", key)
        system.execute("INSERT INTO orders VALUES (1, 1, 1)")
        system.wait_covered()
        cache = stack.enter_context(closing(system.open_cache()))
        wait_for_hits(cache, "customer", KEYS, system.describe)
        wait_for_hits(cache, "orders", [1], system.describe)
        lives = system.lives()
        with reading(cache, "customer", KEYS) as seen:
            for number, kind in enumerate(("VARCHAR(20) COLLATE utf8mb4_bin", "INT", "BIGINT"), 2):
                system.execute(f"ALTER TABLE orders MODIFY customer_id {kind} NOT NULL")
                system.execute("INSERT INTO orders VALUES (%s, 1, 1)", number)
                system.settle()
                wait_for_hits(cache, "orders", ["1"], system.describe)
                found = cache.get("orders", "1")
                assert [row["id"] for row in found] == list(range(1, number + 1))
            system.execute("DROP TABLE orders")
            system.settle()
        assert seen[ReadOutcome.HIT]
        assert not {ReadOutcome.DEAD, ReadOutcome.FILLED} & seen.keys(), "they are kept, also while nodes are closed"
        assert system.lives() == lives
        system.execute("UPDATE customers SET v = 2")
        system.settle()
        wait_for_hits(cache, "customer", KEYS, system.describe)
        assert {row["v"] for row in cache.get_many("customer", KEYS).values()} == {2}
