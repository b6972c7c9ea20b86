"""A small application, for tests that run one under agents which replace the classes of its libraries.

``python -m integration.appclient.traced FILE threads|tasks [pymemcache]``: prints what it found out, as JSON.
``pymemcache``: OpenTelemetry's instrumentation of it is put in before the cache is opened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pymemcache
import pymysql

from appclient import Cache, LoaderConnection, ReadOutcome
from freshness.config.config import load_config
from integration.appclient.tasks import loop_cache
from integration.harness import wait_for_hits, wait_for_outcome

KEYS = range(1, 6)


def load_profile(database: LoaderConnection, customer_id: int) -> dict[str, Any]:
    return {"customer": database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))}


@contextmanager
def opened(path: Path, kind: str) -> Iterator[Cache]:
    if kind == "tasks":
        with loop_cache(path) as on_loop:
            yield cast(Cache, on_loop)
    else:
        cache = Cache.open(path)
        yield cache
        cache.close()


def read(cache: Cache, path: Path) -> dict[str, Any]:
    cache.loader("profile")(load_profile)
    first = wait_for_outcome(cache, "customer", 1, [ReadOutcome.FILLED])
    second = cache.get("customer", 1, explain=True)
    absent = cache.get("customer", 99)
    many = wait_for_hits(cache, "customer", KEYS)
    wait_for_hits(cache, "profile", [1])
    server = load_config(path, is_application=True).keyspaces["shop"].shards[0].primary
    own = pymysql.connect(
        host=server.host, port=server.port, user="app", password="app", database="shop", autocommit=True
    )
    with own.cursor() as cursor:
        cursor.execute("UPDATE customers SET v = 7 WHERE id = 1")
    # Both entries are on nodes of their own, and one of them may be invalidated before the other
    while (changed := cache.get("customer", 1))["v"] != 7:
        pass
    while (profile := cache.get("profile", 1)["customer"])["v"] != 7:
        pass
    hits = wait_for_hits(cache, "customer", [1])
    return {
        "first": [first.outcome.name, first.value],
        "second": [second.outcome.name, second.value],
        "absent": absent,
        "many": sorted(explanation.value["id"] for explanation in many.values()),
        "changed": changed,
        "hit": hits[1].value,
        "profile": profile,
        "replaced": {
            "Client": not isinstance(pymemcache.client.base.Client, type)
            or pymemcache.client.base.Client.__module__ != "pymemcache.client.base",
            "set": hasattr(pymemcache.client.base.Client.set, "__wrapped__"),
            "connect": hasattr(pymysql.connect, "__wrapped__"),
        },
    }


def main(path: Path, kind: str, *agents: str) -> None:
    if "pymemcache" in agents:
        from opentelemetry.instrumentation.pymemcache import PymemcacheInstrumentor

        PymemcacheInstrumentor().instrument()
    with opened(path, kind) as cache:
        print(json.dumps(read(cache, path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
