"""A page whose connection a replaced worker has reset is asked for again, a bounded number of times."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from examples.scoreboard.run import ATTEMPTS, read_page

BODY = b'{"products": {"1": {"version": 4711}}}'
RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: the connection ends at once, by a reset."""


def serve(listener: socket.socket, resets: int, answers: int) -> None:
    for number in range(resets + answers):
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            if number < resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            else:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY))


@pytest.mark.parametrize("resets", [0, 1, ATTEMPTS - 1])
def test_a_page_whose_connection_is_reset_is_asked_for_again(resets: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, resets, 1))
        server.start()
        assert read_page(listener.getsockname()[1], "/products/1") == {"1": {"version": 4711}}
        server.join()


def test_a_server_that_resets_each_connection_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, ATTEMPTS, 0))
        server.start()
        with pytest.raises(ConnectionResetError):
            read_page(listener.getsockname()[1], "/products/1")
        server.join()
