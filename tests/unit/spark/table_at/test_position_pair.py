"""Changes between the position of a copy and another one, without Spark: random histories of two lineages against a
dictionary, from every position to every other one, forward, backward, and both at once."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from spark.table_at.job import PositionPair
from tests.unit.spark.table_at.history import CUSTOMERS, LINEAGES, History, Table, up_to


def merged(table: Table, pair: PositionPair, changes: list[dict[str, Any]]) -> Table:
    """As `spark.copy.merge.merge_changes` does it: the newest of each key."""
    told = [each for each in pair.tell(CUSTOMERS, changes) if each[-1] != each[-2]]
    assert all(is_whole for _, _, _, _, is_whole, *_ in told)
    newest = {each[5]: each for each in sorted(told, key=lambda each: each[:3])}
    now = {key: each[5:8] for key, each in newest.items() if not each[3]}
    return {**{key: row for key, row in table.items() if key not in newest}, **now}


@pytest.mark.parametrize("seed", range(5))
def test_a_table_at_every_position_from_a_copy_at_every_other(seed: int) -> None:
    history = History(seed, transactions=14)
    directions = set()
    for copied, wanted in product(history.vectors(), repeat=2):
        pair = PositionPair(
            {lineage: up_to(number) for lineage, number in wanted.items()},
            {lineage: up_to(number) for lineage, number in copied.items()},
        )
        assert merged(history.table_at(copied), pair, history.changes) == history.table_at(wanted)
        directions.add(tuple(wanted[lineage] > copied[lineage] for lineage in LINEAGES))
    assert len(directions) == 4, "every lineage went both ways"
