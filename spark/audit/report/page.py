"""The report of an audit as files: violations, summary, and one HTML page that needs nothing else.

Plots are inline SVG made here: no script, no font and no picture is fetched.
"""

from __future__ import annotations

import json
from html import escape
from typing import Final

import pyarrow
from pyarrow import fs, parquet

from spark.audit.model import verdict
from spark.audit.report.example import show_example
from spark.audit.report.markup import format_percent, format_seconds, format_table, format_time
from spark.audit.report.plot import plot_histogram, plot_nines, plot_over_time
from spark.audit.report.summary import (
    DIMENSIONS,
    FRESH_SECONDS,
    TABLES_OVER_TIME_MAX,
    Served,
    Summary,
    conclude,
    tell_scope,
)
from spark.folder import Folder

_STYLE: Final = """
:root { --ink: #1d2433; --soft: #667085; --line: #d9dee7; --bar: #3b6fb6;
  --good: #2f7d5b; --warn: #b7791f; --some: #e2a52b; --bad: #b42318; --pale: #d6e2f2; --faint: #fbe9e7 }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p, td, summary { overflow-wrap: anywhere } p.soft, .soft { color: var(--soft) }
.verdict { color: #fff; padding: .8rem 1.1rem; border-radius: .5rem; font-size: 1.15rem; margin: 1rem 0 }
.verdict p { font-size: .95rem; margin: .3rem 0 0 }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem } .tile { border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .9rem; min-width: 9rem } .tile b { display: block; font-size: 1.3rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } th { color: var(--soft); font-weight: 500 }
td.s, td.n, th { white-space: nowrap } details details { margin-left: 1rem; color: var(--soft) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums;
  padding-right: 1.2rem } details { margin: .5rem 0 }
pre { background: #f5f7fa; padding: .7rem; overflow: auto; font-size: 12px; border-radius: .4rem }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
svg .soft { fill: var(--soft) } svg .bad { fill: var(--bad); font-weight: 600 } svg .over { fill: #fff }
svg { max-width: 100% } details > svg { margin-top: .4rem } summary { cursor: pointer }
"""


def write_report(summary: Summary, violations: pyarrow.Table, folder: Folder) -> None:
    """Write ``violations`` (Parquet), ``summary.json`` and ``report.html`` into the folder, in place of the last."""
    filesystem = folder.filesystem
    if filesystem.get_file_info(f"{folder.path}/violations").type == fs.FileType.Directory:
        filesystem.delete_dir(f"{folder.path}/violations")
    filesystem.create_dir(f"{folder.path}/violations")
    parquet.write_table(violations, f"{folder.path}/violations/violations.parquet", filesystem=filesystem)
    texts = {
        "summary.json": json.dumps(summary.to_json(), indent=2, ensure_ascii=False) + "\n",
        "report.html": format_page(summary),
    }
    for name, text in texts.items():
        with filesystem.open_output_stream(f"{folder.path}/{name}") as stream:
            stream.write(text.encode())


def format_page(summary: Summary) -> str:
    color = {verdict.CLEAN: "good", verdict.NOT_KNOWN: "warn", verdict.STALE_DATA: "bad"}[summary.exit_code]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Cache audit</title>',
        f"<style>{_STYLE}</style>",
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>',
        f'<h1>Cache audit</h1><p class="soft">as of {format_time(summary.as_of_us)}, history from ',
        f"{format_time(summary.history_from_us)}, archive to {format_time(summary.archive_end_us)}</p>",
        f"<p>Judged: {told}.</p>" if (told := tell_scope(summary)) else "",
        f'<div class="verdict" style="background: var(--{color})">{escape(_conclude(summary))}'
        f"<p>{escape(tell_served(summary))}</p></div>",
        _tiles(summary),
        _over_time(summary),
        _found(summary),
        _examples(summary),
        _unknown(summary),
        "<h2>How far out of date hits were</h2>",
        f'<p class="soft">{_NINES_TOLD}</p>',
        *(plot_nines(dimension, summary.nines) for dimension in DIMENSIONS),
        "<h2>Staleness of hits</h2>",
        '<p class="soft">How many hits were so far out of date. The bars are logarithmic.</p>',
        plot_histogram(summary.edges_seconds, summary.staleness, "fresh"),
        "<h2>From commit to invalidation</h2>",
        '<p class="soft">How many changes took so long; those not older than --missed-after-seconds are not judged '
        "yet. The bars are logarithmic.</p>",
        plot_histogram(summary.edges_seconds, summary.delays, "at once"),
        _hot(summary),
        "</body></html>\n",
    ]
    return "\n".join(parts)


