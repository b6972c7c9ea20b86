"""Which server is the primary, from what the servers show: adopted only without doubt."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from freshness.config.access import Tls
from freshness.config.cache import CacheConfig
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.database.cluster import ClusterRefused
from freshness.errors import FreshnessError, SourceUnavailable
from freshness.position import empty_position, parse_gtids, parse_position
from invalidator.replica import promotion
from invalidator.replica.candidate import Look
from invalidator.replica.promotion import LOOKS, PrimaryMoved, PromotionWatch, find_present, with_primary
from invalidator.replica.server import ServerState, find_foreign

A, B, C = (ServerAddress(name, user=f"user of {name}") for name in "abc")
SHARD = Shard(primary=A, replicas=(B, C), lineage="shop/-", adopt_promotions=True)
UUID = "00000000-0000-0000-0000-00000000000"
DOWN = SourceUnavailable("gone")


def state(number: int, history: str, role: str) -> ServerState:
    """``role``: letters of r(ead-only) and f(ollows)."""
    flavor = "mysql" if ":" in history else "mariadb"
    last = {} if flavor == "mysql" else {(d, s): n for d, s, n in parse_gtids(history)}
    identity = f"{UUID}{number}" if flavor == "mysql" else str(number)
    position, nothing = parse_position(flavor, history), empty_position(flavor)
    return ServerState(identity, position, nothing, "f" in role, "", "", {}, last, is_read_only="r" in role)


def my(number: int, role: str, history: str = f"{UUID}1:1-9") -> ServerState:
    return state(number, history, role)


class Scene:
    """Servers that a test sets, and a watch over them."""

    def __init__(self, streamed: str = f"{UUID}1:1-9") -> None:
        flavor = "mysql" if ":" in streamed else "mariadb"
        self.looks: dict[ServerAddress, Look] = {}
        self.pauses = 0
        self.watch = PromotionWatch(SHARD, flavor, lambda: parse_position(flavor, streamed), look_at=self._look_at)

    def _look_at(self, address: ServerAddress) -> ServerState:
        look = self.looks[address]
        if isinstance(look, FreshnessError):
            raise look
        return look

    def see(self, a: Look, b: Look, c: Look) -> FreshnessError | None:
        self.looks = {A: a, B: b, C: c}
        return self.watch.look()

    def pause(self, _: float) -> None:
        self.pauses += 1


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (my(1, ""), my(2, "rf"), my(3, "rf")),
        (my(1, ""), DOWN, DOWN),
        (my(1, "r"), my(2, "rf"), my(3, "rf")),
        (DOWN, my(2, "rf"), my(3, "r")),
        (DOWN, DOWN, DOWN),
    ],
    ids=["the present one", "alone", "a switchover has begun", "nobody is promoted", "all are gone"],
)
def test_the_stream_goes_on(a: Look, b: Look, c: Look) -> None:
    assert Scene().see(a, b, c) is None


@pytest.mark.parametrize("previous", [my(1, "r"), my(1, "rf"), DOWN], ids=["read-only", "follows", "gone"])
def test_a_server_that_was_promoted(previous: Look) -> None:
    moved = Scene().see(previous, my(2, "", f"{UUID}1:1-9,{UUID}2:1-3"), my(3, "rf"))
    assert isinstance(moved, PrimaryMoved)
    assert moved.address == B
    again = copy.copy(moved)  # as pickle does it
    assert (again.message, again.address, again.hint) == (moved.message, moved.address, moved.hint)


@pytest.mark.parametrize(
    ("a", "b", "c", "why"),
    [
        (my(1, ""), my(2, ""), my(3, "rf"), "2 servers of shop/- are writable at a time: b:3306, a:3306"),
        (my(1, ""), my(2, "f"), my(3, "rf"), "2 servers of shop/- are writable"),
        (DOWN, my(2, ""), my(3, ""), "2 servers of shop/- are writable"),
        (DOWN, my(2, "f"), my(3, "rf"), "it follows another server"),
        (DOWN, my(2, "", f"{UUID}1:1-8,{UUID}2:1-3"), my(3, "rf"), "F28"),
    ],
)
def test_a_doubt_is_refused(a: Look, b: Look, c: Look, why: str) -> None:
    refused = Scene().see(a, b, c)
    assert refused is not None
    assert not isinstance(refused, PrimaryMoved)
    assert why in refused.message


def test_a_proxy_and_the_server_behind_it_are_one() -> None:
    """The file's primary is the proxy, and all servers are replicas: it leads to the one that is writable."""
    present, other = replace(my(1, ""), server="x"), replace(my(2, "rf"), server="y")
    assert Scene().see(present, present, other) is None
    promoted = replace(my(2, "", f"{UUID}1:1-9,{UUID}2:1-3"), server="y")
    assert Scene().see(promoted, replace(my(1, "rf"), server="x"), promoted) is None
    moved = Scene().see(replace(my(1, "rf"), server="x"), promoted, promoted)
    assert isinstance(moved, PrimaryMoved)
    refused = Scene().see(present, promoted, present)
    assert refused is not None
    assert "2 servers of shop/- are writable at a time: b:3306, c:3306, a:3306" in refused.message


