"""The survey before the replay: the archive's order, and all of the history that is small.

It collects the clients, nodes and objects, the lives of nodes, the statements that changed whole tables, and the gaps
in the evidence itself. Every piece is judged by the `Knowledge` that is made of them. The rows of the replay are read
and divided by the same steps, so that the actions are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from freshness.errors import FormatError
from spark.audit.engine.step import Engine, PlannedScan, Shuffled
from spark.audit.input.actions import ActionStep, ChangeStep, Stock, read_kept, read_stock
from spark.audit.input.archive import Archive, Damage, read_archive
from spark.audit.input.evidence import Names, find_archive_holes, find_gtid_gaps, find_recorder_gaps
from spark.audit.input.published import PublishedStep, read_acks, read_held, read_lives
from spark.audit.input.recording import RecordedFiles
from spark.audit.input.spread import Spread, find_hot
from spark.audit.input.window import ALL, Window
from spark.audit.model.finding import Knowledge, Life, Rules, Slices
from spark.audit.model.timeline import ALWAYS
from spark.audit.shuffle.state import Kept, State

SETTLE_US: Final = 5_000_000
"""Time between the end of an audit, by default, and the archive's end: later commits may not be archived yet."""
ROWS_PER_PIECE: Final = 120_000
"""A piece is in memory as a whole, with up to 1,000 bytes for each row."""
PIECES_MIN: Final = 8
PIECES_MAX: Final = 256
"""More pieces only if they would be larger than `ROWS_PER_LARGE_PIECE`: each task writes to each piece."""
ROWS_PER_LARGE_PIECE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """Which actions an audit judges: up to ``as_of_us``, by default a little before the archive's end, and those of
    ``window``, for which the files were opened. ``previous``: the state that it continues, which says itself
    what was judged."""

    as_of_us: int | None = None
    window: Window = ALL
    previous: State | None = None

    def __post_init__(self) -> None:
        assert self.window == ALL or self.previous is None, "a state says itself what was judged"

    def end_us(self, archive_end_us: int) -> int:
        """Up to when actions are judged."""
        return min(self.window.to_us, archive_end_us - SETTLE_US) if self.as_of_us is None else self.as_of_us


WHOLE: Final = Scope()


@dataclass(frozen=True, slots=True)
class Survey:
    """``rules``: with the time up to which actions are judged. ``shuffled``: the rows of the replay, in their pieces;
    its owner closes it. ``spread``: which piece each row is in. ``damages``: damage to the evidence itself. ``kept``:
    state for the next audit."""

    rules: Rules
    shuffled: Shuffled
    spread: Spread
    stock: Sequence[Stock]
    damages: Sequence[Damage]
    kept: Kept


def survey_history(
    engine: Engine,
    changes: RecordedFiles,
    actions: RecordedFiles,
    rules: Rules,
    scope: Scope = WHOLE,
    *,
    pieces: int | None = None,
    hot_rows: int = ROWS_PER_PIECE,
) -> Survey:
    """Read the archive's order, divide all rows into pieces, and take stock of the actions. Raises `FormatError` for
    history that cannot be understood."""
    previous, window = scope.previous, scope.window
    before = previous.kept if previous else None
    archive = read_archive(engine, changes, rules, before.archive if before else None)
    if not archive.lineages:
        raise FormatError(
            "the archive is empty", hint="nothing can be proved without the changes; is it the right folder?"
        )
    lineages = {lineage.name: lineage for lineage in archive.lineages.values()}
    raises = archive.raises | (before.raises if before else frozenset())
    told = before.told if before else frozenset()
    holes = find_archive_holes(archive, told)
    published = PublishedStep(lineages, sorted({(number, ordinal) for number, _, ordinal in raises}), holes)
    rows = previous.rows if previous else RecordedFiles(())
    count = pieces or count_pieces(changes.rows + actions.rows + rows.rows)

    def plan(spread: Spread) -> list[PlannedScan]:
        return [
            PlannedScan(changes.parts, ChangeStep(spread, archive.duplicates)),
            PlannedScan(actions.parts, ActionStep(spread, lineages, published)),
            PlannedScan(rows.parts, partial(read_kept, spread)),
        ]

    spread = find_hot(engine, plan(Spread(1)), archive.lineages, count, hot_rows)
    shuffled = engine.shuffle("changes and actions", plan(spread), spread.total)
    stock = read_stock(shuffled.told["stock"]) if "stock" in shuffled.told else []
    recorded = find_recorder_gaps(stock, lineages, before.sequences if before else {}, actions.unfinished)
    gaps = find_gtid_gaps(holes, read_held(shuffled.told.get("held")))
    used = replace(
        rules,
        as_of_us=scope.end_us(archive.end_us),
        from_us=window.from_us,
        slices=_slice_time(archive, stock, window),
    )
    kept = Kept(
        archive=archive,
        known=_know(archive, stock, raises, shuffled, recorded.lost_until_us, before, window.since_us),
        names=Names.of(archive, stock, before.names if before else None),
        sequences=recorded.sequences,
        raises=raises,
        told=told | {(gap.number, gap.source, gap.first) for gap in gaps},
        as_of_us=used.as_of_us,
    )
    return Survey(used, shuffled, spread, stock, (*archive.damages, *recorded.damages, *gaps), kept)


