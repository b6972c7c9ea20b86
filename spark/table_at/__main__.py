"""The command line of a table in the past: ``freshness-spark table_at``, or spark-submit with this file.

``--archive PATH --copy DIR --table NAME --at TIME|ft1.…|fr1.… --out DIR``. Exit codes: 0 written, 2 usage, or copy,
archive and place do not fit together, 3 not yet: the archive or the copy has not come so far, 4 history is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from freshness.errors import ConfigError, FormatError, FreshnessError, required_packages

with required_packages("spark.table_at", "spark"):
    from pyspark.sql import SparkSession

    from freshness.stream.resume import Moment, parse_moment
    from spark.arguments import parse_arguments
    from spark.copy.state import PARQUET
    from spark.failure import SPARK_ERRORS, tell_failure
    from spark.folder import open_local
    from spark.session import using_session
    from spark.table_at.job import TableAt, make_table


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the job and print what it made. A session that is handed over is not stopped."""
    parser = argparse.ArgumentParser(prog="freshness-spark table_at", description="Give a table as it was.")
    parser.add_argument("--archive", required=True, help="folder of the archived update stream, local or mounted")
    parser.add_argument("--copy", help="folder of a copy, as `freshness-spark copy` keeps it")
    parser.add_argument("--table", required=True, help="its name")
    parser.add_argument(
        "--at", required=True, help="a time with its zone, an event token ft1.…, or a resume text fr1.…"
    )
    parser.add_argument("--out", required=True, help="folder to write to; it must not exist")
    parser.add_argument("--format", default=PARQUET, help="of the copy; the table is written as Parquet")
    options = parse_arguments(parser, arguments)
    try:
        moment = _parse_moment(options.at)
        if options.copy is None:
            raise ConfigError(
                "a table from the archive alone: it holds changes, and not the rows before them",
                hint="give --copy, a folder of `freshness-spark copy`; its position may be before or after --at",
            )
        with using_session(session, "freshness table at", options.master) as used:
            copy, out = open_local(options.copy), open_local(options.out)
            result = make_table(used, options.archive, copy, options.table, moment, out, options.format)
    except (FreshnessError, *SPARK_ERRORS) as error:
        return tell_failure(error)
    _print(result, is_json=options.json)
    return 0


def _parse_moment(text: str) -> Moment:
    moment = parse_moment(text)
    if moment is None:
        raise FormatError(
            f"--at {text[:60]!r}",
            hint="expected a time such as 2026-01-31T12:00:00Z, an event token ft1.…, or a resume text fr1.…",
        )
    return moment


def _print(result: TableAt, *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(asdict(result), indent=2) + "\n")
        return
    for lineage, position in result.position.items():
        applied, undone = result.applied[lineage], result.undone[lineage]
        sys.stdout.write(f"{lineage}: at {position}, {applied:,} changes applied, {undone:,} taken back\n")
    sys.stdout.write(f"{result.table}: {result.rows:,} rows in {result.out}\n{result.resume}\n")


if __name__ == "__main__":
    sys.exit(main())
