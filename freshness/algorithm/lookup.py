"""One key to read, and the database's answer to it: shared by the reading procedure and its witness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from freshness.algorithm.request import NO_TOKENS
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.position.token import EventToken
from freshness.value import value


@value
class Lookup:
    """One key to read: its node, its item keys, and the loader's input.

    ``values``: values of the query, which follow from the identity alone (`KeyBuilder.parse`).
    ``is_exact``: equal keys for the database always give this very item (F24); else "no such row" is not stored.
    ``required``: in a `Load` step, the events that the rows must show to be stored, by lineage (`find_required`).
    """

    policy: ObjectPolicy
    node: str
    item: bytes
    identity: bytes
    values: tuple[Any, ...]
    is_exact: bool = True
    required: Mapping[str, EventToken] = field(default_factory=lambda: NO_TOKENS, hash=False)


@value
class Loaded:
    """The database's answer to one lookup: the value, None for "no such row".

    ``tokens``: the token that was read before the value, by lineage. ``refusal``: the loader's own reason not
    to store it.
    """

    value: Any
    tokens: Mapping[str, EventToken]
    refusal: ReadOutcome | None = None
