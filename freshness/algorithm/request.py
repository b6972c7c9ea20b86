"""The steps and requests of a procedure, and the replies to them.

A procedure (see ``freshness.algorithm.read``, ``freshness.algorithm.invalidate``, ``freshness.algorithm.apply``) is a
generator: it yields a step (`Flow`, `Flows`, `Load`, `ReadHead`, `Wait`) and is sent the answer. Drivers answer
steps, cache backends answer the requests inside a flow. Nothing here does I/O.

A miss, a lost race and a refusal are values (`MISSING`, `CONFLICT`, `Refused`); a node that did not answer is
not a value: the driver raises `freshness.errors.NodeUnavailable` in the procedure, or, inside `Flows`, puts the
exception in the place of that node's replies. A failure is never a miss.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar, overload

from freshness.position import Position
from freshness.value import value

Version: TypeAlias = int
"""memcached's CAS unique of an item (or what a backend has in its place). Only equality means anything."""


# -- requests to one cache node ------------------------------------------------------------------------


@value
class Get:
    """Read an item. Answers `Item` or `MISSING`.

    With ``vivify_ttl_seconds`` above 0 an absent key is created as an empty item (a stub) with that TTL, and
    the answer is that empty `Item`: ``won`` for the one client that created it, ``lease`` for all others until it
    is replaced or expires (memcached ``mg N``).
    """

    key: bytes
    vivify_ttl_seconds: int = 0


@value
class Add:
    """Store if the key is absent. Answers `Stored` (version unknown, 0) or `CONFLICT`. Sent quietly."""

    key: bytes
    value: bytes
    ttl_seconds: int


@value
class Cas:
    """Replace the item only if it still has ``version``.

    Answers `Stored` (with the new version), `CONFLICT` (another version), `MISSING`, or `Refused`.
    """

    key: bytes
    value: bytes
    version: Version
    ttl_seconds: int


@value
class Delete:
    """Remove an item. Without ``version``: unconditional, always answers `DONE` (sent quietly, whether the item
    was there is not reported). With it: `DONE`, `CONFLICT` or `MISSING`."""

    key: bytes
    version: Version | None = None


@value
class InspectStorage:
    """Ask whether the node provably keeps tombstones for ``tombstone_ttl_seconds``. Answers `StorageReport`."""

    tombstone_ttl_seconds: int


Request: TypeAlias = Get | Add | Cas | Delete | InspectStorage


class _Pairs(Sequence["Add | Cas | Delete"]):
    """Requests in pairs, one pair for a key, made where they are looked at.

    A batch of invalidations has thousands of them. A backend may send them without making an object for each; any
    other user sees an ordinary sequence.
    """

    __slots__ = ()

    def pair(self, place: int) -> tuple[Add | Cas, Delete]:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Add | Cas | Delete: ...

    @overload
    def __getitem__(self, index: slice) -> list[Add | Cas | Delete]: ...

    def __getitem__(self, index: int | slice) -> Add | Cas | Delete | list[Add | Cas | Delete]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self.pair(place // 2)[place % 2]

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self) // 2} keys"


class Marks(_Pairs):
    """For each key: add a tombstone, under the key with ``suffix``; delete the key."""

    __slots__ = ("keys", "suffix", "tombstones", "ttl_seconds")

    def __init__(
        self, keys: Sequence[bytes], tombstones: Sequence[bytes], suffix: bytes, ttl_seconds: int
    ) -> None:
        self.keys, self.tombstones, self.suffix, self.ttl_seconds = keys, tombstones, suffix, ttl_seconds

    def __len__(self) -> int:
        return 2 * len(self.keys)

    def pair(self, place: int) -> tuple[Add, Delete]:
        key = self.keys[place]
        return Add(key + self.suffix, self.tombstones[place], self.ttl_seconds), Delete(key)


class Merges(_Pairs):
    """For each key: replace its tombstone by CAS; delete the key. ``merged``: key → (bytes, version, TTL).

    The `Stored` of these may leave the version out, and a refusal may fail the whole flow.
    """

    __slots__ = ("keys", "merged", "suffix")

    def __init__(
        self, keys: Sequence[bytes], merged: Sequence[tuple[bytes, Version, int]], suffix: bytes
    ) -> None:
        self.keys, self.merged, self.suffix = keys, merged, suffix

    def __len__(self) -> int:
        return 2 * len(self.keys)

    def pair(self, place: int) -> tuple[Cas, Delete]:
        key = self.keys[place]
        return Cas(key + self.suffix, *self.merged[place]), Delete(key)


# -- replies ------------------------------------------------------------------------------------------


@value
class Item:
    """An item as a node holds it.

    ``ttl_seconds``: whole seconds that remain by the node's own clock, -1 where it never expires.
    ``won`` / ``lease``: see `Get`; both False on an item that was not vivified.
    """

    value: bytes
    version: Version
    ttl_seconds: int = -1
    won: bool = False
    lease: bool = False


@value
class Stored:
    """The item was stored; ``version`` is its new version, 0 where the backend does not say."""

    version: Version = 0


@value
class Refused:
    """The node answered that it will not store this item (too large, out of memory). Nothing was stored;
    memcached drops the former item in this case."""

    reason: str


class Outcome(Enum):
    """Answers without content."""

    MISSING = "missing"
    CONFLICT = "conflict"
    DONE = "done"


MISSING: Final = Outcome.MISSING
CONFLICT: Final = Outcome.CONFLICT
DONE: Final = Outcome.DONE
STORED: Final = Stored()


@value
class StorageReport:
    """A node's own account of its memory (F5, F51, F67).

    ``keeps_tombstones``: an item with the given TTL is not evicted before it expires. ``reason`` says what is
    missing where it is False, with the remedy. ``losses`` is the sum of the counters that show that something
    unevictable was dropped or refused: trailing is allowed only while it does not move.
    """

    keeps_tombstones: bool
    reason: str
    losses: int
    server: str


Reply: TypeAlias = Item | Stored | Refused | Outcome | StorageReport


# -- steps of a procedure -----------------------------------------------------------------------------


@value
class Flow:
    """Requests to one node, answered in order on one connection. Answer: a list with one reply each.

    Other clients may come between any two of them; their own order is kept.
    """

    node: str
    requests: tuple[Request, ...] | Marks | Merges


@value
class Flows:
    """Several flows at once. Answer: a list with, for each flow, its replies or the `NodeUnavailable`."""

    flows: tuple[Flow, ...]


@value
class Load:
    """Read the given lookups from the database, the token first. Answer: one `freshness.algorithm.lookup.Loaded`
    each."""

    lookups: tuple[Any, ...]


@value
class ReadHead:
    """Ask the primary of the shard for everything it has executed. Answer: `Head`."""


@value
class Head:
    """The primary's position and the epoch of its history, the epoch read first."""

    position: Position
    epoch: int


@value
class Wait:
    """Let time pass. Answer: None."""

    seconds: float


Step: TypeAlias = Flow | Flows | Load | ReadHead | Wait
Result = TypeVar("Result")
Procedure: TypeAlias = Generator[Step, Any, Result]
Replies: TypeAlias = Sequence[Reply]
