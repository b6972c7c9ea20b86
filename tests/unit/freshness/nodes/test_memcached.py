"""The bytes that go to memcached, and every way in which what comes back can be wrong.

The replies were recorded from memcached 1.6.18.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.invalidate import Target, invalidate
from freshness.algorithm.node import TTL_SECONDS_MAX
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    STORED,
    Add,
    Append,
    Cas,
    Delete,
    Finds,
    Get,
    Item,
    Refused,
    Reply,
    Request,
    Stored,
    Strikes,
)
from freshness.errors import ConfigError, NodeUnavailable, NodeUnsuitable
from freshness.network import RESOLVE_SECONDS, NameWatch, Network
from freshness.nodes import memcached
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.meta import VERSION_LIMIT, Plan, ProtocolError, ReplyReader, decode_flow, encode_flow
from freshness.nodes.servernode import Reach
from freshness.position import MysqlGtidSet

ADD, CAS = Add(b"k", b"v", 10), Cas(b"k", b"v", 7, 10)
QUIET_DELETE, DELETE = Delete(b"k"), Delete(b"k", 7)
GET, APPEND = Get(b"k"), Append(b"k", b"v")
STRIKES = Strikes([b"!1", b"!10", b"!k!1"], b"v", [b"k"])
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
OUT_OF_MEMORY = b"SERVER_ERROR out of memory storing object\r\n"


def read(requests: Sequence[Request], received: bytes, chunk_bytes: int = 1 << 20) -> list[Reply]:
    """The replies to a flow for which the node sent ``received``, in chunks of a size."""
    chunks = iter(received[start : start + chunk_bytes] for start in range(0, len(received), chunk_bytes))

    def receive() -> bytes:
        chunk = next(chunks, b"")
        if not chunk:
            raise ConnectionResetError
        return chunk

    return decode_flow(encode_flow(requests)[1], ReplyReader(receive))


# -- requests to bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([], b""),
        ([GET], b"mg k v c t\r\n"),
        ([Get(b"k", 30)], b"mg k N31 v c t\r\n"),
        ([ADD], b"ms k 1 T11 ME q O0\r\nv\r\nmn\r\n"),
        ([Add(b"k", b"", 0)], b"ms k 0 T0 ME q O0\r\n\r\nmn\r\n"),
        ([CAS], b"ms k 1 T11 C7 c\r\nv\r\n"),
        ([Cas(b"k", b"v", 0, 10)], b"mg k\r\n"),
        ([QUIET_DELETE], b"delete k noreply\r\nmn\r\n"),
        ([DELETE], b"md k C7\r\n"),
        ([Delete(b"k", 1 << 64)], b"mg k\r\n"),
        ([APPEND], b"ms k 1 MA\r\nv\r\n"),
        ([Append(b"k", b"\r\n")], b"ms k 2 MA\r\n\r\n\r\n"),
        ([Get(b"k", is_bound=True)], b"mg k v c t\r\n"),
        ([Add(b"k", b"v", 10, is_bound=True)], b"ms k 1 T11 ME q O0\r\nv\r\nmn\r\n"),
        # a run is fenced if it ends the flow, or if something that answers follows an add
        ([ADD, QUIET_DELETE], b"ms k 1 T11 ME q O0\r\nv\r\ndelete k noreply\r\nmn\r\n"),
        ([QUIET_DELETE, GET], b"delete k noreply\r\nmg k v c t\r\n"),
        ([GET, ADD, CAS], b"mg k v c t\r\nms k 1 T11 ME q O1\r\nv\r\nmn\r\nms k 1 T11 C7 c\r\nv\r\n"),
        ([ADD, APPEND], b"ms k 1 T11 ME q O0\r\nv\r\nmn\r\nms k 1 MA\r\nv\r\n"),
        ([APPEND, QUIET_DELETE], b"ms k 1 MA\r\nv\r\ndelete k noreply\r\nmn\r\n"),
        (Strikes([], b"v", []), b""),
        (Strikes([b"!1"], b"", []), b"ms !1 0 MA q k\r\n\r\nmn\r\n"),
        (Strikes([], b"v", [b"j", b"k"]), b"delete j noreply\r\ndelete k noreply\r\nmn\r\n"),
        (
            Strikes([b"!1", b"!2"], b"v", [b"k"]),
            b"ms !1 1 MA q k\r\nv\r\nms !2 1 MA q k\r\nv\r\ndelete k noreply\r\nmn\r\n",
        ),
        ([ADD, GET, GET], b"ms k 1 T11 ME q O0\r\nv\r\nmn\r\nmg k v c t\r\nmg k v c t\r\n"),
    ],
)
def test_bytes_of_a_flow(requests: Sequence[Request], expected: bytes) -> None:
    assert b"".join(encode_flow(requests)[0]) == expected


@pytest.mark.parametrize(
    ("ttl_seconds", "sent"),
    [
        (0, 0),
        (1, 2),
        (120, 121),
        (TTL_SECONDS_MAX - 1, TTL_SECONDS_MAX),
        (TTL_SECONDS_MAX, TTL_SECONDS_MAX),
        (TTL_SECONDS_MAX + 1, TTL_SECONDS_MAX),
        (1_763_700_000, TTL_SECONDS_MAX),
    ],
)
def test_a_ttl_is_never_shorter_than_asked_nor_an_absolute_time(ttl_seconds: int, sent: int) -> None:
    """F50: the first second is partial, and above 30 days memcached reads a date in 1970."""
    requests: list[Request] = [Add(b"k", b"v", ttl_seconds), Cas(b"k", b"v", 1, ttl_seconds)]
    assert b"".join(encode_flow(requests)[0]).count(b" T%d" % sent) == 2


def test_ttls_do_not_stick_to_the_next_request() -> None:
    commands, _ = encode_flow([Add(b"a", b"", 5), Add(b"b", b"", 0), Add(b"c", b"", 5)])
    assert [command.split(b" ")[3] for command in commands[:3]] == [b"T6", b"T0", b"T6"]


# -- bytes to replies ----------------------------------------------------------------------------------

GOOD: list[tuple[Sequence[Request], bytes, list[Reply]]] = [
    ([], b"", []),
    ([GET], b"EN\r\n", [MISSING]),
    ([GET], b"VA 3 c12 t-1\r\nabc\r\n", [Item(b"abc", 12, -1)]),
    ([GET], b"VA 4 c12 t60\r\nEN\r\n\r\n", [Item(b"EN\r\n", 12, 60)]),
    ([GET], b"VA 0 c1 t31 W\r\n\r\n", [Item(b"", 1, 31, won=True)]),
    ([GET], b"VA 0 c1 t31 Z\r\n\r\n", [Item(b"", 1, 31, lease=True)]),
    ([ADD], b"MN\r\n", [STORED]),
    ([ADD], b"NS O0\r\nMN\r\n", [CONFLICT]),
    ([CAS], b"HD c8\r\n", [Stored(8)]),
    ([CAS], b"EX c0\r\n", [CONFLICT]),
    ([CAS], b"EX\r\n", [CONFLICT]),
    ([CAS], b"NF c0\r\n", [MISSING]),
    ([CAS], b"SERVER_ERROR object too large for cache\r\n", [Refused("object too large for cache")]),
    ([CAS], b"SERVER_ERROR out of memory storing object\r\n", [Refused("out of memory storing object")]),
    ([Cas(b"k", b"v", 0, 1)], b"HD\r\n", [CONFLICT]),
    ([Cas(b"k", b"v", 0, 1)], b"EN\r\n", [MISSING]),
    ([QUIET_DELETE], b"MN\r\n", [DONE]),
    ([DELETE, DELETE, DELETE], b"HD\r\nEX\r\nNF\r\n", [DONE, CONFLICT, MISSING]),
    ([ADD, ADD, QUIET_DELETE, ADD], b"NS O1\r\nNS O3\r\nMN\r\n", [STORED, CONFLICT, DONE, CONFLICT]),
    (
        [ADD, CAS, ADD, QUIET_DELETE, GET, ADD],
        b"NS O0\r\nMN\r\nHD c8\r\nNS O2\r\nMN\r\nEN\r\nNS O5\r\nMN\r\n",
        [CONFLICT, Stored(8), CONFLICT, DONE, MISSING, CONFLICT],
    ),
    (
        [ADD, CAS, QUIET_DELETE, CAS],
        b"MN\r\nSERVER_ERROR object too large for cache\r\nHD c9\r\n",
        [STORED, Refused("object too large for cache"), DONE, Stored(9)],
    ),
    ([APPEND, APPEND], b"HD\r\nNS\r\n", [STORED, CONFLICT]),
    ([APPEND, GET], TOO_LARGE + b"EN\r\n", [CONFLICT, MISSING]),
    ([APPEND, APPEND], OUT_OF_MEMORY + b"HD\r\n", [CONFLICT, STORED]),
    (
        [ADD, APPEND, ADD, QUIET_DELETE, APPEND],
        b"NS O0\r\nMN\r\nHD\r\nNS O2\r\nMN\r\nNS\r\n",
        [CONFLICT, STORED, CONFLICT, DONE, CONFLICT],
    ),
    (Strikes([], b"v", []), b"", []),
    (Strikes([], b"v", [b"j", b"k"]), b"MN\r\n", [DONE, DONE]),
    (STRIKES, b"MN\r\n", [STORED, STORED, STORED, DONE]),
    (STRIKES, b"NS k!1\r\nMN\r\n", [CONFLICT, STORED, STORED, DONE]),
    (STRIKES, b"NS k!10\r\nNS k!k!1\r\nMN\r\n", [STORED, CONFLICT, CONFLICT, DONE]),
    # A refusal does not say whose it is: none counts
    (STRIKES, OUT_OF_MEMORY + b"MN\r\n", [CONFLICT, CONFLICT, CONFLICT, DONE]),
    (STRIKES, b"NS k!10\r\n" + TOO_LARGE + b"MN\r\n", [CONFLICT, CONFLICT, CONFLICT, DONE]),
    (STRIKES, OUT_OF_MEMORY * 2 + b"NS k!k!1\r\nMN\r\n", [CONFLICT, CONFLICT, CONFLICT, DONE]),
]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(("requests", "received", "expected"), GOOD)
def test_replies_in_any_pieces(
    requests: Sequence[Request], received: bytes, expected: list[Reply], chunk_bytes: int
) -> None:
    assert read(requests, received, chunk_bytes) == expected


@pytest.mark.parametrize(("requests", "received", "expected"), [case for case in GOOD if case[0]])
def test_a_reply_that_breaks_off_is_no_reply(
    requests: Sequence[Request], received: bytes, expected: list[Reply]
) -> None:
    for end in range(len(received)):
        with pytest.raises(ConnectionResetError):
            read(requests, received[:end])


@pytest.mark.parametrize(("requests", "received", "expected"), [case for case in GOOD if case[0]])
def test_bytes_too_many_are_an_error(requests: Sequence[Request], received: bytes, expected: list[Reply]) -> None:
    with pytest.raises(ProtocolError, match="after the last reply"):
        read(requests, received + b"EN\r\n")


@pytest.mark.parametrize(
    ("requests", "received"),
    [
        (requests, received)
        for requests in ([GET], [CAS], [DELETE], [ADD], [QUIET_DELETE], [APPEND], STRIKES, [Get(b"k", 30)])
        for received in (
            b"\r\n",
            b"ERROR\r\n",
            b"CLIENT_ERROR bad data chunk\r\n",
            b"SERVER_ERROR out of memory\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"VALUE k 0 1\r\nv\r\nEND\r\n",
            b"STORED\r\n",
            b"NS\r\n",
            b"NS k\r\n",
            b"NS kk\r\n",
            b"NS !1\r\n",
            b"NS k!1 \r\n",
            b"NS O99\r\n",
            b"NS Ox\r\n",
            b"HD cx\r\n",
            b"HDc8\r\n",
            b"EXTRA\r\n",
            b"NFL\r\n",
            b"VA\r\n",
            b"VA 3\r\nabc\r\n",
            b"VA 3 t-1 c12\r\nabc\r\n",
            b"VA x c12 t-1\r\nabc\r\n",
            b"VA -1 c12 t-1\r\nabc\r\n",
            b"VA 3 c t-1\r\nabc\r\n",
            b"VA 99999999999 c12 t-1\r\nabc\r\n",
            b"VA 2 c12 t-1\r\nabc\r\n",
            b"x" * 10_000,
            bytes(range(256)) * 40,
        )
        if (requests, received) != ([APPEND], b"NS\r\n")
    ],
)
def test_what_does_not_fit_is_never_a_reply(requests: Sequence[Request], received: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(requests, received)


@pytest.mark.parametrize(
    ("requests", "received"),
    [
        ([ADD, ADD], b"NS O1\r\nNS O1\r\nMN\r\n"),  # twice
        ([QUIET_DELETE, ADD], b"NS O0\r\nMN\r\n"),  # not an add
        ([ADD, GET, ADD], b"NS O2\r\nMN\r\nEN\r\nMN\r\n"),  # of the run that comes
        ([ADD, GET, ADD], b"MN\r\nEN\r\nNS O0\r\nMN\r\n"),  # of the run before
        ([ADD], b"NF O0\r\nMN\r\n"),
        ([ADD, CAS], TOO_LARGE + b"MN\r\nHD c8\r\n"),  # the add's, not the CAS's
        ([ADD, APPEND], OUT_OF_MEMORY + b"MN\r\nHD\r\n"),
        (STRIKES, b"NS O0\r\nMN\r\n"),
        (STRIKES, b"NS kk\r\nMN\r\n"),  # a key, not a stripe
        ([APPEND], b"NS k!1\r\n"),
        ([GET, GET], b"VA 1 c1 t-1\r\naXXEN\r\n"),  # not at the end of the value
        ([GET, CAS], b"VA 1 c1 t-1\r\naXXNF \r\n"),
    ],
)
def test_a_line_of_another_request_is_never_taken(requests: Sequence[Request], received: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(requests, received)


# -- a server that misbehaves --------------------------------------------------------------------------

SETTINGS_ANSWER = b"STAT cas_enabled yes\r\nSTAT memory_file (null)\r\nEND\r\n"
GREETING = (b"VERSION 1.6.18\r\n", SETTINGS_ANSWER)
"""The answers to ``version`` and ``stats settings``, with which each connection begins."""


class ScriptedServer:
    """For each connection, what to send after each piece that arrives; None closes the connection at once."""

    def __init__(self, connections: list[list[bytes | None]]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.closed_by_client: list[bool] = []
        self._thread = threading.Thread(target=self._serve, args=(connections,), daemon=True)
        self._thread.start()

    def _serve(self, connections: list[list[bytes | None]]) -> None:
        for answers in connections:
            connection, _ = self._listener.accept()
            with closing(connection):
                for answer in answers:
                    if answer is None or not connection.recv(65536):
                        break
                    connection.sendall(answer)
                else:
                    self.closed_by_client.append(self._wait_for_close(connection))

    @staticmethod
    def _wait_for_close(connection: socket.socket) -> bool:
        connection.settimeout(60)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:  # closed with bytes unread
            return True

    def finish(self) -> None:
        """Wait until the script is over."""
        self._thread.join(60)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def script() -> Iterator[list[ScriptedServer]]:
    servers: list[ScriptedServer] = []
    yield servers
    for server in servers:
        server.finish()


def connect(
    script: list[ScriptedServer], *connections: list[bytes | None], timeout_seconds: float = 5.0
) -> MemcachedNode:
    script.append(ScriptedServer(list(connections)))
    return MemcachedNode(script[0].address, Reach(timeout_seconds=timeout_seconds))


def test_a_server_that_speaks_nonsense(script: list[ScriptedServer]) -> None:
    node = connect(script, [b"HTTP/1.1 400 Bad Request\r\n\r\n"], [*GREETING, b"EN\r\n"])
    with pytest.raises(NodeUnsuitable, match="is no memcached") as caught:
        node.perform([GET])
    assert node.name in str(caught.value)
    assert node.perform([GET]) == [MISSING]
    node.close()
    script[0].finish()
    assert script[0].closed_by_client == [True, True]


@pytest.mark.parametrize("answer", [b"EN\r\nEN\r\n", b"VA 1 c1 t-1\r\nxx\r\n", b"HD\r\n", b"x" * 9000])
def test_after_a_reply_that_does_not_fit_the_connection_is_closed(
    script: list[ScriptedServer], answer: bytes
) -> None:
    node = connect(script, [*GREETING, answer], [*GREETING, b"VA 1 c1 t-1\r\nx\r\n"])
    with pytest.raises(NodeUnavailable):
        node.perform([GET])
    assert node.perform([GET]) == [Item(b"x", VERSION_LIMIT + 1)]
    node.close()
    script[0].finish()
    assert script[0].closed_by_client == [True, True]


@pytest.mark.parametrize("request_", [GET, ADD, CAS, DELETE, QUIET_DELETE, APPEND])
def test_a_server_that_closes_instead_of_answering(script: list[ScriptedServer], request_: Request) -> None:
    node = connect(script, [*GREETING, None])
    with pytest.raises(NodeUnavailable, match="broke the connection"):
        node.perform([request_])


def test_a_server_that_closes_in_the_middle_of_a_value(script: list[ScriptedServer]) -> None:
    node = connect(script, [*GREETING, b"VA 100 c1 t-1\r\nxxx", None])
    with pytest.raises(NodeUnavailable, match="broke the connection"):
        node.perform([GET])


FOUND = b"VA 19\r\nVA 2\r\nEN\r\nVA 20\r\n..\r\n"


@pytest.mark.parametrize("marks", [b"", b" W", b" Z", b" X Z"])
def test_a_stub_is_found_empty(marks: bytes) -> None:
    """memcached marks it even if the request did not ask for marks."""
    node = MemcachedNode("127.0.0.1:1")
    node._connection = cast(socket.socket, Pieces(iter((b"VA 0" + marks + b"\r\n\r\n",))))
    assert node.find(b"k") == b""


@pytest.mark.parametrize("cut", range(1, len(FOUND)))
def test_an_item_whose_answer_comes_in_pieces_is_found_whole(cut: int) -> None:
    """Even if a piece looks like a shorter answer."""
    node = MemcachedNode("127.0.0.1:1")
    node._connection = cast(socket.socket, Pieces(iter((FOUND[:cut], FOUND[cut:]))))
    assert node.find(b"k") == FOUND[7:-2]


SEVERAL = b"VA 2 Z\r\nab\r\nEN\r\nVA 4\r\n\r\n\r\n\r\nVA 0\r\n\r\nEN\r\nVA 1\r\nc\r\n"


@pytest.mark.parametrize("cut", range(1, len(SEVERAL)))
@pytest.mark.parametrize("second", [1, 5, 1000])
def test_values_whose_answers_come_in_pieces_are_found_whole(cut: int, second: int) -> None:
    node = MemcachedNode("127.0.0.1:1")
    rest = SEVERAL[cut:]
    pieces = [SEVERAL[:cut], *(part for part in (rest[:second], rest[second:]) if part)]
    node._connection = cast(socket.socket, Pieces(iter(pieces)))
    found: list[Any] = list(node.perform(Finds([b"k%d" % number for number in range(6)])))
    assert found == [*(b"ab", None, b"\r\n\r\n", b"", None, b"c")]


@pytest.mark.parametrize(
    "answer", [b"VA 2\r\nab\r\n", b"VA 2\r\nab\r\nHD\r\n", b"EN\r\nEN\r\nEN\r\n", b"EN\r\nVA 2\r\nabc\r\n", b"VA\r\n"]
)
def test_answers_that_are_not_as_many_values_are_an_error(answer: bytes) -> None:
    node = MemcachedNode("127.0.0.1:1")
    node._connection = cast(socket.socket, Pieces(iter((answer, b""))))
    with pytest.raises(NodeUnavailable):
        node.perform(Finds([b"one", b"two"]))
    assert not node.is_connected


@pytest.mark.parametrize(
    "answer",
    [b"VA x\r\n", b"VA 2 \r\nab\r\n", b"VA 2\r\nabc\r\n", b"HD\r\n", b"VA 2\r\nab\r\nEN\r\n", b"EN\r\nEN\r\n"],
)
def test_an_answer_that_is_no_item_is_an_error(answer: bytes) -> None:
    node = MemcachedNode("127.0.0.1:1")
    node._connection = cast(socket.socket, Pieces(iter((answer, b""))))
    with pytest.raises(NodeUnavailable):
        node.find(b"k")
    assert not node.is_connected


class Pieces:
    """A socket on which these arrive, one after the other."""

    def __init__(self, received: Iterator[bytes]) -> None:
        self.recv = lambda _: next(received)
        self.sendall = self.close = lambda *_: None
        self.send = lambda data, _: len(data)


def test_a_connection_that_ended_is_not_read_again() -> None:
    node = MemcachedNode("127.0.0.1:1")
    node._connection, server = socket.socketpair()
    server.close()
    with pytest.raises(ConnectionResetError, match="the server closed the connection"):
        node._receive()
    node.close()


@pytest.mark.parametrize("ends", [b"", b"EN\r\n"], ids=["the end", "an answer that nobody asked for"])
def test_a_connection_that_the_server_has_ended_is_none(ends: bytes) -> None:
    node = MemcachedNode("127.0.0.1:1")
    node._connection, server = socket.socketpair()
    with closing(server):
        node.send([GET])
        server.sendall(b"EN\r\n")
        assert node.is_connected, "its answer waits to be read"
        assert node.receive() == [MISSING]
        assert node.is_connected
        server.sendall(ends)
    assert not node.is_connected
    node.close()


def test_a_server_that_hangs(script: list[ScriptedServer]) -> None:
    node = connect(script, [*GREETING, b""], [b""], timeout_seconds=1.0)
    for _ in range(2):
        with pytest.raises(NodeUnavailable, match="did not answer within"):
            node.perform([GET])
    script[0].finish()
    assert script[0].closed_by_client == [True, True]


def test_a_late_answer_is_not_taken_for_the_next_one(script: list[ScriptedServer]) -> None:
    node = connect(script, [*GREETING, b"VA 1 c1 t-1\r\na\r\n"], [*GREETING, b"VA 1 c2 t-1\r\nb\r\n"])
    node.send([Get(b"a")])
    assert node.perform([Get(b"b")]) == [Item(b"b", VERSION_LIMIT + 2)]
    node.close()


def test_an_interrupted_read_closes_the_connection(
    script: list[ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = connect(script, [*GREETING, b"EN\r\n"], [*GREETING, b"VA 1 c2 t-1\r\nb\r\n"])
    node.send([Get(b"a")])

    def interrupt() -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(node, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            node.receive()
    assert node.perform([Get(b"b")]) == [Item(b"b", VERSION_LIMIT + 2)]
    node.close()


def invalidate_key(node: MemcachedNode) -> Sequence[int]:
    """The stripes that took the event, of which there is one."""
    nothing = MysqlGtidSet()
    target = Target("shop", "shop/-", b"life-one", 1, nothing)
    procedure = invalidate(node.name, [b"shop:customer:1"], target, nothing)
    return BlockingDriver({node.name: node}, lambda _: None).run(procedure)


def test_no_answer_is_no_acknowledgement(script: list[ScriptedServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """F11: a server that dies over an invalidation. A client that answers a default would acknowledge it."""
    node = connect(script, [*GREETING, b""], [*GREETING, b""], timeout_seconds=1.0)
    with pytest.raises(NodeUnavailable):
        invalidate_key(node)
    monkeypatch.setattr(memcached, "decode_flow", lambda plan, _: plan.replies)
    assert invalidate_key(node) == [0]
    node.close()


def test_a_version_of_a_previous_connection_fits_no_item(
    script: list[ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F75: the server has restarted in between, and its versions repeat."""
    lives: list[list[bytes | None]] = [
        [*GREETING, b"VA 1 c7 t-1\r\na\r\n"],
        [*GREETING, b"HD\r\n"],
        [*GREETING, b"HD c8\r\n"],
    ]
    node = connect(script, *lives)
    [held] = node.perform([Get(b"k")])
    assert isinstance(held, Item)
    node.close()
    assert node.perform([Cas(b"k", b"v", held.version, 0)]) == [CONFLICT]
    node.close()

    def of_any_connection(requests: Sequence[Request], _: int = 0) -> tuple[list[bytes], Plan]:
        return encode_flow(requests, 0)

    monkeypatch.setattr(memcached, "encode_flow", of_any_connection)
    assert node.perform([Cas(b"k", b"v", held.version, 0)]) == [Stored(8)]
    node.close()


