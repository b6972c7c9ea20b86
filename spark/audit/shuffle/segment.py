"""The context of each piece of a hot item, so that it is judged as if all rows of the item were there.

A position is judged by the last change that it holds, the first that it lacks, and the earliest acknowledgement of
what it lacks. So each segment yields its **border**: its first and its last change, and for each node and life the
earliest acknowledgements. These are all that others need of nearly every action. Two questions remain, and are asked
by name: who stored an entry that nobody stored in this segment (thin air), and which changes left a value that is not
the row at its position. Each segment answers with its rows. ::

    rows in segments -> border, questions -> answers -> each piece is judged, with all of these as context

An item that needs more is judged whole, in one piece, as one that is not hot: positions of several lineages, events
out of order that matter to the item, invalidations on one node by single transactions and by prefixes, and values
whose answer is longer than a piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy
import pyarrow

from spark.audit.engine.step import Shuffled
from spark.audit.input.spread import HotItem, Spread, drop_context, mark
from spark.audit.judge.findings import is_poison, merge_findings
from spark.audit.kernel.arrays import Actions, Booleans, Integers, mix, read_stamps, to_numbers
from spark.audit.kernel.judge import Piece
from spark.audit.kernel.order import States, read_told
from spark.audit.kernel.standing import ROW_OTHER, Placed, compare
from spark.audit.model.finding import Finding, Knowledge, Rules, Tally
from spark.audit.model.row import (
    AFTER_ABSENT,
    CHANGE,
    CONTEXT,
    FILL,
    HIT,
    INVALIDATION,
    JUDGED,
    NO_NUMBER,
    ROW,
    SERVED_STALE,
    unpack_stamps,
)
from spark.audit.model.schema import REPLAY, to_table
from spark.audit.model.timeline import BEFORE_ARCHIVE, UNKNOWN_FLAGS

OF_ITEM: Final = ("items changed", "items recorded", "items changed and recorded")
"""Counts of items: each piece of a hot item has them all."""
POISONED: Final = "items with poison"
_TOLD: Final = REPLAY.append(pyarrow.field("piece", pyarrow.int32()))
_WHOLE: Final = pyarrow.schema([("base", pyarrow.int32())])
_QUESTION: Final = pyarrow.schema(
    [("base", pyarrow.int32()), ("of_value", pyarrow.bool_()), *((name, pyarrow.int64()) for name in "abc")]
)
"""``base``: base of the item. Who stored an entry (node, version, life), or which changes left a value (whether the
row is absent, its digest)."""


@dataclass(frozen=True, slots=True)
class Context:
    """``rows``: rows of all pieces (`_TOLD`) that others need. ``whole``: items that are judged whole, by
    ``base``."""

    spread: Spread
    rows: pyarrow.Table
    whole: frozenset[int]

    def number(self) -> dict[int, int] | None:
        """As which piece each piece is judged; None where each is itself."""
        if not self.whole:
            return None
        numbers = {piece: piece for piece in range(self.spread.total)}
        for item in self.spread.items:
            if item.base in self.whole:
                numbers.update(dict.fromkeys(item.pieces, item.base))
        return numbers

    def is_whole(self, piece: int) -> bool:
        """True if all rows of each of its items are in the piece."""
        item = self.spread.find(piece)
        return item is None or item.base in self.whole

    def complete(self, piece: int, table: pyarrow.Table) -> pyarrow.Table:
        """The rows of a piece with those of others that it needs."""
        item = self.spread.find(piece)
        if item is None:
            return table
        if item.base in self.whole:
            return drop_context(table)
        pieces = self.rows.column("piece").to_numpy()
        mine = numpy.isin(pieces, numpy.array(item.pieces))
        segments = {each: item.find(each).number for each in item.pieces}
        same = [each for each, segment in segments.items() if segment == segments[piece]]
        # A piece has all of its segment but the other pieces' hits.
        is_here = numpy.isin(pieces, same) & (self.rows.column("kind").to_numpy() != HIT)
        chosen = mine & ~is_here & (pieces != piece)
        others = self.rows.filter(pyarrow.array(chosen)).select(REPLAY.names)
        context = mark(others, numpy.ones(others.num_rows, numpy.bool_))
        return pyarrow.concat_tables([table, context])

    def is_first(self, piece: int) -> bool:
        """True for the piece that counts the item."""
        item = self.spread.find(piece)
        assert item is not None
        pieces = self.rows.column("piece").to_numpy()
        return bool(pieces[numpy.isin(pieces, numpy.array(item.pieces))].min() == piece)

    def merge(self, findings: Sequence[Finding], tally: Tally) -> list[Finding]:
        """The findings of all pieces, with those of a hot item as one audit of it would have them."""
        keys = {(item.h1, item.h2) for item in self.spread.items if item.base not in self.whole}
        hot = [each for each in findings if (each.h1, each.h2) in keys]
        merged = merge_findings(hot)
        tally.counts[POISONED] += len({(each.h1, each.h2) for each in merged if is_poison(each)})
        return [each for each in findings if (each.h1, each.h2) not in keys] + merged


def find_context(shuffled: Shuffled, spread: Spread, rules: Rules, known: Knowledge, rows_max: int) -> Context:
    """The context of the pieces of hot items. ``rows_max``: most rows of an answer."""
    nothing = Context(spread, _TOLD.empty_table(), frozenset())
    if not spread.items:
        return nothing
    pieces = {piece: piece for item in spread.items for piece in item.pieces}
    told = shuffled.reduce("borders of hot items", partial(find_borders, spread, rules, known), pieces)
    border = told.get("border", nothing.rows)
    whole = set(told["whole"].column("base").to_pylist()) if "whole" in told else set()
    whole |= {item.base for item in spread.items if _is_odd(item, border)}
    rows = [border]
    if "questions" in told:
        questions = told["questions"].group_by(_QUESTION.names).aggregate([])
        answers = shuffled.reduce("answers of hot items", partial(answer, spread, questions), pieces)
        if "answers" in answers:
            rows.append(answers["answers"])
            found = answers["answers"].column("piece").to_numpy()
            for item in spread.items:
                if numpy.isin(found, numpy.array(item.pieces)).sum() > rows_max:
                    whole.add(item.base)
    return Context(spread, pyarrow.concat_tables(rows), frozenset(whole))


def _is_odd(item: HotItem, border: pyarrow.Table) -> bool:
    """True if a position of one segment holds events of a later one out of order, or if one node has invalidations by
    single transactions in one segment and by prefixes in another."""
    pieces = border.column("piece").to_numpy()
    mine = border.filter(pyarrow.array(numpy.isin(pieces, numpy.array(item.pieces))))
    segments = [item.find(piece).number for piece in mine.column("piece").to_pylist()]
    rows = mine.select(REPLAY.names).to_pylist()
    firsts: dict[int, int] = {}
    for segment, row in zip(segments, rows, strict=True):
        if row["kind"] == CHANGE:
            firsts[segment] = min(row["ordinal"], firsts.get(segment, row["ordinal"]))
    first = min(firsts.values(), default=0)
    single: set[tuple[int, int]] = set()
    wide: set[tuple[int, int]] = set()
    for segment, row in zip(segments, rows, strict=True):
        for stamp in unpack_stamps(row["stamps"] or b""):
            place, key = stamp.place, (row["node"], stamp.life)
            if row["kind"] == INVALIDATION:
                single |= {key} if place.extras else set()
                wide |= {key} if place.prefix >= max(item.first, first + 1) else set()
            elif place.extras:
                later = [ordinal for each, ordinal in firsts.items() if each > segment]
                if place.extras[-1] >= min(later, default=1 << 62):
                    return True
    return bool(single & wide)


def find_borders(
    spread: Spread, rules: Rules, known: Knowledge, piece: int, table: pyarrow.Table
) -> Iterator[tuple[str, pyarrow.Table]]:
    """A step for each piece of a hot item: its ``border`` (`_TOLD`), its ``questions`` (`_QUESTION`), and ``whole``
    (`_WHOLE`) if the item must be judged whole."""
    item = spread.find(piece)
    assert item is not None
    columns = to_numbers(table)
    rows = Piece(table, columns, numpy.zeros(table.num_rows, numpy.int64), rules, known, Tally())
    if not _is_plain(item, table) or len(rows.find_odd()):
        yield "whole", to_table([(item.base,)], _WHOLE)
    segment = item.find(piece)
    chosen = _find_seen(rows)
    if segment.is_first:
        chosen = numpy.concatenate((chosen, _find_border(rows, item)))
    border = table.take(pyarrow.array(numpy.unique(chosen)))
    yield "border", _tell(border, piece)
    questions = list(_ask(rows, item.base))
    if questions:
        yield "questions", to_table(sorted(set(questions)), _QUESTION)


def _is_plain(item: HotItem, table: pyarrow.Table) -> bool:
    """True if all of its rows are of one lineage, as far as it is known."""
    columns = to_numbers(table)
    lineage = columns["lineage"][columns["kind"] == CHANGE]
    book, _ = read_stamps(table.column("stamps"))
    is_known = (book.flags & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE) == 0
    is_one = (numpy.diff(book.starts) <= 1).all() and (book.lineage[is_known] == item.lineage).all()
    return bool(is_one and (lineage == item.lineage).all())


def _find_seen(rows: Piece) -> Integers:
    """Rows that show on which nodes the item was, when last in each life, and whether some were judged before."""
    chosen = []
    for actions in (rows.invalidations, rows.fills, rows.hits):
        own = actions.where((actions["flags"] & CONTEXT) == 0)
        latest = numpy.argsort(-own["begin_us"], kind="stable")
        life = numpy.where(own["kind"] == INVALIDATION, 0, own.life)
        keys = mix(own["node"], life, own["flags"] & SERVED_STALE)[latest]
        _, last = numpy.unique(keys, return_index=True)
        chosen += [own.at[latest[last]], own.at[(own["flags"] & JUDGED) > 0][:1]]
    return numpy.concatenate(chosen)


def _find_border(rows: Piece, item: HotItem) -> Integers:
    """Its first and last changes, the earliest acknowledgements, and who holds events farthest out of order."""
    changes, invalidations = rows.changes, rows.invalidations
    ends = numpy.array([0, len(changes) - 1]) if len(changes) else numpy.zeros(0, numpy.int64)
    told = read_told(invalidations, changes)
    single = numpy.flatnonzero(told.is_single)
    order = single[numpy.lexsort([it[single] for it in (told.turn, told.change, told.end_us, told.group)])]
    _, first = numpy.unique(told.group[order], return_index=True)
    best = order[first]
    chosen = [changes.find_rows(numpy.unique(numpy.append(ends, told.change[best]))), told.at[best]]
    prefix, at = invalidations.of_stamps("prefix"), invalidations.row
    flags = invalidations.of_stamps("flags") & UNKNOWN_FLAGS & ~BEFORE_ARCHIVE
    node, life = invalidations["node"][at], invalidations.of_stamps("life")
    wide = (flags == 0) & (prefix >= item.first)
    # A prefix before the first change of the segment covers the changes of earlier segments alone.
    inside = prefix >= (changes.ordinal[0] if len(changes) else 1 << 62)
    turn = [invalidations[name][at] for name in ("sequence", "client", "begin_us", "end_us")]
    for of, keys in ((wide & inside, turn), (wide & ~inside, turn), (wide, [-prefix])):
        kept = numpy.flatnonzero(of)
        group = mix(node[kept], life[kept])
        order = numpy.lexsort([*(key[kept] for key in keys), group])
        _, first = numpy.unique(group[order], return_index=True)
        chosen.append(invalidations.at[at[kept[order[first]]]])
    for actions in (rows.fills, rows.told_hits):
        counts = actions.book.extra_counts[actions.stamp]
        some = numpy.flatnonzero(counts)
        last = actions.book.extras[actions.book.extra_starts[actions.stamp[some] + 1] - 1]
        chosen.append(actions.at[actions.row[some[numpy.argsort(last)[-1:]]]])
    return numpy.concatenate(chosen)


def _ask(rows: Piece, base: int) -> Iterator[tuple[int, bool, int, int, int]]:
    fills, hits = rows.fills, rows.told_hits
    _, _, is_same = rows.find_fills(hits)
    is_known = (hits.first_unknown == 0) & (hits["version"] != NO_NUMBER) & ~is_same
    lifes = hits.fold(numpy.maximum, hits.of_stamps("life"), 0)
    entries = (hits["node"], hits["version"], lifes)
    for entry in zip(*(each[is_known].tolist() for each in entries), strict=True):
        yield base, False, *entry
    for actions, placed, chosen in (
        (fills, rows.placed_fills, rows.is_told(fills)),
        (hits, rows.placed_hits, ~is_same),
    ):
        values = States.of_values(actions["flags"], actions["digest"])
        # The span of a hit of a view may be in another segment than its position
        is_viewed = (actions["kind"] == HIT) & (actions["observed"] != NO_NUMBER)
        asked = (chosen & _may_differ(actions, placed, rows)) | is_viewed
        asked &= values.is_known & (actions.first_unknown == 0)
        pairs = numpy.unique(numpy.stack((values.is_absent[asked], values.digest[asked])), axis=1)
        for is_absent, digest in pairs.T.tolist():
            yield base, True, int(is_absent), digest, 0


def _may_differ(actions: Actions, placed: Placed, rows: Piece) -> Booleans:
    """Whether a value is not the row at its position, or is before the first change of its segment."""
    row, _ = compare(actions, placed, rows.changes)
    differs: Booleans = (row == ROW_OTHER) | actions.any(~placed.found.holds)
    return differs


def answer(
    spread: Spread, questions: pyarrow.Table, piece: int, table: pyarrow.Table
) -> Iterator[tuple[str, pyarrow.Table]]:
    """A step for each piece of a hot item: ``answers`` (`_TOLD`), the fills of entries and the changes that left
    values that are asked for. ``questions``: `_QUESTION`."""
    item = spread.find(piece)
    assert item is not None
    asked = {name: questions.column(name).to_numpy(zero_copy_only=False) for name in _QUESTION.names}
    mine = asked["base"] == item.base
    of_value = mine & asked["of_value"]
    table = drop_context(table)
    columns = to_numbers(table)
    kind, flags = columns["kind"], columns["flags"]
    chosen = numpy.zeros(table.num_rows, numpy.bool_)
    entries = [asked[name][mine & ~of_value] for name in "abc"]
    book, value = read_stamps(table.column("stamps"))
    is_fill = (kind == FILL) & (book.starts[value + 1] > book.starts[value])
    at = numpy.flatnonzero(is_fill)
    life = book.life[book.starts[value[at]]]
    keys = mix(columns["node"][at], columns["version"][at], life)
    chosen[at] = numpy.isin(keys, mix(*entries))
    if of_value.any():
        is_absent = (flags & AFTER_ABSENT) > 0
        digest = numpy.where(is_absent, NO_NUMBER, columns["digest"])
        is_known = ((flags & ROW) > 0) & (is_absent | (digest != NO_NUMBER))
        left = numpy.isin(mix(is_absent, digest), mix(asked["a"][of_value], asked["b"][of_value]))
        # A change is all rows of its transaction.
        ordinals = columns["ordinal"][(kind == CHANGE) & (left | ~is_known)]
        chosen |= (kind == CHANGE) & numpy.isin(columns["ordinal"], ordinals)
    if chosen.any():
        yield "answers", _tell(table.filter(pyarrow.array(chosen)), piece)


def _tell(rows: pyarrow.Table, piece: int) -> pyarrow.Table:
    return rows.append_column(_TOLD.field("piece"), pyarrow.array([piece] * rows.num_rows, pyarrow.int32()))