def _slice_time(archive: Archive, stock: Sequence[Stock], window: Window) -> Slices:
    """Slices over the time of the actions, as far as the archive reaches: clocks of clients may be wrong."""
    end_us = min(archive.end_us, window.to_us)
    begins = [each.begin_us for each in stock if each.begin_us <= end_us]
    first_us = min((int(it.times[0]) for it in archive.lineages.values() if len(it.times)), default=end_us)
    return Slices.of(min(end_us, max(first_us, window.from_us, min(begins, default=end_us))), end_us)


def count_pieces(rows: int) -> int:
    """How many pieces the replay is cut into: by its rows, and not by the cores that happen to be there."""
    small, large = -(-rows // ROWS_PER_PIECE), -(-rows // ROWS_PER_LARGE_PIECE)
    return max(PIECES_MIN, min(PIECES_MAX, small), large)


def _know(
    archive: Archive,
    stock: Sequence[Stock],
    raises: frozenset[tuple[int, str, int]],
    shuffled: Shuffled,
    lost_until_us: Mapping[int, int],
    kept: Kept | None,
    since_us: int,
) -> Knowledge:
    """``kept``: state of the previous audits. ``since_us``: older actions may be left out."""
    before = kept.known if kept else Knowledge({})
    numbers = {lineage.name: number for number, lineage in archive.lineages.items()}
    by_table: dict[tuple[int, str], list[int]] = {}
    for lineage, table, ordinal in sorted(raises):
        by_table.setdefault((lineage, table), []).append(ordinal)
    since: dict[int, int] = {}
    for each in stock:
        for name in each.lineages:
            if name in numbers:
                begin_us = max(since_us, each.begin_us)
                since[numbers[name]] = min(since.get(numbers[name], begin_us), begin_us)
    acks = {**before.raise_acks}
    for key, end_us in read_acks(shuffled.told.get("acks")).items():
        acks[key] = min(end_us, acks.get(key, end_us))
    return Knowledge(
        lineages=archive.lineages,
        lives=_merge_lives(before.lives, read_lives(shuffled.told.get("lives"))),
        raises=by_table,
        raise_acks=acks,
        tables={**before.tables, **{each.who: each.tables for each in stock if each.tables}},
        history_from_us={**since, **before.history_from_us},
        lost_until_us={
            number: max(known.get(number, ALWAYS) for known in (lost_until_us, before.lost_until_us))
            for number in {*lost_until_us, *before.lost_until_us}
        },
    )


def _merge_lives(
    before: Mapping[tuple[int, int], Sequence[Life]], now: Mapping[tuple[int, int], Sequence[Life]]
) -> dict[tuple[int, int], Sequence[Life]]:
    merged: dict[tuple[int, int], dict[int, Life]] = {}
    for lives in (before, now):
        for place, of_place in lives.items():
            held = merged.setdefault(place, {})
            for life in of_place:
                held[life.life] = life.join(held.get(life.life, life))
    return {place: sorted(held.values(), key=lambda life: life.first_begin_us) for place, held in merged.items()}
