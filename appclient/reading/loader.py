"""Building values from the database for the read procedure: rows and lists by key, composites by their loaders.

Every value comes with the token that was read before it on the same server, and with the loader's own reason not
to store it: the row found is not spelled as the key asked for (F24, F46).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from appclient.connection.own import OpenedDatabase, require_one_shard
from appclient.connection.query import LoaderConnection, Row
from appclient.database.atleast import enclosed_by
from appclient.database.database import Database
from appclient.database.required import KeyedRows, Required
from appclient.telemetry.observer import Load
from freshness.algorithm.lookup import Loaded, Lookup, ReadServer
from freshness.algorithm.request import LATEST, NO_TOKENS
from freshness.algorithm.rule import ReadOutcome
from freshness.database.connection import match_keys, order_rows, quote_name
from freshness.errors import ConfigError, FormatError
from freshness.objects.registry import ObjectDefinition
from freshness.position.token import EventToken, covers, lacks
from freshness.values.codec import decode_value, encode_value

LoaderFunction = Callable[..., Any]

KEYS_PER_STATEMENT_MAX: Final = 500


def join_required(lookups: Sequence[Lookup]) -> Mapping[str, EventToken]:
    """All that the rows of these lookups must show, by lineage. The later epoch counts."""
    joined: dict[str, EventToken] = {}
    for lookup in lookups:
        for lineage, token in lookup.required.items():
            held = joined.get(lineage)
            if held is None or held.epoch < token.epoch:
                joined[lineage] = token
            elif held.epoch == token.epoch and not covers(held, token):
                joined[lineage] = replace(held, position=held.position.union(token.position))
    return joined


def _shows(loaded: Loaded, required: Mapping[str, EventToken]) -> bool:
    """Whether the value has what it must show. One without a token may have it, and is not stored."""
    return not any(lacks(loaded.tokens.get(lineage), token) for lineage, token in required.items())


def in_groups(
    lookups: Sequence[Lookup],
    group_of: Callable[[Lookup], Hashable],
    answer: Callable[[Sequence[Lookup]], Sequence[Loaded]],
) -> list[Loaded]:
    """The answers in the order of the lookups, those of one group by one call."""
    groups: dict[Hashable, list[int]] = {}
    for place, lookup in enumerate(lookups):
        groups.setdefault(group_of(lookup), []).append(place)
    loaded: dict[int, Loaded] = {}
    for places in groups.values():
        loaded.update(zip(places, answer([lookups[place] for place in places]), strict=True))
    return [loaded[place] for place in range(len(lookups))]


def name_of(lookup: Lookup) -> str:
    """The name of its object."""
    return lookup.policy.name


def _shards_of(lookup: Lookup) -> tuple[str, ...]:
    return lookup.policy.lineages


def by_object(load: Load) -> Load:
    """``load``, called once for each object."""
    return lambda lookups, at_least: in_groups(lookups, name_of, lambda its: load(its, at_least))


def load_together(
    loaders: Mapping[str, ObjectLoader], lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]
) -> list[Loaded]:
    """The values of several objects, all of a lineage in one snapshot. ``loaders``: by object. Raises `ConfigError`
    for an object with keys of several shards, and for one whose loader reads by the cache, past the snapshot."""
    for lookup in lookups:
        require_one_shard(lookup.policy.name, lookup.policy.lineages, "its values cannot be read together")
    return in_groups(lookups, _shards_of, partial(_load_snapshot, loaders, at_least))


def _load_snapshot(
    loaders: Mapping[str, ObjectLoader], at_least: Mapping[str, EventToken], lookups: Sequence[Lookup]
) -> list[Loaded]:
    (lineage,) = lookups[0].policy.lineages
    names = dict.fromkeys(map(name_of, lookups))
    rows = [
        each for name in names for each in loaders[name].find_rows([one for one in lookups if name_of(one) == name])
    ]

    def build(connection: LoaderConnection) -> list[Loaded]:
        def load(its: Sequence[Lookup]) -> list[Loaded]:
            name = name_of(its[0])
            loaded = loaders[name].on(OpenedDatabase(connection)).load(its)
            if enclosing.has_parts:
                raise ConfigError(
                    f"the loader of {name} reads by the cache, so its value is of several moments",
                    hint="let it read by its connection, or do not read this object together with others",
                )
            return loaded

        return in_groups(lookups, name_of, load)

    required = {lineage: Required(token, rows) for lineage, token in join_required(lookups).items()}
    servers: dict[str, ReadServer] = {}
    with enclosed_by(lineage) as enclosing:
        found, [token] = loaders[name_of(lookups[0])].database.snapshot([lineage], build, at_least, required, servers)
    tokens = {} if token is None else {lineage: token}
    return [replace(one, tokens=tokens, servers=servers) for one in found]


class ObjectLoader:
    """Loads the values of one object. ``function`` builds a composite; a row and a list need none."""

    def __init__(
        self, definition: ObjectDefinition, database: Database | OpenedDatabase, function: LoaderFunction | None
    ) -> None:
        self._definition = definition
        self.database = database
        self._function = function

    def load(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken] = NO_TOKENS) -> list[Loaded]:
        """One `Loaded` for each lookup, in order. ``at_least``: by lineage, commits that each value has. Raises what
        the database or the composite's loader raises."""
        if self._definition.config.is_composite:
            return [self._load_composite(lookup, at_least) for lookup in lookups]
        if self._definition.config.is_list:
            return [self._load_list(lookup, at_least) for lookup in lookups]
        if not self._definition.builder.is_exact:
            # Only the database knows which row equals which spelling: one statement for each key.
            return [self._load_rows([lookup], at_least)[0] for lookup in lookups]
        return in_groups(lookups, _shards_of, lambda its: self._load_exact(its, at_least))

    def on(self, opened: OpenedDatabase) -> ObjectLoader:
        """The same loader on a connection."""
        return ObjectLoader(self._definition, opened, self._function)

    def find_rows(self, lookups: Sequence[Lookup]) -> list[KeyedRows]:
        """The rows of which these values are made, by table."""
        return [self._keyed_rows(lookups, table) for table in self._definition.columns_by_table]

    def _load_exact(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        starts = range(0, len(lookups), KEYS_PER_STATEMENT_MAX)
        some = (lookups[start : start + KEYS_PER_STATEMENT_MAX] for start in starts)
        return [loaded for its in some for loaded in self._load_rows(its, at_least)]

    def _load_rows(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        """The rows of lookups that all read the same shards. If a replica does not show some of many as they must be,
        these alone are read once more, together with those that the primary is to be read for."""
        if len(lookups) == 1:
            return self._read_rows(lookups, at_least, lookups[0].required)
        known = [place for place, lookup in enumerate(lookups) if LATEST not in lookup.required.values()]
        rows = self._read_rows([lookups[place] for place in known], at_least, NO_TOKENS) if known else []
        loaded = {place: one for place, one in zip(known, rows, strict=True) if _shows(one, lookups[place].required)}
        behind = [place for place in range(len(lookups)) if place not in loaded]
        if behind:
            again = [lookups[place] for place in behind]
            required = join_required(again)
            loaded.update(zip(behind, self._read_rows(again, at_least, required), strict=True))
        return [loaded[place] for place in range(len(lookups))]

    def _read_rows(
        self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken], required: Mapping[str, EventToken]
    ) -> list[Loaded]:
        statement = self._keyed_rows(lookups, str(self._definition.config.table))
        rows: list[Row] = []
        tokens: dict[str, EventToken] = {}
        servers: dict[str, ReadServer] = {}
        lineages = lookups[0].policy.lineages
        for lineage in lineages:
            shard = self.database.shards[lineage]
            asked, wanted = at_least.get(lineage), required.get(lineage)
            found, token = shard.rows_with_token(*statement, asked, "", wanted, servers)
            rows += found
            if token is not None:
                tokens[lineage] = token
        if len(lookups) == 1 and len(rows) == 1:
            return [self._loaded(lookups[0], rows[0], tokens, servers)]
        identities = [self._identity(row) for row in rows]
        if not {lookup.identity for lookup in lookups}.issuperset(identities):
            # A row under a key that nobody asked for: only the database knows which of them it takes for equal.
            if len(lookups) > 1:
                return [self._load_rows([lookup], at_least)[0] for lookup in lookups]
            return [Loaded(rows[0], tokens, ReadOutcome.KEY, servers)]
        by_identity: dict[bytes, Row] = {}
        doubled: set[bytes] = set()
        for identity, row in zip(identities, rows, strict=True):
            if by_identity.setdefault(identity, row) is not row:
                doubled.add(identity)  # in two shards: the row is moving between them
        return [
            Loaded(by_identity[lookup.identity], tokens, ReadOutcome.KEY, servers)
            if lookup.identity in doubled
            else self._loaded(lookup, by_identity.get(lookup.identity), tokens, servers)
            for lookup in lookups
        ]

    def _loaded(
        self, lookup: Lookup, row: Row | None, tokens: Mapping[str, EventToken], servers: Mapping[str, ReadServer]
    ) -> Loaded:
        if row is None or self._identity(row) == lookup.identity:
            has_tokens = len(tokens) == len(lookup.policy.lineages)
            return Loaded(row, tokens, None if has_tokens else ReadOutcome.NO_TOKEN, servers)
        return Loaded(row, tokens, ReadOutcome.KEY, servers)

    def _keyed_rows(self, lookups: Sequence[Lookup], table: str) -> KeyedRows:
        columns = [column.name for column in self._definition.columns_by_table[table]]
        values = [value for lookup in lookups for value in lookup.values]
        return KeyedRows(quote_name(table), match_keys(columns, len(lookups)), values)

    def _identity(self, row: Row) -> bytes:
        """The identity of the row's own stored key, or none if a column is not as it was read. `Lookup.item` follows:
        equal identities have equal items."""
        names = [column.name for column in self._definition.builder.columns]
        try:
            return self._definition.identity(self._definition.builder.build([row[name] for name in names]))
        except (FormatError, KeyError):
            return b""

    def _load_list(self, lookup: Lookup, at_least: Mapping[str, EventToken]) -> Loaded:
        """One statement is one snapshot. Every row must have the very key, as its changes name it."""
        (lineage,) = lookup.policy.lineages  # the registry refuses lists of several shards
        order = order_rows(self._definition.order, self._definition.config.limit)
        shard = self.database.shards[lineage]
        rows_of = self._keyed_rows([lookup], str(self._definition.config.table))
        servers: dict[str, ReadServer] = {}
        rows, token = shard.rows_with_token(
            *rows_of, at_least.get(lineage), order, lookup.required.get(lineage), servers
        )
        tokens = {} if token is None else {lineage: token}
        if any(self._identity(row) != lookup.identity for row in rows):
            return Loaded(rows, tokens, ReadOutcome.KEY, servers)
        return Loaded(rows, tokens, ReadOutcome.NO_TOKEN if token is None else None, servers)

    def _load_composite(self, lookup: Lookup, at_least: Mapping[str, EventToken]) -> Loaded:
        function = self._function
        if function is None:
            name = self._definition.config.name
            raise ConfigError(
                f"composite object {name} has no loader",
                hint=f'decorate the function that builds it with @cache.loader("{name}")',
            )

        def build(connection: LoaderConnection) -> Any:
            return function(connection, *lookup.values)

        lineages = lookup.policy.lineages
        rows = self.find_rows([lookup])
        required = {lineage: Required(token, rows) for lineage, token in lookup.required.items()}
        servers: dict[str, ReadServer] = {}
        value, found = self.database.snapshot(lineages, build, at_least, required, servers)
        tokens = {token.lineage: token for token in found if token is not None}
        # As a hit would return it (a tuple becomes a list), so that a hit and a miss look alike.
        plain = None if value is None else decode_value(encode_value(value))
        refusal = None if len(tokens) == len(lineages) else ReadOutcome.NO_TOKEN
        return Loaded(plain, tokens, refusal, servers)
