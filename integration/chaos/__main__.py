"""``make chaos SECONDS=600 SEED=7``, ``python -m integration.chaos --help``.

Prints what was read and found, and each fault. ``--write`` adds the run to ``results.json``, from which
docs/testing.md has its table. Exit code 0: no violation; 1: there is one, or with ``--bug`` there is none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from integration.chaos.judge import Verdict
from integration.chaos.planted import BUGS
from integration.chaos.run import audit, find_faults, run_chaos
from integration.chaos.scene import NODE_KINDS, Options
from spark.audit.model.verdict import CLEAN

RESULTS: Final = Path(__file__).resolve().parent / "results.json"
SHOWN: Final = 10


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=60, help="of faults; starting, settling and judging come on top"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flavor", choices=("mariadb", "mysql"), default="mariadb")
    parser.add_argument("--cache", choices=sorted(NODE_KINDS), default="memcached")
    parser.add_argument("--bug", choices=sorted(BUGS), default="", metavar="NAME", help="take this defence out")
    parser.add_argument("--recorded", dest="is_recorded", action="store_true", help="on memcached: audit it, too")
    parser.add_argument(
        "--semisync", dest="is_semisynchronous", action="store_true", help="commits wait for a replica"
    )
    parser.add_argument("--folder", type=Path, help="keep the journals there")
    parser.add_argument("--write", action="store_true", help=f"add the run to {RESULTS.name}")
    chosen = vars(parser.parse_args(arguments))
    kept, is_written = chosen.pop("folder"), chosen.pop("write")
    options = Options(**chosen)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        if kept is not None:
            kept.mkdir(parents=True)
        verdict, lines = run_chaos(kept or Path(folder), options)
        audited = audit(kept or Path(folder)) if options.is_recorded else None
    result = summarize(options, verdict, list(find_faults(lines))) | {"audit": audited}
    show(result, verdict, time.monotonic() - began)
    if is_written:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        if options.bug:
            result = {name: result[name] for name in ("seconds", "seed", "bug", "reads", "violations", "kinds")}
        RESULTS.write_text(json.dumps([*results, result], indent=1) + "\n")
    return int(bool(verdict.violations or audited not in (None, CLEAN)) != bool(options.bug))


def summarize(options: Options, verdict: Verdict, faults: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seconds": options.seconds,
        "seed": options.seed,
        "flavor": options.flavor,
        "cache": options.cache,
        "semisync": options.is_semisynchronous,
        "bug": options.bug,
        "reads": verdict.reads,
        "hits": verdict.hits,
        "writes": verdict.writes,
        "violations": len(verdict.violations),
        "kinds": sorted({each.partition(":")[0] for each in verdict.violations}),
        "judged": dict(sorted(verdict.judged.items())),
        "outcomes": dict(verdict.outcomes.most_common()),
        "refusals": dict(verdict.refusals.most_common()),
        "faults": faults,
    }


def show(result: dict[str, Any], verdict: Verdict, seconds: float) -> None:
    console = Console(width=150)
    table = Table("fault", "times", "values read", "answered", "hits", "slowest read, s", "first hit after it, s")
    for fault in result["faults"]:
        table.add_row(*map(str, fault.values()))
    console.print(table)
    for name in ("judged", "outcomes", "refusals"):
        console.print(f"{name}: {result[name]}")
    for violation in verdict.violations[:SHOWN]:
        console.print(violation, markup=False, style="bold red")
    bound = f", so less than one of {verdict.reads // 3:,} at 95 %" if not verdict.violations else ""
    console.print(
        f"{verdict.reads:,} values read, {verdict.hits:,} from the cache, {verdict.writes:,} commits, "
        f"{len(verdict.violations)} violations{bound}; {seconds:.0f} s in all"
    )


if __name__ == "__main__":
    sys.exit(main())