class FlowServer:
    """One connection: the greeting, then one flow of any size, which is answered at its end."""

    def __init__(self, answer: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = bytearray()
        self._thread = threading.Thread(target=self._serve, args=(answer,))
        self._thread.start()

    def _serve(self, answer: bytes) -> None:
        connection, _ = self._listener.accept()
        with closing(connection):
            for greeting in GREETING:
                connection.recv(65536)
                connection.sendall(greeting)
            while piece := connection.recv(65536):
                self.received += piece
                if self.received.endswith(b"mn\r\n"):
                    connection.sendall(answer)

    def finish(self) -> None:
        """Wait until the script is over."""
        self._thread.join(60)
        self._listener.close()
        assert not self._thread.is_alive()


class NarrowSocket:
    """A socket that takes little at once, and every other time nothing at all."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self._is_full = False

    def send(self, data: bytes, flags: int = 0) -> int:
        self._is_full = not self._is_full
        if not self._is_full:
            raise BlockingIOError
        return self._connected.send(data[:30_000], flags)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connected, name)


@pytest.mark.parametrize("waits_in_kernel", [True, False])
@pytest.mark.parametrize("keys", [0, 1, 4000])
def test_strikes_through_a_socket_without_room(
    waits_in_kernel: bool, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written piece by piece, and no piece fails for want of room."""
    if not waits_in_kernel:
        monkeypatch.setattr(memcached, "_wait_in_kernel", lambda *_: False)
    server = FlowServer(b"NS k!9c3\r\nNS k!0\r\nMN\r\n")
    node = MemcachedNode(server.address, Reach(timeout_seconds=5))
    monkeypatch.setattr(node, "_connection", NarrowSocket(node._open()))
    names = [b"!%x" % number for number in range(2500)]
    strikes = Strikes(names, b"c" * 60, [b"k%d" % number for number in range(keys)])
    expected: list[Reply] = [CONFLICT if number in (0, 0x9C3) else STORED for number in range(2500)]
    assert node.perform(strikes) == expected + [DONE] * keys
    node.close()
    server.finish()
    assert bytes(server.received) == b"".join(encode_flow(strikes)[0])


def test_a_refusal_inside_a_large_flow_counts_for_all_its_appends() -> None:
    server = FlowServer(b"NS k!7\r\n" + OUT_OF_MEMORY + b"NS k!9\r\nMN\r\n")
    node = MemcachedNode(server.address, Reach(timeout_seconds=5))
    strikes = Strikes([b"!%x" % number for number in range(2500)], b"c", [b"k"])
    assert node.perform(strikes) == [CONFLICT] * 2500 + [DONE]
    node.close()
    server.finish()


@pytest.mark.parametrize(
    ("greeting", "what"),
    [
        ([b"VERSION 1.6.12\r\n"], "1.6.12"),
        ([b"VERSION 1.5.22\r\n"], "1.6.13 or later"),
        ([b"VERSION unknown\r\n"], "unknown"),
        ([b"VERSION 1.6.18\r\n", b"STAT cas_enabled no\r\nEND\r\n"], "no CAS"),
        ([b"VERSION 1.6.18\r\n", b"END\r\n"], "no CAS"),
        (
            [b"VERSION 1.6.18\r\n", SETTINGS_ANSWER.replace(b"(null)", b"/dev/shm/kept")],
            "keeps its memory in /dev/shm/kept",
        ),
        ([b"CLIENT_ERROR unauthenticated\r\n"], "credentials"),
        ([b"VERSION 37.0.0 mcrouter\r\n"], "is a proxy, mcrouter"),
        ([b"VERSION 0.5.0\r\n"], "0.5.0"),
        ([b"VERSION 1.6.18\r\n", b"ERROR\r\n"], "does not tell its settings"),
        ([b"VERSION 1.6.18\r\n", b"CLIENT_ERROR unsupported\r\n"], "does not tell its settings"),
        ([b"-ERR unknown command 'version'\r\n"], "is no memcached: it answers .*-ERR unknown command"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "is no memcached: it answers .*HTTP/1.1 400"),
    ],
)
def test_a_server_that_can_never_serve(script: list[ScriptedServer], greeting: list[bytes | None], what: str) -> None:
    node = connect(script, greeting)
    with pytest.raises(NodeUnsuitable, match=what) as caught:
        node.perform([GET])
    assert caught.value.hint
    script[0].finish()
    assert script[0].closed_by_client == [True]


@pytest.mark.parametrize(
    ("greeting", "what"),
    [
        ([None], "broke the connection"),
        ([b"VERSION 1.6.18\r\n", None], "broke the connection"),
        ([b"VERSION 1.6.18\r\n", b"STAT cas_enabled yes\r\n", None], "broke the connection"),
        ([b""], "did not answer within"),
        ([b"VERSION 1.6.18\r\n", b"STAT cas_enabled yes\r\n"], "did not answer within"),
        ([b"ERROR\r\n"], "does not fit"),
        ([b"SERVER_ERROR out of memory\r\n"], "has no memory for another item"),
        ([b"CLIENT_ERROR bad command line format\r\n"], "does not fit"),
        ([b"VERSION 1.6.18\r\n", b"HTTP/1.1 400 Bad Request\r\n"], "does not fit"),
        ([b"VERSION 1.6.18\r\n", b"STAT\r\nEND\r\n"], "does not fit"),
        ([b"VERSION 1.6.18\r\n", b"VALUE k 0 x\r\nEND\r\n"], "does not fit"),
    ],
)
def test_a_greeting_that_fails_is_told_in_our_words(
    script: list[ScriptedServer], greeting: list[bytes | None], what: str
) -> None:
    node = connect(script, greeting, timeout_seconds=0.2 if "not answer" in what else 5.0)
    with pytest.raises(NodeUnavailable, match=what) as caught:
        node.perform([GET])
    assert node.name in str(caught.value)
    node.close()


def test_small_writes_are_sent_at_once(script: list[ScriptedServer]) -> None:
    node = connect(script, [*GREETING, b"EN\r\n"])
    assert node.perform([GET]) == [MISSING]
    assert node._connection is not None
    assert node._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    node.close()


def test_a_path_is_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()
        node = MemcachedNode(path)
        node._connection = node._connect()
        assert node._connection.getpeername() == path
        node.close()


@pytest.mark.parametrize("version", [b"1.6.13", b"1.6.18_ubuntu", b"1.6.40-beta1", b"1.10.0", b"2.0.0"])
def test_versions_that_serve(script: list[ScriptedServer], version: bytes) -> None:
    node = connect(script, [b"VERSION %b\r\n" % version, SETTINGS_ANSWER, b"EN\r\n"])
    assert node.perform([GET]) == [MISSING]
    node.close()


def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NodeUnavailable, match="cannot be reached") as caught:
        MemcachedNode(f"127.0.0.1:{port}").perform([GET])
    assert caught.value.is_retryable


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="not an address"):
        MemcachedNode("127.0.0.1:port")


