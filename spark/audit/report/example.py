"""An example of a violation for a person: one sentence, a picture of what happened when, and the records themselves.

The picture has one axis of time and a lane for each step of a value: committed, acknowledged, filled, served. Red is
the time in which the cache did what it must not. An example is an element of `Summary.examples`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any, Final, NamedTuple

from spark.audit.model import verdict
from spark.audit.report.markup import (
    draw,
    draw_line,
    draw_rect,
    draw_text,
    format_moment,
    format_seconds,
    format_table,
    format_time,
)

_LANES: Final = {
    "life": "life ended",
    "change": "committed",
    "invalidation": "acknowledged",
    "fill": "filled",
    "hit": "served",
}
"""By the role of a record; of a life there is none."""
_WIDTH: Final = 940
_LEFT: Final = 130
_ROOM: Final = 690
_LANE: Final = 34
_MARK: Final = 6
_TICKS_MAX: Final = 8


class Event(NamedTuple):
    """A record of an example that the picture shows. Times are microseconds since 1970."""

    role: str
    begin_us: int
    end_us: int
    what: str


def show_example(example: Mapping[str, Any], *, is_open: bool) -> str:
    """Folded up unless ``is_open``."""
    parts = example["kind"].replace("_", " "), example["failure"], _name(example), example["node"]
    times = f"{example['count']:,} × from {format_time(example['first_us'])}"
    records = json.dumps(example["evidence"], indent=1, ensure_ascii=False)
    failure = verdict.FAILURE_TITLES.get(example["failure"], "")
    return "".join(
        (
            f"<details{' open' if is_open else ''}><summary>{escape(' · '.join(filter(None, parts)))} ",
            f"<span class=soft>{times}</span></summary>",
            f"<p><b>{escape(describe(example))}</b> ",
            f'<span class="soft">{escape(example["failure"])}: {escape(failure)}.</span></p>' if failure else "</p>",
            draw_timeline(example),
            _list_evidence(example["evidence"]),
            f"<details><summary>the records</summary><pre>{escape(records)}</pre></details></details>",
        )
    )


def _name(example: Mapping[str, Any]) -> str:
    return str(example["item"] or example["object"] or "")


def describe(example: Mapping[str, Any]) -> str:
    """Say in one sentence, without markup, what happened."""
    kind, name = example["kind"], _name(example)
    events = read_events(example["evidence"])
    acked_us = next((each.end_us for each in events if each.role == "invalidation"), None)
    fill_us = next((each.begin_us for each in events if each.role == "fill"), None)
    longest = format_seconds((example.get("longest_us") or 0) / 1e6)
    times = "once" if example["count"] == 1 else f"{example['count']:,} times"
    if kind == verdict.STALE_HIT:
        of = "of its whole table" if example["failure"] == "F21" else "of it"
        told = f"was served {times}, up to {longest} after a change {of} had been acknowledged"
    elif kind == verdict.DEAD_LIFE_HIT:
        told = f"was served {times} from a previous life of the node, up to {longest} after its end"
    elif kind == verdict.THIN_AIR_HIT:
        told = f"was served {times}, though {'another value' if fill_us else 'nothing'} was stored"
    elif kind == verdict.POISONED_FILL:
        late_us = fill_us - acked_us if fill_us and acked_us else 0
        after = f"{format_seconds(late_us / 1e6)} after" if late_us > 0 else "after"
        told = f"was stored {after} the node had acknowledged a change that the value lacks"
    elif kind == verdict.FILL_BELOW_FLOOR:
        told = "was stored from a position that lacks the node's floor"
    elif kind == verdict.DIGEST_MISMATCH:
        row = "an older row" if example["failure"] == "F2" else "another row"
        told = f"was {'stored' if fill_us else f'served {times}'} with {row} than the one at its position"
    elif kind == verdict.MISSED_INVALIDATION:
        told = f"changed, and was not invalidated in the {longest} that followed, though progress names the change"
    else:
        return f"{name}: {verdict.KIND_BY_NAME[kind].meaning}."
    return f"{name} {told}."


def read_events(evidence: Sequence[Any]) -> list[Event]:
    """The records that have a lane and a time. A change was committed when its log says so, or when it was received,
    if that is earlier."""
    events = []
    for each in evidence:
        record = each.get("record") if isinstance(each, dict) else None
        role = each.get("role") if isinstance(each, dict) else None
        if role not in _LANES or not isinstance(record, dict):
            continue
        begin_us, end_us = record.get("begin_us"), record.get("end_us")
        what = str(record.get("outcome") or "")
        if role == "change":
            known = [us for us in (record.get("timestamp_us"), record.get("received_us")) if us and us > 0]
            begin_us = end_us = min(known, default=None)
            what = " ".join(str(record[name]) for name in ("op", "table") if record.get(name))
        if begin_us and end_us:
            events.append(Event(role, begin_us, max(begin_us, end_us), what))
    return events


def _find_bad(example: Mapping[str, Any], events: Sequence[Event]) -> tuple[str, int, int] | None:
    """(the lane, from when, until when) in which the cache did what it must not."""
    if not verdict.KIND_BY_NAME[example["kind"]].is_poison or not events:
        return None
    if example["kind"] == verdict.MISSED_INVALIDATION:
        return "invalidation", events[0].begin_us, events[0].begin_us + (example.get("longest_us") or 0)
    role = events[-1].role
    first_us, last_us = example.get("first_us"), example.get("last_us")
    if role not in ("fill", "hit") or not first_us or not last_us:
        return None
    return role, first_us, last_us


def _find_limit(example: Mapping[str, Any], events: Sequence[Event]) -> int | None:
    """From when on the value must not be stored or served."""
    acked_us = min((each.end_us for each in events if each.role == "invalidation"), default=None)
    last_us, longest_us = example.get("last_us"), example.get("longest_us")
    if acked_us or not last_us or not longest_us:
        return acked_us
    return last_us - longest_us if example["kind"] in (verdict.STALE_HIT, verdict.DEAD_LIFE_HIT) else None


def draw_timeline(example: Mapping[str, Any]) -> str:
    """The picture; "" where fewer than two times are known."""
    events = read_events(example["evidence"])
    bad = _find_bad(example, events)
    since_us = _find_limit(example, events)
    if example["kind"] == verdict.DEAD_LIFE_HIT and since_us:
        events.append(Event("life", since_us, since_us, ""))
    times = [us for each in events for us in (each.begin_us, each.end_us)] + list(bad[1:] if bad else ())
    if len(set(times)) < 2:
        return ""
    begin_us, span_us = min(times), max(times) - min(times)
    roles = [role for role in _LANES if any(role == each.role for each in events) or (bad and bad[0] == role)]
    height = 28 + len(roles) * _LANE

    def x(at_us: int) -> float:
        return _LEFT + (at_us - begin_us) / span_us * _ROOM

    def since(at_us: int) -> str:
        return f"+{format_seconds((at_us - begin_us) / 1e6)}" if at_us > begin_us else "0"

    parts = []
    if bad and since_us and bad[2] > since_us:
        parts.append(draw_rect(x(since_us), 18, x(bad[2]) - x(since_us), height - 18, "var(--faint)"))
    for at_us in _ticks(span_us):
        at = x(begin_us + at_us)
        parts.append(draw_line(at, 18, at, height))
        parts.append(draw_text(at, 12, since(begin_us + at_us), kind="soft", anchor="middle"))
    for at, role in enumerate(roles):
        y = 20.0 + at * _LANE
        parts.append(draw_text(0, y + 20, _LANES[role]))
        parts.append(draw_line(_LEFT, y + 15, _LEFT + _ROOM, y + 15))
        if bad and bad[0] == role:
            told = f"{since(bad[1])} to {since(bad[2])}" if since(bad[1]) != since(bad[2]) else since(bad[1])
            told += ", never" if role == "invalidation" else f", {example['count']:,} ×"
            parts += _mark(x(bad[1]), x(bad[2]), y, told, "var(--bad)")
            continue
        for each in events:
            if each.role == role:
                told = ": ".join(filter(None, (since(each.end_us), each.what)))
                parts += _mark(x(each.begin_us), x(each.end_us), y, told, "var(--ink)")
    told = f"times since {format_moment(begin_us, '%Y-%m-%d')} UTC"
    return f'{draw(parts, _WIDTH, height, "timeline")}<p class="soft">{told}</p>'


def _mark(left: float, right: float, y: float, told: str, color: str) -> Iterator[str]:
    """A bar, with its label beside it if there is room."""
    wide = max(_MARK, right - left)
    yield draw_rect(left - (_MARK / 2 if wide == _MARK else 0), y + 8, wide, 14, color)
    if right < _LEFT + _ROOM * 0.7:
        yield draw_text(right + 8, y + 20, told)
    elif left > _LEFT + _ROOM * 0.4:
        yield draw_text(left - 8, y + 20, told, anchor="end")
    else:
        yield draw_text((left + right) / 2, y + 19, told, kind="over", anchor="middle")


def _ticks(span_us: int) -> list[int]:
    """Round distances from the beginning."""
    wanted = span_us / _TICKS_MAX
    power = 10 ** floor(log10(wanted)) if wanted >= 1 else 1
    step = next(int(each * power) for each in (1, 2, 5, 10) if each * power >= wanted)
    return list(range(0, span_us + 1, step))


def _list_evidence(records: Sequence[Any]) -> str:
    """The records of an example, each in a line, in their order."""
    rows = []
    for each in records:
        if isinstance(each, dict):
            record = each.get("record")
            rows.append(_evidence_row(each, record if isinstance(record, dict) else {}))
    return format_table(("", "when (UTC)", "position", "what", "whose"), rows, short=(0, 1)) if rows else ""


def _evidence_row(evidence: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[str, ...]:
    pairs = zip(record.get("lineages") or (), record.get("positions") or (), strict=False)
    position = record.get("gtid") or ", ".join(f"{lineage}: {text}" for lineage, text in pairs)
    change = " ".join(str(record[name]) for name in ("op", "table", "key") if record.get(name))
    told = [change] if change else [str(record[name]) for name in ("outcome", "node") if record.get(name)]
    for name in ("version", "observed"):
        if record.get(name) is not None:
            told.append(f"{name} {record[name]}")
    at_us = record.get("begin_us") or record.get("timestamp_us")
    return (
        str(evidence.get("role", "")),
        format_moment(at_us, "%m-%d") if at_us else "",
        str(position),
        ", ".join(told) or "the record is not in this history",
        f"{evidence.get('name', '')} #{evidence.get('sequence', '')}",
    )
