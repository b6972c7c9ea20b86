"""The archive's own order: where in it a position stands, so that containment becomes a comparison of integers.

A position that holds the first n transactions of a lineage's archive and no other is the number n, its **prefix**.
Transactions beyond the prefix (a replica that commits out of order, the events of one item) are kept as the set
of their ordinals, so that nothing is rounded. Built by `spark.audit.input.archive` from the archive's runs, carried
to the executors by the audit. No Spark and no I/O here, and no clock in any answer about order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from freshness.errors import FormatError
from freshness.position import MariadbPosition, parse_position

EXTRAS_MAX: Final = 4096
"""Events beyond its prefix that are kept of one position. With more of them it is FRAGMENTED: not judged."""

NOTHING: Final = -1
"""No such ordinal, time or number."""
NEVER: Final = 1 << 62
ALWAYS: Final = -NEVER
"""Times that are later, and earlier, than all others."""

MALFORMED: Final = 1
"""The position, or the columns beside it, cannot be read."""
NO_ARCHIVE: Final = 2
"""The archive has nothing of that lineage, epoch, or source."""
BEFORE_ARCHIVE: Final = 4
"""It lacks what came before the archive begins: nobody can say what it lacks besides."""
FRAGMENTED: Final = 8
BEYOND_ARCHIVE: Final = 16
"""It holds more than the archive does. Enough to judge freshness, not to know the row."""

UNKNOWN_FLAGS: Final = MALFORMED | NO_ARCHIVE | BEFORE_ARCHIVE | FRAGMENTED


class Run(NamedTuple):
    """Consecutive numbers of one source at consecutive ordinals. ``transactions``: number of transactions seen."""

    source: str
    server: str
    number: int
    ordinal: int
    length: int
    transactions: int

    @property
    def last_number(self) -> int:
        return self.number + self.length - 1

    @property
    def last_ordinal(self) -> int:
        return self.ordinal + self.length - 1


class Place(NamedTuple):
    """The place of a position: see the module. ``extras`` rise; ``flags`` say what is not known."""

    prefix: int
    extras: tuple[int, ...] = ()
    flags: int = 0

    def contains(self, ordinal: int) -> bool:
        return ordinal <= self.prefix or ordinal in self.extras


@dataclass(frozen=True, slots=True)
class Chain:
    """Runs of one source whose numbers rise with their ordinals. A source in order is one chain."""

    runs: tuple[Run, ...]
    starts: tuple[int, ...]
    lasts: tuple[int, ...]

    def find_number(self, number: int) -> int | None:
        """The smallest archived number that is not below ``number``."""
        at = bisect_left(self.lasts, number)
        return max(number, self.starts[at]) if at < len(self.lasts) else None

    def find_number_after(self, ordinal: int) -> int | None:
        """The smallest archived number with a higher ordinal."""
        at = bisect_right(self.runs, ordinal, key=lambda run: run.last_ordinal)
        if at == len(self.runs):
            return None
        run = self.runs[at]
        return run.number + max(0, ordinal + 1 - run.ordinal)

    def ordinal(self, number: int) -> int:
        run = self.runs[bisect_left(self.lasts, number)]
        return run.ordinal + number - run.number

    def find_missing(self, intervals: Sequence[tuple[int, int]]) -> int | None:
        """The ordinal of the first archived number that the intervals lack."""
        number = self.find_number(0)
        for first, last in intervals:
            if number is None or number < first:
                break
            if number <= last:
                number = self.find_number(last + 1)
        return None if number is None else self.ordinal(number)

    def held_after(self, ordinal: int, intervals: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Ordinals above ``ordinal`` of the archived numbers that the intervals hold."""
        start = self.find_number_after(ordinal)
        for first, last in intervals:
            number = None if start is None else self.find_number(max(start, first))
            while number is not None and number <= last:
                yield self.ordinal(number)
                number = self.find_number(number + 1)


def _chain(runs: Sequence[Run]) -> Chain:
    return Chain(tuple(runs), tuple(run.number for run in runs), tuple(run.last_number for run in runs))


