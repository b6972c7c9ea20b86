"""The private servers do what the other tests rely on: they replicate, hang, crash and revive on demand, and do
not outlive the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pymysql
import pytest

from integration.servers import MariadbServer, Memcached, Pair, Redis, ServerFailed
from integration.servers import process as process_module
from integration.servers.process import ServerProcess
from integration.servers.watchdog import find_start_ticks, kill_if_same

CHECKOUT = Path(__file__).resolve().parents[2]
GONE_SECONDS = 30


def _make_table(pair: Pair) -> None:
    pair.primary.execute("CREATE TABLE shop.items (id INT PRIMARY KEY, name VARCHAR(20))")
    pair.wait_caught_up()


def test_a_row_reaches_the_replica(pair: Pair) -> None:
    _make_table(pair)
    pair.primary.execute("INSERT INTO shop.items VALUES (%s, %s)", 1, "first")
    pair.wait_caught_up()
    assert pair.replica.execute("SELECT * FROM shop.items") == [(1, "first")]


def test_a_delayed_replica_still_shows_the_past(own_pair: Pair) -> None:
    _make_table(own_pair)
    # So long that no machine is slow enough to make this a matter of timing.
    own_pair.replica.replicate_from(own_pair.primary, delay_seconds=3600)
    own_pair.primary.execute("INSERT INTO shop.items VALUES (1, 'late')")
    assert own_pair.replica.replication_status()["SQL_Delay"] == 3600
    assert own_pair.replica.execute("SELECT * FROM shop.items") == []
    own_pair.replica.replicate_from(own_pair.primary, delay_seconds=0)
    own_pair.wait_caught_up()
    assert own_pair.replica.execute("SELECT * FROM shop.items") == [(1, "late")]


def test_stopped_replication_goes_on_where_it_was(pair: Pair) -> None:
    _make_table(pair)
    pair.replica.stop_replication()
    pair.primary.execute("INSERT INTO shop.items VALUES (1, 'kept')")
    assert pair.replica.execute("SELECT * FROM shop.items") == []
    pair.replica.start_replication()
    pair.wait_caught_up()
    assert pair.replica.execute("SELECT * FROM shop.items") == [(1, "kept")]


def test_a_killed_primary_revives_with_its_rows_and_its_replica(own_pair: Pair) -> None:
    _make_table(own_pair)
    own_pair.primary.execute("INSERT INTO shop.items VALUES (1, 'before')")
    port, pid = own_pair.primary.port, own_pair.primary.pid
    own_pair.primary.kill()
    with pytest.raises(pymysql.OperationalError):
        own_pair.primary.execute("SELECT 1")
    own_pair.primary.start()
    assert (own_pair.primary.port, own_pair.primary.pid != pid) == (port, True)
    own_pair.primary.execute("INSERT INTO shop.items VALUES (2, 'after')")
    own_pair.wait_caught_up()
    assert own_pair.replica.execute("SELECT name FROM shop.items") == [("before",), ("after",)]


def test_the_binlog_is_what_the_invalidator_wants(pair: Pair) -> None:
    names = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata")
    [settings] = pair.primary.execute(f"SELECT {', '.join(f'@@global.{name}' for name in names)}")
    assert settings == (1, "ROW", "FULL", "FULL")


def test_options_win_over_the_defaults() -> None:
    with MariadbServer(options=["--binlog-format=STATEMENT", "--skip-log-bin"], gtid_strict_mode=False) as server:
        assert server.execute("SELECT @@binlog_format, @@log_bin, @@gtid_strict_mode") == [("STATEMENT", 0, 0)]


def test_users_may_do_what_their_names_say(pair: Pair) -> None:
    _make_table(pair)
    for user in ("root", "app", "reader", "guarded"):
        with pair.primary.connect("shop", user=user) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM items")
    with pytest.raises(pymysql.OperationalError, match="denied"):
        pair.primary.connect(user="guarded", password="wrong")
    with (
        pair.primary.connect("shop", user="reader") as connection,
        connection.cursor() as cursor,
        pytest.raises(pymysql.OperationalError, match="denied"),
    ):
        cursor.execute("INSERT INTO items VALUES (1, 'no')")


def _ask(server: ServerProcess, question: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(question)
    return connection


def test_a_paused_memcached_answers_when_it_is_resumed(memcached: Memcached) -> None:
    memcached.pause()
    # The kernel accepts the connection; nobody answers on it.
    with _ask(memcached, b"version\r\n") as connection:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        memcached.resume()
        connection.setblocking(True)
        assert connection.recv(100).startswith(b"VERSION")


def test_memcached_is_started_plainly_unless_told_otherwise(memcached: Memcached) -> None:
    settings = memcached.stats("settings")
    assert (settings["temporary_ttl"], settings["slab_automove"]) == ("61", "1")
    assert (settings["lru_segmented"], settings["maxbytes"]) == ("yes", str(64 << 20))
    with Memcached(memory_mb=8, options=("-o", "no_modern", "-m", "6")) as other:
        settings = other.stats("settings")
        assert (settings["lru_segmented"], settings["maxbytes"]) == ("no", str(6 << 20))


def test_memcached_restarts_empty_on_its_port(memcached: Memcached) -> None:
    address = memcached.address
    assert memcached.ask("set k 0 0 1\r\nv") == "STORED\r\n"
    assert memcached.ask("get k", ends_with=b"END\r\n") == "VALUE k 0 1\r\nv\r\nEND\r\n"
    memcached.restart()
    assert memcached.address == address
    assert memcached.ask("get k", ends_with=b"END\r\n") == "END\r\n"


def test_redis_answers() -> None:
    with Redis() as node, _ask(node, b"CONFIG GET save\r\n") as connection:
        assert connection.recv(100) == b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"


def test_a_server_that_does_not_start_shows_its_log() -> None:
    server = Memcached(options=["--no-such-option"])
    with pytest.raises(ServerFailed, match="no-such-option"):
        server.start()
    assert not server.is_running()
    server.stop()


def test_a_taken_port_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], process_module.find_free_port()])
        monkeypatch.setattr(process_module, "find_free_port", lambda: next(ports))
        with Memcached() as node:
            assert node.port != taken.getsockname()[1]


def test_a_port_is_given_once_to_all_test_processes() -> None:
    port = process_module.find_free_port()
    assert not process_module._claim_port(port)
    script = f"from integration.servers import process; print(process._claim_port({port}))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout == "False\n"


def _is_gone(pid: int, start_ticks: int) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while find_start_ticks(pid) == start_ticks:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class WithChild(ServerProcess):
    """A server that has a worker, as gunicorn and uvicorn do."""

    def command(self) -> list[str]:
        return ["sh", "-c", "sleep 600 & echo $! > child; wait"]

    def is_ready(self) -> bool:
        return self.child.exists() and bool(self.child.read_text())

    @property
    def child(self) -> Path:
        return self.directory / "child"


def test_a_server_ends_with_its_children() -> None:
    with WithChild() as server:
        pid = int(server.child.read_text())
        ticks = find_start_ticks(pid)
        assert ticks is not None
    assert _is_gone(pid, ticks)


RUNNER = """
import os, sys, threading
from integration.servers import MariadbServer, Memcached
from integration.servers.process import run_directory
nodes = []
starter = threading.Thread(target=lambda: nodes.append(Memcached().start()))  # ends long before its server
starter.start(); starter.join()
nodes.append(MariadbServer().start())
print(run_directory(), *(node.pid for node in nodes), flush=True)
if sys.argv[1] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize("ending", ["killed", "ends"])
def test_no_server_outlives_its_runner(ending: str) -> None:
    """Neither after a kill -9, nor when a runner ends without stopping what it started."""
    argument = "wait" if ending == "killed" else "end"
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, argument],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        directory, *pids = runner.stdout.readline().split()
        ticks = {int(pid): find_start_ticks(int(pid)) for pid in pids}
        assert len(ticks) == 2
        if ending == "killed":
            assert None not in ticks.values()
            runner.send_signal(signal.SIGKILL)
        runner.wait()
    assert all(_is_gone(pid, start) for pid, start in ticks.items() if start is not None)
    deadline = time.monotonic() + GONE_SECONDS
    while Path(directory).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(directory).exists()


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        ticks = find_start_ticks(stranger.pid)
        assert ticks is not None
        kill_if_same(stranger.pid, ticks - 1)
        assert stranger.poll() is None
        kill_if_same(stranger.pid, ticks)
        assert stranger.wait() == -signal.SIGKILL
