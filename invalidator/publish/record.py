"""Records of Kafka and the topics that they go to; the writer of the project's own lines.

A record's key is the primary key of its row, so all records of a row are in one partition and in their order. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from freshness.errors import ConfigError
from freshness.stream.lines import RefreshedLine, SchemaLine, UpdateLine, encode_line
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.message import StreamMessage

DEFAULT_TEMPLATE: Final = "{prefix}.{schema}.{table}"
NAME_CHARACTERS_MAX: Final = 249
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")

encode_json: Final = msgspec.json.Encoder().encode


class Record(NamedTuple):
    """``key``: None for a row without a primary key, which goes to partition 0, so that their order holds too.
    ``value``: None for the tombstone of a key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class RecordWriter(Protocol):
    """Makes records of messages; one writer for one run of the stream, since it remembers open transactions."""

    def records(self, message: StreamMessage) -> Iterable[Record]:
        """Raises `ConfigError` if two tables would share a topic, and `SourceUnavailable` if the primary keys cannot
        be read."""


@dataclass(slots=True)
class Topics:
    """The names of the topics. ``find_schema``: shard → the name of its database. A character that Kafka does not
    take becomes ``_``. Raises `ConfigError` for a name that is too long, and if two tables would have one topic."""

    prefix: str
    find_schema: Callable[[str], str]
    template: str = DEFAULT_TEMPLATE
    _known: dict[tuple[str, str], str] = field(default_factory=dict)
    _owners: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.prefix or _UNSAFE.search(self.prefix):
            raise ConfigError(
                f"the prefix {self.prefix!r} of the topics", hint="letters, digits and the characters . _ - alone"
            )
        try:
            probe = self.template.format(prefix="p", schema="s", table="t")
        except (KeyError, IndexError, ValueError) as error:
            raise self._bad_template() from error
        if "{table}" not in self.template or not probe:
            raise self._bad_template()
        for name in (self.positions, self.raises, self.schemas, self.transactions):
            self._owners[name] = ("", name)

    @property
    def positions(self) -> str:
        return f"{self.prefix}.positions"

    @property
    def raises(self) -> str:
        return f"{self.prefix}.raises"

    @property
    def schemas(self) -> str:
        return f"{self.prefix}.schemas"

    @property
    def transactions(self) -> str:
        return f"{self.prefix}.transaction"

    def table(self, shard: str, table: str) -> str:
        place = (self.find_schema(shard), table)
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self._make(*place)
        return found

    def _make(self, schema: str, table: str) -> str:
        name = _UNSAFE.sub("_", self.template.format(prefix=self.prefix, schema=schema, table=table))
        owner = self._owners.setdefault(name, (schema, table))
        if owner != (schema, table):
            raise ConfigError(
                f"table {schema}.{table} and {'.'.join(filter(None, owner))} would share the topic {name}",
                hint="choose another template with --topics, or leave one of them out with --tables",
            )
        if len(name) > NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"the topic of table {schema}.{table} has {len(name)} characters",
                hint=f"at most {NAME_CHARACTERS_MAX}: choose a shorter template with --topics",
            )
        return name

    def _bad_template(self) -> ConfigError:
        return ConfigError(
            f"the template {self.template!r} of the topics",
            hint=f"expected a text with {{table}}, such as {DEFAULT_TEMPLATE}",
        )


def raise_record(topics: Topics, line: UpdateLine) -> Record:
    """A raise: rows of the table may have changed in a way that its topic does not tell."""
    assert line.table is not None
    key = {"schema": topics.find_schema(line.shard), "table": line.table}
    return Record(topics.raises, encode_json(key), encode_line(line).rstrip(b"\n"))


@dataclass(slots=True)
class LineRecords:
    """Each row change as one line of the update stream. A key that is gone gets a tombstone after its line. Schemas
    go to a topic of their own, before the first row that names them."""

    topics: Topics
    lines: LineWriter

    def records(self, message: StreamMessage) -> Iterable[Record]:
        require_layouts(self.lines, message)
        for line in self.lines.lines(message):
            assert not isinstance(line, RefreshedLine), "nobody asked for a refresh"
            if isinstance(line, SchemaLine):
                yield Record(self.topics.schemas, line.id.encode(), encode_line(line).rstrip(b"\n"))
                continue
            if line.op == "raise":
                yield raise_record(self.topics, line)
                continue
            assert line.table is not None
            topic = self.topics.table(line.shard, line.table)
            key = _encode_key(line.key)
            yield Record(topic, key, encode_line(line).rstrip(b"\n"))
            old = _encode_key(_key_before(line))
            if old is not None and (line.op == "delete" or old != key):
                yield Record(topic, old, None)


def require_layouts(lines: LineWriter, message: StreamMessage) -> None:
    """A key that is not known now must not become a record without a key. Raises `SourceUnavailable`."""
    if message.transaction.changes:
        lines.layouts.require(message.shard)


def _encode_key(key: Mapping[str, Any] | None) -> bytes | None:
    return None if key is None else encode_json(key)


def _key_before(line: UpdateLine) -> dict[str, Any] | None:
    """The previous key of the row, if the log has it."""
    before = line.before
    if before is None or line.key is None or any(name not in before for name in line.key):
        return None
    return {name: before[name] for name in line.key}
