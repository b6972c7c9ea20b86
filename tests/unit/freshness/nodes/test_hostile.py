"""A peer that answers anything at all: an error of our own, bounded memory, a new connection, and never a reply."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain, repeat
from typing import Any, Final

import pytest

from freshness.algorithm.request import MISSING, Add, Append, Cas, Delete, Finds, Get, Request, Strikes
from freshness.errors import NodeUnavailable, NodeUnsuitable
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.redis import RedisNode
from freshness.nodes.servernode import Reach, ServerNode
from tests.unit.freshness.nodes.test_memcached import GREETING, SETTINGS_ANSWER

SENT_MAX: Final = 1 << 26
"""A peer without end gives up after that many bytes; nobody may have read them all."""

KEY, OTHER = b"shop:customer:1", b"shop:customer:2"
REPLID: Final = b"$54\r\nmaster_replid:" + b"a" * 40 + b"\r\n"

REACH: Final = Reach(timeout_seconds=1)
"""Bounds the silence of a peer; a busy machine may exceed it, which is a failure like the others."""

Answer = Callable[[bytes], bytes]
"""The answer of a good server to what it has received."""


class Peer:
    """Good on all connections, but on the first it gives ``attack`` once to what has ``trigger`` in it."""

    def __init__(self, answer: Answer, trigger: bytes, attack: Iterable[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        self.is_over = threading.Event()
        self._answer, self._trigger, self._attack = answer, trigger, attack
        threading.Thread(target=self._serve, daemon=True).start()

    def hang_up(self) -> None:
        self._served.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        for number in range(2):
            connection, _ = self._listener.accept()
            self._served = connection
            with closing(connection), suppress(ConnectionError):
                connection.settimeout(60)
                while received := connection.recv(1 << 20):
                    if number or self._trigger not in received:
                        connection.sendall(self._answer(received))
                        continue
                    for piece in self._attack:
                        connection.sendall(piece)
                        self.sent += len(piece)
                        if self.sent > SENT_MAX:
                            break
        self._listener.close()
        self.is_over.set()


def answer_as_memcached(received: bytes) -> bytes:
    if received == b"version\r\n":
        return GREETING[0]
    return SETTINGS_ANSWER if received == b"stats settings\r\n" else b"EN\r\n"


def make_redis() -> Answer:
    lines: list[bytes] = []
    answers = {b"INFO": REPLID, b"SCRIPT": b"+OK\r\n", b"CLIENT": b"+OK\r\n", b"EVALSHA": b"$-1\r\n"}

    def answer(received: bytes) -> bytes:
        """The scripts and the values have no line that is one of these words."""
        lines[-1:] = (b"".join(lines[-1:]) + received).split(b"\r\n")
        told = b"".join(answers[line] for line in lines[:-1] if line in answers)
        del lines[:-1]
        return told

    return answer


def endless(piece: bytes) -> Iterator[bytes]:
    return repeat(piece * (65536 // len(piece)))


def after(head: bytes, piece: bytes) -> Iterator[bytes]:
    return chain([head], endless(piece))


STRIKES: Final = Strikes([b"shop:!-1", b"shop:!-2"], b"chunk", [KEY])
CAS: Final = Cas(KEY, b"value", 7, 60)

OF_MEMCACHED: Final[dict[str, tuple[list[Request] | Strikes | Finds, Callable[[], Iterable[bytes]]]]] = {
    "a line without end": ([Get(KEY)], lambda: endless(b"x")),
    "words without end": ([Get(KEY)], lambda: endless(b"VA ")),
    "lines without end": ([Get(KEY)], lambda: endless(b"EN\r\n")),
    "a value larger than any": ([Get(KEY)], lambda: after(b"VA 99999999999 c1 t-1\r\n", b"x")),
    "a value longer than it says": ([Get(KEY)], lambda: after(b"VA 5 c1 t-1\r\n", b"x")),
    "a size below zero": ([Get(KEY)], lambda: [b"VA -5 c1 t-1\r\nhello\r\n"]),
    "a size that is not a number": ([Get(KEY)], lambda: [b"VA \xff c1 t-1\r\nhello\r\n"]),
    "a number too long to read": ([Get(KEY)], lambda: [b"VA 5 c" + b"9" * 5000 + b" t-1\r\nhello\r\n"]),
    "a version that is none": ([Get(KEY)], lambda: [b"VA 5 cx t-1\r\nhello\r\n"]),
    "another command's answer": ([Get(KEY)], lambda: [b"HD\r\n"]),
    "garbage": ([Get(KEY)], lambda: [bytes(range(256)) * 64]),
    "a second answer": ([Get(KEY)], lambda: [b"EN\r\nEN\r\n"]),
    "half a line": ([Get(KEY)], lambda: [b"VA 5 c1"]),
    "half a value": ([Get(KEY)], lambda: [b"VA 5 c1 t-1\r\nhel"]),
    "half of two values": (Finds([KEY, OTHER]), lambda: [b"VA 5\r\nhello\r\nVA"]),
    "values without end": (Finds([KEY, OTHER]), lambda: endless(b"VA 5\r\nhello\r\n")),
    "a store without its version": ([CAS], lambda: [b"HD\r\n"]),
    "conflicts without end": ([Add(KEY, b"value", 60)], lambda: endless(b"NS O0\r\n")),
    "a conflict of another request": ([Add(KEY, b"value", 60)], lambda: [b"NS O1\r\nMN\r\n"]),
    "no end of a run": ([Delete(KEY)], lambda: [b""]),
    "refusals without end": (STRIKES, lambda: endless(b"SERVER_ERROR out of memory storing object\r\n")),
    "absent stripes without end": (STRIKES, lambda: endless(b"NS kshop:!-1\r\n")),
    "an absent stripe of another": (STRIKES, lambda: [b"NS kshop:!-3\r\nMN\r\n"]),
    "an append that is not answered": ([Append(KEY, b"more")], lambda: [b"HD"]),
}

OF_REDIS: Final[dict[str, tuple[list[Request], Callable[[], Iterable[bytes]]]]] = {
    "a line without end": ([Get(KEY)], lambda: after(b"+", b"x")),
    "a value larger than any": ([Get(KEY)], lambda: after(b"$99999999999\r\n", b"x")),
    "elements without end": ([Get(KEY)], lambda: after(b"*99999999999\r\n", b":1\r\n")),
    "lists in lists": ([Get(KEY)], lambda: endless(b"*1\r\n")),
    "a size that is not a number": ([Get(KEY)], lambda: [b"$x\r\nhello\r\n"]),
    "a size below zero": ([Get(KEY)], lambda: [b"$-5\r\nhello\r\n"]),
    "a count that is not a number": ([Get(KEY)], lambda: [b"*x\r\n"]),
    "a number that is none": ([Get(KEY)], lambda: [b":x\r\n"]),
    "garbage": ([Get(KEY)], lambda: [bytes(range(256)) * 64]),
    "another command's answer": ([Get(KEY)], lambda: [b"+OK\r\n" + REPLID]),
    "a time that is none": ([Get(KEY)], lambda: [b"*2\r\n$5\r\n\0\0\0\0\0\r\n$1\r\nx\r\n" + REPLID]),
    "an item of one part": ([Get(KEY)], lambda: [b"*1\r\n$5\r\nhello\r\n" + REPLID]),
    "a list for an answer": ([Delete(KEY)], lambda: [b"*1\r\n:1\r\n"]),
    "half a value": ([Get(KEY)], lambda: [b"*2\r\n$50\r\nhello"]),
    "half an answer": ([Get(KEY)], lambda: [b"$-1\r\n"]),
    "a second answer": ([Delete(KEY)], lambda: [b":1\r\n:1\r\n"]),
    "no answer": ([Append(KEY, b"more")], lambda: [b""]),
}


def require_failure(node: ServerNode[Any, Any], peer: Peer, ask: Callable[[], object]) -> None:
    """The question fails, its connection is closed, and the next one gets its own answer."""
    with pytest.raises((NodeUnavailable, NodeUnsuitable)) as caught:
        ask()
    assert node.name in str(caught.value)
    assert not node.is_connected
    node._reach = Reach(timeout_seconds=60)
    assert node.perform([Get(KEY)]) == [MISSING]
    node.close()
    assert peer.is_over.wait(60)
    assert peer.sent <= SENT_MAX


@pytest.mark.parametrize("name", OF_MEMCACHED)
def test_a_memcached_that_answers_anything(name: str) -> None:
    requests, attack = OF_MEMCACHED[name]
    peer = Peer(answer_as_memcached, b"shop:", attack())
    node = MemcachedNode(peer.address, REACH)
    require_failure(node, peer, lambda: node.perform(requests))


@pytest.mark.parametrize("name", OF_REDIS)
def test_a_redis_that_answers_anything(name: str) -> None:
    requests, attack = OF_REDIS[name]
    peer = Peer(make_redis(), b"shop:", attack())
    node = RedisNode(peer.address, REACH)
    require_failure(node, peer, lambda: node.perform(requests))


def test_a_redis_that_ends_the_connection_is_noticed() -> None:
    """Before a request, so that none fails: the socket is found behind the bound of its answers."""
    peer = Peer(make_redis(), b"nothing", ())
    node = RedisNode(peer.address, Reach(timeout_seconds=60))
    node.connect()
    assert node.is_connected
    peer.hang_up()
    assert not node.is_connected
    node.close()
    assert node.perform([Get(KEY)]) == [MISSING]
    node.close()


@pytest.mark.parametrize("asked", [b"version", b"stats settings"])
@pytest.mark.parametrize("piece", [b"x", b"STAT a b\r\n", b"\r\n", b"END"])
def test_a_memcached_whose_greeting_has_no_end(asked: bytes, piece: bytes) -> None:
    peer = Peer(answer_as_memcached, asked, endless(piece))
    node = MemcachedNode(peer.address, REACH)
    require_failure(node, peer, node.connect)


@pytest.mark.parametrize("asked", [b"CLIENT", b"SCRIPT", b"INFO"])
@pytest.mark.parametrize("piece", [b"x", b"+", b"*1\r\n", b"$99999999999\r\n", b":1\r\n", b"\r\n"])
def test_a_redis_whose_greeting_has_no_end(asked: bytes, piece: bytes) -> None:
    peer = Peer(make_redis(), asked, endless(piece))
    node = RedisNode(peer.address, REACH)
    require_failure(node, peer, node.connect)


@pytest.mark.parametrize(
    "answer", [b":1\r\n", b"$-1\r\n", b"*1\r\n:1\r\n", b"*2\r\n:1\r\n:1\r\n", b"*0\r\n", b"$-7\r\nx\r\n"]
)
@pytest.mark.parametrize("asked", [b"SCAN", b"CONFIG"])
def test_a_redis_that_says_anything_of_itself(asked: bytes, answer: bytes) -> None:
    peer = Peer(make_redis(), asked, [answer * 3])
    node = RedisNode(peer.address, REACH)
    require_failure(node, peer, node.describe if asked == b"CONFIG" else lambda: list(node.scan(b"shop:")))