_NINES_TOLD: Final = (
    "Each bar is the share of hits that were older than that: the longest bar is the worst. Each line to the left "
    "is a nine more. Yellow: so many were. Pale: so many may have been (95 %), which takes many hits to become "
    "short. The number is the share of the others, and what is sure of it (≥)."
)
_OVER_TIME_TOLD: Final = (
    f"The blue line is the share of hits that were at most {FRESH_SECONDS} s out of date; each line below the "
    "highest is a nine less. It has gaps where there were no hits. Red below a chart: poison was served, the more "
    "the longer."
)
_EXAMPLES_TOLD: Final = "Red is the time in which the cache did what it must not."


def _conclude(summary: Summary) -> str:
    """The conclusion, without a pointer to this very report."""
    if summary.exit_code != verdict.STALE_DATA:
        return conclude(summary)
    return "poison: the cache held or served what it must not; the violations are below"


def tell_served(summary: Summary) -> str:
    """How many hits of how many were poison, from when to when, and where most of them were: one line."""
    served = summary.served
    if not served.of:
        return "No hit was judged."
    if not served.poison:
        return f"None of {served.of:,} judged hits was poison."
    share = format_percent(served.poison / served.of, 4 if served.poison * 1000 < served.of else 2)
    told = f"{served.poison:,} of {served.of:,} judged hits ({share}) were poison"
    told += f", from {format_time(served.first_us)} to {format_time(served.last_us)}"
    return f"{told}. Most of them: {'; '.join(_places(served))}."


def _places(served: Served) -> list[str]:
    named = (
        (dimension, [f"{name or 'unknown'} ({hits:,})" for name, hits in most])
        for dimension, most in served.places.items()
    )
    return [f"{dimension} {', '.join(most)}" for dimension, most in named if most]


def _over_time(summary: Summary) -> str:
    if not summary.over_time:
        return ""
    told = [_OVER_TIME_TOLD, f"Each step is {format_seconds(summary.slices.width_us / 1e6)}, times are UTC."]
    if len(summary.over_time) > TABLES_OVER_TIME_MAX:
        told.append(f"The worst {TABLES_OVER_TIME_MAX} tables; there may be more.")
    if summary.wrong_clocks:
        told.append("Hits of clients whose clocks are wrong are counted here, too.")
    picture = plot_over_time(summary.over_time, summary.slices)
    return f'<h2>Hits over time</h2><p class="soft">{" ".join(told)}</p>{picture}'


def _tiles(summary: Summary) -> str:
    audited, poisoned = summary.audited, summary.poisoned
    tiles = [
        (f"{summary.transactions:,}", "transactions archived"),
        (f"{sum(summary.staleness):,}", "hits judged"),
        (f"{summary.counts.get('fills', 0):,}", "fills judged"),
        (f"{audited.share:.2%}", f"of {audited.of:,} changed items recorded"),
        (f"{poisoned.count:,}", f"of {poisoned.of:,} items with poison: at most {poisoned.high:.3%} of all (95 %)"),
        (f"{summary.counts.get('changes invalidated late', 0):,}", "invalidations late, but not lost"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b>{escape(name)}</div>' for value, name in tiles)
        + "</div>"
    )


def _found(summary: Summary) -> str:
    if not summary.found:
        return ""
    rows = [
        (
            it.kind.replace("_", " "),
            f"{it.failure}: {verdict.FAILURE_TITLES[it.failure]}",
            f"{it.entries:,}",
            f"{it.actions:,}",
            format_seconds(it.longest_seconds) if it.longest_seconds else "–",
            verdict.KIND_BY_NAME[it.kind].meaning,
        )
        for it in summary.found
    ]
    titles = ("kind", "failure mode", "entries", "actions", "longest", "meaning")
    return "<h2>Violations</h2>" + format_table(titles, rows, (2, 3, 4), (0,))


def _unknown(summary: Summary) -> str:
    if not summary.unknown:
        return ""
    rows = [(why, f"{count:,}") for why, count in sorted(summary.unknown.items(), key=lambda it: -it[1])]
    clocks = "".join(f"<li>{escape(client)}</li>" for client in summary.wrong_clocks)
    told = f"<p>Clocks that are wrong:</p><ul>{clocks}</ul>" if clocks else ""
    return "<h2>Not known</h2>" + format_table(("why", "how many"), rows, (1,)) + told


def _hot(summary: Summary) -> str:
    if not summary.hot:
        return ""
    return "<h2>Hot items</h2>" + format_table(
        ("item", "hits"), [(item, f"{hits:,}") for item, hits in summary.hot], (1,)
    )


def _examples(summary: Summary) -> str:
    """The first of each kind is open."""
    if not summary.examples:
        return ""
    out = ["<h2>Worst cases, with their evidence</h2>", f'<p class="soft">{_EXAMPLES_TOLD}</p>']
    kinds: set[str] = set()
    for each in summary.examples:
        out.append(show_example(each, is_open=each["kind"] not in kinds))
        kinds.add(each["kind"])
    return "".join(out)
