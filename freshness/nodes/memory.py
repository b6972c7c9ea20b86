"""A cache node in this process: the reference implementation, the simulator's node, the embedded backend.

It models what of memcached the algorithm can trip over: versions from a counter that starts again at a
restart (F8), TTL in whole seconds, stubs and their lease, LRU eviction, refusals for memory that drop the old item.
It must stay deterministic: time comes from the clock it is given, and the order of eviction from the order
of use. It never waits and never logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from freshness.algorithm.node import check_key, lifetime_seconds
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Get,
    Item,
    Refused,
    Reply,
    Request,
    Stored,
)
from freshness.errors import NodeUnavailable

ITEM_OVERHEAD_BYTES: Final = 60
"""About memcached's own bytes for an item besides key and value; only the size limit depends on it."""

TOO_LARGE: Final = "object too large for cache"
REFUSAL_HINT: Final = "give the node more memory"


class _Entry(NamedTuple):
    value: bytes
    version: int
    expires_at: int  # by the whole-second clock; 0: never
    is_leased: bool  # a stub whose win was given


@dataclass(eq=False)
class MemoryStore:
    """The memory of one node, shared by any number of `MemoryNode` connections, from any thread. ``capacity_items``
    None: nothing is ever evicted. ``down``: no connection gets an answer."""

    name: str
    _: KW_ONLY
    clock: Callable[[], float]
    capacity_items: int | None = None
    item_size_max: int = 1_048_576
    down: bool = False
    restarts: int = 0
    _last_version: int = 0
    _entries: dict[bytes, _Entry] = field(default_factory=dict)  # least recently used first
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def restart(self) -> None:
        """All items and counters are gone; versions start again and repeat (F8)."""
        with self._lock:
            self._entries = {}
            self._last_version = 0
            self.restarts += 1

    def flush(self) -> None:
        """``flush_all`` by a stranger (F7): the items are gone, the process stays."""
        with self._lock:
            self._entries = {}

    def evict(self, key: bytes) -> bool:
        """Drop one item (F5). Whether it was there."""
        with self._lock:
            return self._entries.pop(key, None) is not None

    def keys(self) -> list[bytes]:
        """Keys of live items, least recently used first."""
        return [key for key in self._entries if self._find(key) is not None]

    def peek(self, key: bytes) -> Item | None:
        """The live item as a `Get` would show it, without any effect on it."""
        entry = self._find(key)
        return None if entry is None else self._item(entry)

    def state(self) -> Hashable:
        """Everything a later answer depends on, except the clock: for an explorer that remembers its states. The
        order of use is part of it only where something can be evicted."""
        items = tuple(self._entries.items())
        return (items if self.capacity_items is not None else tuple(sorted(items)), self._last_version, self.down)

    def restore(self, state: Any) -> None:
        """Go back to what `state` returned."""
        items, self._last_version, self.down = state
        self._entries = dict(items)

    def answer(self, request: Request) -> Reply:
        """Carry out one request. `Refused` also for an `Add`, which a connection turns into a failure."""
        with self._lock:
            match request:
                case Get():
                    return self._get(request)
                case Add():
                    return self._add(request)
                case Cas():
                    return self._cas(request)
                case Delete():
                    return self._delete(request)
                case Append():
                    return self._append(request)

    def _get(self, request: Get) -> Reply:
        entry = self._find(request.key)
        if entry is not None:
            self._entries[request.key] = self._entries.pop(request.key)
            return self._item(entry)
        if request.vivify_ttl_seconds <= 0:
            return MISSING
        self._make_room(request.key)
        entry = self._put(request.key, b"", request.vivify_ttl_seconds, is_stub=True)
        return Item(entry.value, entry.version, self._ttl_seconds(entry), won=True)

    def _add(self, request: Add) -> Reply:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        if self._find(request.key) is not None:
            return CONFLICT
        self._put(request.key, request.value, request.ttl_seconds)
        return Stored()

    def _cas(self, request: Cas) -> Reply:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        entry = self._find(request.key)
        if entry is None:
            return MISSING
        if entry.version != request.version:
            return CONFLICT
        return Stored(self._put(request.key, request.value, request.ttl_seconds).version)

    def _delete(self, request: Delete) -> Reply:
        entry = self._find(request.key)
        if request.version is not None:
            if entry is None:
                return MISSING
            if entry.version != request.version:
                return CONFLICT
        self._entries.pop(request.key, None)
        return DONE

    def _append(self, request: Append) -> Reply:
        entry = self._find(request.key)
        if entry is None:
            return CONFLICT
        value = entry.value + request.value
        if len(request.key) + len(value) + ITEM_OVERHEAD_BYTES > self.item_size_max:
            self._entries.pop(request.key)
            return CONFLICT
        self._entries.pop(request.key)
        self._entries[request.key] = _Entry(value, self._draw_version(request.key), entry.expires_at, False)
        return Stored()

    def _now(self) -> int:
        return int(self.clock())

    def _ttl_seconds(self, entry: _Entry) -> int:
        return entry.expires_at - self._now() if entry.expires_at else -1

    def _item(self, entry: _Entry) -> Item:
        return Item(entry.value, entry.version, self._ttl_seconds(entry), lease=entry.is_leased)

    def _find(self, key: bytes) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None or (entry.expires_at and entry.expires_at <= self._now()):
            return None
        return entry

    def _draw_version(self, key: bytes) -> int:
        """A version that no item of ``key`` had since the process began."""
        self._last_version += 1
        return self._last_version

    def _put(self, key: bytes, value: bytes, ttl_seconds: int, *, is_stub: bool = False) -> _Entry:
        lifetime = lifetime_seconds(ttl_seconds)
        expires_at = self._now() + lifetime if lifetime else 0
        self._entries.pop(key, None)
        entry = _Entry(value, self._draw_version(key), expires_at, is_stub)
        self._entries[key] = entry
        return entry

    def _refuse(self, request: Add | Cas) -> Refused | None:
        """Why the item cannot be stored; then the old item is dropped, whatever its version, as memcached does."""
        if len(request.key) + len(request.value) + ITEM_OVERHEAD_BYTES > self.item_size_max:
            self._entries.pop(request.key, None)
            return Refused(TOO_LARGE)
        self._make_room(request.key)
        return None

    def _make_room(self, key: bytes) -> None:
        """Make sure that one more item can be stored: room is taken before the old item gives its own back."""
        if self.capacity_items is None or len(self._entries) < self.capacity_items:
            return
        for expired in [other for other in self._entries if self._find(other) is None]:
            del self._entries[expired]
        if len(self._entries) >= self.capacity_items:
            oldest = next((other for other in self._entries if other != key), None)
            if oldest is not None:
                del self._entries[oldest]


