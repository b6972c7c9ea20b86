"""The survey that the driver makes before the shuffle: the archive's order, and all of the history that is small.

It collects the clients, nodes and objects, the lives of nodes, the statements that changed whole tables, and the gaps
in the evidence itself. Every executor judges by the `Knowledge` that is made of them. Called by the audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame

from freshness.errors import FormatError
from spark.audit.actions import Stock, collect_lives, collect_raise_acks, find_published, take_stock
from spark.audit.archive import RAISES_MAX, Archive, Damage, find_raises, read_archive
from spark.audit.evidence import Names, find_gtid_gaps, find_recorder_gaps
from spark.audit.finding import Knowledge, Life, Rules
from spark.audit.state import State
from spark.audit.timeline import Lineage

SETTLE_US: Final = 5_000_000
"""How long before the archive's end an audit stops by itself: what was committed then may not be archived yet."""


@dataclass(frozen=True, slots=True)
class Survey:
    """``rules``: with the time up to which actions are judged. ``lineages``: of the archive, by name. ``published``:
    how far nodes had come, persisted until the audit is closed. ``damages``: of the evidence itself. ``raises``,
    ``sequences`` and ``told`` are those of the `State` that the audit hands on."""

    rules: Rules
    archive: Archive
    lineages: Mapping[str, Lineage]
    stock: Sequence[Stock]
    published: DataFrame
    known: Knowledge
    names: Names
    damages: Sequence[Damage]
    raises: frozenset[tuple[int, str, int]]
    sequences: dict[str, int]
    told: frozenset[tuple[int, str, int]]


def survey_history(
    changes: DataFrame, actions: DataFrame, rules: Rules, as_of_us: int | None, previous: State | None
) -> Survey:
    """Read the archive's order and take stock of the actions. Raises `FormatError` for history that cannot be
    understood."""
    archive = read_archive(changes, rules, previous.archive if previous else None)
    if not archive.lineages:
        raise FormatError(
            "the archive is empty", hint="nothing can be proved without the changes; is it the right folder?"
        )
    lineages = {lineage.name: lineage for lineage in archive.lineages.values()}
    stock = take_stock(actions)
    published = find_published(actions, lineages).persist()
    raises = _collect_raises(changes, previous)
    recorded = find_recorder_gaps(stock, lineages, previous)
    told = previous.told if previous else frozenset()
    gaps = find_gtid_gaps(actions, archive, told)
    return Survey(
        rules=replace(rules, as_of_us=archive.end_us - SETTLE_US if as_of_us is None else as_of_us),
        archive=archive,
        lineages=lineages,
        stock=stock,
        published=published,
        known=_know(archive, stock, raises, published, recorded.lost, previous),
        names=Names.of(archive, stock, previous),
        damages=(*archive.damages, *recorded.damages, *gaps),
        raises=raises,
        sequences=recorded.sequences,
        told=told | {(gap.number, gap.source, gap.first) for gap in gaps},
    )


def _collect_raises(changes: DataFrame, previous: State | None) -> frozenset[tuple[int, str, int]]:
    rows: list[Any] = find_raises(changes).limit(RAISES_MAX + 1).collect()
    if len(rows) > RAISES_MAX:
        raise FormatError(
            f"more than {RAISES_MAX:,} statements changed whole tables", hint="audit a shorter span"
        )
    new = frozenset((row["number"], row["table"], row["ordinal"]) for row in rows)
    return new | (previous.raises if previous else frozenset())


def _know(
    archive: Archive,
    stock: Sequence[Stock],
    raises: frozenset[tuple[int, str, int]],
    published: DataFrame,
    lost: frozenset[int],
    previous: State | None,
) -> Knowledge:
    numbers = {lineage.name: number for number, lineage in archive.lineages.items()}
    by_table: dict[tuple[int, str], list[int]] = {}
    for lineage, table, ordinal in sorted(raises):
        by_table.setdefault((lineage, table), []).append(ordinal)
    since: dict[int, int] = {}
    for each in stock:
        for name in each.lineages:
            if name in numbers:
                since[numbers[name]] = min(since.get(numbers[name], each.begin_us), each.begin_us)
    before = previous.known if previous else Knowledge({})
    acks = {**before.raise_acks}
    for key, end_us in collect_raise_acks(published, raises).items():
        acks[key] = min(end_us, acks.get(key, end_us))
    return Knowledge(
        lineages=archive.lineages,
        lives=_merge_lives(before.lives, collect_lives(published)),
        raises=by_table,
        raise_acks=acks,
        tables={**before.tables, **{each.who: each.tables for each in stock if each.tables}},
        lost=lost | before.lost,
        history_from_us={**since, **before.history_from_us},
    )


def _merge_lives(
    before: Mapping[tuple[int, int], Sequence[Life]], now: Mapping[tuple[int, int], Sequence[Life]]
) -> dict[tuple[int, int], Sequence[Life]]:
    merged: dict[tuple[int, int], dict[int, Life]] = {}
    for lives in (before, now):
        for place, of_place in lives.items():
            held = merged.setdefault(place, {})
            for life in of_place:
                old = held.get(life.life, life)
                held[life.life] = Life(
                    life.life,
                    min(old.first_begin_us, life.first_begin_us),
                    min(old.first_end_us, life.first_end_us),
                    min(old.floor, life.floor),
                    max(old.progress, life.progress),
                )
    return {
        place: sorted(held.values(), key=lambda life: life.first_begin_us) for place, held in merged.items()
    }
