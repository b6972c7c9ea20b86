"""Numbers, times and tables as the report page shows them. Everything that it gives is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from math import floor
from typing import Any, Final

_UNITS: Final[Sequence[tuple[int, str]]] = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

_END_US: Final = 253_402_300_800_000_000
"""The end of the year 9999, the last that Python has."""


def format_percent(share: float, digits: int) -> str:
    """Never rounded up: 100 % is all of them."""
    scale = 10 ** (digits + 2)
    return f"{floor(share * scale) / scale:.{digits}%}"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    size, unit = next(each for each in _UNITS if seconds >= 2 * each[0] or seconds % each[0] == 0 or each[0] == 1)
    return f"{round(seconds / size, 1):,g} {unit}"


def format_time(at_us: int | None, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """A time in microseconds since 1970, as UTC."""
    if at_us is None or not 0 <= at_us < _END_US:
        return "unknown"
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime(form)


def format_moment(at_us: int, day: str) -> str:
    """A time to the millisecond. ``day``: how its day is written."""
    return format_time(at_us, f"{day} %H:%M:%S.{at_us // 1000 % 1000:03}")


def format_table(
    titles: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = (), short: Sequence[int] = ()
) -> str:
    """``numbers``: columns to the right; ``short``: columns whose words stay together."""

    def row(cells: Sequence[Any], tag: str) -> str:
        told = (
            f"<{tag}{' class=n' if at in numbers else ' class=s' if at in short else ''}>{escape(str(cell))}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(told)}</tr>"

    return f"<table>{row(titles, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def draw(parts: Iterable[str], width: int, height: float, label: str) -> str:
    size = f'viewBox="0 0 {width} {height:g}" width="{width}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def draw_text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "", title: str = "") -> str:
    """``kind``: a class of the style sheet. ``title``: shown at the pointer."""
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    told = f"<title>{escape(title)}</title>" if title else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}"{anchor}>{told}{escape(text)}</text>'


def draw_rect(x: float, y: float, width: float, height: float, fill: str, *, title: str = "") -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {size} fill="{fill}">{f"<title>{escape(title)}</title>" if title else ""}</rect>'


def draw_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--line)"/>'
