"""A database server that answers anything: an error of our own within the time-out, and a closed connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

import pymysql
import pytest

from freshness.config.server import ServerAddress
from freshness.database.connection import connect, translated
from freshness.errors import SourceUnavailable


def frame(number: int, content: bytes) -> bytes:
    return struct.pack("<I", len(content) | number << 24) + content


NONCE: Final = b"a" * 8 + b"\0", b"b" * 12 + b"\0mysql_native_password\0"
CAPABLE: Final = b"\xff\xf7\x2d\x02\x00\xff\xdf\x15" + bytes(10)
HELLO: Final = b"\x0a8.0.36\0" + struct.pack("<I", 7) + NONCE[0] + CAPABLE + NONCE[1]
OK: Final = b"\0\0\0\2\0\0\0"
GARBAGE: Final = bytes(range(256)) * 40

GREETINGS: Final = {
    "garbage": GARBAGE,
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an empty packet": frame(0, b""),
    "half a greeting": frame(0, HELLO[:5]),
    "a greeting without numbers": frame(0, HELLO[:9]),
    "a greeting of another number": frame(5, HELLO),
    "half an error": frame(0, b"\xff"),
    "silence": b"",
    "half a packet": frame(0, HELLO)[:20],
}
LOGINS: Final = {
    "garbage": GARBAGE,
    "an empty packet": frame(2, b""),
    "half a switch": frame(2, b"\xfe"),
    "a switch to a method that nobody knows": frame(2, b"\xfewhat\0abc\0"),
    "more without anything": frame(2, b"\x01"),
    "half an answer": frame(2, b"\0\xfc"),
}
ANSWERS: Final = {
    "garbage": GARBAGE,
    "an empty packet": frame(1, b""),
    "half an error": frame(1, b"\xff"),
    "half an acknowledgement": frame(1, b"\0\xfc"),
    "columns without end": frame(1, b"\xfe" + b"\xff" * 8),
    "no number of columns": frame(1, b"\xfc"),
    "a column that is none": frame(1, b"\1") + frame(2, b"\xfb\xfb\xfb"),
    "half a column": frame(1, b"\1") + frame(2, b"\3def\0"),
    "a column longer than its packet": frame(1, b"\1") + frame(2, b"\xfe" + b"\xff" * 8),
    "a row longer than its packet": frame(1, b"\1")
    + frame(2, b"\3def\0\0\0\1a\1a\x0c" + struct.pack("<HIBHBH", 45, 4, 253, 0, 0, 0))
    + frame(3, b"\xfe\0\0\2\0")
    + frame(4, b"\xfdabc"),
    "a file of ours": frame(1, b"\xfb/etc/passwd"),
    "silence": b"",
}


class Peer:
    """Gives ``greeting``, then ``login``, then OK to all but a SELECT, which gets ``answer``."""

    def __init__(self, greeting: bytes = frame(0, HELLO), login: bytes = frame(2, OK), answer: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ServerAddress("127.0.0.1", self._listener.getsockname()[1], "app", "s3cr3t", "shop")
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, args=(greeting, login, answer), daemon=True)
        self._thread.start()

    def _serve(self, greeting: bytes, login: bytes, answer: bytes) -> None:
        connection, _ = self._listener.accept()
        with closing(connection), suppress(ConnectionError):
            connection.sendall(greeting)
            while received := connection.recv(65536):
                self.received.append(received)
                is_login = len(self.received) == 1
                connection.sendall(login if is_login else answer if b"SELECT" in received else frame(1, OK))

    def finish(self) -> None:
        self._thread.join(60)
        self._listener.close()
        assert not self._thread.is_alive(), "its connection was not closed"


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.finish()


def test_a_value_that_is_no_text_is_no_broken_answer(peers: list[Peer]) -> None:
    """Each server of the shard would give the same: a VECTOR, which PyMySQL takes for text."""
    of_vector = b"\3def\0\0\0\1a\1a\x0c" + struct.pack("<HIBHBH", 45, 4, 242, 0, 0, 0)
    rows = frame(1, b"\1") + frame(2, of_vector) + frame(3, b"\xfe\0\0\2\0") + frame(4, b"\1\xc0")
    peers.append(Peer(answer=rows + frame(5, b"\xfe\0\0\2\0")))
    connection = connect(peers[0].address, timeout_seconds=60, read_timeout_seconds=60)
    with pytest.raises(UnicodeDecodeError), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert not connection.open


@pytest.mark.parametrize("name", GREETINGS)
def test_a_greeting_that_is_none(name: str, peers: list[Peer]) -> None:
    peers.append(Peer(greeting=GREETINGS[name]))
    with pytest.raises(SourceUnavailable):
        connect(peers[0].address, timeout_seconds=1)


@pytest.mark.parametrize("name", LOGINS)
def test_an_answer_to_the_login_that_is_none(name: str, peers: list[Peer]) -> None:
    peers.append(Peer(login=LOGINS[name]))
    with pytest.raises(SourceUnavailable):
        connect(peers[0].address, timeout_seconds=1)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_to_a_query_that_is_none(name: str, peers: list[Peer]) -> None:
    peers.append(Peer(answer=ANSWERS[name]))
    connection = connect(peers[0].address, timeout_seconds=60, read_timeout_seconds=1)
    with pytest.raises((pymysql.MySQLError, OSError, RuntimeError)) as caught, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert isinstance(translated(caught.value, peers[0].address, "asking"), Exception)
    connection.close()
    assert b"root:" not in b"".join(peers[0].received)
