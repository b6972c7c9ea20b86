"""The figures of a run as the table of docs/scoreboard.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.scoreboard.run import Score

NAMES: Final = {
    "freshness": "`appclient.django`",
    "signals": "Django's cache framework, by signals",
    "cachalot": "django-cachalot",
    "none": "no cache",
}
_TABLE: Final = re.compile(r"(?<=<!-- measured: django -->\n).*?(?=<!-- end measured -->)", re.DOTALL)
_HEAD: Final = (
    "| database | cache | rows read | orders | own past | old | poisoned at the end | SELECTs for 1,000 rows "
    "| page p50 / p99, ms |\n|---|---|---|---|---|---|---|---|---|\n"
)


def format_table(scores: Sequence[Score]) -> str:
    """A line for each run; own past and old for a million rows read."""
    lines = [
        f"| {score.flavor} | {NAMES[score.cache]} | {score.reads:,} | {score.orders:,} "
        f"| {score.own_past * 1_000_000 // score.reads:,} | {score.old * 1_000_000 // score.reads:,} "
        f"| {score.poisoned} of {score.products} | {score.selects * 1000 // score.reads} "
        f"| {score.p50_ms:.1f} / {score.p99_ms:.1f} |\n"
        for score in scores
    ]
    seed = scores[0].seed
    return _HEAD + "".join(lines) + f'\nOne run of each: `make examples ARGS="--seed {seed}"`.\n'


def write_page(page: Path, scores: Sequence[Score]) -> None:
    """Put the table in the place of the former one. Raises ValueError where the page has none."""
    text, count = _TABLE.subn(lambda _: format_table(scores), page.read_text())
    if count != 1:
        raise ValueError(f"{page} has {count} tables of measured figures, and not one")
    page.write_text(text)
