"""Whether the servers prove that a new primary has all that readers saw of the previous one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from freshness.algorithm.request import ConfirmSuccession
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnavailable
from freshness.position import empty_position, parse_gtids, parse_position
from invalidator.replica import succession
from invalidator.replica.server import ServerState
from invalidator.replica.succession import confirm_succession, is_succession_certain

STEP = ConfirmSuccession("server 1", "server 2")
UUID = "00000000-0000-0000-0000-00000000000"


def state(number: int, history: str, *, follows: bool = True) -> ServerState:
    """A server with server id ``number``. ``history``: GTIDs of MariaDB, or a set of MySQL."""
    flavor = "mariadb" if history.count("-") == 2 * (history.count(",") + 1) else "mysql"
    last: dict[tuple[int, int], int] = {}
    if flavor == "mariadb":
        last = {(domain, server): sequence for domain, server, sequence in parse_gtids(history)}
    identity = str(number) if flavor == "mariadb" else f"{UUID}{number}"
    executed, nothing = parse_position(flavor, history), empty_position(flavor)
    return ServerState(identity, executed, nothing, follows, "", "", {}, last, f"server {number}")


def test_a_server_that_is_a_replica_now_and_has_nothing_more() -> None:
    for previous, present in [
        (f"{UUID}1:1-9", f"{UUID}1:1-9,{UUID}2:1-3"),
        ("0-1-9", "0-1-9,0-2-12"),
        ("0-1-9,0-2-12", "0-1-9,0-2-14"),
        # Set up from a backup, long after server 7 was the primary
        ("0-7-4,0-1-9,0-2-12", "0-1-9,0-2-14"),
    ]:
        assert is_succession_certain(STEP, state(2, present, follows=False), [state(1, previous)])


@pytest.mark.parametrize(
    ("present", "others"),
    [
        pytest.param(f"{UUID}1:1-8,{UUID}2:1-3", {1: f"{UUID}1:1-9"}, id="a transaction is lost"),
        pytest.param("0-1-8,0-2-12", {1: "0-1-9"}, id="its number was given again in one domain"),
        pytest.param("0-1-8,0-2-12", {1: "0-1-9,0-2-12"}, id="and the previous primary follows over that"),
        pytest.param("0-2-12", {1: "0-1-9"}, id="the new primary knows nothing of the previous"),
        pytest.param("0-1-9,0-2-12", {1: "0-1-9", 3: "0-1-9,0-3-10"}, id="another server has more"),
        pytest.param("0-1-9,0-2-12", {1: "0-1-9,5-1-1"}, id="another domain"),
        pytest.param("0-1-9,0-2-12", {3: "0-1-9"}, id="the previous primary is not configured"),
        pytest.param("0-1-9,0-2-12", {}, id="there is nobody to ask"),
    ],
)
def test_doubt(present: str, others: dict[int, str]) -> None:
    states = [state(number, history) for number, history in others.items()]
    assert not is_succession_certain(STEP, state(2, present, follows=False), states)


def test_what_a_member_of_the_same_group_has_is_not_lost() -> None:
    """The new primary has received it, and shows it a moment later."""
    present, previous = state(2, f"{UUID}9:1-8", follows=False), state(1, f"{UUID}9:1-9")
    group = f"{UUID}9"
    for one, other, is_certain in ((group, group, True), (group, "", False), ("", group, False), ("", "", False)):
        states = replace(present, group=one), [replace(previous, group=other)]
        assert is_succession_certain(STEP, *states) == is_certain
    errant = replace(state(1, f"{UUID}9:1-9,{UUID}1:7"), group=group)
    assert not is_succession_certain(STEP, replace(present, group=group), [errant])


def test_a_previous_primary_that_follows_nobody_can_go_on_by_itself() -> None:
    present = state(2, "0-1-9,0-2-12", follows=False)
    assert not is_succession_certain(STEP, present, [state(1, "0-1-9", follows=False)])


def test_another_server_answers_in_the_new_primarys_place() -> None:
    assert not is_succession_certain(STEP, state(3, "0-1-9,0-3-12", follows=False), [state(1, "0-1-9")])


def test_a_server_that_does_not_answer_is_doubt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states = {1: state(1, "0-1-9"), 2: state(2, "0-1-9,0-2-12", follows=False), 3: state(3, "0-1-9")}
    asked: list[int] = []

    def look_at(address: ServerAddress, flavor: str, **_: Any) -> ServerState:
        asked.append(address.port)
        if address.port not in states:
            raise SourceUnavailable("127.0.0.1:3: connecting: refused")
        return states[address.port]

    monkeypatch.setattr(succession, "look_at", look_at)
    primary, *replicas = (ServerAddress("127.0.0.1", port) for port in (2, 1, 3))
    assert confirm_succession(STEP, primary, replicas, "mariadb")
    assert asked == [1, 3, 2], "the new primary is asked last: it only grows"
    del states[3]
    assert not confirm_succession(STEP, primary, replicas, "mariadb")
    assert "nobody can tell what the previous primary server 1 had" in caplog.text