@dataclass(frozen=True, slots=True)
class Lineage:
    """One lineage of the archive. ``number``: its hash, which stands for its name in rows. ``epoch_ends``: by epoch,
    the last ordinal of it. ``breaks``: ordinals after which the archive lacks something. ``times``: latest time up to
    the end of each bucket of ``bucket`` ordinals from ``first`` on, in microseconds."""

    name: str
    number: int
    flavor: str
    first: int
    last: int
    chains: Mapping[str, tuple[Chain, ...]]
    epoch_ends: Mapping[int, int]
    breaks: tuple[int, ...] = ()
    bucket: int = 1
    times: NDArray[numpy.int64] = field(default_factory=lambda: numpy.zeros(0, numpy.int64))

    def place(self, epoch: int, text: str) -> Place:
        """The place of the position ``text`` of this lineage. Never raises: what cannot be read has a flag."""
        try:
            intervals = _intervals(self.flavor, text)
        except FormatError:
            return Place(0, (), MALFORMED)
        end = self.epoch_ends.get(epoch)
        if end is None:
            return Place(0, (), NO_ARCHIVE)
        if not intervals:
            return Place(self.first - 1, (), 0 if self.first == 1 else BEFORE_ARCHIVE)
        if not any(source in self.chains for source in intervals):
            return Place(0, (), NO_ARCHIVE)
        chains = [
            (chain, self._of(source, chain, intervals)) for source, them in self.chains.items() for chain in them
        ]
        missing = [chain.find_missing(held) for chain, held in chains]
        first_missing = min((at for at in missing if at is not None), default=self.last + 1)
        prefix = min(first_missing - 1, end)
        extras: list[int] = []
        for chain, held in chains:
            for ordinal in chain.held_after(prefix, held):
                if ordinal <= end:
                    extras.append(ordinal)
                if len(extras) > EXTRAS_MAX:
                    return Place(prefix, (), FRAGMENTED)
        flags = BEFORE_ARCHIVE if prefix < self.first and not extras else 0
        if any(self._is_beyond(source, spans) for source, spans in intervals.items()):
            flags |= BEYOND_ARCHIVE
        return Place(prefix, tuple(sorted(extras)), flags)

    def _of(
        self, source: str, chain: Chain, intervals: Mapping[str, Sequence[tuple[int, int]]]
    ) -> Sequence[tuple[int, int]]:
        """The numbers of a chain that a position holds. MariaDB: the same number of another server is another history
        (F59)."""
        held = intervals.get(source, ())
        if self.flavor == "mysql" or not held:
            return held
        (first, last), *_ = held
        servers = _servers_of(intervals, source)
        at = bisect_left(chain.lasts, last)
        if at < len(chain.runs) and chain.runs[at].number <= last and chain.runs[at].server not in servers:
            return ((first, last - 1),)
        return ((first, last),)

    def _is_beyond(self, source: str, spans: Sequence[tuple[int, int]]) -> bool:
        if source.endswith("@"):
            return False
        chains = self.chains.get(source)
        return chains is None or spans[-1][1] > max(chain.lasts[-1] for chain in chains)

    def time(self, ordinal: int) -> int:
        """The earliest time at which ``ordinal`` can have been committed, by the clocks of the archive; in large
        archives up to a bucket earlier. `NOTHING` if none is known."""
        at = (ordinal - self.first + 1) // self.bucket - 1
        return int(self.times[min(at, len(self.times) - 1)]) if at >= 0 and len(self.times) else NOTHING

    def find_times(self, ordinals: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """`time` of each."""
        at = (ordinals - self.first + 1) // self.bucket - 1
        if not len(self.times):
            return numpy.full(len(ordinals), NOTHING, numpy.int64)
        return numpy.where(at >= 0, self.times[numpy.clip(at, 0, len(self.times) - 1)], NOTHING)

    def lifted(self, ordinal: int, time_us: int) -> int:
        """``time_us``, but not before anything that was committed earlier: a session can set its clock back (F4)."""
        return max(time_us, self.time(ordinal - 1))

    def has_break(self, first: int, last: int) -> bool:
        """True if the archive lacks something after one of these ordinals."""
        at = bisect_left(self.breaks, first)
        return at < len(self.breaks) and self.breaks[at] <= last


def build_chains(runs: Iterable[Run]) -> dict[str, tuple[Chain, ...]]:
    """By source, as few chains as it takes: what is out of order goes to a chain of its own."""
    found: dict[str, list[list[Run]]] = {}
    for run in sorted(runs, key=lambda run: run.ordinal):
        chains = found.setdefault(run.source, [])
        for chain in chains:
            if chain[-1].last_number < run.number:
                chain.append(run)
                break
        else:
            chains.append([run])
    return {source: tuple(map(_chain, chains)) for source, chains in found.items()}


def find_holes(runs: Sequence[Run]) -> list[tuple[str, int, int, int]]:
    """(source, first number, last number, ordinal before it) of the numbers that the archive leaves out. Not where
    ordinals are missing there too: that is a gap of the archive itself."""
    holes = []
    gaps = _find_gaps(runs)
    for source, chains in build_chains(runs).items():
        its = sorted((run for chain in chains for run in chain.runs), key=lambda run: run.number)
        for run, after in pairwise(its):
            is_gap = any(run.last_ordinal <= end < after.ordinal for end in gaps)
            if after.number > run.last_number + 1 and not is_gap:
                holes.append((source, run.last_number + 1, after.number - 1, run.last_ordinal))
    return holes


def _find_gaps(runs: Iterable[Run]) -> list[int]:
    """Ordinals after which others are missing."""
    gaps, end = [], None
    for run in sorted(runs, key=lambda run: run.ordinal):
        if end is not None and run.ordinal > end + 1:
            gaps.append(end)
        end = run.last_ordinal if end is None else max(end, run.last_ordinal)
    return gaps


def holds_any(flavor: str, text: str, source: str, first: int, last: int) -> bool:
    """True if a position names one of these numbers. Never for MariaDB, whose positions name only their ends."""
    if flavor != "mysql":
        return False
    try:
        spans = _intervals(flavor, text).get(source, ())
    except FormatError:
        return False
    return any(begin <= last and end >= first for begin, end in spans)


def _servers_of(intervals: Mapping[str, Sequence[tuple[int, int]]], source: str) -> frozenset[str]:
    return frozenset(str(server) for server, _ in intervals.get(f"{source}@", ()))


@lru_cache(65536)
def _intervals(flavor: str, text: str) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """By source, the numbers that a position holds. For MariaDB ``domain@`` has the servers at its end."""
    position = parse_position(flavor, text)
    found = position.intervals()
    if isinstance(position, MariadbPosition):
        for domain, server, _ in position.gtids():
            found[f"{domain}@"] = (*found.get(f"{domain}@", ()), (server, 0))
    return found
