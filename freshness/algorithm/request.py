"""The steps and requests of a procedure, and the replies to them.

A procedure (see ``freshness.algorithm.read``, ``freshness.algorithm.invalidate``, ``freshness.algorithm.apply``) is a
generator: it yields a step (`Flow`, `Flows`, `Load`, `ReadHead`, `ConfirmSuccession`, `ReadStream`, `Wait`) and is
sent the answer.
Drivers answer steps, cache backends answer the requests inside a flow. Nothing here does I/O.

A miss, a lost race and a refusal are values (`MISSING`, `CONFLICT`, `Refused`); a node that did not answer is
not a value: the driver raises `freshness.errors.NodeUnavailable` in the procedure, or, inside `Flows`, puts the
exception in the place of that node's replies. A failure is never a miss.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, overload

from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken
from freshness.position.varint import NUMBER_MAX
from freshness.value import value

NO_TOKENS: Final[Mapping[str, EventToken]] = MappingProxyType({})

LATEST: Final = EventToken("-", "-", NUMBER_MAX, 0, MysqlGtidSet())
"""In the place of what a row must show, which the node does not say: the primary is to be read."""

Version: TypeAlias = int
"""memcached's CAS unique of an item (or what a backend has in its place). Only equality means anything."""


# -- requests to one cache node ------------------------------------------------------------------------


@value
class Get:
    """Read an item. Answers `Item` or `MISSING`.

    With ``vivify_ttl_seconds`` above 0 an absent key is created as an empty item (a stub) with that TTL, and
    the answer is that empty `Item`: ``won`` for the one client that created it, ``lease`` for all others until it
    is replaced or expires (memcached ``mg N``). ``is_bound``: see `Add`; not together with a TTL.
    """

    key: bytes
    vivify_ttl_seconds: int = 0
    is_bound: bool = False


@value
class Add:
    """Store if the key is absent. Answers `Stored` (version unknown, 0) or `CONFLICT`. Sent quietly.

    ``is_bound``: the item belongs to the server process that stores it. A server that can bring items back after a
    restart or a failover (Redis) shows a bound item of another process as absent, and takes none on a connection from
    before (`CONFLICT`). `Cas` and `Append` keep it bound.
    """

    key: bytes
    value: bytes
    ttl_seconds: int
    is_bound: bool = False


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
class Append:
    """Add bytes to the end of an item, whatever its version; its TTL stays, and its version changes.

    Answers `Stored` (version unknown, 0), or `CONFLICT` if the item is absent or the node refuses it: then nothing
    was appended, and the item may be gone.
    """

    key: bytes
    value: bytes


Request: TypeAlias = Get | Add | Cas | Delete | Append


class Strikes(Sequence["Append | Delete"]):
    """Append ``chunk`` to each of ``stripes``, then delete each of ``keys``, as one flow. No stripe comes twice.

    A batch of invalidations has thousands of them. A backend may send them without making an object for each; any
    other user sees an ordinary sequence. A backend that cannot tell which of the appends was refused answers
    `CONFLICT` to all of them, also to those that it carried out.
    """

    __slots__ = ("chunk", "keys", "stripes")

    def __init__(self, stripes: Sequence[bytes], chunk: bytes, keys: Sequence[bytes]) -> None:
        self.stripes, self.chunk, self.keys = stripes, chunk, keys

    def __len__(self) -> int:
        return len(self.stripes) + len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Append | Delete: ...

    @overload
    def __getitem__(self, index: slice) -> list[Append | Delete]: ...

    def __getitem__(self, index: int | slice) -> Append | Delete | list[Append | Delete]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place, count = range(len(self))[index], len(self.stripes)
        return Append(self.stripes[place], self.chunk) if place < count else Delete(self.keys[place - count])

    def __repr__(self) -> str:
        return f"Strikes of {len(self.stripes)} stripes and {len(self.keys)} keys"


class Finds(Sequence[Get]):
    """Read the values of items, as one flow. A backend may answer with a value, or None if it is missing, in the
    place of an `Item` or `MISSING`."""

    __slots__ = ("keys",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Get: ...

    @overload
    def __getitem__(self, index: slice) -> list[Get]: ...

    def __getitem__(self, index: int | slice) -> Get | list[Get]:
        if isinstance(index, slice):
            return [Get(key) for key in self.keys[index]]
        return Get(self.keys[index])

    def __repr__(self) -> str:
        return f"Finds of {len(self.keys)} keys"


# -- replies ------------------------------------------------------------------------------------------


@value
class Item:
    """An item as a node holds it.

    ``ttl_seconds``: life left by the node's own clock, rounded up to whole seconds; -1 without an end.
    ``won`` / ``lease``: see `Get`; both False on an item that was not vivified.
    """

    value: bytes
    version: Version
    ttl_seconds: int = -1
    won: bool = False
    lease: bool = False


@value
class Stored:
    """The item was stored; ``version`` is its new version, 0 if the backend does not report it."""

    version: Version = 0


@value
class Refused:
    """The node answered that it will not store this item (too large, out of memory). Nothing was stored;
    memcached drops the old item in this case."""

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


Reply: TypeAlias = Item | Stored | Refused | Outcome


# -- steps of a procedure -----------------------------------------------------------------------------


@value
class Flow:
    """Requests to one node, answered in order on one connection. Answer: a list with one reply each.

    Other clients may come between any two of them; their own order is kept.
    """

    node: str
    requests: tuple[Request, ...] | Strikes | Finds


@value
class Flows:
    """Several flows at once. Answer: a list with, for each flow, its replies or the `NodeUnavailable`."""

    flows: tuple[Flow, ...]


@value
class Load:
    """Read the given lookups from the database, the token first. Answer: one `freshness.algorithm.lookup.Loaded`
    each. ``at_least``: see `freshness.algorithm.read.read_through`; the values have these commits.
    ``is_together``: in one snapshot of each shard."""

    lookups: tuple[Any, ...]
    at_least: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS, hash=False)
    is_together: bool = False


@value
class ReadHead:
    """Ask the primary of the shard for everything it has executed. Answer: `Head`."""


@value
class Head:
    """The primary's position and the epoch of its history, the epoch read first. ``primary``: the identity of the
    server that answered, or ""."""

    position: Position
    epoch: int
    primary: str = ""


@value
class ConfirmSuccession:
    """Ask whether it is certain that no reader has seen more than ``present`` has, the primary after ``previous``.
    Answer: a bool, False in doubt."""

    previous: str
    present: str


@value
class ReadStream:
    """Ask how far the stream of this process is. ``begun_at``: lower limit of the start of the own heartbeat to wait
    for. Answer: `Streamed`, or None if no own heartbeat has come back yet."""

    begun_at: float


@value
class Streamed:
    """Everything that was streamed when the latest own heartbeat came back, in the history of ``epoch``.

    ``begun_at``: when that heartbeat was begun, by the clock of the process. ``primary``: the server that it was
    written to: it shows that all of that server's log was delivered, and nothing of another's.
    """

    position: Position
    epoch: int
    begun_at: float
    primary: str = ""


@value
class Wait:
    """Let time pass. Answer: None."""

    seconds: float


Step: TypeAlias = Flow | Flows | Load | ReadHead | ConfirmSuccession | ReadStream | Wait
Result = TypeVar("Result")
Procedure: TypeAlias = Generator[Step, Any, Result]
Replies: TypeAlias = Sequence[Reply]
