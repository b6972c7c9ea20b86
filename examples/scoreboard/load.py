"""The load: sessions of a browser each, which read and order, and what they see that they must not.

A session knows the version that its last order of a product has committed. All know which version of a product had
been committed for how long. A read is judged by what was known before it began.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

OLD_SECONDS: Final = 6.0
"""Far above the lag of the replica: a value that is older comes from a cache that keeps it."""

LATE_SECONDS: Final = 1.0
"""The shortest lag of the replica. An invalidation takes less: a later row is of the replica, or was poisoned."""

WITHDRAWN: Final = "-1.00"
BASKET: Final = 30


@dataclass(slots=True)
class Findings:
    """Findings of all sessions. ``late``, ``old``: number of rows shown that a commit had replaced for `LATE_SECONDS`
    or `OLD_SECONDS`. ``seconds``: time of each page read. ``refused``: number of pages that failed."""

    reads: int = 0
    orders: int = 0
    refused: int = 0
    own_past: int = 0
    late: int = 0
    old: int = 0
    withdrawn: int = 0
    disconnected: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


class Ledger:
    """When each version of a product was known to be committed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: dict[int, list[tuple[float, int]]] = {}

    def add(self, key: int, version: int) -> None:
        with self._lock:
            self._commits.setdefault(key, []).append((time.monotonic(), version))

    def version_at(self, key: int, moment: float) -> int:
        """The highest version that was committed by then."""
        with self._lock:
            return max((version for at, version in self._commits.get(key, ()) if at <= moment), default=0)


class Browser:
    """One session: a connection, cookies, and what it has committed."""

    def __init__(self, port: int, ledger: Ledger, findings: Findings, lock: threading.Lock) -> None:
        self._port, self._ledger, self._findings, self._lock = port, ledger, findings, lock
        self._cookies: dict[str, str] = {}
        self._own: dict[int, int] = {}
        self._connection: http.client.HTTPConnection | None = None

    def read(self, path: str, rows: int) -> dict[str, Any] | None:
        began = time.monotonic()
        own = dict(self._own)
        status, answer = self._ask("GET", path)
        taken = time.monotonic() - began
        with self._lock:
            self._findings.statuses[status] += 1
            self._findings.refused += status not in (0, 200)
            if answer is not None:
                self._findings.reads += rows
                self._findings.seconds.append(taken)
        if answer is not None:
            self._judge(answer, own, began)
        return answer

    def order(self, key: int, then: str) -> None:
        began = time.monotonic()
        status, answer = self._ask("POST", f"/products/{key}/order?then={urllib.parse.quote(then)}")
        with self._lock:
            self._findings.statuses[status] += 1
            self._findings.orders += 1
            self._findings.reads += answer is not None
        if answer is None:
            return
        if "version" in answer:
            self._own[key] = answer["version"]
            self._ledger.add(key, answer["version"])
        self._judge(answer, dict(self._own), began)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _judge(self, answer: Mapping[str, Any], own: Mapping[int, int], began: float) -> None:
        for name, shown in answer["products"].items():
            key, version = int(name), shown["version"]
            is_own_past = version < own.get(key, 0)
            is_late = version < self._ledger.version_at(key, began - LATE_SECONDS)
            is_old = version < self._ledger.version_at(key, began - OLD_SECONDS)
            with self._lock:
                self._findings.own_past += is_own_past
                self._findings.late += is_late
                self._findings.old += is_old
                self._findings.withdrawn += shown["price"] == WITHDRAWN

    def _ask(self, method: str, path: str) -> tuple[int, dict[str, Any] | None]:
        """The status, and the answer of a page that was found; 0 if the connection has ended.

        A server may end a connection between two requests, and does so when a worker is replaced. As in a browser a
        GET is then sent once more, on a new one.
        """
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        is_new = self._connection is None
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            self._connection.request(method, path, headers=headers)
            response = self._connection.getresponse()
            text = response.read()
        except (http.client.HTTPException, OSError):
            self.close()
            if method == "GET" and not is_new:
                return self._ask(method, path)
            with self._lock:
                self._findings.disconnected += 1
            return 0, None
        for line in response.headers.get_all("Set-Cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value
        return response.status, json.loads(text) if response.status == 200 else None


def choose(chance: random.Random, products: int) -> int:
    """A product: a few are asked for most of the time."""
    return min(int(chance.paretovariate(0.7)), products)


@dataclass(frozen=True, slots=True)
class Ends:
    """Orders end first, and sessions go on reading for some time."""

    orders: threading.Event = field(default_factory=threading.Event)
    reads: threading.Event = field(default_factory=threading.Event)


def browse(browser: Browser, chance: random.Random, products: int, ends: Ends) -> None:
    """One session until its end. An order in twenty is rolled back, and one in twenty fails."""
    own: int | None = None
    while not ends.reads.is_set():
        key = choose(chance, products)
        kind = chance.random()
        if kind < 0.04:
            if ends.orders.is_set():
                continue
            own = key
            browser.order(key, chance.choices(("", "roll back", "fail"), (18, 1, 1))[0])
        elif kind < 0.45:
            # People look at what they have just ordered
            browser.read(f"/products/{own if own and chance.random() < 0.2 else key}", 2)
        else:
            keys = {choose(chance, products) for _ in range(BASKET)}
            browser.read(f"/basket?keys={','.join(map(str, keys))}", len(keys))
    browser.close()
