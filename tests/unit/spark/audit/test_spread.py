"""Items that are spread over several pieces are judged as if all of their rows were in one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy
import pyarrow
import pytest

from spark.audit.engine.local import LocalShuffled
from spark.audit.engine.progress import Progress
from spark.audit.input.spread import HotItem, Spread, cut, find_touched
from spark.audit.job import judge_piece, read_findings, sum_tallies
from spark.audit.kernel.arrays import to_numbers
from spark.audit.model.finding import Knowledge, Rules
from spark.audit.model.row import CONTEXT
from spark.audit.model.schema import PENDING
from spark.audit.shuffle.segment import find_context
from tests.unit.spark.audit.both import to_table, told
from tests.unit.spark.audit.test_kernel import RULES, History

SEGMENTS: Final = 4


def spread_all(table: pyarrow.Table, known: Knowledge) -> Spread:
    """Every item in about `SEGMENTS` segments, of which one has copies."""
    columns = to_numbers(table)
    touched = find_touched(table, columns, 1 << 62)
    found = Spread(3)
    for h1, h2 in sorted(set(zip(columns["h1"].tolist(), columns["h2"].tolist(), strict=True))):
        mine = (columns["h1"][touched.row] == h1) & (columns["h2"][touched.row] == h2)
        lineages = touched.lineage[mine]
        lineage = known.lineages.get(int(lineages[0])) if len(lineages) else None
        if lineage is not None:
            starts = numpy.unique(numpy.quantile(touched.ordinal[mine], [0.25, 0.5, 0.75], method="nearest"))
            copies = [1] * (len(starts) + 1)
            copies[h2 % len(copies)] = 3
            item = HotItem(h1, h2, lineage.number, 1, tuple(starts.tolist()), tuple(copies), found.total)
            found = replace(found, items=(*found.items, item))
    return found


def divide(table: pyarrow.Table, spread: Spread) -> LocalShuffled:
    shuffled = LocalShuffled(Progress(), 1 << 30)
    half = table.num_rows // 2
    for part in (table.slice(0, half), table.slice(half)):
        for piece, rows in spread.divide(part):
            shuffled.add(int(piece), rows)
    return shuffled


def audit_spread(table: pyarrow.Table, spread: Spread, rules: Rules, known: Knowledge) -> dict[str, Any]:
    shuffled = divide(table, spread)
    context = find_context(shuffled, spread, rules, known, 1 << 20)
    audited = shuffled.reduce("replay", partial(judge_piece, rules, known, context), context.number())
    tally = sum_tallies(audited)
    findings = context.merge(read_findings(audited), tally)
    said = told(findings, tally)
    said["pending"] = Counter(map(str, audited.get("pending", PENDING.empty_table()).to_pylist()))
    said["whole"] = len(context.whole)
    return said


def audit_whole(table: pyarrow.Table, rules: Rules, known: Knowledge) -> dict[str, Any]:
    return audit_spread(table, Spread(1), rules, known)


def without(said: dict[str, Any], *names: str) -> dict[str, Any]:
    """The hottest items are shown by any of their hits."""
    kept = {name: value for name, value in said.items() if name not in names}
    return {**kept, "hot": sorted(each[:3] for each in said["hot"])}


@pytest.mark.parametrize("hundred", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 10))])
def test_items_in_segments_are_judged_as_whole_ones(hundred: int) -> None:
    apart = 0
    for seed in range(hundred * 100, hundred * 100 + 100):
        history = History(seed)
        table = to_table(history.rows)
        spread = spread_all(table, history.known)
        found = audit_spread(table, spread, RULES, history.known)
        expected = audit_whole(table, RULES, history.known)
        assert without(found, "whole") == without(expected, "whole"), seed
        apart += len(spread.items) - found["whole"]
    assert apart > 30


# -- how items are cut -----------------------------------------------------------------------------------


def cut_rows(*rows: tuple[int, bool], hot_rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``rows``: (ordinal, whether it is a hit)."""
    ordinal, is_hit = zip(*rows, strict=True)
    return cut(numpy.array(ordinal), numpy.array(is_hit), numpy.ones(len(rows)), hot_rows)


def test_an_item_is_cut_by_the_order_of_the_archive() -> None:
    rows = [(ordinal, False) for ordinal in range(1, 101)]
    assert cut_rows(*rows, hot_rows=25) == ((25, 50, 75), (1, 1, 1, 1))
    assert cut_rows(*rows, hot_rows=100) == ((), (1,))


def test_hits_of_one_position_are_in_several_copies_of_its_segment() -> None:
    hits, others = [(50, True)] * 90, [(ordinal, False) for ordinal in range(45, 55)]
    assert cut_rows(*others, *hits, hot_rows=30) == ((50, 51), (1, 3, 1))
    assert cut_rows(*hits, hot_rows=30) == ((51,), (3, 1))


def test_other_rows_of_one_position_stay_together() -> None:
    """Each copy would have all of them."""
    assert cut_rows(*[(50, True)] * 90, *[(50, False)] * 90, hot_rows=30) == ((51,), (1, 1))


def test_each_row_is_judged_in_one_piece() -> None:
    for seed in range(200):
        history = History(seed)
        table = to_table(history.rows)
        shuffled = divide(table, spread_all(table, history.known))
        judged: Counter[str] = Counter()

        def count(_: int, rows: pyarrow.Table, judged: Counter[str] = judged) -> Any:
            judged.update(str(row) for row in rows.to_pylist() if not row["flags"] & CONTEXT)
            yield from ()

        shuffled.reduce("count", count)
        assert judged == Counter(map(str, table.to_pylist())), seed