def test_over_tls_no_command_is_cut_by_the_end_of_a_record() -> None:
    """memcached would sleep over the rest of it."""
    commands = [bytes((65 + number % 26,)) * size for number, size in enumerate((9000, 7384, 1, 16384, 5, 20_000, 3))]
    records = memcached._pack_records(commands)
    assert [len(record) for record in records] == [16384, 1, 16384, 5, 20_000, 3]
    assert b"".join(records) == b"".join(commands)


class Resolver:
    """A name that leads to one of two servers; it has been asked as often as ``asked`` counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Any] | OSError = []
        self.asked = 0
        self.now = 0.0
        self.network = Network()
        self.network.names = NameWatch(lambda: self.now)
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)
        monkeypatch.setattr("_thread.start_new_thread", lambda function, arguments: function(*arguments))

    def lead_to(self, *addresses: str) -> None:
        places = [address.rpartition(":") for address in addresses]
        self.found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port))) for host, _, port in places]

    def resolve(self, *_: object, **__: object) -> list[Any]:
        self.asked += 1
        if isinstance(self.found, OSError):
            raise self.found
        return self.found

    def pass_time(self) -> None:
        self.now += RESOLVE_SECONDS


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


def test_a_connection_ends_when_its_name_leads_elsewhere(script: list[ScriptedServer], resolver: Resolver) -> None:
    """The server that the name has left still answers, and would do so as long as it lives."""
    first, second = (ScriptedServer([[*GREETING, *[b"VA 1 c1 t-1\r\n%b\r\n" % value] * 3]]) for value in (b"f", b"p"))
    script += first, second
    resolver.lead_to(first.address)
    node = MemcachedNode("cache:11211", Reach(network=resolver.network))
    assert node.perform([GET]) == [Item(b"f", 1)]
    resolver.lead_to(second.address)
    assert node.is_connected
    assert node.perform([GET]) == [Item(b"f", 1)]
    assert resolver.asked == 1, "not so soon"
    resolver.pass_time()
    assert not node.is_connected
    with pytest.raises(NodeUnavailable, match="leads elsewhere"):
        node.perform([GET])
    assert node.perform([GET]) == [Item(b"p", VERSION_LIMIT + 1)]
    assert node.is_connected
    node.close()


def test_a_name_that_cannot_be_looked_up_ends_no_connection(script: list[ScriptedServer], resolver: Resolver) -> None:
    script.append(ScriptedServer([[*GREETING, b"EN\r\n"]]))
    resolver.lead_to("127.0.0.1:1", script[0].address)
    node = MemcachedNode("cache:11211", Reach(network=resolver.network))
    node.connect()
    for found in (OSError("no resolver"), resolver.found):
        resolver.found = found
        resolver.pass_time()
        assert [node.is_connected, node.is_connected] == [True, True]
    assert node.perform([GET]) == [MISSING]
    assert resolver.asked == 3
    node.close()


def test_an_address_that_stands_for_others_ends_no_connection(
    script: list[ScriptedServer], resolver: Resolver
) -> None:
    """0.0.0.0 leads to 127.0.0.1."""
    script.append(ScriptedServer([[*GREETING, b"EN\r\n"]]))
    resolver.lead_to(script[0].address.replace("127.0.0.1", "0.0.0.0"))
    node = MemcachedNode("cache:11211", Reach(network=resolver.network))
    node.connect()
    resolver.pass_time()
    assert node.perform([GET]) == [MISSING]
    node.close()


def test_a_name_that_leads_to_several_servers_is_logged_once(
    script: list[ScriptedServer], resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the reads would find no record, and nothing would say why."""
    script.append(ScriptedServer([[*GREETING], [*GREETING], [*GREETING]]))
    for others, warnings in (([], 0), (["127.0.0.9:1"], 1), (["127.0.0.9:1"], 1)):
        resolver.lead_to(script[0].address, *others)
        node = MemcachedNode("cache:11211", Reach(network=resolver.network))
        node.connect()
        node.close()
        assert caplog.text.count("leads to 2 addresses") == warnings


def test_all_addresses_of_a_name_are_tried() -> None:
    """As ``localhost`` is ::1 and 127.0.0.1, and a server listens on one of them."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", closed.getsockname()),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", silent.getsockname()),
        ]

        class Resolving(Network):
            def resolve(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
                return addresses

        node = MemcachedNode(f"cache:{port}", Reach(network=Resolving(), timeout_seconds=0.05))
        with pytest.raises(NodeUnavailable, match="did not answer"):
            node.perform((GET,))
        silent.accept()[0].close()
        del addresses[1]
        with pytest.raises(NodeUnavailable, match="cannot be reached"):
            node.perform((GET,))
        addresses.clear()
        with pytest.raises(NodeUnavailable, match="has no address"):
            node.perform((GET,))
