"""The four ways to cache, as a reader and a writer of the application see them.

All read what they miss from the same replica, with the same statements, and keep it on the same nodes under a
namespace of their own. `DeletingCache` is how most applications do it; who deletes (the writer, or a consumer of
the binlog) is all that its two uses differ in. `FencedCache` stores under a generation that the writer raises.
`TokenCache` is this project's library and nothing else.
Objects here belong to one thread each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from zlib import crc32

import pymysql
from pymemcache.client.hash import HashClient
from pymysql.cursors import DictCursor
from redis import Redis

from appclient import Cache, LoaderConnection
from examples.demo.measurement import CUSTOMER, PROFILE, Answer, Meter, ObjectKey, Request, Write
from examples.demo.workload import load_profile

if TYPE_CHECKING:  # it needs Arrow, which a run without history does not
    from examples.demo.evidence import Witness

DELETE_AFTER_WRITE: Final = "delete_after_write"
GENERATION_FENCE: Final = "generation_fence"
DELETE_FROM_STREAM: Final = "delete_from_stream"
EVENT_TOKENS: Final = "event_tokens"
STRATEGIES: Final = (DELETE_AFTER_WRITE, GENERATION_FENCE, DELETE_FROM_STREAM, EVENT_TOKENS)

TTL_SECONDS: Final = 3600
TIMEOUT_SECONDS: Final = 5.0


class Strategy(Protocol):
    """How one reader reads."""

    def read(self, request: Request) -> list[Answer]:
        """One answer for each object, in order."""

    def close(self) -> None: ...


def plain_key(namespace: str, key: ObjectKey) -> str:
    return f"{namespace}:{key[0]}:{key[1]}"


class RedisNodes:
    """Redis servers with the part of pymemcache's interface that the demo uses. An item has no version here: None."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._servers = [
            Redis(host, port, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS)
            for host, port in addresses
        ]

    def _server(self, key: str) -> Redis:
        return self._servers[crc32(key.encode()) % len(self._servers)]

    def get(self, key: str) -> Any:
        return self._server(key).get(key)

    def gets(self, key: str) -> tuple[Any, None]:
        return self.get(key), None

    def gets_many(self, keys: Sequence[str]) -> dict[str, tuple[Any, None]]:
        return {key: self.gets(key) for key in keys}

    def set(self, key: str, data: bytes, *, expire: int, noreply: bool) -> None:
        self._server(key).set(key, data, ex=expire)

    def delete(self, key: str, *, noreply: bool) -> None:
        self._server(key).delete(key)

    def incr(self, key: str, value: int, *, noreply: bool) -> int:
        return int(self._server(key).incr(key, value))

    def close(self) -> None:
        for server in self._servers:
            server.close()


def open_client(nodes: Sequence[str], backend: str = "memcached") -> Any:
    """A client for the nodes. A node that does not answer is an error: the demo has no dead nodes."""
    addresses = [(host, int(port)) for host, _, port in (node.rpartition(":") for node in nodes)]
    if backend == "redis":
        return RedisNodes(addresses)
    return HashClient(
        addresses,
        connect_timeout=TIMEOUT_SECONDS,
        timeout=TIMEOUT_SECONDS,
        no_delay=True,
        retry_attempts=0,
        dead_timeout=0,
    )


