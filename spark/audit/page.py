"""The report of an audit as files: violations, summary, and one HTML page that needs nothing else.

Called by the audit's main. Plots are inline SVG made here: no script, no font and no picture is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import floor, log10
from typing import Any, Final

import pyarrow
from pyarrow import fs, parquet

from spark.audit import verdict
from spark.audit.summary import DIMENSIONS, GROUPS_MAX, WITHIN_SECONDS, Nines, Summary, conclude
from spark.folder import Folder

_WIDTH: Final = 940
_BAR: Final = 22
_LABEL: Final = 230
_NAME_CHARACTERS_MAX: Final = 32
"""Characters that fit beside the bars. The browser shows the whole name at the pointer."""
_NINES_MAX: Final = 7.0
_STYLE: Final = """
:root { --ink: #1d2433; --soft: #667085; --line: #d9dee7; --bar: #3b6fb6;
  --good: #2f7d5b; --warn: #b7791f; --some: #e2a52b; --bad: #b42318 }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p, td, summary { overflow-wrap: anywhere } p.soft, .soft { color: var(--soft) }
.verdict { color: #fff; padding: .8rem 1.1rem; border-radius: .5rem; font-size: 1.15rem; margin: 1rem 0 }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem } .tile { border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .9rem; min-width: 9rem } .tile b { display: block; font-size: 1.3rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } th { color: var(--soft); font-weight: 500 }
td.s, td.n, th { white-space: nowrap } details details { margin-left: 1rem; color: var(--soft) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums;
  padding-right: 1.2rem } details { margin: .5rem 0 }
pre { background: #f5f7fa; padding: .7rem; overflow: auto; font-size: 12px; border-radius: .4rem }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
svg .soft { fill: var(--soft) } svg { max-width: 100% }
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
    """The whole page."""
    color = {verdict.CLEAN: "good", verdict.NOT_KNOWN: "warn", verdict.STALE_DATA: "bad"}[summary.exit_code]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Cache audit</title>',
        f"<style>{_STYLE}</style>",
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>',
        f'<h1>Cache audit</h1><p class="soft">as of {_time(summary.as_of_us)}, history from ',
        f"{_time(summary.history_from_us)}, archive to {_time(summary.archive_end_us)}</p>",
        f"<p>Judged: {escape(summary.part)}.</p>" if summary.part else "",
        f'<div class="verdict" style="background: var(--{color})">{escape(_conclude(summary))}</div>',
        _tiles(summary),
        _found(summary),
        _unknown(summary),
        "<h2>How far out of date hits were</h2>",
        f'<p class="soft">{_NINES_TOLD}</p>',
        *(_nines(dimension, summary.nines) for dimension in DIMENSIONS),
        "<h2>Staleness of hits</h2>",
        '<p class="soft">How many hits were so far out of date. The bars are logarithmic.</p>',
        _histogram(summary.edges_seconds, summary.staleness, "fresh"),
        "<h2>From commit to invalidation</h2>",
        '<p class="soft">How many changes took so long; those not older than --missed-after-seconds are not judged '
        "yet. The bars are logarithmic.</p>",
        _histogram(summary.edges_seconds, summary.delays, "at once"),
        _hot(summary),
        _examples(summary),
        "</body></html>\n",
    ]
    return "\n".join(parts)


_NINES_TOLD: Final = (
    "Each bar is the share of hits that were at most so old, as nines: 1 is 90 %, 2 is 99 %, 3 is 99.9 %, and so on. "
    "It ends at what is sure (≥, 95 %), which takes many hits to come far. Blue: not one hit was older. "
    "Yellow: some were."
)


def _conclude(summary: Summary) -> str:
    """The conclusion, without a pointer to this very report."""
    if summary.exit_code != verdict.STALE_DATA:
        return conclude(summary)
    return "poison: the cache held or served what it must not; the violations are below"


def _time(at_us: int | None) -> str:
    if at_us is None or at_us < 0:
        return "unknown"
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _tiles(summary: Summary) -> str:
    audited, poisoned = summary.audited, summary.poisoned
    tiles = [
        (f"{summary.transactions:,}", "transactions archived"),
        (f"{sum(summary.staleness):,}", "hits judged"),
        (f"{summary.counts.get('fills', 0):,}", "fills judged"),
        (f"{audited.share:.2%}", f"of {audited.of:,} changed items recorded"),
        (
            f"{poisoned.count:,}",
            f"of {poisoned.of:,} items with poison: at most {poisoned.high:.3%} of all (95 %)",
        ),
        (f"{summary.counts.get('changes invalidated late', 0):,}", "invalidations late, but not lost"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b>{escape(name)}</div>' for value, name in tiles)
        + "</div>"
    )


def _table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numbers: Sequence[int] = (),
    short: Sequence[int] = (),
) -> str:
    """``numbers``: columns to the right; ``short``: columns whose words stay together."""

    def row(cells: Sequence[Any], tag: str) -> str:
        told = (
            f"<{tag}{' class=n' if at in numbers else ' class=s' if at in short else ''}>{escape(str(cell))}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(told)}</tr>"

    return f"<table>{row(titles, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _found(summary: Summary) -> str:
    if not summary.found:
        return ""
    rows = [
        (
            it.kind.replace("_", " "),
            it.failure,
            f"{it.entries:,}",
            f"{it.actions:,}",
            format_seconds(it.longest_seconds) if it.longest_seconds else "–",
            verdict.KIND_BY_NAME[it.kind].meaning,
        )
        for it in summary.found
    ]
    titles = ("kind", "mode", "entries", "actions", "longest", "meaning")
    return "<h2>Violations</h2>" + _table(titles, rows, (2, 3, 4), (0, 1))


def _unknown(summary: Summary) -> str:
    if not summary.unknown:
        return ""
    rows = [(why, f"{count:,}") for why, count in sorted(summary.unknown.items(), key=lambda it: -it[1])]
    clocks = "".join(f"<li>{escape(client)}</li>" for client in summary.wrong_clocks)
    told = f"<p>Clocks that are wrong:</p><ul>{clocks}</ul>" if clocks else ""
    return "<h2>Not known</h2>" + _table(("why", "how many"), rows, (1,)) + told


# -- plots -----------------------------------------------------------------------------------------------


def _nines(dimension: str, nines: Sequence[Nines]) -> str:
    """A row for each group, in it a bar for each bound. A bar's length is the nines that are sure."""
    groups = [each for each in nines if each.dimension == dimension]
    if not groups:
        return ""
    most = _NINES_MAX
    room = _WIDTH - _LABEL - 220
    height = len(groups) * (len(WITHIN_SECONDS) * _BAR + 14) + 24
    out = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" aria-label="nines by {dimension}">'
    ]
    for nine in range(int(most) + 1):
        x = _LABEL + 40 + nine / most * room
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{height}" stroke="#d9dee7"/>')
        out.append(f'<text class="soft" x="{x:.1f}" y="11" text-anchor="middle">{nine}</text>')
    y = 20
    for each in groups:
        name = each.name or "all hits"
        shown = name if len(name) <= _NAME_CHARACTERS_MAX else name[: _NAME_CHARACTERS_MAX - 1] + "…"
        out.append(f'<text x="0" y="{y + 15}"><title>{escape(name)}</title>{escape(shown)}</text>')
        unknown = f", {each.unknown:,} unknown" if each.unknown else ""
        out.append(f'<text class="soft" x="0" y="{y + 31}">{each.hits:,} hits{unknown}</text>')
        for seconds in WITHIN_SECONDS:
            share = each.within[str(seconds)]
            length = max(1.0, min(share.nines, most) / most * room) if share.of else 0
            color = "var(--bar)" if share.count == share.of else "var(--some)"
            out.append(
                f'<text class="soft" x="{_LABEL + 34}" y="{y + 15}" text-anchor="end">{seconds} s</text>'
            )
            out.append(
                f'<rect x="{_LABEL + 40}" y="{y + 4}" width="{length:.1f}" height="{_BAR - 8}" fill="{color}"/>'
            )
            told = (
                f"{format_percent(share.share, 5)} (≥ {format_percent(share.low, 4)})"
                if share.of
                else "no hits"
            )
            out.append(f'<text x="{_WIDTH}" y="{y + 15}" text-anchor="end">{told}</text>')
            y += _BAR
        y += 14
    title = f"<h3>{'All hits' if dimension == 'all' else 'By ' + dimension}</h3>"
    if len(groups) == GROUPS_MAX:
        title += f'<p class="soft">The worst {GROUPS_MAX} of them; there may be more.</p>'
    return f"{title}{''.join(out)}</svg>"


def format_percent(share: float, digits: int) -> str:
    """Never rounded up: 100 % is all of them."""
    scale = 10 ** (digits + 2)
    return f"{floor(share * scale) / scale:.{digits}%}"


def _histogram(edges_seconds: Sequence[float], counts: Sequence[int], none: str) -> str:
    """Bars on a logarithmic scale: one stale hit among a million can be seen. ``none``: what 0 s is called."""
    total, most = sum(counts), max(counts, default=0)
    if not total:
        return '<p class="soft">nothing to show</p>'
    room = _WIDTH - _LABEL - 130
    out = [
        f'<svg viewBox="0 0 {_WIDTH} {len(counts) * _BAR}" width="{_WIDTH}" role="img" aria-label="histogram">'
    ]
    for at, count in enumerate(counts):
        y = at * _BAR
        label = f"up to {format_seconds(edges_seconds[at])}" if at < len(edges_seconds) else "longer"
        length = (log10(count) + 1) / (log10(most) + 1) * room if count else 0
        out.append(f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{label if at else none}</text>')
        size = f'width="{length:.1f}" height="{_BAR - 6}"'
        out.append(f'<rect x="{_LABEL}" y="{y + 3}" {size} rx="2" fill="var(--bar)"/>')
        out.append(f'<text class="soft" x="{_LABEL + length + 6:.1f}" y="{y + 15}">{count:,}</text>')
    return "".join(out) + "</svg>"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    size, unit = next(
        each for each in _UNITS if seconds >= 2 * each[0] or seconds % each[0] == 0 or each[0] == 1
    )
    return f"{round(seconds / size, 1):,g} {unit}"


_UNITS: Final[Sequence[tuple[int, str]]] = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def _hot(summary: Summary) -> str:
    if not summary.hot:
        return ""
    return "<h2>Hot items</h2>" + _table(
        ("item", "hits"), [(item, f"{hits:,}") for item, hits in summary.hot], (1,)
    )


def _examples(summary: Summary) -> str:
    if not summary.examples:
        return ""
    out = ["<h2>Examples, with their evidence</h2>"]
    for each in summary.examples:
        what = " · ".join(
            str(part)
            for part in (
                each["kind"].replace("_", " "),
                each["failure"],
                each["item"] or each["object"],
                each["node"],
            )
            if part
        )
        records = json.dumps(each["evidence"], indent=1, ensure_ascii=False)
        times = f"{each['count']:,} × from {_time(each['first_us'])}"
        told = f"<summary>{escape(what)} <span class=soft>{times}</span></summary>"
        raw = f"<details><summary>the records</summary><pre>{escape(records)}</pre></details>"
        out.append(f"<details>{told}{_evidence(each['evidence'])}{raw}</details>")
    return "".join(out)


def _evidence(records: Sequence[Any]) -> str:
    """The records of an example, each in a line, in their order."""
    rows = []
    for each in records:
        if isinstance(each, dict):
            record = each.get("record")
            rows.append(_evidence_row(each, record if isinstance(record, dict) else {}))
    return _table(("", "when (UTC)", "position", "what", "whose"), rows, short=(0, 1)) if rows else ""


def _evidence_row(evidence: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[str, ...]:
    pairs = zip(record.get("lineages") or (), record.get("positions") or (), strict=False)
    position = record.get("gtid") or ", ".join(f"{lineage}: {text}" for lineage, text in pairs)
    change = " ".join(str(record[name]) for name in ("op", "table", "key") if record.get(name))
    told = [change] if change else [str(record[name]) for name in ("outcome", "node") if record.get(name)]
    for name in ("version", "observed"):
        if record.get(name) is not None:
            told.append(f"{name} {record[name]}")
    return (
        str(evidence.get("role", "")),
        _moment(record.get("begin_us") or record.get("timestamp_us")),
        str(position),
        ", ".join(told) or "the record is not in this history",
        f"{evidence.get('name', '')} #{evidence.get('sequence', '')}",
    )


def _moment(at_us: int | None) -> str:
    if not at_us or at_us < 0:
        return ""
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%m-%d %H:%M:%S.%f")[:-3]
