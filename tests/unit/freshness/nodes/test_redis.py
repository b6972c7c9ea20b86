"""What a server without memory answers, and what becomes of it. All else: the contract, and real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from freshness.algorithm.request import CONFLICT, Append, Cas, Get, Item, Refused, Reply, Request
from freshness.errors import NodeUnavailable
from freshness.nodes import scripts
from freshness.nodes.redis import RedisNode

FULL = OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
FULL_IN_SCRIPT = ResponseError("Error running script: @user_script:3: -OOM command not allowed")


SAME = b"master_replid:" + b"1" * 40
OTHER = b"master_replid:" + b"2" * 40


class Connection:
    """A server that has all scripts, and then gives these answers."""

    _sock: socket.socket | None = None

    def __init__(self, *answers: object) -> None:
        self._answers: Iterator[object] = iter((*["digest"] * len(scripts.SCRIPTS), SAME, *answers))

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def can_read(self, timeout: float) -> bool:
        return False

    def pack_commands(self, _: object) -> list[bytes]:
        return []

    def send_packed_command(self, _: object) -> None: ...

    def read_response(self) -> object:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_connection_that_the_server_has_closed_is_none() -> None:
    connection = Connection(b"1")
    connection._sock, server = socket.socketpair()
    node = RedisNode("idle:1", make_connection=lambda: connection)  # type: ignore[arg-type,return-value]
    node.connect()
    assert node.is_connected
    server.close()
    assert not node.is_connected
    connection._sock.close()


def perform(request: Request, *answers: object) -> Reply:
    node = RedisNode("full:1", make_connection=lambda: Connection(*answers))  # type: ignore[arg-type,return-value]
    [reply] = node.perform([request])
    return reply


@pytest.mark.parametrize("error", [FULL, FULL_IN_SCRIPT])
def test_a_server_without_memory(error: Exception) -> None:
    """F98: an append that was refused did not happen, so the stripe is deleted."""
    assert perform(Append(b"!1", b"chunk"), error) is CONFLICT
    assert isinstance(perform(Cas(b"k", b"v", 7, 10), error), Refused)
    item = perform(Get(b"k", 10), error, SAME)
    assert not isinstance(item, Item)


@pytest.mark.parametrize("request_", [Append(b"!1", b"chunk"), Cas(b"k", b"v", 7, 10), Get(b"k")])
def test_any_other_refusal_is_no_reply(request_: Request) -> None:
    with pytest.raises(NodeUnavailable):
        perform(request_, ResponseError("NOPERM this user has no permissions"))


def test_an_item_of_other_data_than_at_the_opening_of_the_connection_is_none() -> None:
    """F129: the server was a replica in between. No answer of the flow counts."""
    item = [b"version!" + scripts.PLAIN + b"v", -1]
    assert perform(Get(b"k"), item, SAME) == Item(b"v", int.from_bytes(b"version!"))
    for last in (OTHER, b"role:master", ResponseError("NOPERM")):
        with pytest.raises(NodeUnavailable):
            perform(Get(b"k"), item, last)