class MemoryNode:
    """A connection to a `MemoryStore`; see `freshness.algorithm.node.CacheNode`. ``down``: this connection is cut.

    A flow is carried out when it is sent. So a node that goes down between `send` and `receive` has done the
    work without saying so, and one that was down before has not. A restart of the store breaks the connection:
    the next flow fails, so that no version outlives the process that gave it (F8).
    """

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.down = False
        self._known_restarts: int | None = None
        self._replies: list[Reply] | None = None
        self._refusal = ""

    @property
    def name(self) -> str:
        return self.store.name

    def send(self, requests: Sequence[Request]) -> None:
        self.close()
        self._check(requests)
        self._raise_if_down()
        known, self._known_restarts = self._known_restarts, self.store.restarts
        if known is not None and known != self.store.restarts:
            raise NodeUnavailable(
                f"cache node {self.name} broke the connection",
                hint="it was restarted; the next request connects again",
            )
        replies: list[Reply] = []
        for request in requests:
            reply = self.store.answer(request)
            if isinstance(reply, Refused) and isinstance(request, Add):
                self._refusal = reply.reason
            replies.append(reply)
        self._replies = replies

    @property
    def is_connected(self) -> bool:
        return True

    def connect(self) -> None:
        """Nothing: it is in this process."""

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        replies, refusal = self._replies, self._refusal
        assert replies is not None, "receive without send"
        self.close()
        self._raise_if_down()
        if refusal:
            raise NodeUnavailable(f"cache node {self.name} refused a quiet request: {refusal}", hint=REFUSAL_HINT)
        return replies

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self.send(requests)
        return self.receive()

    def find(self, key: bytes) -> bytes | None:
        (reply,) = self.perform((Get(key),))
        return reply.value if isinstance(reply, Item) else None

    def close(self) -> None:
        self._replies = None
        self._refusal = ""

    @staticmethod
    def _check(requests: Sequence[Request]) -> None:
        for request in requests:
            check_key(request.key)
            match request:
                case Add() | Cas():
                    lifetime_seconds(request.ttl_seconds)
                case Get():
                    lifetime_seconds(request.vivify_ttl_seconds)
                case _:
                    continue

    def _raise_if_down(self) -> None:
        if self.down or self.store.down:
            self._known_restarts = None  # the connection is gone; the next one knows nothing
            raise NodeUnavailable(f"cache node {self.name} is down", hint="it is switched off in this process")
