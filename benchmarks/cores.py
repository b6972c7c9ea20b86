"""Which core does what: a benchmark of round trips is run once for each placement, and has one pace from end to end.

A round trip on loopback takes about 15 µs where client and cache node share a core, and about 45 µs if the
node has to be woken on another one. A scheduler that is left alone changes between the two from one minute to
the next,
and each of them suits another side: a loop that waits for every answer is three times as fast at the one as at the
other.

So the client, which is this process, stays on the first core. Its cache nodes are on the same core or on the second
one. Databases, writers and invalidators of their own process are always on the second one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Final

from benchmarks.measure import Criterion, Result
from freshness.errors import ConfigError


class Placement(Enum):
    """The cores of the cache nodes, relative to the client."""

    SAME_CORE = "same core"
    OTHER_CORE = "other core"


_CORES: Final = tuple(sorted(os.sched_getaffinity(0)))
_current: Placement | None = None


@contextmanager
def placed(placement: Placement) -> Iterator[None]:
    """This process is on the first core. Raises `ConfigError` on a machine with one core."""
    global _current
    if len(_CORES) < 2:
        raise ConfigError("this benchmark needs two cores", hint="run it on a machine that has them")
    _current = placement
    pin(os.getpid(), _CORES[:1])
    try:
        yield
    finally:
        _current = None
        pin(os.getpid(), _CORES)


def settle_node(pid: int) -> None:
    """Pin a cache node to the core of the placement. Without a placement, do nothing."""
    if _current is not None:
        pin(pid, _CORES[:1] if _current is Placement.SAME_CORE else _CORES[1:2])


def settle_rest(pid: int) -> None:
    """Put another process of the benchmark on other cores than the client. Without a placement, do nothing."""
    if _current is not None:
        pin(pid, _CORES[1:2])


def only_on(placement: Placement, criterion: Criterion) -> Criterion | None:
    """The criterion while the nodes are placed so."""
    return criterion if _current is placement else None


def pin(pid: int, cores: tuple[int, ...]) -> None:
    """All threads that a process has now; threads that it starts later do as their parent."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def name_of(result: Result, placement: Placement) -> Result:
    """The result under a name of its own for this placement."""
    return replace(result, name=f"{result.name}_{placement.name.lower()}")
