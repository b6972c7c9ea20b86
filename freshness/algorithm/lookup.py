"""One key to read, and the database's answer to it: shared by the reading procedure and its witness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from freshness.algorithm.request import NO_TOKENS
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.position.token import EventToken
from freshness.value import value


@value
class Lookup:
    """One key to read: its node, its item keys, and the loader's input.

    ``values``: values of the query, which follow from the identity alone (`KeyBuilder.parse`).
    ``is_exact``: equal keys for the database always give this very item (F24); else "no such row" is not stored.
    ``required``: in a `Load` step, the events that the rows must show to be stored, by lineage (`find_required`);
    or `LATEST`. ``previous_node``: the node that held the key by the previous ring, if that is another one.
    """

    policy: ObjectPolicy
    node: str
    item: bytes
    identity: bytes
    values: tuple[Any, ...]
    is_exact: bool = True
    required: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS, hash=False)
    previous_node: str = ""


@value
class ReadServer:
    """A server that a value was read from: "host:port", and whether it is the primary of its shard."""

    name: str
    is_primary: bool

    @property
    def role(self) -> str:
        return "primary" if self.is_primary else "replica"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


NO_SERVERS: Final[Mapping[str, ReadServer]] = MappingProxyType({})


@value
class Loaded:
    """The database's answer to one lookup: the value, None for "no such row".

    ``tokens``: the token that was read before the value, by lineage. ``refusal``: the loader's own reason not
    to store it. ``servers``: the server that was read, by lineage.
    """

    value: Any
    tokens: Mapping[str, EventToken]
    refusal: ReadOutcome | None = None
    servers: Mapping[str, ReadServer] = field(default_factory=lambda: NO_SERVERS)
