"""A node that does not answer is waited for once by a process, and asked again by nobody but a probe.

Otherwise every thread of a process waits for the time-out again and again, and the hits on healthy nodes stop, too.
The keys of a node whose breaker is open are read from the database and not stored (F106). A thread in the background
asks the node, and closes its breaker when it answers. Used by ``appclient.reading.pipeline``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import Reply, Request
from freshness.errors import FreshnessError, NodeTimedOut, NodeUnavailable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PROBE_SECONDS: Final = 0.25
"""How often a node whose breaker is open is asked."""


class Breakers:
    """The breakers of all nodes, for all readers of a process. ``open_node`` gives a connection to a node that
    blocks, for ``probe``, the request that it is asked with."""

    def __init__(self, names: Iterable[str], open_node: Callable[[str], CacheNode], probe: Request) -> None:
        self.opened: dict[str, bool] = dict.fromkeys(names, False)
        """By node: whether it is left alone."""
        self._open_node = open_node
        self._probe = probe
        self._starting = threading.Lock()
        self._probing_process = 0

    def trip(self, name: str) -> None:
        """Open the breaker of a node, until a probe has had its answer."""
        if not self.opened[name]:
            log.warning("cache node %s does not answer: its keys are read from the database", name)
        self.opened[name] = True
        self.start_probe()

    def start_probe(self) -> None:
        """Start the thread if none runs in this process. A forked process has none of its parent's threads."""
        if self._probing_process == os.getpid():
            return
        with self._starting:
            if self._probing_process != os.getpid():
                self._probing_process = os.getpid()
                threading.Thread(target=self._run, name="cache node probe", daemon=True).start()

    def _run(self) -> None:
        try:
            while any(self.opened.values()):
                time.sleep(PROBE_SECONDS)
                self.ask()
        finally:
            self._probing_process = 0  # a read that still finds a breaker open starts another thread

    def ask(self) -> None:
        """Ask each node whose breaker is open, and close the breakers of those that answer."""
        for name in [name for name, is_open in self.opened.items() if is_open]:
            node = self._open_node(name)
            try:
                node.perform((self._probe,))
            except FreshnessError as error:
                log.debug("cache node %s: %s", name, error)
            else:
                self.opened[name] = False
                log.warning("cache node %s answers again", name)
            finally:
                node.close()


class GuardedNode:
    """One reader's connection to a node; see `freshness.algorithm.node.CacheNode`. A time-out opens the breaker. A
    failure that is quick, such as a refused connection, costs nobody anything."""

    def __init__(self, node: CacheNode, breakers: Breakers) -> None:
        self.name = node.name
        self.close = node.close
        self._node = node
        self._breakers = breakers
        self._opened = breakers.opened

    @property
    def is_connected(self) -> bool:
        return self._node.is_connected or self._opened[self.name]

    def connect(self) -> None:
        self._watch(self._node.connect)

    def send(self, requests: Sequence[Request]) -> None:
        if self._opened[self.name]:
            self._refuse()
        self._watch(self._node.send, requests)

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        return self._watch(self._node.receive, is_late=is_late)

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        if self._opened[self.name]:
            self._refuse()
        return self._watch(self._node.perform, requests)

    def _watch(self, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        try:
            return function(*arguments, **options)
        except NodeTimedOut:
            self._breakers.trip(self.name)
            raise

    def find(self, key: bytes) -> bytes | None:
        if self._opened[self.name]:
            self._refuse()
        try:
            return self._node.find(key)
        except NodeTimedOut:
            self._breakers.trip(self.name)
            raise

    def _refuse(self) -> NoReturn:
        self._node.close()
        self._breakers.start_probe()
        raise NodeUnavailable(
            f"{self.name} did not answer a moment ago, and is left alone until it does",
            hint="see that it runs and is reachable",
        )
