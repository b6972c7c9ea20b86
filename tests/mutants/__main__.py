"""The mutants on the command line: ``make mutants``, ``python -m tests.mutants --help``.

Tools like mutmut and cosmic-ray make mutants automatically. They change operators and constants everywhere: in
this code tens of thousands of times, which takes days, and most survivors change nothing that matters. This list is
written by hand: each mutant takes out one defence, and names the layer of tests that has to notice.

Exit code 0: every mutant is killed; 1: one survives, or its tests fail without it; 2: usage, or a list that no longer
fits the code.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tests.mutants.catalogue import Mutant, load
from tests.mutants.trial import Verdict, try_all

TREE = Path(__file__).resolve().parent.parent.parent


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    mutants = [each for each in load() if _is_chosen(each, options.only, is_sample=options.sample)]
    console = Console(stderr=True)
    if not mutants:
        console.print("no mutant is chosen")
        return 2
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("mutants", total=len(mutants))

            def tell(verdict: Verdict) -> None:
                progress.advance(task)
                if not verdict.is_good:
                    progress.console.print(f"{verdict.outcome}: {verdict.mutant.path}: {verdict.mutant.breaks}")

            verdicts = try_all(mutants, TREE, options.processes, tell)
    except (ValueError, SyntaxError) as error:
        console.print(f"nothing was tried: {error}", markup=False)
        return 2
    if options.json:
        print(json.dumps([_as_json(verdict) for verdict in verdicts]))  # noqa: T201
    else:
        Console().print(_tell(verdicts))
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=…", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file or sentence has this text")
    parser.add_argument("--sample", action="store_true", help="the few that `make full` tries")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once (one for each core)")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON, alone on stdout")
    return parser


def _is_chosen(mutant: Mutant, text: str, *, is_sample: bool) -> bool:
    return (mutant.is_sample or not is_sample) and (text in mutant.path or text in mutant.breaks)


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        **asdict(verdict.mutant),
        "outcome": verdict.outcome,
        "seconds": round(verdict.seconds, 1),
        "by": verdict.by,
    }


def _tell(verdicts: Sequence[Verdict]) -> Table:
    killed = sum(verdict.outcome in ("killed", "timed out") for verdict in verdicts)
    equivalent = sum(verdict.outcome == "equivalent" for verdict in verdicts)
    table = Table(title=f"{killed} of {len(verdicts)} killed, {equivalent} equivalent", title_justify="left")
    for header in ("file", "it breaks", "outcome", "seconds", "first test that fails, or why it survives"):
        table.add_column(header, overflow="fold")
    for verdict in verdicts:
        reason = verdict.mutant.equivalent or verdict.by
        style = "" if verdict.is_good else "bold red"
        seconds = f"{verdict.seconds:.1f}"
        row = (verdict.mutant.path, verdict.mutant.breaks, verdict.outcome, seconds, reason)
        table.add_row(*map(Text, row), style=style)  # as text: tests have names with brackets
    return table


if __name__ == "__main__":
    sys.exit(main())
