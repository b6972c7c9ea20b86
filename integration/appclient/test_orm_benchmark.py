"""The benchmark of the ORMs on little: each hit is one, each SELECT reaches the server. No time is asserted.

In a process of its own, since Django is set up once in a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from benchmarks.measure import ROUNDS_MIN

READS: Final = 50
FIRST_CONNECTION: Final = 10
"""More than SQLAlchemy and its adapter ask once for each engine."""
TRIES: Final = 10
"""Of the hits: what else asks the server asks more in the time that they take on a slow machine."""
PROGRAM: Final = f"""
import json
import benchmarks.orm as orm
from benchmarks.shop import Shop

asked = []
real = orm.by_django, orm.by_sessions, orm.by_one_session


def counting(pair):
    def count(shop: Shop, keys: list[int]):
        hits, selects = pair(shop, keys)

        def read() -> int:
            [(_, number)] = shop.pair.primary.execute("SHOW GLOBAL STATUS LIKE 'Com_select'")
            return int(number)

        def asked_by(reads) -> int:
            before = read()
            reads()
            return read() - before

        tries = [asked_by(hits)]
        while tries[-1] > {FIRST_CONNECTION} and len(tries) < {TRIES}:
            tries.append(asked_by(hits))
        asked.append((tries, asked_by(selects)))
        return hits, selects

    return count


orm.READS = {READS}
orm.by_django, orm.by_sessions, orm.by_one_session = map(counting, real)
results = orm.measure_orm({ROUNDS_MIN})
print(json.dumps([asked, [result.as_json() for result in results]]))
"""


def test_hits_ask_no_server_and_selects_do() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=500)
    assert run.returncode == 0, run.stderr
    asked, results = json.loads(run.stdout)
    names = [
        f"{name}{end}" for name in ("django_hit", "sqlalchemy_hit", "sqlalchemy_hits") for end in ("", "_over_get")
    ]
    assert [each["name"] for each in results] == names
    assert all(each["value"] > 0 and each["baseline_value"] > 0 for each in results)
    assert all(selects >= READS for _, selects in asked), asked
    assert all(min(tries) <= FIRST_CONNECTION for tries, _ in asked), f"the engines' and the heartbeat's own: {asked}"
