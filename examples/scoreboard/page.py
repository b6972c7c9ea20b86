"""The figures of an application's runs as its table of docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.scoreboard.run import Score
from examples.scoreboard.shop import Shop

_HEAD: Final = (
    "| database | cache | own past, of a million | late, of a million | poisoned at the end | hit rate "
    "| SELECTs for 1,000 rows | of the primary | page p50 / p99, ms | processor time, ms |\n"
    f"|{'---|' * 10}\n"
)


def format_table(shop: Shop, scores: Sequence[Score]) -> str:
    """A line for each run; own past and late for a million rows read."""
    return _HEAD + "".join(_format_line(shop, score) for score in scores)


def _format_line(shop: Shop, score: Score) -> str:
    cells = (
        score.flavor,
        shop.caches[score.cache],
        f"{score.own_past * 1_000_000 // score.reads:,}",
        f"{score.late * 1_000_000 // score.reads:,}",
        f"{score.poisoned} of {score.products}",
        "–" if score.hit_rate is None else f"{100 * score.hit_rate:.1f} %",
        str(score.selects * 1000 // score.reads),
        str(score.primary_selects * 1000 // score.reads),
        f"{score.p50_ms:.1f} / {score.p99_ms:.1f}",
        f"{score.processor_ms:.2f}",
    )
    return f"| {' | '.join(cells)} |\n"


def write_page(page: Path, shop: Shop, scores: Sequence[Score]) -> None:
    """Replace the table of the page. Raises ValueError if the page has none."""
    table = re.compile(rf"(?<=<!-- measured: {shop.name} -->\n).*?(?=<!-- end measured -->)", re.DOTALL)
    text, count = table.subn(lambda _: format_table(shop, scores), page.read_text())
    if count != 1:
        raise ValueError(f"{page} has {count} tables of measured figures of {shop.name}, and not one")
    page.write_text(text)
