"""Writes the tables of the documentation that are made from the code: ``make docs``.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything else in a page is written by
hand. ``tests/unit/test_docs.py`` calls `render` and fails where a page is not what the code says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from freshness import errors
from freshness.config import describe_settings
from freshness.errors import FreshnessError
from freshness.rule import ReadOutcome
from invalidator.metrics import Metrics

PAGES: Final = Path(__file__).resolve().parent
_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_table() -> str:
    rows = ((f"`{one.key}`", one.type, f"`{one.default}`", one.meaning) for one in describe_settings())
    return _table(("key", "type", "default", "meaning"), rows)


def metrics_table() -> str:
    # A counter is shown as it is scraped, with the suffix of its samples.
    rows = (
        (f"`{one.name}{'_total' if one.type == 'counter' else ''}`", one.type, one.documentation)
        for one in Metrics().registry.collect()
    )
    return _table(("metric", "type", "meaning"), rows)


def outcomes_table() -> str:
    rows = ((f"`{one.name}`", one.value.replace("_", " ")) for one in ReadOutcome)
    return _table(("outcome", "meaning"), rows)


def errors_table() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    rows = (
        (f"`{kind.__name__}`", str(kind.exit_code), "yes" if kind.is_retryable else "no")
        for kind in kinds
        if issubclass(kind, FreshnessError)
    )
    return _table(("error", "exit code", "worth a retry"), rows)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "settings": settings_table,
    "metrics": metrics_table,
    "outcomes": outcomes_table,
    "errors": errors_table,
}


def render(text: str) -> str:
    """The page with its tables as the code has them now. An unknown name is a `KeyError`."""
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main()
