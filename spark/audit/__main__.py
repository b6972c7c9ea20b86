"""The command line of the audit by replay: ``freshness-spark audit``, or spark-submit with this file.

Parses the options, calls `spark.audit.job.audit`, and writes the report. Exit codes: 0 clean, 2 usage or history that
cannot be understood, 3 not decided, 5 poison. See docs/spark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from freshness.errors import ConfigError, FormatError, FreshnessError, required_packages

with required_packages("spark.audit", "spark"):
    from rich.console import Console

    from spark.arguments import parse_arguments
    from spark.audit.engine.local import LocalEngine
    from spark.audit.engine.progress import Progress
    from spark.audit.engine.step import Engine
    from spark.audit.input.recording import list_files, open_actions, open_changes
    from spark.audit.input.window import ALL, Window
    from spark.audit.job import audit
    from spark.audit.model.finding import Rules
    from spark.audit.report.page import write_report
    from spark.audit.report.summary import Summary, print_summary
    from spark.audit.report.trend_table import append_audit, open_tables
    from spark.audit.shuffle.state import load_state, save_state
    from spark.audit.shuffle.survey import Scope
    from spark.folder import open_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ENGINES: Final = ("auto", "local", "spark")
LOCAL_BYTES_MAX: Final = 8 << 30
"""Files up to which one process audits a history, about 100 million events."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit."""


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the job and write its report. A session that is handed over is not stopped."""
    options = _parse(arguments)
    console = Console(stderr=True)
    try:
        with open_engine(
            options.engine,
            (options.archive, options.history),
            Progress(None if options.json else console),
            master=options.master,
            session=session,
        ) as engine:
            summary = _run(engine, options)
    except FreshnessError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if options.json:
        sys.stdout.write(json.dumps(summary.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        print_summary(summary, Console(width=None if sys.stdout.isatty() else 160))
    return summary.exit_code


@contextmanager
def open_engine(
    wanted: str,
    folders: Sequence[str],
    progress: Progress,
    *,
    master: str | None = None,
    session: SparkSession | None = None,
) -> Iterator[Engine]:
    """The engine of one audit of ``folders``. ``wanted``: one of `ENGINES`; "auto" is Spark for a session or a master
    that was given, under spark-submit, and for more than `LOCAL_BYTES_MAX`. Raises the errors of the steps, without
    Spark's words around them."""
    is_spark = session is not None or master is not None or _SUBMITTED in os.environ
    if wanted == "auto" and not is_spark:
        size = sum(info.size for each in folders for info in list_files(open_folder(each)))
        is_spark = size > LOCAL_BYTES_MAX
        progress.tell(f"engine: {'spark' if is_spark else 'local'}, for {size / 1e6:,.1f} MB of history")
    if wanted == "local" or not (is_spark or wanted == "spark"):
        yield LocalEngine(progress)
        return
    with required_packages("spark.audit on Spark", "spark"):
        from spark.audit.engine.cluster import open_spark
    with open_spark(progress, master, session) as engine:
        yield engine


def _run(engine: Engine, options: argparse.Namespace) -> Summary:
    rules = Rules(
        0,
        clock_error_us=round(options.clock_error_seconds * 1e6),
        missed_after_us=round(options.missed_after_seconds * 1e6),
        view_us=round(options.node_refresh_seconds * 1e6),
    )
    window = _window(options)
    report = open_folder(options.report)
    before = open_folder(options.state) if options.state else None
    after = open_folder(options.save_state) if options.save_state else None
    tables = open_tables(options.tables) if options.tables else None
    for folder in filter(None, (report, after)):
        engine.require_shared(folder)  # now, and not after hours
    if tables:
        tables.require()
    actions = open_actions(engine, options.history, window)
    if after and actions.unfinished:
        raise ConfigError(
            f"{actions.unfinished[0]} is not finished, and a state would be without its actions",
            hint="stop its writer, or audit without --save-state; move the file away if its writer was killed",
        )
    result = audit(
        engine,
        open_changes(engine, options.archive, window),
        actions,
        rules=rules,
        scope=Scope(
            as_of_us=_time_us("--as-of", options.as_of),
            window=window,
            previous=load_state(before) if before else None,
        ),
        pieces=options.partitions,
    )
    try:
        write_report(result.summary, result.violations, report)
        if tables:
            append_audit(result.summary, result.violations, tables)
        if after:
            save_state(result.carry, after, round(options.carry_days * 86_400e6))
    finally:
        result.close()
    return result.summary


def _window(options: argparse.Namespace) -> Window:
    if options.since is options.until is None:
        return ALL
    others = {"--state": options.state, "--save-state": options.save_state, "--as-of": options.as_of}
    for name in (name for name, value in others.items() if value is not None):
        raise ConfigError(
            f"--from and --to do not go with {name}", hint="a state says itself what was judged; --to is as --as-of"
        )
    begin_us, end_us = _time_us("--from", options.since), _time_us("--to", options.until)
    window = Window(
        ALL.from_us if begin_us is None else begin_us,
        ALL.to_us if end_us is None else end_us,
        round(options.carry_days * 86_400e6),
    )
    if window.from_us >= window.to_us:
        raise ConfigError(f"--from {options.since} is not before --to {options.until}", hint="exchange them?")
    return window


def _time_us(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise FormatError(f"{option} {text!r}", hint="expected a time as in 2026-01-31T00:00:00Z") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="freshness-spark audit", description="Replay history and judge it.")
    parser.add_argument("--archive", required=True, help="folder of the archived update stream")
    parser.add_argument("--history", required=True, help="folder of the recorded cache history")
    parser.add_argument("--report", required=True, help="folder to write the report to")
    parser.add_argument("--as-of", help="judge no action after this time (ISO 8601, UTC where no zone is given)")
    parser.add_argument(
        "--from", dest="since", metavar="TIME", help="judge later actions alone; the --carry-days before are evidence"
    )
    parser.add_argument(
        "--to",
        dest="until",
        metavar="TIME",
        help="judge no action after this time, nor read files that only have later ones",
    )
    parser.add_argument("--state", help="folder that an earlier audit saved with --save-state")
    parser.add_argument("--save-state", help="folder to save what the next audit needs")
    parser.add_argument("--carry-days", type=float, default=7, help="how far back state and evidence reach")
    parser.add_argument("--clock-error-seconds", type=float, default=0.5, help="what two clocks may differ")
    parser.add_argument("--missed-after-seconds", type=float, default=60, help="how late an invalidation may be")
    parser.add_argument("--node-refresh-seconds", type=float, default=2, help="how old a reader's records may be")
    parser.add_argument(
        "--tables",
        metavar="TABLES",
        help="add this audit to the tables of all: FOLDER, delta:FOLDER, iceberg:CATALOG.NAMESPACE",
    )
    parser.add_argument("--partitions", type=int, help="pieces that the replay is cut into")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="one process or Spark; by default by the size of the history, and Spark with --master",
    )
    return parse_arguments(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