def test_a_server_behind_a_proxy_is_refused_as_it_is_without() -> None:
    """The file's primary is the proxy, or one of its replicas is; it comes to lead to a server in doubt."""
    present, read_only = (replace(my(1, role), server="x") for role in ("", "r"))
    errant = f"{UUID}1:1-9,{UUID}2:1-3"
    follower, promoted = (replace(my(2, role, errant), server="y") for role in ("rf", ""))
    scene = Scene()
    assert scene.see(present, present, follower) is None
    for looks in ((promoted, read_only, promoted), (promoted, read_only, follower), (read_only, promoted, promoted)):
        refused = scene.see(*looks)
        assert refused is not None
        assert "F53" in refused.message
    follows = replace(my(2, "f"), server="y")
    refused = Scene().see(follows, read_only, follows)
    assert refused is not None
    assert "follows another server" in refused.message


def test_a_node_of_galera_that_stands_apart_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on: a node that nothing is written to is only late."""
    a, b = (replace(state(number, "7-1-9", role), identity="1", domain="7") for number, role in ((1, ""), (2, "rf")))
    apart = replace(b, domain="", follows=False)
    scene = Scene("7-1-9")
    for each, named in ((b, 0), (apart, 1), (apart, 1), (b, 1), (apart, 2)):
        assert scene.see(a, each, DOWN) is None
        told = [record.message for record in caplog.records if "wsrep_on was set to OFF" in record.message]
        assert len(told) == named
    assert told[0].startswith("b:3306 of shop/- is a node of Galera")


def test_nodes_of_galera_that_count_differently_are_refused() -> None:
    a, b = (replace(state(number, "7-1-9", role), identity="1", domain="7") for number, role in ((1, ""), (2, "rf")))
    assert Scene("7-1-9").see(a, b, DOWN) is None
    for other in (replace(b, domain="9"), replace(b, identity="2")):
        refused = Scene("7-1-9").see(a, other, DOWN)
        assert refused is not None
        assert "give different GTIDs" in refused.message


def test_a_cluster_that_is_refused_ends_the_stream_for_a_while() -> None:
    """Before the log says that several of its servers are writable, which is another remedy."""
    look = ClusterRefused("wsrep_gtid_mode is not ON", hint="set it")
    for looks in ((my(1, ""), my(2, ""), look), (look, my(2, ""), my(3, ""))):
        refused = Scene().see(*looks)
        assert isinstance(refused, SourceUnavailable)
        assert (refused.message, refused.hint) == (look.message, look.hint)


def test_a_local_write_of_a_node_of_galera_is_errant() -> None:
    """It has the server id of the primary, and is in no other log."""
    a, b = (replace(state(1, history, ""), domain="7") for history in ("7-1-9", "7-1-10,11-1-1"))
    assert find_foreign(b, a, empty_position("mariadb")) == "11-1-1"


@pytest.mark.parametrize(
    ("primary", "errant"),
    [(my(1, ""), my(2, "rf", f"{UUID}1:1-9,{UUID}2:1")), (state(1, "0-1-9", ""), state(2, "0-1-9,0-2-7", "rf"))],
    ids=["mysql", "mariadb"],
)
def test_a_replica_with_errant_transactions_is_no_primary(primary: ServerState, errant: ServerState) -> None:
    scene = Scene(str(primary.executed))
    other = state(3, str(primary.executed), "rf")
    assert scene.see(primary, errant, other) is None
    promoted = state(2, str(errant.executed), "")
    refused = scene.see(DOWN, promoted, other)
    assert refused is not None
    assert "F53" in refused.message
    # A server that has none is adopted
    assert isinstance(scene.see(DOWN, DOWN, state(3, str(primary.executed), "")), PrimaryMoved)


def test_one_look_is_not_enough_at_the_start() -> None:
    scene = Scene()
    scene.see(my(1, "r"), my(2, ""), my(3, "rf"))
    with pytest.raises(PrimaryMoved):
        scene.watch.require_primary(scene.pause)
    assert scene.pauses == LOOKS

    def pause(_: float) -> None:
        scene.looks[B] = my(2, "rf")

    scene.watch.require_primary(pause)


def test_two_writable_ones_are_refused_at_the_start_at_once() -> None:
    scene = Scene()
    scene.see(my(1, ""), my(2, ""), my(3, "rf"))
    with pytest.raises(SourceUnavailable, match="writable at a time"):
        scene.watch.require_primary(scene.pause)
    assert scene.pauses == 0


def test_the_stream_is_left_after_several_looks_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "LOOK_SECONDS", 0.0)
    scene = Scene()
    roles = [*[""] * (LOOKS - 1), "rf", *[""] * LOOKS]
    seen: list[str] = []

    def look_at(address: ServerAddress) -> ServerState:
        if address == A:
            raise DOWN
        if address == C:
            return my(3, "rf")
        seen.append(roles[len(seen)])
        return my(2, seen[-1])

    scene.watch.look_at = look_at
    left: list[FreshnessError] = []
    scene.watch.watch(threading.Event(), left.append)
    assert seen == roles
    assert [type(each) for each in left] == [PrimaryMoved]


def test_the_shard_with_another_primary() -> None:
    moved = with_primary(SHARD, B)
    assert moved.primary == ServerAddress("b", user="user of a")
    assert moved.replicas == (C, A)
    assert with_primary(SHARD, A) == SHARD
    guarded = replace(SHARD, replicas=(replace(B, tls=Tls()), C))
    assert with_primary(guarded, B).primary == ServerAddress("b", user="user of a", tls=Tls())
    assert with_primary(SHARD, ServerAddress("elsewhere")) == SHARD


@pytest.mark.parametrize(
    ("adopts", "b", "found"), [(True, my(2, ""), B), (False, my(2, ""), A), (True, my(2, "f"), A), (True, DOWN, A)]
)
def test_what_reads_beside_run_reads_the_primary_that_run_would_adopt(
    monkeypatch: pytest.MonkeyPatch, adopts: bool, b: Look, found: ServerAddress
) -> None:
    scene = Scene()
    scene.looks = {A: my(1, "rf"), B: b, C: my(3, "rf")}
    monkeypatch.setattr(promotion, "look_at", lambda address, *_, **__: scene._look_at(address))
    shard = replace(SHARD, adopt_promotions=adopts)
    keyspace = Keyspace(name="shop", flavor="mysql", shards=(shard,))
    config = Config(cache=CacheConfig(namespace="shop", nodes=("n",)), keyspaces={"shop": keyspace}, path=Path())
    [present] = find_present(config).keyspaces["shop"].shards
    assert present.primary.host == found.host
