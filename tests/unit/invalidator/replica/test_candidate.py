"""The words for a server that does not tell its state."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from freshness.config.server import ServerAddress
from freshness.errors import FreshnessError, SourceUnavailable, SourceUnsuitable
from freshness.position import empty_position
from invalidator.replica.candidate import Refusal, ReplicaBounds, Server, Situation, judge
from invalidator.replica.server import APART, ServerState


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            SourceUnsuitable("db:3306: looking at its state: Access denied [1227]", hint="`invalidator check`"),
            "db:3306: looking at its state: Access denied [1227]; it must, only where its log is read",
        ),
        (SourceUnavailable("db:3306: gone", hint="is the server up?"), "db:3306: gone (is the server up?)"),
    ],
)
def test_an_account_that_only_reads_is_no_mistake(error: FreshnessError, told: str) -> None:
    """The check demands nothing of it, so no hint sends an operator there."""
    nothing = empty_position("mysql")
    primary = cast("ServerState", None)
    situation = Situation("primary", ReplicaBounds(), primary, nothing, nothing, is_streaming=False, now=0.0)
    server = Server(ServerAddress("db"), is_primary=False, error=error)
    verdict = judge(server, situation, is_current=False)
    assert verdict.grade is Refusal.DOWN
    assert verdict.reason == f"does not tell its state: {told}"


def test_a_node_of_galera_that_stands_apart_is_not_taken_for_a_promoted_server() -> None:
    nothing = empty_position("mariadb")
    primary = ServerState("1", nothing, nothing, False, "", "", {}, domain="7")
    situation = Situation("freshest", ReplicaBounds(), primary, nothing, nothing, is_streaming=False, now=0.0)
    server = Server(ServerAddress("db"), is_primary=False, state=replace(primary, domain=""))
    verdict = judge(server, situation, is_current=False)
    assert (verdict.grade, verdict.reason) == (Refusal.UNFIT, APART)
