"""The table of docs/topology.md: on what the tests passed, what a place needs, and what the rules refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from invalidator.rules.rule import Rule

TESTED: Final = Path(__file__).resolve().parent / "tested-on.json"
VERBS: Final = {"error": "refused", "warning": "warned of", "note": "noted"}


class Place(NamedTuple):
    """``words``: needs and reasons, with a {} for each of ``rules``. ``tested``: names in tested-on.json."""

    name: str
    words: str
    tested: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()


PLACES: Final = (
    Place("MariaDB", "10.5 or later; a log in InnoDB (12.3) is {}", ("MariaDB",), (Rule.LOG_IN_ENGINE,)),
    Place("MySQL", "8.0.14 or later; other versions are {}; 8.4 was not to be had", ("MySQL",), (Rule.UNTESTED,)),
    Place("semi-synchronous", "`AFTER_SYNC`, for `lossless_failover`", ("semi-synchronous replication",)),
    Place(
        "Group Replication",
        "`super_read_only` in each member's file, else one can be written before it joins; several primaries are {}",
        ("Group Replication",),
        (Rule.SEVERAL_WRITERS,),
    ),
    Place("Galera", "[one writable node](#changing-it); anything else is {}", ("Galera",), (Rule.SEVERAL_WRITERS,)),
    Place(
        "HAProxy, TCP",
        "leads to one primary, and ends connections to the previous one; else it is {}; before replicas it is {}",
        ("HAProxy",),
        (Rule.PRIMARY_SPREAD, Rule.SEVERAL_ADDRESSES),
    ),
    Place("Vitess", "[vitess](vitess.md)", ("Vitess",)),
    Place(
        "Aurora's readers",
        "{}: `gtid_executed` stands still, and all GTIDs in each heartbeat, in its place, were not tested",
        (),
        (Rule.AURORA_READER,),
    ),
    Place("memcached", "1.6.13 or later, with CAS, without a proxy or `-e`", ("memcached",)),
    Place("Redis, Valkey", "Sentinel is not asked; a replica is {}", ("Redis", "Valkey"), (Rule.REDIS_REPLICA,)),
    Place("Redis Cluster", "{}: members refuse the keys of others", (), (Rule.REDIS_CLUSTER,)),
    Place("Kafka", "", ("Kafka",)),
    Place("Spark", "4.2 or 4.3, Java 17", ("Spark",)),
    Place(
        "drivers",
        "asyncmy 0.2.12, aiomysql 0.3.2 or later",
        ("PyMySQL", "mysqlclient", "mysql-connector-python", "asyncmy", "aiomysql"),
    ),
)


def rows() -> Iterator[tuple[str, str, str]]:
    """Of each place: its name, the versions with the number of tests and the day of the run, needs and refusals."""
    counted: Mapping[str, Mapping[str, Mapping[str, object]]] = json.loads(TESTED.read_text())
    for place in PLACES:
        verified = (
            f"{f'{name} ' if len(place.tested) > 1 else ''}{version} ({run['tests']}, {run['on']})"
            for name in place.tested
            for version, run in counted.get(name, {}).items()
        )
        rules = (f"{VERBS[rule.severity]} (`{rule.slug}`)" for rule in place.rules)
        yield place.name, ", ".join(verified) or "–", place.words.format(*rules)
