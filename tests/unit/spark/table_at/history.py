"""Random histories of a table in two shards, with the table at every position. For tests of ``spark.table_at``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from random import Random
from typing import Any, Final, TypeAlias

from pyspark.sql.types import LongType, StringType

from freshness.position import MysqlGtidSet, Position
from spark.copy.table import CopyColumn, CopyTable
from tests.unit.invalidator.archive.archive_world import SOURCE

CUSTOMERS: Final = CopyTable("customers", (CopyColumn("id", LongType()), CopyColumn("v", StringType())), ("id",))
LINEAGES: Final = ("shop/-80", "shop/80-")
KEYS: Final = 4

Row: TypeAlias = Mapping[str, Any]
Table: TypeAlias = dict[str, tuple[Any, ...]]
"""Rows of a copy by their keys."""


def up_to(number: int) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:1-{number}") if number else MysqlGtidSet()


class History:
    """Transactions of two shards, and the rows of each shard after each of its transactions."""

    def __init__(self, seed: int, transactions: int) -> None:
        self._chance = Random(seed)
        self._rows: dict[str, dict[int, Row]] = {lineage: {} for lineage in LINEAGES}
        self.changes: list[dict[str, Any]] = []
        self.tables: dict[str, list[Table]] = {lineage: [{}] for lineage in LINEAGES}
        while sum(map(len, self.tables.values())) < transactions:
            self._move() if self._chance.random() < 0.2 else self._commit(self._chance.choice(LINEAGES))

    def _commit(self, lineage: str, *images: tuple[Row | None, Row | None]) -> None:
        """One transaction: of the images, or of some random ones, of the same key now and then."""
        ordinal = len(self.tables[lineage])
        for row, (before, after) in enumerate(images or self._draw(lineage)):
            told = {
                name: None if each is None else json.dumps(each)
                for name, each in (("before", before), ("after", after))
            }
            place = {"lineage": lineage, "ordinal": ordinal, "row": row, "gtid": f"{SOURCE}:{ordinal}"}
            self.changes.append({**place, **told})
        rows = self._rows[lineage]
        self.tables[lineage].append(dict(_keyed(lineage, row) for row in rows.values()))

    def _draw(self, lineage: str) -> Iterator[tuple[Row | None, Row | None]]:
        rows = self._rows[lineage]
        for _ in range(self._chance.randint(0, 3)):
            key, other = self._chance.sample(range(KEYS), 2)
            before = rows.pop(key, None)
            after: Row | None = {"id": key, "v": f"{self._chance.random()}"}
            if before is not None and self._chance.random() < 0.3:
                after = None
            elif before is not None and other not in rows and self._chance.random() < 0.5:
                after = {**before, "id": other}
            if after is not None:
                rows[after["id"]] = after
            yield before, after

    def _move(self) -> None:
        """From one shard to the other; the two transactions come in any order."""
        here, there = self._chance.sample(LINEAGES, 2)
        movable = sorted(self._rows[here].keys() - self._rows[there].keys())
        if not movable:
            return
        row = self._rows[here].pop(movable[0])

        def arrive() -> None:
            self._rows[there][row["id"]] = row
            self._commit(there, (None, row))

        steps = [lambda: self._commit(here, (row, None)), arrive]
        self._chance.shuffle(steps)
        for step in steps:
            step()

    def vectors(self) -> list[dict[str, int]]:
        """Every position: how many transactions of each lineage."""
        counts = [range(len(self.tables[lineage])) for lineage in LINEAGES]
        return [dict(zip(LINEAGES, numbers, strict=True)) for numbers in product(*counts)]

    def table_at(self, vector: Mapping[str, int]) -> Table:
        return {key: row for lineage, number in vector.items() for key, row in self.tables[lineage][number].items()}


def _keyed(lineage: str, row: Row) -> tuple[str, tuple[Any, ...]]:
    made = CUSTOMERS.to_row(lineage, row)
    return made[0], made
