"""Commit tokens: what a session has committed, to be carried to its later reads.

A commit token holds one event token for each lineage that the session has written to. Each position holds at least
the session's own commits there, all of which have returned. A read ``at_least`` a commit token shows these commits or
is not answered (I9). The library's database makes it; ``freshness.algorithm.rule`` compares it for hits, and
``appclient.database.atleast`` for reads of a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from freshness.errors import FormatError
from freshness.position.token import EventToken, from_text, require_size, to_text

TEXT_PREFIX: Final = "fc1."
_LENGTH_BYTES: Final = 3


@dataclass(frozen=True, slots=True)
class CommitToken:
    """``tokens``: tokens of the lineages, in the order of their names. Raises `FormatError` if there is none."""

    tokens: tuple[EventToken, ...]

    def __post_init__(self) -> None:
        names = [token.lineage for token in self.tokens]
        if not names or names != sorted(set(names)):
            raise FormatError(
                f"a commit token of {', '.join(names) or 'nothing'}",
                hint="expected one event token for each lineage, in the order of their names; see CommitToken.of",
            )

    @classmethod
    def of(cls, tokens: Iterable[EventToken]) -> CommitToken:
        """The commits of all ``tokens``, in any order. Raises as `union`."""
        by_lineage: dict[str, EventToken] = {}
        for token in tokens:
            known = by_lineage.get(token.lineage)
            by_lineage[token.lineage] = token if known is None else _unite(known, token)
        return cls(tuple(by_lineage[name] for name in sorted(by_lineage)))

    def union(self, other: CommitToken) -> CommitToken:
        """The commits of this one and of ``other``. If a lineage has two epochs the lower one stays. Nothing of the
        present epoch compares with it, so reads go to the primary. Raises `FlavorMismatch` if one lineage has
        positions of two flavors."""
        return CommitToken.of((*self.tokens, *other.tokens))

    def format(self) -> str:
        """The text form: safe in URLs, headers and cookies. It is not signed, see ``appclient.web.signed``. Raises
        `FormatError` as `require_size`."""
        encoded = [token.encode() for token in self.tokens]
        data = b"".join(len(each).to_bytes(_LENGTH_BYTES, "big") + each for each in encoded)
        require_size(len(data), "commit token")
        return to_text(TEXT_PREFIX, data)

    @classmethod
    def parse(cls, text: str) -> CommitToken:
        """The token in a ``text`` of `format`, blanks around it allowed. Raises `FormatError` for anything else."""
        text = text.strip()
        data = from_text(TEXT_PREFIX, text, "commit token")
        tokens, at = [], 0
        while at < len(data):
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(data[at:start], "big")
            tokens.append(EventToken.decode(data[start:at]))
        token = cls(tuple(tokens))
        if token.format() != text:
            raise FormatError(f"commit token {text[:60]!r} was altered", hint="take it again from its source")
        return token

    def __str__(self) -> str:
        return self.format()


def _unite(one: EventToken, two: EventToken) -> EventToken:
    if one.epoch != two.epoch:
        return min(one, two, key=lambda token: token.epoch)
    position = one.position.union(two.position)
    return EventToken(one.lineage, one.shard, one.epoch, max(one.timestamp_us, two.timestamp_us), position)
