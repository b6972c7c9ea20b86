"""A part of the items, by the keyspace ids of the rows behind them: for audits that are cut finer than shards.

An item belongs to each part that has a change of it. Every item is judged by itself, so parts that hold every key
together find what one audit of all finds, but for items that never changed, which are in no part. Used by the audit.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from freshness.config.keyspace import ShardingFunction
from freshness.errors import ConfigError, FormatError
from freshness.keys.keyrange import KeyRange
from freshness.values.json import from_json

_FUNCTIONS: Final = "freshness.database.sharding"


@dataclass(frozen=True, slots=True)
class AuditPart:
    """``column`` and ``function``: as in ``[keyspaces.NAME.sharding]``."""

    key_range: KeyRange
    column: str
    function: str

    @classmethod
    def parse(cls, key_range: str, sharding: str) -> AuditPart:
        """``sharding``: COLUMN:FUNCTION. Raises `FormatError` and `ConfigError`."""
        column, _, function = sharding.rpartition(":")
        functions = get_args(ShardingFunction)
        if not column or function not in functions:
            raise ConfigError(
                f"--sharding {sharding!r}",
                hint=f"a key range needs COLUMN:FUNCTION, as in customer_id:hash; functions: {', '.join(functions)}",
            )
        try:
            importlib.import_module(_FUNCTIONS)
        except ImportError as error:
            raise ConfigError(
                f"a key range needs a package that is missing: {error.name}",
                hint="install freshness[sharding]",
            ) from error
        return cls(KeyRange.parse(key_range), column, function)

    def __str__(self) -> str:
        return f"items with changes in key range {self.key_range} by {self.function}({self.column})"

    def holds(self, images: list[Mapping[str, Any]], table: str) -> bool:
        """Whether a row was or is in the range; also where its keyspace id cannot be told. Raises `FormatError` for
        a row without the column."""
        values = [image[self.column] for image in images if self.column in image]
        if not values:
            raise FormatError(
                f"a change of table {table} has no column {self.column}",
                hint="name the sharding column; with binlog_row_image other than FULL an audit cannot be cut",
            )
        return any(map(self._contains, values))

    def holds_change(self, table: str, before: str | None, after: str | None) -> bool:
        """As `holds`, of images as JSON."""
        return self.holds([json.loads(text) for text in (before, after) if text is not None], table)

    def _contains(self, value: Any) -> bool:
        from freshness.database.sharding import keyspace_id  # its packages are needed for parts alone

        try:
            return self.key_range.contains(keyspace_id(self.function, from_json(value)))
        except FormatError:
            return True
