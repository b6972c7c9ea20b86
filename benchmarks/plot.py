"""A curve as SVG, if need be beside that of a baseline: few points, both axes from what is there.

For ``benchmarks.report``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log10
from typing import Final

WIDTH: Final = 480
HEIGHT: Final = 260
LEFT: Final = 80
RIGHT: Final = 30
TOP: Final = 34
BOTTOM: Final = 46


def draw(
    title: str,
    axis: str,
    unit: str,
    points: Sequence[tuple[float, float]],
    baseline: Sequence[tuple[float, float]] = (),
) -> str:
    """``points``: at least two, rising in x, which has a logarithmic scale unless it begins at 0; y begins at 0.
    ``baseline``: points with the same x, drawn in grey. Returns the text of the file."""
    assert len(points) > 1, "a curve has at least two points"
    scale: Callable[[float], float] = log10 if points[0][0] > 0 else float
    low, high = scale(points[0][0]), scale(points[-1][0])
    top = max(y for _, y in [*points, *baseline])

    def place(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [
            (
                LEFT + (WIDTH - LEFT - RIGHT) * (scale(x) - low) / (high - low),
                HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top,
            )
            for x, y in curve
        ]

    def line(curve: Sequence[tuple[float, float]], color: str) -> str:
        spots = " ".join(f"{x:.1f},{y:.1f}" for x, y in place(curve))
        return f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{spots}"/>'

    floor = HEIGHT - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2:.0f}" y="18" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>',
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>',
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{top:,.0f}</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 18}" text-anchor="end" font-size="10">{escape(unit)}</text>',
        *([line(baseline, "#888")] if baseline else []),
        line(points, "#06c"),
    ]
    for (x, y), (value, _) in zip(place(points), points, strict=True):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#06c"/>')
        lines.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{value:,.0f}</text>')
    return "\n".join([*lines, "</svg>", ""])
