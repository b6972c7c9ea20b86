"""Ends the servers of a process that died without ending them. A program of its own.

Started by ``integration.servers.process`` once per process that starts servers. It reads lines on its
standard input: ``pid N START_TICKS`` (kill it), ``forget N``, ``directory PATH`` (remove it). At the end of
the input, or when its parent is gone, it kills and removes what is left, and ends. It never touches a pid
whose start time differs from the line's: the number may belong to another process by then.

Why not PR_SET_PDEATHSIG: that fires when the creating *thread* ends, and servers are started from threads.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys

POLL_SECONDS = 0.5


def find_start_ticks(pid: int) -> int | None:
    """The start time of the process, in clock ticks since boot; None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name may hold spaces and parentheses; the fields begin after the last one.
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def kill_if_same(pid: int, start_ticks: int) -> None:
    """SIGKILL to the process and its session, if it still is the one that was started."""
    if find_start_ticks(pid) == start_ticks:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def main() -> None:
    parent = os.getppid()
    servers: dict[int, int] = {}
    directories: list[str] = []
    pending = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], POLL_SECONDS)[0]:
            continue
        received = os.read(0, 65536)
        if not received:
            break
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            word, _, rest = os.fsdecode(line).partition(" ")
            if word == "pid":
                number, start_ticks = rest.split()
                servers[int(number)] = int(start_ticks)
            elif word == "forget":
                servers.pop(int(rest), None)
            elif word == "directory":
                directories.append(rest)
    for pid, ticks in servers.items():
        kill_if_same(pid, ticks)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    # A Ctrl-C in the terminal is for the parent; this program goes on until the parent is gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
    sys.exit(0)
