"""One run: a scene, its faults, the calm at the end, and the verdict.

The last word is the primary's: when all faults have ended and nothing is written, every key of every object is read
until it is a hit, and each of these reads must be what the primary has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from appclient import Cache
from freshness.database.connection import executed_position
from freshness.position import Position
from integration.chaos.client import open_cache, write_reads
from integration.chaos.faults import INVALIDATORS, lose, strike
from integration.chaos.journal import now_us, read_journals
from integration.chaos.judge import HITS, Bounds, Judge, Verdict
from integration.chaos.scene import LINEAGE, Options, Scene, open_scene
from integration.chaos.shop import GROUPS, NAMES, NOTES, find_keys, find_unit
from integration.harness import wait_covered, wait_until
from integration.servers import ServerFailed
from integration.servers.database import SCHEMA
from spark.audit import __main__ as command

CALM_SECONDS: Final = 240.0
"""Within which everything is cacheable again. Far above what is usual: only a failure takes as long."""
LOSS_SECONDS_MIN: Final = 120
"""A run that is as long loses commits in its middle."""
BEFORE_SECONDS: Final = 3.0
"""Of reads and writes without a fault."""


def all_units() -> list[str]:
    return [f"group {number}" for number in range(GROUPS)] + [f"note {number}" for number in range(NOTES)]


def run_chaos(folder: Path, options: Options) -> tuple[Verdict, list[dict[str, Any]]]:
    """Run it and judge it: the verdict, and all lines of its journals, which stay in ``folder``."""
    with open_scene(folder, options) as scene:
        initial = {unit: 0 if unit.startswith("group") else None for unit in all_units()}
        scene.journal.write("initial", units=initial)
        time.sleep(BEFORE_SECONDS)
        if options.seconds < LOSS_SECONDS_MIN or options.is_recorded:
            strike(scene, options.seconds)
        else:
            strike(scene, options.seconds / 2)
            lose(scene)
            strike(scene, options.seconds / 2)
        (folder / "calm").touch()
        head = settle(scene)
        with scene.lock:
            scene.taken |= set(INVALIDATORS)  # nobody starts them again
        for number, invalidator in enumerate(scene.invalidators):
            (folder / f"invalidator{number}.log").write_text(invalidator.log())
        for program in (*scene.applications, *scene.invalidators):
            program.terminate()  # it completes its part of the history
        if scene.archive is not None:
            scene.archive.finish(head, LINEAGE)
        bounds = Bounds(
            options.flavor,
            scene.config.cache.max_staleness_seconds + scene.config.cache.clock_skew_seconds,
            scene.config.cache.node_refresh_seconds,
            options.is_semisynchronous,
        )
    lines = list(read_journals(folder))
    return Judge(lines, bounds).judge(), lines


def audit(folder: Path) -> int:
    """The exit code of the audit by replay, for the same run."""
    arguments = ["--archive", folder / "archive", "--history", folder / "history", "--report", folder / "report"]
    now = datetime.now(UTC).isoformat()
    return command.main([*map(str, arguments), "--engine", "local", "--clock-error-seconds", "0", "--as-of", now])


def settle(scene: Scene) -> Position:
    """All is read until it is a hit, and written down as of the end, whose position is returned."""
    scene.set_primary(None)
    with scene.writing:
        time.sleep(1)  # a commit that has begun ends
    for replica in scene.databases[1:]:
        replica.wait_caught_up(scene.primary)
    with scene.primary.connect() as connection:
        head = executed_position(connection, scene.options.flavor)
    wait_covered(scene.config, {LINEAGE: head}, scene.describe, seconds=CALM_SECONDS)
    write_rows(scene)
    with closing(open_cache(scene.path)) as cache:
        for name in NAMES:
            try:
                wait_until(partial(read_all, scene, cache, name), "all are hits", seconds=CALM_SECONDS)
            except ServerFailed:
                (scene.folder / "cold.txt").write_text(scene.describe())
                scene.journal.write("cold", name=name)
                break
    return head


def write_rows(scene: Scene) -> None:
    """What the primary has at the end decides which of the unanswered commits are there."""
    rows = {f"note {number}": None for number in range(NOTES)}
    rows |= {f"note {id}": v for id, v in scene.primary.execute("SELECT id, v FROM notes", database=SCHEMA)}
    found = scene.primary.execute("SELECT id, v FROM customers", database=SCHEMA)
    rows |= {find_unit("customer", id): v for id, v in found}
    scene.journal.write("rows", at=now_us(), units=rows)


def read_all(scene: Scene, cache: Cache, name: str) -> bool:
    keys = [key for unit in all_units() for key in find_keys(name, unit)]
    begin = now_us()
    found = cache.get_many(name, keys, explain=True)
    write_reads(scene.journal, name, begin, found, own={}, together=False, final=True)
    return all(each.is_hit for each in found.values())


def find_faults(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By kind of fault, what clients saw during it and after it."""
    reads = sorted((line for line in lines if line["kind"] in ("read", "refused")), key=lambda line: line["end"])
    faults = [line for line in lines if line["kind"] == "fault"]
    for name in sorted({fault["name"] for fault in faults}):
        same = [fault for fault in faults if fault["name"] == name]
        during = [r for f in same for r in reads if r["begin"] < f["end"] and r["end"] > f["begin"]]
        found = [each for line in during if line["kind"] == "read" for each in line["reads"]]
        values = sum(len(shown) for *_, shown in found)
        refused = sum(line["count"] for line in during if line["kind"] == "refused")
        hits = sum(len(shown) for outcome, *_, shown in found if outcome in HITS)
        after = [find_first_hit(reads, fault["end"]) for fault in same]
        yield {
            "fault": name,
            "times": len(same),
            "values": values,
            "answered": round(values / max(1, values + refused), 4),
            "hits": round(hits / max(1, values), 3),
            "slowest_read_seconds": round(max((r["end"] - r["begin"] for r in during), default=0) / 1e6, 1),
            "first_hit_seconds": round(max(after, default=0) / 1e6, 2),
        }


def find_first_hit(reads: list[dict[str, Any]], at: int) -> int:
    """Microseconds from then to the end of the first read that began later and had a hit."""
    return next(
        (
            line["end"] - at
            for line in reads
            if line["kind"] == "read" and line["begin"] >= at and any(each[0] == "HIT" for each in line["reads"])
        ),
        0,
    )
