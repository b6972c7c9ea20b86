"""The cache on a real Vitess: two shards with two replicas each, one of them late, while tablets come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from integration.servers.vitess import Tablet
from integration.vitess.real.deployment import Deployment, Writer, deployment, reading

DELAY_SECONDS: Final = 2
SOME: Final = 150
"""Writes between two events."""


def delay(tablet: Tablet) -> None:
    tablet.mysql.execute("STOP REPLICA SQL_THREAD")
    tablet.mysql.execute(f"CHANGE REPLICATION SOURCE TO SOURCE_DELAY = {DELAY_SECONDS}")
    tablet.mysql.execute("START REPLICA SQL_THREAD")


def settle(made: Deployment, writer: Writer) -> None:
    with writer.paused():
        made.wait_ready()
        made.wait_cacheable()
        made.assert_none_stale()
    assert not made.checker.violations, made.checker.violations[:20]


@pytest.mark.timeout(900)
def test_the_cache_is_true_while_tablets_come_and_go(tmp_path: Path) -> None:
    with deployment(tmp_path) as (made, writer):
        for shard in made.serving:
            delay(made.cluster.replicas(shard)[-1])
        with reading(made):
            settle(made, writer)
            writer.wait_for(SOME)
    checker = made.checker
    print(
        f"\n{checker.reads} reads, {checker.hits} hits, {writer.writes} writes, {checker.outcomes}, {writer.failures}"
    )
    assert not checker.violations, checker.violations[:20]
