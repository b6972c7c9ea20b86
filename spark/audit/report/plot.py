"""The plots of the report page, as inline SVG: hits over time, how far out of date they were, histograms.

In each of them what is worse is larger, or red.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log10
from typing import Final

from spark.audit.model.finding import SLICE_WIDTHS_US, Slices
from spark.audit.report.markup import (
    draw,
    draw_line,
    draw_rect,
    draw_text,
    format_percent,
    format_seconds,
    format_time,
)
from spark.audit.report.summary import FRESH_SECONDS, GROUPS_MAX, WITHIN_SECONDS, HitsOverTime, Nines

WIDTH: Final = 940
_BAR: Final = 22
_LABEL: Final = 230
_NAME_CHARACTERS_MAX: Final = 32
"""Characters that fit beside the bars. The browser shows the whole name at the pointer."""
_NINES_MAX: Final = 7
_CHART: Final = 74
_CHART_LINES: Final = ("0 %", "90 %", "99 %", "99.9 %", "99.99 %", "100 %")
_TICKS_MAX: Final = 7
_DAY_US: Final = 86_400_000_000


def plot_over_time(groups: Sequence[HitsOverTime], slices: Slices) -> str:
    """A chart for each group: the share of fresh hits in nines, and red where hits were poison."""
    step = (WIDTH - _LABEL - 60) / slices.count
    left = _LABEL + 50
    height = 24 + len(groups) * (_CHART + 34)
    parts = []
    for at, told in _ticks(slices):
        x = left + at * step
        parts.append(draw_line(x, 16, x, height))
        parts.append(draw_text(x, 11, told, kind="soft", anchor="middle"))
    y = 24.0
    for group in groups:
        parts += _chart(group, slices, left, y, step)
        y += _CHART + 34
    return draw(parts, WIDTH, height, "hits over time")


def _ticks(slices: Slices) -> Iterator[tuple[int, str]]:
    """Some slices that begin at round times, and how those are written."""
    width_us, span_us = slices.width_us, slices.count * slices.width_us
    round_us = (each for each in SLICE_WIDTHS_US if each % width_us == 0 and each * _TICKS_MAX >= span_us)
    unit_us = max(width_us, _DAY_US)
    each_us = next(round_us, -(-span_us // (_TICKS_MAX * unit_us)) * unit_us)
    day = "%m-%d " if span_us >= _DAY_US else ""
    form = day + ("%H:%M" if each_us >= 60_000_000 else "%H:%M:%S") if each_us < _DAY_US else "%Y-%m-%d"
    for at in range(slices.count):
        at_us = slices.begin_us + at * width_us
        if at_us % each_us == 0:
            yield at, format_time(at_us, form)


def _chart(group: HitsOverTime, slices: Slices, left: float, top: float, step: float) -> Iterator[str]:
    hits, poison = sum(group.hits), sum(group.poison)
    name = group.name or "all hits"
    yield draw_text(0, top + 13, shorten(name), title=name)
    share = f"{format_percent(sum(group.fresh) / hits, 3)} within {FRESH_SECONDS} s" if hits else "no hits"
    yield draw_text(0, top + 30, f"{hits:,} hits", kind="soft")
    yield draw_text(0, top + 46, share, kind="soft")
    if poison:
        yield draw_text(0, top + 62, f"{poison:,} poison", kind="bad")
    for nine, label in enumerate(_CHART_LINES):
        y = top + _CHART * (1 - nine / (len(_CHART_LINES) - 1))
        yield draw_line(left, y, left + step * slices.count, y)
        yield draw_text(left - 5, y + 4, label, kind="soft", anchor="end")
    for at, (count, fresh, bad) in enumerate(zip(group.hits, group.fresh, group.poison, strict=True)):
        if not count:
            continue
        begin_us = slices.begin_us + at * slices.width_us
        told = f"{format_time(begin_us)}, {format_seconds(slices.width_us / 1e6)}: {count:,} hits, "
        told += f"{format_percent(fresh / count, 3)} within {FRESH_SECONDS} s, {bad:,} poison"
        x, tall = left + at * step, _CHART * _height(fresh, count)
        yield draw_rect(x, top + _CHART - tall, step + 0.2, tall, "var(--pale)", title=told)
        yield draw_rect(x, top + _CHART - tall - 1, step + 0.2, 2, "var(--bar)", title=told)
        if bad:
            yield draw_rect(x, top + _CHART + 2, step + 0.2, 4 + 12 * bad / count, "var(--bad)", title=told)


def _height(fresh: int, count: int) -> float:
    """The part of the chart that the share fills, 0 to 1. It is 1 only if all are fresh."""
    if fresh == count:
        return 1.0
    lines = len(_CHART_LINES) - 1
    return min(-log10(1 - fresh / count), lines - 0.5) / lines


def plot_nines(dimension: str, nines: Sequence[Nines]) -> str:
    """A row for each group, in it a bar for each bound: the share of hits that were older, and what it may be."""
    groups = [each for each in nines if each.dimension == dimension]
    if not groups:
        return ""
    room = WIDTH - _LABEL - 220
    left = _LABEL + 40
    height = len(groups) * (len(WITHIN_SECONDS) * _BAR + 14) + 24
    parts = []
    for nine in range(_NINES_MAX + 1):
        x = left + room - nine / _NINES_MAX * room
        parts.append(draw_line(x, 16, x, height))
        parts.append(draw_text(x, 11, f"{100 / 10**nine:.{max(0, nine - 2)}f} %", kind="soft", anchor="middle"))
    y = 20
    for each in groups:
        name = each.name or "all hits"
        parts.append(draw_text(0, y + 15, shorten(name), title=name))
        unknown = f", {each.unknown:,} unknown" if each.unknown else ""
        parts.append(draw_text(0, y + 31, f"{each.hits:,} hits{unknown}", kind="soft"))
        for seconds in WITHIN_SECONDS:
            share = each.within[str(seconds)]
            parts.append(draw_text(left - 6, y + 15, f"{seconds} s", kind="soft", anchor="end"))
            told = "no hits"
            if share.of:
                for older, color in ((1 - share.low, "var(--pale)"), (1 - share.share, "var(--some)")):
                    length = (1 + log10(max(older, 10**-_NINES_MAX)) / _NINES_MAX) * room
                    parts.append(draw_rect(left, y + 4, length, _BAR - 8, color))
                told = f"{format_percent(share.share, 5)} (≥ {format_percent(share.low, 4)})"
            parts.append(draw_text(WIDTH, y + 15, told, anchor="end"))
            y += _BAR
        y += 14
    title = f"<h3>{'All hits' if dimension == 'all' else 'By ' + dimension}</h3>"
    if len(groups) == GROUPS_MAX:
        title += f'<p class="soft">The worst {GROUPS_MAX} of them; there may be more.</p>'
    return title + draw(parts, WIDTH, height, f"hits by {dimension}")


def shorten(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else name[: _NAME_CHARACTERS_MAX - 1] + "…"


def plot_histogram(edges_seconds: Sequence[float], counts: Sequence[int], none: str) -> str:
    """Bars on a logarithmic scale: one stale hit among a million can be seen. ``none``: label of 0 s."""
    total, most = sum(counts), max(counts, default=0)
    if not total:
        return '<p class="soft">nothing to show</p>'
    room = WIDTH - _LABEL - 130
    parts = []
    for at, count in enumerate(counts):
        y = at * _BAR
        label = f"up to {format_seconds(edges_seconds[at])}" if at < len(edges_seconds) else "longer"
        length = (log10(count) + 1) / (log10(most) + 1) * room if count else 0
        parts.append(draw_text(_LABEL - 8, y + 15, label if at else none, anchor="end"))
        parts.append(draw_rect(_LABEL, y + 3, length, _BAR - 6, "var(--bar)"))
        parts.append(draw_text(_LABEL + length + 6, y + 15, f"{count:,}", kind="soft"))
    return draw(parts, WIDTH, len(counts) * _BAR, "histogram")
