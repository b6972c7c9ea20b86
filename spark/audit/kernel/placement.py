"""Positions of many actions at once: columns of texts become packed stamps, as `Lineage.place` makes them one by one.

Nearly every position names one interval of each source, and few interrupt the archive's order. Such positions are
placed by searches in sorted arrays; every other text goes to `Lineage.place`, each once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from freshness.errors import FormatError
from freshness.position import parse_position
from spark.audit.kernel.arrays import Booleans, Integers, spread, to_starts
from spark.audit.model.hashing import number_values, read_at
from spark.audit.model.row import BELOW_FLOOR, STAMP
from spark.audit.model.timeline import (
    BEFORE_ARCHIVE,
    BEYOND_ARCHIVE,
    MALFORMED,
    NO_ARCHIVE,
    NOTHING,
    Chain,
    Lineage,
    Place,
)

STAMP_COLUMNS: Final = ("lineages", "epochs", "lives", "positions", "floors")
"""Lists of the history of which stamps are made."""

_PIECE: Final = {
    "mysql": r"^(?P<source>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[a-z_][a-z0-9_]{0,31})?)"
    r":(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18}))?$",
    "mariadb": r"^(?P<source>0|[1-9][0-9]{0,8})-(?P<first>[0-9]{1,9})-(?P<last>[0-9]{1,18})$",
}
"""One interval of one source. Other texts are parsed by `parse_position`."""
_UUID: Final = re.compile(b"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UUID_LENGTH: Final = 36
_BYTE: Final = numpy.dtype(numpy.uint8)
_DIGITS_MAX: Final = 18
_NONE: Final = numpy.int64(1 << 62)


@dataclass(frozen=True, slots=True)
class Places:
    """Places of many positions. Position ``p`` has the extras ``extras[starts[p]:starts[p + 1]]``."""

    prefix: Integers
    flags: Integers
    starts: Integers
    extras: Integers


@dataclass(frozen=True, slots=True)
class Pieces:
    """Intervals of positions: of which position, source (a number), and the first and last number held."""

    of: Integers
    source: Integers
    first: Integers
    last: Integers
    server: Integers
    sources: list[str]
    is_plain: Booleans


def place_positions(lineage: Lineage, epoch: str, texts: pyarrow.Array) -> Places:
    """Where each position of a lineage stands, as `Lineage.place` says. A single interval of MySQL is read from its
    bytes; each distinct text of the others is read once."""
    count = len(texts)
    prefix, flags = numpy.zeros(count, numpy.int64), numpy.zeros(count, numpy.int64)
    extra = numpy.full(count, NOTHING, numpy.int64)
    is_odd = numpy.ones(count, numpy.bool_)
    end = lineage.epoch_ends.get(int(epoch)) if epoch.isdigit() else None
    if end is not None and lineage.flavor == "mysql":
        pieces = read_singles(texts)
        is_odd = ~pieces.is_plain
        _place_plain(lineage, end, pieces, prefix, extra, flags, is_odd)
    odd = numpy.flatnonzero(is_odd)
    others = texts.take(pyarrow.array(odd)).dictionary_encode()
    found = _place_texts(lineage, epoch, others.dictionary)
    return _join(prefix, flags, extra, odd, found, others.indices.to_numpy())


def _join(
    prefix: Integers, flags: Integers, extra: Integers, odd: Integers, others: Places, code: NDArray[Any]
) -> Places:
    """Places with at most one extra (`NOTHING` for none), but for those at ``odd``, which are ``others`` at
    ``code``."""
    prefix[odd], flags[odd], extra[odd] = others.prefix[code], others.flags[code], NOTHING
    single = numpy.flatnonzero(extra != NOTHING)
    counts = numpy.zeros(len(prefix), numpy.int64)
    counts[single], counts[odd] = 1, numpy.diff(others.starts)[code]
    starts = to_starts(counts)
    extras = numpy.zeros(int(starts[-1]), numpy.int64)
    extras[starts[single]] = extra[single]
    extras[spread(starts[odd], counts[odd])] = others.extras[spread(others.starts[code], counts[odd])]
    return Places(prefix, flags, starts, extras)


def read_singles(texts: pyarrow.Array) -> Pieces:
    """The texts that are one interval of a source of MySQL without a tag; the others are not plain."""
    data = texts.buffers()[2]
    bounds = numpy.frombuffer(texts.buffers()[1], numpy.int32, len(texts) + 1, 4 * texts.offset)
    starts, ends = bounds[:-1].astype(numpy.int64), bounds[1:].astype(numpy.int64)
    of = numpy.flatnonzero(ends - starts > _UUID_LENGTH + 1)
    colon = starts[of] + _UUID_LENGTH
    of = of[read_at(data, colon, _BYTE) == ord(":")]
    source, sources = number_values(read_at(data, starts[of], numpy.dtype(("S", _UUID_LENGTH))))
    is_uuid = numpy.array([_UUID.fullmatch(name) is not None for name in sources], numpy.bool_)
    of, source = of[is_uuid[source]], source[is_uuid[source]]
    first, stop = _read_decimals(data, starts[of] + _UUID_LENGTH + 1, ends[of])
    last, last_stop = _read_decimals(data, numpy.minimum(stop + 1, ends[of]), ends[of])
    has_last = (stop < ends[of]) & (read_at(data, numpy.minimum(stop, ends[of] - 1), _BYTE) == ord("-"))
    last, stop = numpy.where(has_last, last, first), numpy.where(has_last, last_stop, stop)
    chosen = (stop == ends[of]) & (first >= 1) & (last >= first)
    is_plain = numpy.zeros(len(texts), numpy.bool_)
    is_plain[of[chosen]] = True
    of, source, first, last = (column[chosen] for column in (of, source, first, last))
    names = [name.decode(errors="replace") for name in sources]
    return Pieces(of, source, first, last, numpy.zeros_like(of), names, is_plain)


def _read_decimals(data: Any, begins: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """(the number at the beginning of each range of bytes, its end); -1 for none, and for too many digits."""
    numbers, stops = numpy.zeros(len(begins), numpy.int64), begins
    is_number = numpy.ones(len(begins), numpy.bool_)
    for _ in range(_DIGITS_MAX + 1):
        is_number &= stops < ends
        digit = read_at(data, numpy.where(is_number, stops, 0), _BYTE) - numpy.uint8(ord("0"))
        is_number &= digit <= 9
        if not is_number.any():
            break
        numbers = numpy.where(is_number, 10 * numbers + digit, numbers)
        stops = stops + is_number
    length = stops - begins
    return numpy.where((length >= 1) & (length <= _DIGITS_MAX), numbers, -1), stops


def _place_texts(lineage: Lineage, epoch: str, texts: pyarrow.Array) -> Places:
    count = len(texts)
    prefix, flags = numpy.zeros(count, numpy.int64), numpy.zeros(count, numpy.int64)
    extra = numpy.full(count, NOTHING, numpy.int64)
    is_odd = numpy.ones(count, numpy.bool_)
    end = lineage.epoch_ends.get(int(epoch)) if epoch.isdigit() else None
    if end is not None:
        pieces = _split(lineage.flavor, texts)
        is_odd = ~pieces.is_plain
        _place_plain(lineage, end, pieces, prefix, extra, flags, is_odd)
    odd = numpy.flatnonzero(is_odd)
    found = [
        lineage.place(int(epoch), text) if epoch.isdigit() else Place(0, (), MALFORMED)
        for text in texts.take(pyarrow.array(odd)).to_pylist()
    ]
    others = Places(
        numpy.array([place.prefix for place in found], numpy.int64),
        numpy.array([place.flags for place in found], numpy.int64),
        to_starts(numpy.array([len(place.extras) for place in found], numpy.int64)),
        numpy.array([each for place in found for each in place.extras], numpy.int64),
    )
    return _join(prefix, flags, extra, odd, others, numpy.arange(len(odd)))


def _split(flavor: str, texts: pyarrow.Array) -> Pieces:
    compute = pyarrow.compute
    lists = compute.split_pattern(texts, ",")
    of = compute.list_parent_indices(lists).to_numpy().astype(numpy.int64)
    found = compute.extract_regex(compute.list_flatten(lists), _PIECE[flavor])
    is_read = found.is_valid().to_numpy(zero_copy_only=False)
    names = found.field("source").dictionary_encode()
    first, last = (_to_numbers(found.field(name)) for name in ("first", "last"))
    server = numpy.zeros(len(first), numpy.int64)
    if flavor == "mysql":
        last = numpy.where(last < 0, first, last)
    else:
        first, server = numpy.ones(len(first), numpy.int64), first
    source = names.indices.fill_null(0).to_numpy().astype(numpy.int64)
    is_plain = numpy.ones(len(texts), numpy.bool_)
    is_plain[of[~is_read | (first < 1) | (last < first)]] = False
    # The intervals of a source that is named twice must be united.
    order = numpy.lexsort((source, of))
    is_twice = (of[order][1:] == of[order][:-1]) & (source[order][1:] == source[order][:-1])
    is_plain[of[order][1:][is_twice]] = False
    kept = is_plain[of]
    return Pieces(
        of[kept],
        source[kept],
        first[kept],
        last[kept],
        server[kept],
        [str(name) for name in names.dictionary.to_pylist()],
        is_plain,
    )


def _to_numbers(texts: pyarrow.Array) -> Integers:
    """-1 for what is null or empty."""
    is_there = pyarrow.compute.not_equal(texts, "")
    numbers = pyarrow.compute.if_else(is_there, texts, None).cast(pyarrow.int64())
    found: Integers = numbers.fill_null(-1).to_numpy()
    return found


class _Searched:
    """A chain as arrays."""

    def __init__(self, chain: Chain) -> None:
        runs = chain.runs
        self.starts = numpy.array(chain.starts, numpy.int64)
        self.lasts = numpy.array(chain.lasts, numpy.int64)
        self.ordinals = numpy.array([run.ordinal for run in runs], numpy.int64)
        self.ends = self.ordinals + self.lasts - self.starts
        self.servers = [run.server for run in runs]

    def find(self, numbers: Integers) -> tuple[Integers, Integers]:
        """(the smallest archived number that is not below each, its ordinal); `_NONE` for none."""
        at = numpy.searchsorted(self.lasts, numbers)
        inside = numpy.minimum(at, len(self.lasts) - 1)
        found = numpy.maximum(numbers, self.starts[inside])
        is_there = at < len(self.lasts)
        ordinals = self.ordinals[inside] + found - self.starts[inside]
        return numpy.where(is_there, found, _NONE), numpy.where(is_there, ordinals, _NONE)

    def find_after(self, ordinals: Integers) -> Integers:
        """The smallest archived number with a higher ordinal; `_NONE` for none."""
        at = numpy.searchsorted(self.ends, ordinals, side="right")
        inside = numpy.minimum(at, len(self.ends) - 1)
        numbers = self.starts[inside] + numpy.maximum(0, ordinals + 1 - self.ordinals[inside])
        return numpy.where(at < len(self.ends), numbers, _NONE)

    def cut(self, lasts: Integers, servers: Integers) -> Integers:
        """MariaDB: the same number of another server is another history (F59)."""
        at = numpy.searchsorted(self.lasts, lasts)
        inside = numpy.minimum(at, len(self.lasts) - 1)
        mine = numpy.array([int(server) if server.isdigit() else -1 for server in self.servers], numpy.int64)
        is_other = (at < len(self.lasts)) & (self.starts[inside] <= lasts) & (mine[inside] != servers)
        return numpy.where(is_other, lasts - 1, lasts)


def _place_plain(
    lineage: Lineage, end: int, pieces: Pieces, prefix: Integers, extra: Integers, flags: Integers, is_odd: Booleans
) -> None:
    """Place what is plain, and mark as odd what holds more than one transaction beyond its prefix."""
    count = len(prefix)
    chains = [(source, _Searched(chain)) for source, of_source in lineage.chains.items() for chain in of_source]
    held: list[tuple[_Searched, Integers, Integers]] = []
    missing = numpy.full(count, _NONE, numpy.int64)
    has_known, is_beyond = numpy.zeros(count, numpy.bool_), numpy.zeros(count, numpy.bool_)
    for code, name in enumerate(pieces.sources):
        mine = pieces.source == code
        of = pieces.of[mine]
        its = lineage.chains.get(name)
        if its is None:
            is_beyond[of] = True
        else:
            has_known[of] = True
            is_beyond[of] |= pieces.last[mine] > max(chain.lasts[-1] for chain in its)
    for source, chain in chains:
        first, last = numpy.full(count, _NONE, numpy.int64), numpy.zeros(count, numpy.int64)
        if source in pieces.sources:
            mine = pieces.source == pieces.sources.index(source)
            of = pieces.of[mine]
            first[of], last[of] = pieces.first[mine], pieces.last[mine]
            if lineage.flavor != "mysql":
                last[of] = chain.cut(pieces.last[mine], pieces.server[mine])
        lowest, at_lowest = chain.starts[0], chain.ordinals[0]
        is_held = (first <= lowest) & (last >= lowest)
        _, next_ordinal = chain.find(last + 1)
        missing = numpy.minimum(missing, numpy.where(is_held, next_ordinal, at_lowest))
        held.append((chain, first, last))
    found: Integers = numpy.minimum(numpy.minimum(missing, lineage.last + 1) - 1, end)
    extras = numpy.zeros(count, numpy.int64)
    for chain, first, last in held:
        number, ordinal = chain.find(numpy.maximum(first, chain.find_after(found)))
        is_one = (number <= last) & (ordinal <= end)
        following, after = chain.find(numpy.minimum(number, _NONE - 1) + 1)
        is_odd |= is_one & (following <= last) & (after <= end)
        extras += is_one
        extra[is_one] = ordinal[is_one]
    is_odd |= extras > 1
    extra[is_odd] = NOTHING
    prefix[:] = found
    flags[:] = numpy.where((found < lineage.first) & (extras == 0), BEFORE_ARCHIVE, 0)
    flags[is_beyond] |= BEYOND_ARCHIVE
    unknown = ~has_known
    prefix[unknown], extra[unknown], flags[unknown] = 0, NOTHING, NO_ARCHIVE


def encode_stamps(
    lineages: Mapping[str, Lineage], columns: Mapping[str, pyarrow.Array]
) -> tuple[pyarrow.BinaryArray, NDArray[numpy.int32]]:
    """(packed stamps, `BELOW_FLOOR` or 0) of each row. ``columns``: lists with an element for each lineage
    (``lineages``, ``epochs``, ``lives``, ``positions``), and ``floors``, which may be shorter."""
    counts = {name: _count(columns[name]) for name in columns}
    wanted = counts["lineages"]
    is_whole = numpy.logical_and.reduce([counts[name] == wanted for name in ("epochs", "lives", "positions")])
    kept = numpy.where(is_whole, wanted, 1)
    stamps = numpy.zeros(int(kept.sum()), STAMP)
    stamps["life"], stamps["flags"] = NOTHING, MALFORMED
    is_whole_stamp = numpy.repeat(is_whole, kept)
    flat = {name: _flatten(column, is_whole) for name, column in columns.items()}
    names = flat["lineages"].dictionary_encode()
    places = _place_all(lineages, names, flat["epochs"], flat["positions"])
    numbers = [lineages[name].number if name in lineages else 0 for name in names.dictionary.to_pylist()]
    found = numpy.zeros(len(names), STAMP)
    found["lineage"] = numpy.array(numbers, numpy.int64)[names.indices.to_numpy()]
    found["life"] = _read_lives(flat["lives"])
    found["prefix"], found["flags"] = places.prefix, places.flags
    found["extras"] = numpy.diff(places.starts)
    stamps[is_whole_stamp] = found
    flags = numpy.zeros(len(kept), numpy.int32)
    flags[_find_below(lineages, flat, counts, is_whole)] = BELOW_FLOOR
    return _pack(stamps, kept, places.extras), flags


def _count(column: pyarrow.Array) -> Integers:
    counts = pyarrow.compute.list_value_length(column).fill_null(0)
    found: Integers = counts.to_numpy().astype(numpy.int64)
    return found


def _flatten(column: pyarrow.Array, chosen: Booleans) -> pyarrow.Array:
    return (column if chosen.all() else column.filter(pyarrow.array(chosen))).flatten()


def _read_lives(lives: pyarrow.Array) -> Integers:
    """As `int.from_bytes`, signed. `NOTHING` for none."""
    distinct = lives.fill_null(b"").dictionary_encode()
    numbers = [
        int.from_bytes(life, "big", signed=True) if life else NOTHING for life in distinct.dictionary.to_pylist()
    ]
    found: Integers = numpy.array(numbers, numpy.int64)[distinct.indices.to_numpy()]
    return found


def _place_all(
    lineages: Mapping[str, Lineage], names: pyarrow.Array, epochs: pyarrow.Array, texts: pyarrow.Array
) -> Places:
    """Positions of each epoch of each lineage are placed together."""
    epoch, count = epochs.dictionary_encode(), len(texts)
    name = names.indices.to_numpy().astype(numpy.int64)
    groups = name * max(1, len(epoch.dictionary)) + epoch.indices.to_numpy()
    prefix, flags, counts = (numpy.zeros(count, numpy.int64) for _ in range(3))
    parts = []
    for each in numpy.flatnonzero(numpy.bincount(groups)).tolist():
        at = numpy.flatnonzero(groups == each)
        lineage = lineages.get(names.dictionary[each // len(epoch.dictionary)].as_py())
        if lineage is None:
            flags[at] = NO_ARCHIVE
            continue
        its = texts if len(at) == count else texts.take(pyarrow.array(at))
        found = place_positions(lineage, str(epoch.dictionary[each % len(epoch.dictionary)].as_py()), its)
        prefix[at], flags[at], counts[at] = found.prefix, found.flags, numpy.diff(found.starts)
        parts.append((at, found.extras))
    starts = to_starts(counts)
    extras = numpy.zeros(int(starts[-1]), numpy.int64)
    for at, its in parts:
        extras[spread(starts[at], counts[at])] = its
    return Places(prefix, flags, starts, extras)


def _find_below(
    lineages: Mapping[str, Lineage],
    flat: Mapping[str, pyarrow.Array],
    counts: Mapping[str, Integers],
    is_whole: Booleans,
) -> Integers:
    """The rows of which a position lacks the floor beside it."""
    wanted, floors = counts["lineages"][is_whole], counts["floors"][is_whole]
    both = numpy.minimum(wanted, floors)
    row = numpy.repeat(numpy.arange(len(both)), both)
    stamp = spread(to_starts(wanted)[:-1], both)
    floor = spread(to_starts(floors)[:-1], both)
    columns = [flat["lineages"].take(pyarrow.array(stamp)), flat["positions"].take(pyarrow.array(stamp))]
    columns.append(flat["floors"].take(pyarrow.array(floor)))
    pairs = pyarrow.Table.from_arrays(columns, ["name", "position", "floor"])
    told = pyarrow.compute.not_equal(pairs.column("floor"), "")
    pairs, row = pairs.filter(told), row[told.to_numpy()]
    bad = numpy.zeros(len(row), numpy.bool_)
    for name in pairs.column("name").unique().to_pylist():
        if name in lineages:
            of = pyarrow.compute.equal(pairs.column("name"), name)
            at = numpy.flatnonzero(of.to_numpy(zero_copy_only=False))
            its = pairs.filter(of)
            bad[at] = find_lacking(lineages[name].flavor, its.column("position"), its.column("floor"))
    found: Integers = numpy.flatnonzero(is_whole)[numpy.unique(row[bad])]
    return found


def find_lacking(flavor: str, positions: pyarrow.ChunkedArray, floors: pyarrow.ChunkedArray) -> Booleans:
    """Whether each position lacks the floor beside it; False if one of them cannot be read, which its stamp says."""
    position, floor = (column.combine_chunks().dictionary_encode() for column in (positions, floors))
    count = len(position.dictionary)
    pieces = _split(flavor, pyarrow.concat_arrays([position.dictionary, floor.dictionary]))
    mine = position.indices.to_numpy().astype(numpy.int64)
    theirs = floor.indices.to_numpy().astype(numpy.int64) + count
    is_plain = pieces.is_plain[mine] & pieces.is_plain[theirs]
    lacking = numpy.zeros(len(mine), numpy.bool_)
    order = numpy.lexsort((pieces.source, pieces.of))
    keys = (pieces.of * (len(pieces.sources) + 1) + pieces.source)[order]
    first_piece = numpy.searchsorted(pieces.of[order], numpy.arange(len(pieces.is_plain) + 1))
    wanted = first_piece[theirs + 1] - first_piece[theirs]
    wanted = numpy.where(is_plain, wanted, 0)
    pair = numpy.repeat(numpy.arange(len(mine)), wanted)
    piece = order[spread(first_piece[theirs], wanted)]
    key = mine[pair] * (len(pieces.sources) + 1) + pieces.source[piece]
    at = numpy.minimum(numpy.searchsorted(keys, key), max(0, len(keys) - 1))
    if len(pair):
        held = order[at]
        is_there = keys[at] == key
        if flavor == "mysql":
            has = (pieces.first[held] <= pieces.first[piece]) & (pieces.last[held] >= pieces.last[piece])
        else:
            is_same = (pieces.last[held] == pieces.last[piece]) & (pieces.server[held] == pieces.server[piece])
            has = (pieces.last[held] > pieces.last[piece]) | is_same
        lacking[pair[~(is_there & has)]] = True
    texts = position.dictionary.to_pylist(), floor.dictionary.to_pylist()
    for odd in numpy.flatnonzero(~is_plain).tolist():
        bound = texts[1][theirs[odd] - count]
        lacking[odd] = bool(bound) and lacks(flavor, texts[0][mine[odd]], bound)
    return lacking


@lru_cache(65536)
def lacks(flavor: str, position: str, floor: str) -> bool:
    """True if a position lacks a floor; False if one of them cannot be read."""
    try:
        return not parse_position(flavor, position).contains(parse_position(flavor, floor))
    except FormatError:
        return False


_WORDS: Final = STAMP.itemsize // 8


def _pack(stamps: NDArray[Any], counts: Integers, extras: Integers) -> pyarrow.BinaryArray:
    """For `spark.audit.model.row.unpack_stamps`: rows with these numbers of stamps, in words of 8 bytes."""
    of = stamps["extras"].astype(numpy.int64)
    starts = to_starts(_WORDS + of)
    heads = stamps.view(numpy.int64).reshape(-1, _WORDS)
    if len(extras):
        data = numpy.empty(int(starts[-1]), numpy.int64)
        data[starts[:-1, None] + numpy.arange(_WORDS)] = heads
        data[spread(starts[:-1] + _WORDS, of)] = extras
    else:
        data = heads.reshape(-1)
    bounds = (8 * starts[to_starts(counts)]).astype(numpy.int32)
    buffers = [None, pyarrow.py_buffer(bounds), pyarrow.py_buffer(data)]
    return pyarrow.BinaryArray.from_buffers(pyarrow.binary(), len(counts), buffers)