def encode_plain(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()


class DeletingCache:
    """Look-aside: get; on a miss read the replica and set with a TTL. Somebody deletes the keys that change."""

    def __init__(self, namespace: str, client: Any, replica: dict[str, Any], witness: Witness | None = None) -> None:
        self._namespace = namespace
        self._client = client
        self._connection = pymysql.connect(**replica)
        self._witness = witness

    def read(self, request: Request) -> list[Answer]:
        keys = {key: plain_key(self._namespace, key) for key in request.objects}
        begin_us = 0 if self._witness is None else self._witness.now_us()
        if len(keys) == 1:
            found = {plain: self._client.gets(plain) for plain in keys.values()}
        else:
            found = self._client.gets_many(list(keys.values()))
        held = {plain: each for plain, each in found.items() if each[0] is not None}
        missing = [key for key, plain in keys.items() if plain not in held]
        loaded = self._load(missing, keys) if missing else {}
        if self._witness is not None:
            for key, plain in keys.items():
                if plain in held:
                    self._witness.hit(key, plain, int(held[plain][1]), begin_us)
        return [
            Answer(key, loaded[key], False, "filled")
            if key in loaded
            else Answer(key, json.loads(held[plain][0]), True, "hit")
            for key, plain in keys.items()
        ]

    def _load(self, keys: Sequence[ObjectKey], plain_keys: Mapping[ObjectKey, str]) -> dict[ObjectKey, Any]:
        """Read from the replica, and store what may be."""
        witness, token = self._witness, None
        if witness is None:
            loaded = self._read_rows(keys)
        else:
            token, loaded = witness.read_with_token(self._connection, lambda: self._read_rows(keys))
        for key, value in loaded.items():
            plain, data = plain_keys[key], encode_plain(value)
            if value is None or not self._may_store(plain):
                continue
            begin_us = 0 if witness is None else witness.now_us()
            self._client.set(plain, data, expire=TTL_SECONDS, noreply=False)
            if witness is not None and token is not None:
                now, version = self._client.gets(plain)
                witness.filled(key, plain, value, token, int(version) if now == data else 0, begin_us)
        return loaded

    def _may_store(self, plain: str) -> bool:
        return True

    def _read_rows(self, keys: Sequence[ObjectKey]) -> dict[ObjectKey, Any]:
        values: dict[ObjectKey, Any] = dict.fromkeys(keys)
        numbers = [number for name, number in keys if name == CUSTOMER]
        with self._connection.cursor(DictCursor) as cursor:
            if numbers:
                places = ", ".join(["%s"] * len(numbers))
                cursor.execute(f"SELECT * FROM customers WHERE id IN ({places})", numbers)
                values.update({(CUSTOMER, row["id"]): row for row in cursor.fetchall()})
            for name, number in keys:
                if name == PROFILE:
                    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                    values[PROFILE, number] = load_profile(LoaderConnection(self._connection), number)
                    cursor.execute("ROLLBACK")
        return values

    def close(self) -> None:
        self._client.close()
        self._connection.close()


def fence_of(plain: str) -> str:
    """The key of the generation of a key."""
    return f"{plain}:generation"


class FencedCache(DeletingCache):
    """A value is stored only if the generation is still the one from before its read: no slow reader stores what
    a writer has deleted in between."""

    def _load(self, keys: Sequence[ObjectKey], plain_keys: Mapping[ObjectKey, str]) -> dict[ObjectKey, Any]:
        self._generations = {plain_keys[key]: self._client.get(fence_of(plain_keys[key])) for key in keys}
        return super()._load(keys, plain_keys)

    def _may_store(self, plain: str) -> bool:
        return bool(self._client.get(fence_of(plain)) == self._generations[plain])


class DeletingWriter:
    """The writer's half of delete_after_write: after the commit, delete what the transaction changed."""

    def __init__(self, namespace: str, client: Any, meter: Meter, witness: Witness | None = None) -> None:
        self._namespace = namespace
        self._client = client
        self._meter = meter
        self._witness = witness

    def after_commit(self, write: Write) -> None:
        times = {}
        for key in write.objects:
            self._delete(plain_key(self._namespace, key))
            times[key] = time.monotonic()
        self._meter.acknowledge(write, time.monotonic())
        if self._witness is not None:
            self._witness.acknowledged(write, times)

    def _delete(self, plain: str) -> None:
        self._client.delete(plain, noreply=False)

    def close(self) -> None:
        self._client.close()


class FencedWriter(DeletingWriter):
    """That of generation_fence: it raises the generation of a key before it deletes the key."""

    def _delete(self, plain: str) -> None:
        while self._client.incr(fence_of(plain), 1, noreply=False) is None:
            self._client.add(fence_of(plain), b"0", noreply=False)
        super()._delete(plain)


class TokenCache:
    """The application with ``appclient``: `Cache.get`, `Cache.get_many`, and the composite's loader."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def read(self, request: Request) -> list[Answer]:
        if len(request.objects) == 1:
            ((name, number),) = request.objects
            explained = {number: self._cache.get(name, number, explain=True)}
        else:
            name = request.objects[0][0]
            numbers = [number for _, number in request.objects]
            explained = self._cache.get_many(name, numbers, explain=True, together=request.is_pair)
        return [
            Answer((name, number), each.value, each.is_hit, each.outcome.name.lower())
            for number, each in explained.items()
        ]

    def close(self) -> None:
        self._cache.close()
