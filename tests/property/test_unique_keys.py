"""A row by a unique key, whatever the database calls equal: no sequence of changes leaves an entry that is not what
the database answers now.

The loader is the library's, on a table in memory. A change removes the items of both images, as the invalidator does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from hypothesis import given
from hypothesis import strategies as st

from appclient.database.database import Database
from appclient.reading.loader import ObjectLoader
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ObjectPolicy
from freshness.config.object import ObjectConfig
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn, fold_text
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from freshness.stream.source import RowChange, Transaction

POLICY: Final = ObjectPolicy("by_email", 5, ("users",), ("shop/-",), 60)
CONFIG: Final = ObjectConfig(name="by_email", keyspace="shop", table="users", key=("email",))
TOKEN: Final = EventToken("shop/-", "-", 1, 0, MysqlGtidSet())
WORDS: Final = ("a", "A", "a ", "á", "A\u0301", "ß", "ss", "SS", "ẞ", "b", "i", "I", "ı", "İ")

EQUALITIES: Final[Mapping[str, tuple[Callable[[str], str], ...]]] = {
    "utf8mb4_bin": (lambda text: text.rstrip(" "),),
    "utf8mb4_general_ci": (
        lambda text: text.rstrip(" ").lower(),
        fold_text,
        lambda text: fold_text(text).replace("ss", "s"),  # ß is s there
        lambda text: "",
    ),
    # Of a language: nothing is known of it
    "utf8mb4_turkish_ci": (lambda text: text.rstrip(" ").replace("I", "ı").replace("İ", "i").lower(), fold_text),
}
"""Forms that are the same where values are equal. Coarser ones than any server has are among them."""


@dataclass
class Table:
    """The rows by id, with a unique index, and the cache before them. It stands for a shard and its database."""

    collation: str
    equal: Callable[[str], str]
    rows: dict[int, str | None] = field(default_factory=dict)
    entries: dict[bytes, tuple[bytes, str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        column = KeyColumn("email", ColumnKind.STRING, self.collation)
        builder = KeyBuilder("shop", "by_email", (column,))
        self.definition = ObjectDefinition(CONFIG, POLICY, builder, {"users": (column,)})
        self.loader = ObjectLoader(self.definition, cast(Database, self), None)
        self.shards = {"shop/-": self}
        self.finder = KeyFinder({"by_email": self.definition})

    def find(self, email: str) -> dict[str, Any] | None:
        of_key = (id for id, stored in self.rows.items() if stored and self.equal(stored) == self.equal(email))
        found = next(of_key, None)
        return None if found is None else {"id": found, "email": self.rows[found]}

    def rows_with_token(
        self, _: str, __: str, params: Sequence[str], *___: object
    ) -> tuple[list[dict[str, Any]], EventToken]:
        rows: Iterator[dict[str, Any] | None] = map(self.find, params)
        return list({row["id"]: row for row in rows if row}.values()), TOKEN

    def write(self, id: int, email: str | None) -> None:
        holder = self.find(email) if email else None
        if holder is not None and holder["id"] != id:
            return  # a duplicate
        before, after = (None if each is None else {"id": id, "email": each} for each in (self.rows.get(id), email))
        self.rows[id] = email
        change = RowChange("users", "update", before, after)
        for item in self.finder.find(Transaction(TOKEN.position, 0, (change,)))[0]:
            self.entries.pop(item, None)

    def read(self, emails: Sequence[str]) -> None:
        lookups = []
        for email in emails:
            key = self.definition.builder.build((email,))
            asked = self.definition.builder.parse(key.identity)
            lookups.append(Lookup(POLICY, "", key.item, self.definition.identity(key), asked, key.is_exact))
        for email, lookup, loaded in zip(emails, lookups, self.loader.load(lookups), strict=True):
            assert loaded.value == self.find(email)
            # As `freshness.algorithm.read` decides
            if loaded.refusal is None and (loaded.value is not None or lookup.is_exact):
                self.entries[lookup.item] = lookup.identity, email, loaded.value

    def check(self) -> None:
        """Each spelling that would be a hit is what the database answers."""
        for email in WORDS:
            key = self.definition.builder.build((email,))
            identity, _, value = self.entries.get(key.item, (b"", "", None))
            if identity == self.definition.identity(key):
                assert value == self.find(email), email


IDS: Final = st.integers(1, 3)
EMAILS: Final = st.sampled_from(WORDS)
STEPS: Final = st.lists(
    st.tuples(IDS, EMAILS | st.none()) | st.lists(EMAILS, min_size=1, max_size=4, unique=True), max_size=30
)


@given(world=st.sampled_from([(name, equal) for name, forms in EQUALITIES.items() for equal in forms]), steps=STEPS)
def test_no_change_leaves_an_entry_that_the_database_would_not_give(
    world: tuple[str, Callable[[str], str]], steps: list[tuple[int, str | None] | list[str]]
) -> None:
    table = Table(*world)
    for step in steps:
        if isinstance(step, list):
            table.read(step)
        else:
            table.write(*step)
        table.check()
